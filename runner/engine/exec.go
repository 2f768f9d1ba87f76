package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/terraform-exec/tfexec"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
)

// errInterrupted says that a tool ended because its operation was cancelled.
var errInterrupted = errors.New("interrupted")

// errKilled says that an interrupted tool had to be killed, so that it could not release its lock.
var errKilled = fmt.Errorf("%w and killed", errInterrupted)

// toolError is a tool's unsuccessful end.
type toolError struct {
	command string
	errors  []diagnostic // from a command that speaks JSON
	stderr  string
	killed  bool // by a signal, so that it could not release its lock
	starved bool // the kernel killed something meanwhile, because memory ran out
	cause   error
}

// needsMemory is what to do when memory ran out. The tool cannot know of it.
const needsMemory = "; meanwhile the kernel killed a process of the runner, because its memory limit was reached: raise it in spec.runner.template, or let the module need less"

func (e *toolError) Error() string {
	if e.starved {
		return e.words() + needsMemory
	}
	return e.words()
}

func (e *toolError) words() string {
	if len(e.errors) > 0 {
		return e.errors[0].line()
	}
	if line := firstErrorLine(e.stderr); line != "" {
		return line
	}
	return e.command + ": " + e.cause.Error()
}

func (e *toolError) Unwrap() error { return e.cause }

// exec runs one command of the tool: call starts it through a terraform-exec
// value that serves for this one call, since terraform-exec leaves writers
// behind and is not safe for concurrent use.
//
// Cancellation is ours: terraform-exec panics when its context ends around the
// start of the process, drops the tool's words, and waits for as long as a
// grandchild holds the pipes. So it gets a context that never ends.
func (op *operation) exec(ctx context.Context, w *workspace, command string, messages *messages, call func(context.Context, *tfexec.Terraform) error) error {
	if ctx.Err() != nil {
		return errInterrupted
	}
	op.report.Phase(command)
	tf, err := tfexec.NewTerraform(w.module, op.tool.launcher)
	if err != nil {
		return err
	}
	if err := tf.SetEnv(op.toolEnv(w)); err != nil {
		return terminal(infrav1.InvalidSpecReason, "environment of the runner: %v", err)
	}
	stderr := &tail{limit: 64 << 10}
	tf.SetStderr(stderr)
	_ = os.Remove(w.pidFile())
	op.processes++
	kills := op.engine.options.MemoryKills()

	done := make(chan error, 1)
	go func() {
		// The tool is killed when the thread that started it ends
		// (Pdeathsig), so the thread has to live as long as the tool.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		done <- call(context.WithoutCancel(ctx), tf)
	}()
	err = op.await(ctx, w, done)
	if err == nil {
		return nil // it was done before it could be interrupted
	}
	failure := &toolError{command: command, stderr: op.redact(stderr.String()), cause: err, killed: wasKilled(err)}
	failure.starved = op.engine.options.MemoryKills() > kills
	if ctx.Err() != nil {
		if failure.killed {
			return errKilled
		}
		return errInterrupted
	}
	if messages != nil {
		failure.errors = messages.errors()
	}
	return failure
}

// wasKilled says whether a signal ended the process before it could clean up.
func wasKilled(err error) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled()
}

// await waits for the tool to end, interrupts it when ctx ends, and kills what
// a dead tool left behind holding its pipes.
func (op *operation) await(ctx context.Context, w *workspace, done <-chan error) error {
	p, err := w.awaitProcess(done)
	if p == nil {
		return err
	}
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	interrupted := ctx.Done()
	var kill <-chan time.Time
	for {
		select {
		case err := <-done:
			return err
		case <-interrupted:
			interrupted = nil
			_ = syscall.Kill(p.pid, syscall.SIGINT)
			kill = time.After(op.engine.options.InterruptGrace)
		case <-kill:
			p.killGroup()
		case <-tick.C:
			p.look()
		}
	}
}

// toolEnv is the whole environment of the tool.
func (op *operation) toolEnv(w *workspace) map[string]string {
	env := map[string]string{}
	maps.Copy(env, op.engine.options.Env)
	env["TF_DATA_DIR"] = w.data
	env["TF_CLI_CONFIG_FILE"] = w.cliConfig(op.engine.options.CLIConfig)
	env["CHECKPOINT_DISABLE"] = "1"
	env["KUBE_CONFIG_PATH"] = filepath.Join(op.dir, "kubeconfig")
	if name := op.object.GetWorkspace(); name != "default" {
		env["TERRACE_WORKSPACE"] = name
	}
	return env
}

// tail keeps the last bytes written to it.
type tail struct {
	mu    sync.Mutex
	limit int
	buf   []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - t.limit; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}
