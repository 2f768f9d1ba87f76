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
	// Kubeconfig of the API server.
	Kubeconfig string
	// Dir holds the log and, unless Storage says otherwise, the runner's files.
	Dir string
	// Storage is the embedded runner's directory; a later manager that is given
	// the same one finds out what an earlier one left unfinished.
	Storage string
	// Program is the manager; default bin/manager.
	Program string
	// Tofu is the program to run; default bin/tofu.
	Tofu string
	// Namespace is the manager's own; default "default".
	Namespace string
	// Args are appended to the manager's flags.
	Args []string
}

// Manager is a running bin/manager.
type Manager struct {
	// Log is the path of its output.
	Log string

	cmd   *exec.Cmd
	ended chan struct{}
	err   error // once ended is closed
	stop  sync.Once
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

// StartManager starts bin/manager and returns when it is ready.
func StartManager(ctx context.Context, options ManagerOptions) (*Manager, error) {
	var err error
	if options.Program == "" {
		if options.Program, err = Bin("manager"); err != nil {
			return nil, err
		}
	}
	if options.Tofu == "" {
		if options.Tofu, err = Bin("tofu"); err != nil {
			return nil, err
		}
	}
	cliConfig, err := Bin("providers", "cli.tfrc")
	if err != nil {
		return nil, err
	}
	if options.Storage == "" {
		options.Storage = filepath.Join(options.Dir, "storage")
	}
	health, err := freeAddress()
	if err != nil {
		return nil, err
	}
	log, err := os.CreateTemp(options.Dir, "manager-*.log")
	if err != nil {
		return nil, err
	}
	defer log.Close()
	m := &Manager{Log: log.Name(), ended: make(chan struct{})}
	// Not CommandContext: the end of the manager is ours to order.
	m.cmd = exec.Command(options.Program, append([]string{
		"--runner-mode=embedded", "--enable-leader-election=false", "--metrics-addr=0", "--events-addr=",
		"--health-addr=" + health, "--storage-path=" + options.Storage,
		"--tofu-path=" + options.Tofu, "--tool-cli-config=" + cliConfig,
	}, options.Args...)...)
	m.cmd.Env = append(os.Environ(), "KUBECONFIG="+options.Kubeconfig, "RUNTIME_NAMESPACE="+cmp.Or(options.Namespace, "default"))
	m.cmd.Stdout, m.cmd.Stderr = log, log
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // ^C in the terminal is for its parent
	if err := m.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the manager: %w", err)
	}
	go func() {
		m.err = m.cmd.Wait()
		close(m.ended)
	}()
	if err := m.awaitReady(ctx, "http://"+health+"/readyz"); err != nil {
		return nil, errors.Join(err, m.Stop())
	}
	return m, nil
}

// PID is the manager's process id.
func (m *Manager) PID() int { return m.cmd.Process.Pid }

// Ended is closed when the manager has ended.
func (m *Manager) Ended() <-chan struct{} { return m.ended }

func (m *Manager) awaitReady(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("not ready after a minute"))
	defer cancel()
	for {
		if healthy(ctx, url) {
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
