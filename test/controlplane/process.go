package controlplane

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
)

// process is a program that ends, at the latest, with this one.
type process struct {
	name string
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed when the process has ended
	err  error         // how it ended; read it after done
}

// startProcess starts a program and has it write what it prints to the file log.
func startProcess(name, path, log string, args ...string) (*process, error) {
	output, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer output.Close()

	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = output, output
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.TempDir()}
	cmd.SysProcAttr = endWithParent()
	if err := startOnLastingThread(cmd); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	p := &process{name: name, cmd: cmd, log: log, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// kill ends the process and returns when it is gone.
func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("killing %s: %w", p.name, err)
	}
	<-p.done
	return nil
}

// failure describes a process that ended by itself, with its last words.
func (p *process) failure() error {
	return fmt.Errorf("%s ended (%w):\n%s", p.name, p.err, p.tail())
}

// tail returns the end of what the process printed.
func (p *process) tail() []byte {
	const lines = 20
	content, err := os.ReadFile(p.log)
	if err != nil {
		return []byte(err.Error())
	}
	all := bytes.Split(bytes.TrimSpace(content), []byte("\n"))
	return bytes.Join(all[max(0, len(all)-lines):], []byte("\n"))
}

type startRequest struct {
	cmd    *exec.Cmd
	result chan<- error
}

// lastingThread runs one goroutine that keeps its thread for ever. The kernel
// ends children by Pdeathsig when the thread that started them ends, not the
// process, and Go ends threads as it likes: any other thread would do by luck.
var lastingThread = sync.OnceValue(func() chan<- startRequest {
	requests := make(chan startRequest)
	go func() {
		runtime.LockOSThread()
		for r := range requests {
			r.result <- r.cmd.Start()
		}
	}()
	return requests
})

func startOnLastingThread(cmd *exec.Cmd) error {
	result := make(chan error)
	lastingThread() <- startRequest{cmd, result}
	return <-result
}
