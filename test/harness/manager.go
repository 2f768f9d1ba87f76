// Package harness runs the real manager against a real API server, for the
// quickstart, the benchmark and the integration tests.
package harness

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/terrace-dev/terrace/test/controlplane"
)

// ManagerOptions say how a manager is started.
type ManagerOptions struct {
	// Kubeconfig of the API server. That of InstallManager has the rights of the
	// shipped roles, the control plane's own has all.
	Kubeconfig string
	// Dir holds the log and, unless Storage says otherwise, the storage.
	Dir string
	// Mode is where runners live: ModePod, the default, or ModeEmbedded. Pods need
	// a kubelet: StartKubelet.
	Mode string
	// Image is that of runner pods; default RunnerImage. Unused if embedded.
	Image string
	// Storage is the directory of artifacts in transit and of the embedded runner;
	// a later manager that is given the same one finds out what an earlier one's
	// embedded runner left unfinished.
	Storage string
	// Program is the manager; default bin/manager.
	Program string
	// Tofu is the program of the embedded runner; default bin/tofu. Pods have theirs
	// from their kubelet.
	Tofu string
	// Namespace is the manager's own; default ManagerNamespace, "default" if embedded.
	Namespace string
	// Args are appended to the manager's flags.
	Args []string
}

// Manager is a running bin/manager.
type Manager struct {
	// Log is the path of its output.
	Log string

	cmd    *exec.Cmd
	health string // the URL that says whether it is ready
	ended  chan struct{}
	err    error // once ended is closed
	stop   sync.Once
}

// Bin is the path of a program in bin/.
func Bin(elements ...string) (string, error) {
	root, err := controlplane.ModuleRoot()
	if err != nil {
		return "", err
	}
	path := filepath.Join(append([]string{root, "bin"}, elements...)...)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%w: run make tools build", err)
	}
	return path, nil
}

// The ways of a manager to have runners, ManagerOptions.Mode.
const (
	ModePod      = "pod"
	ModeEmbedded = "embedded"
)

// complete fills in the defaults.
func (o *ManagerOptions) complete() (err error) {
	if o.Program == "" {
		if o.Program, err = Bin("manager"); err != nil {
			return err
		}
	}
	o.Mode = cmp.Or(o.Mode, ModePod)
	o.Storage = cmp.Or(o.Storage, filepath.Join(o.Dir, "storage"))
	if o.Mode == ModePod {
		o.Image = cmp.Or(o.Image, RunnerImage)
		o.Namespace = cmp.Or(o.Namespace, ManagerNamespace)
		return nil
	}
	o.Namespace = cmp.Or(o.Namespace, "default")
	if o.Tofu == "" {
		o.Tofu, err = Bin("tofu")
	}
	return err
}

// flags are the manager's. Its health endpoint is at address health.
func (o *ManagerOptions) flags(health string) ([]string, error) {
	flags := []string{
		"--runner-mode=" + o.Mode, "--enable-leader-election=false", "--metrics-addr=0", "--events-addr=",
		"--health-addr=" + health, "--storage-path=" + o.Storage,
	}
	if o.Mode == ModePod {
		return append(append(flags, "--runner-image="+o.Image), o.Args...), nil
	}
	cliConfig, err := Bin("providers", "cli.tfrc")
	if err != nil {
		return nil, err
	}
	return append(append(flags, "--tofu-path="+o.Tofu, "--tool-cli-config="+cliConfig), o.Args...), nil
}

// StartManager starts bin/manager and returns when it is ready.
func StartManager(ctx context.Context, options ManagerOptions) (*Manager, error) {
	m, err := LaunchManager(options)
	if err != nil {
		return nil, err
	}
	if err := m.AwaitReady(ctx); err != nil {
		return nil, errors.Join(err, m.Stop())
	}
	return m, nil
}

// LaunchManager starts bin/manager and does not wait for anything.
func LaunchManager(options ManagerOptions) (*Manager, error) {
	if err := options.complete(); err != nil {
		return nil, err
	}
	health, err := freeAddress()
	if err != nil {
		return nil, err
	}
	flags, err := options.flags(health)
	if err != nil {
		return nil, err
	}
	log, err := os.CreateTemp(options.Dir, "manager-*.log")
	if err != nil {
		return nil, err
	}
	defer log.Close()
	m := &Manager{Log: log.Name(), health: "http://" + health + "/readyz", ended: make(chan struct{})}
	// Not CommandContext: the end of the manager is ours to order.
	m.cmd = exec.Command(options.Program, flags...)
	m.cmd.Env = append(os.Environ(), "KUBECONFIG="+options.Kubeconfig, "RUNTIME_NAMESPACE="+options.Namespace)
	m.cmd.Stdout, m.cmd.Stderr = log, log
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // ^C in the terminal is for its parent
	if err := m.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the manager: %w", err)
	}
	go func() {
		m.err = m.cmd.Wait()
		close(m.ended)
	}()
	return m, nil
}

// PID is the manager's process id.
func (m *Manager) PID() int { return m.cmd.Process.Pid }

// Ended is closed when the manager has ended.
func (m *Manager) Ended() <-chan struct{} { return m.ended }

// AwaitReady returns when the manager is ready. The error of one that ended instead
// has the end of its log.
func (m *Manager) AwaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("not ready after a minute"))
	defer cancel()
	for {
		if healthy(ctx, m.health) {
			return nil
		}
		select {
		case <-m.ended:
			return fmt.Errorf("the manager ended: %w\n%s", m.err, m.LastLog())
		case <-ctx.Done():
			return fmt.Errorf("the manager: %w\n%s", context.Cause(ctx), m.LastLog())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// LastLog returns the last lines of the log.
func (m *Manager) LastLog() string {
	text, err := os.ReadFile(m.Log)
	if err != nil {
		return err.Error()
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-15):], []byte("\n")))
}

// Stop ends the manager as Kubernetes does, with SIGTERM, and waits for its end.
func (m *Manager) Stop() error {
	var err error
	m.stop.Do(func() {
		_ = m.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-m.ended:
		case <-time.After(time.Minute):
			err = errors.Join(errors.New("the manager did not end within a minute of SIGTERM"), m.cmd.Process.Kill())
		}
	})
	return err
}

// Kill ends the manager without a warning, as a crash does.
func (m *Manager) Kill() {
	m.stop.Do(func() {
		_ = m.cmd.Process.Kill()
		<-m.ended
	})
}

// freeAddress finds a port of the loopback address.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// healthy asks a health endpoint.
func healthy(ctx context.Context, url string) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	return response.StatusCode == http.StatusOK
}
