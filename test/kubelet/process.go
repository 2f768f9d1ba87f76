package kubelet

import (
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// process is a running container: a program and all that it starts. When the
// program ends, however that happens, the rest is killed.
type process struct {
	cmd  *exec.Cmd
	kin  kinship
	done chan struct{} // closed when nothing of it is left

	mu     sync.Mutex
	reaped bool // the process id may be another's
	reason string
}

// startProcess starts a command as a container of the pod. When nothing of it is
// left it calls ended.
func (k *Kubelet) startProcess(cmd *exec.Cmd, pod *pod, ended func()) (*process, error) {
	cmd.Env = append(cmd.Env, Mark+"="+string(pod.uid))
	k.isolation.apply(cmd, pod.hostname())
	var err error
	k.threads.do(func() { err = cmd.Start() })
	if err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, done: make(chan struct{}), kin: newKinship(cmd.Process.Pid, string(pod.uid), pod.dir, k.isolation)}
	go func() {
		awaitExit(p.pid())
		p.kin.sweep()
		p.mu.Lock()
		_ = cmd.Wait() // at once, it has ended
		p.reaped = true
		p.mu.Unlock()
		p.kin.close()
		close(p.done)
		ended()
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// state is how the program ended and the reason it was killed for, once done is closed.
func (p *process) state() (*os.ProcessState, string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.ProcessState, p.reason
}

// terminate asks the program to end.
func (p *process) terminate() { p.send(p.pid(), syscall.SIGTERM) }

// killedFor kills the program; what it started follows.
func (p *process) killedFor(reason string) {
	p.mu.Lock()
	if p.reason == "" {
		p.reason = reason
	}
	p.mu.Unlock()
	p.send(-p.pid(), syscall.SIGKILL)
}

// signalAll sends a signal to the program and to all that it started.
func (p *process) signalAll(s syscall.Signal) {
	p.send(-p.pid(), s)
	for _, relative := range p.kin.find() {
		_ = relative.Signal(s)
		_ = relative.Release()
	}
}

// send signals a process, or a group, as long as the id is certain.
func (p *process) send(pid int, s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		_ = syscall.Kill(pid, s)
	}
}

// spawner runs functions on one thread, which lives until close. The kernel ends
// children by Pdeathsig when the thread that started them ends, not the process,
// and Go ends threads as it likes: any other thread would do by luck.
type spawner struct {
	requests chan func()
	ended    chan struct{}
}

func newSpawner() *spawner {
	s := &spawner{requests: make(chan func()), ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		for do := range s.requests {
			do()
		}
	}()
	return s
}

func (s *spawner) do(f func()) {
	done := make(chan struct{})
	s.requests <- func() { f(); close(done) }
	<-done
}

func (s *spawner) close() {
	close(s.requests)
	<-s.ended
}
