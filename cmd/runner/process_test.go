//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/terrace-dev/terrace/internal/pki"
	"github.com/terrace-dev/terrace/runner"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// patience is how long a test waits for something that should happen at once.
const patience = 60 * time.Second

// program is the real one, built once.
var program = sync.OnceValues(func() (string, error) {
	path := filepath.Join(buildDir, "runner")
	output, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, output)
	}
	return path, err
})

var buildDir string

func TestMain(m *testing.M) {
	var err error
	if buildDir, err = os.MkdirTemp("", "runner-test-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(buildDir)
	os.Exit(code)
}

// slowTool stands in for OpenTofu: its plan ends only when it is interrupted, and takes a while to save its state then.
const slowTool = `#!/bin/sh
case "$1" in
version) echo '{"terraform_version": "1.12.0"}';;
init) echo '{"backend": {"type": "http"}}' >"$TF_DATA_DIR/terraform.tfstate";;
plan)
	trap 'sleep 2; echo saved >>"$HOME/said"; exit 1' INT
	echo planning >>"$HOME/said"
	while :; do sleep 0.05; done;;
esac
`

// pod is what a runner pod consists of.
type pod struct {
	t               *testing.T
	ca              *issuer
	ip              string
	tlsDir, dataDir string
	home, tool      string
	kubeconfig      string
	log             string
}

func newPod(t *testing.T) *pod {
	t.Helper()
	// An API server that has nothing and takes everything.
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet || r.Method == http.MethodDelete {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`))
			return
		}
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		_, _ = io.Copy(w, r.Body)
	}))
	t.Cleanup(api.Close)
	dir := t.TempDir()
	p := &pod{
		t: t, ca: newIssuer(t), kubeconfig: writeKubeconfig(t, api.URL),
		tlsDir: filepath.Join(dir, "tls"), dataDir: filepath.Join(dir, "data"), log: filepath.Join(dir, "log"), tool: filepath.Join(dir, "tofu"),
		ip: fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(250), rand.IntN(250), 1+rand.IntN(250)),
	}
	p.home = filepath.Join(p.dataDir, "home")
	if err := errors.Join(os.Mkdir(p.tlsDir, 0o700), os.WriteFile(p.tool, []byte(slowTool), 0o700)); err != nil {
		t.Fatal(err)
	}
	p.ca.issue(runnerName, 20*time.Hour).mount(t, p.tlsDir)
	return p
}

// run starts the container, as a process group of its own.
func (p *pod) run() *exec.Cmd {
	p.t.Helper()
	path, err := program()
	if err != nil {
		p.t.Fatal(err)
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		p.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(path, "--listen="+p.ip, "--tls-dir="+p.tlsDir, "--data-dir="+p.dataDir, "--tofu-path="+p.tool)
	name, namespace, _ := strings.Cut(runnerName, ".")
	cmd.Env = []string{
		"PATH=/usr/bin:/bin", "HOME=" + p.home, "TMPDIR=" + p.t.TempDir(),
		envPodName + "=" + name, envPodNamespace + "=" + namespace, envKubeconfig + "=" + p.kubeconfig, envMemoryLimit + "=536870912",
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			_ = cmd.Wait()
		}
		if p.t.Failed() {
			p.t.Logf("the runner says:\n%s", p.said(p.log))
		}
	})
	return cmd
}

func (p *pod) said(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	return string(text)
}

// connect is what the manager does.
func (p *pod) connect() (*runner.Client, *runnerpb.HandshakeResponse) {
	p.t.Helper()
	leaves, err := p.ca.ca.IssueClients(0)
	if err != nil {
		p.t.Fatal(err)
	}
	source := pki.ClientConfig(func() (*pki.Credentials, error) {
		return &pki.Credentials{Certificates: leaves, Roots: p.ca.ca.Pool()}, nil
	}, runnerName)
	client, err := runner.Dial(net.JoinHostPort(p.ip, strconv.Itoa(runner.Port)), source)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = client.Close() })
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	hello, err := client.Connect(ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	return client, hello
}

// wait returns the exit code.
func (p *pod) wait(cmd *exec.Cmd) int {
	p.t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-ended:
		return cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-ended
		p.t.Fatal("the runner did not end")
		return 0
	}
}

func (p *pod) signal(cmd *exec.Cmd, signal syscall.Signal) {
	p.t.Helper()
	if err := cmd.Process.Signal(signal); err != nil {
		p.t.Error(err)
	}
}

func TestAnIdleRunnerEndsWhenItIsTold(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	cmd := p.run()
	_, hello := p.connect() // and stays so
	if hello.GetCapacity() != 1 || len(hello.GetTools()) == 0 {
		t.Errorf("the runner says %v", hello)
	}
	p.signal(cmd, syscall.SIGTERM)
	if code := p.wait(cmd); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestASecondSignalCutsNothingShort(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	cmd := p.run()
	client, _ := p.connect()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := client.Start(ctx, &runnerpb.StartOperationRequest{
		Id: "op-1", Type: runnerpb.OperationType_OPERATION_TYPE_PLAN,
		Object: []byte(`{"apiVersion":"infra.terrace.dev/v1alpha1","kind":"Terraform","metadata":{"namespace":"apps","name":"net","uid":"u1"},
			"spec":{"interval":"1h","inline":{"main.tf":"locals {}"},"backend":{"none":{}}}}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	saying := filepath.Join(p.home, "said")
	results := make(chan *runnerpb.Result, 1)
	go func() {
		result, err := client.Watch(ctx, "op-1", 0, nil)
		if err != nil {
			t.Error(err)
		}
		results <- result
	}()
	for !strings.Contains(p.said(saying), "planning") {
		select {
		case result := <-results:
			t.Fatalf("it ended before it was interrupted: %v", result)
		case <-ctx.Done():
			t.Fatal("the tool never ran")
		case <-time.After(10 * time.Millisecond):
		}
	}
	for range 3 {
		p.signal(cmd, syscall.SIGTERM)
		time.Sleep(100 * time.Millisecond) // else the kernel makes one of them
	}
	code := p.wait(cmd)
	if said := p.said(saying); code != 0 || said != "planning\nsaved\n" {
		t.Errorf("exit code %d, the tool said %q", code, said)
	}
	if result := <-results; result.GetFailure().GetReason() != runner.ReasonShutdown {
		t.Errorf("the manager got %v", result)
	}
}

func TestARestartedContainerHasTheRenewedCredentials(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	cmd := p.run()
	client, _ := p.connect()
	next := p.ca.issue(runnerName, 23*time.Hour)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := client.Rotate(ctx, next.Certificate, next.Key, p.ca.issue("x", time.Hour).Key); !errors.Is(err, runner.ErrInvalid) {
		t.Errorf("authorities that are a key: %v", err)
	}
	if err := client.Rotate(ctx, next.Certificate, next.Key, next.Authorities); err != nil {
		t.Fatal(err)
	}
	serial := client.PeerCertificate().SerialNumber
	if renewed, _ := p.connect(); renewed.PeerCertificate().SerialNumber.Cmp(serial) != 0 {
		t.Error("a new connection gets the old certificate")
	}
	p.signal(cmd, syscall.SIGKILL)
	p.wait(cmd)

	p.ca.issue(runnerName, -time.Hour).mount(t, p.tlsDir) // as if a day had passed
	cmd = p.run()
	if again, _ := p.connect(); again.PeerCertificate().SerialNumber.Cmp(serial) != 0 {
		t.Error("the next process has another certificate")
	}
	p.signal(cmd, syscall.SIGTERM)
	p.wait(cmd)

	if err := os.Remove(filepath.Join(p.dataDir, credentialsFile)); err != nil {
		t.Fatal(err)
	}
	if code := p.wait(p.run()); code != 1 {
		t.Errorf("without valid credentials it ended with %d", code)
	}
	log := p.said(p.log)
	if !strings.Contains(log, "runner: no valid credentials for "+runnerName) || strings.Contains(log, "PRIVATE KEY") {
		t.Errorf("the log says %s", log)
	}
}

func TestAForgottenRunnerEnds(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	opts := &options{
		listen: p.ip, tlsDir: p.tlsDir, dataDir: p.dataDir, tofuPath: p.tool, kubeconfig: p.kubeconfig,
		podName: "terrace-runner-abc", namespace: "apps", idleTimeout: 50 * time.Millisecond,
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := setup(ctx, opts); err != nil || ctx.Err() != nil {
		t.Errorf("it ended with %v, %v", err, ctx.Err())
	}
}
