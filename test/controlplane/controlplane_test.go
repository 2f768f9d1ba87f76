package controlplane

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestMain(m *testing.M) {
	if os.Getenv(helperVariable) != "" {
		helper()
	}
	os.Exit(m.Run())
}

func TestControlPlaneServesAndStops(t *testing.T) {
	t.Parallel()
	audit := filepath.Join(t.TempDir(), "audit.log")
	begin := time.Now()
	cp, err := Start(Options{FluxCRDs: true, AuditLog: audit})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cp.Stop() })
	t.Logf("started in %v", time.Since(begin).Round(time.Millisecond))

	first, second := cp.Namespace(t), cp.Namespace(t)
	if first == second {
		t.Errorf("two tests share the namespace %s", first)
	}
	createSource(t, newClient(t, cp.Config), first)
	createThroughKubeconfig(t, cp.Kubeconfig, first)
	refuseUnknownUser(t, cp.Config, first)
	checkAuditLog(t, audit, first)

	if err := cp.Stop(); err != nil {
		t.Errorf("Stop: %v", err)
	}
	if err := cp.Stop(); err != nil {
		t.Errorf("Stop, once more: %v", err)
	}
	for _, p := range cp.processes {
		if alive(p.cmd.Process.Pid) {
			t.Errorf("%s outlives Stop", p.name)
		}
	}
	if _, err := os.Stat(cp.dir.path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s outlives Stop", cp.dir.path)
	}
	if _, err := os.Stat(audit); err != nil {
		t.Errorf("the audit log does not outlive Stop: %v", err)
	}
}

// createSource proves that the definitions of Flux are served.
func createSource(t *testing.T, c client.Client, namespace string) {
	t.Helper()
	source := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "source.toolkit.fluxcd.io/v1",
		"kind":       "GitRepository",
		"metadata":   map[string]any{"name": "source", "namespace": namespace},
		"spec":       map[string]any{"interval": "1m", "url": "https://example.com/repository"},
	}}
	if err := c.Create(t.Context(), source); err != nil {
		t.Errorf("creating a GitRepository: %v", err)
	}
}

func createThroughKubeconfig(t *testing.T, kubeconfig, namespace string) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "object", Namespace: namespace}}
	if err := newClient(t, config).Create(t.Context(), object); err != nil {
		t.Errorf("creating a ConfigMap: %v", err)
	}
	if object.UID == "" {
		t.Error("the object that was created has no UID")
	}
}

func refuseUnknownUser(t *testing.T, config *rest.Config, namespace string) {
	t.Helper()
	config = rest.CopyConfig(config)
	config.Impersonate.UserName = "nobody"
	key := client.ObjectKey{Namespace: namespace, Name: "object"}
	if err := newClient(t, config).Get(t.Context(), key, &corev1.ConfigMap{}); !apierrors.IsForbidden(err) {
		t.Errorf("an unknown user gets %v, want Forbidden", err)
	}
}

func checkAuditLog(t *testing.T, path, namespace string) {
	t.Helper()
	events, err := ReadAuditLog(path)
	if err != nil {
		t.Fatal(err)
	}
	var created, refused int
	for _, e := range events {
		if e.ObjectRef == nil || e.ObjectRef.Namespace != namespace || e.ObjectRef.Resource != "configmaps" {
			continue
		}
		if e.IsWrite() && e.Verb == "create" && e.ObjectRef.Name == "object" && e.ResponseStatus.Code == 201 {
			created++
		}
		if e.ImpersonatedUser != nil && e.ImpersonatedUser.Username == "nobody" && e.ResponseStatus.Code == 403 {
			refused++
		}
	}
	if created != 1 || refused != 1 {
		t.Errorf("the audit log has %d creations and %d refusals, want one of each", created, refused)
	}
}

func TestStartSaysWhyItFailed(t *testing.T) {
	t.Parallel()
	cp, err := Start(Options{APIServerArgs: []string{"--no-such-flag"}})
	if err == nil {
		_ = cp.Stop()
		t.Fatal("Start accepts an unknown flag")
	}
	if !strings.Contains(err.Error(), "no-such-flag") {
		t.Errorf("the error does not name the cause: %v", err)
	}
}

func TestStartNamesMissingPrograms(t *testing.T) {
	t.Parallel()
	_, err := Start(Options{AssetsDir: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "make tools") {
		t.Errorf("the error does not say what to do: %v", err)
	}
}

// helperVariable makes the test program start a control plane, print the
// identifiers of its processes and its directory, and wait to be killed.
const helperVariable = "TERRACE_CONTROLPLANE_HELPER"

func helper() {
	cp, err := Start(Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, p := range cp.processes {
		fmt.Println(p.cmd.Process.Pid)
	}
	fmt.Println(cp.dir.path)
	runtime.GC() // some threads may end now; the children must not
	select {}
}

func TestProcessesEndWithAKilledParent(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ends children with their parent")
	}
	t.Parallel()
	temp, err := os.MkdirTemp("", "terrace-test-") //nolint:usetesting // the path of a Unix socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(temp) })

	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), helperVariable+"=1", "TMPDIR="+temp)
	cmd.Stderr = os.Stderr
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pids, dir := readHelper(t, output)
	for _, pid := range pids {
		if !alive(pid) {
			t.Errorf("process %d ended too early", pid)
		}
	}

	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	for _, pid := range pids {
		for deadline := time.Now().Add(20 * time.Second); alive(pid); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("process %d outlives its parent", pid)
			}
		}
	}
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("the helper's directory: %v", err)
	}
}

func readHelper(t *testing.T, output io.Reader) (pids []int, dir string) {
	t.Helper()
	scanner := bufio.NewScanner(output)
	for scanner.Scan() {
		pid, err := strconv.Atoi(scanner.Text())
		if err != nil {
			return pids, scanner.Text()
		}
		pids = append(pids, pid)
	}
	t.Fatal("the helper did not start")
	return nil, ""
}

func TestAbandonedDirectoriesAreRemoved(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	used, err := newWorkDir()
	if err != nil {
		t.Fatal(err)
	}
	abandoned := filepath.Join(os.TempDir(), workDirPrefix+"abandoned")
	fresh := filepath.Join(os.TempDir(), workDirPrefix+"fresh")
	for _, dir := range []string{abandoned, fresh} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	past := time.Now().Add(-time.Hour)
	for _, dir := range []string{used.path, abandoned} {
		if err := os.Chtimes(dir, past, past); err != nil {
			t.Fatal(err)
		}
	}

	removeAbandoned()
	for dir, want := range map[string]bool{used.path: true, fresh: true, abandoned: false} {
		if _, err := os.Stat(dir); (err == nil) != want {
			t.Errorf("%s exists: %v, want %v", dir, err == nil, want)
		}
	}
	if err := used.close(); err != nil {
		t.Error(err)
	}
}

func TestNamespacePrefix(t *testing.T) {
	t.Parallel()
	for test, want := range map[string]string{
		"TestApply":                      "test-apply-",
		"TestApply/with_a plan (twice)":  "test-apply-with-a-plan--twice-",
		"Test" + strings.Repeat("x", 99): "test-" + strings.Repeat("x", 40) + "-",
	} {
		if got := namespacePrefix(test); got != want {
			t.Errorf("namespacePrefix(%q) = %q, want %q", test, got, want)
		}
	}
}

// TestFluxVersionIsTheModules keeps the definitions and the Go types together:
// source-controller and its api module are released under the same number.
func TestFluxVersionIsTheModules(t *testing.T) {
	t.Parallel()
	root, err := ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	gomod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(gomod)) {
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		if len(fields) >= 2 && fields[0] == "github.com/fluxcd/source-controller/api" {
			if fields[1] != FluxVersion() {
				t.Errorf("go.mod has source-controller/api %s, crds/ is of %s: run hack/flux-crds.sh", fields[1], FluxVersion())
			}
			return
		}
	}
	t.Error("go.mod does not require github.com/fluxcd/source-controller/api")
}

func newClient(t *testing.T, config *rest.Config) client.Client {
	t.Helper()
	c, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }
