package engine

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a running tool, of which terraform-exec does not tell us.
type process struct {
	pid    int
	pipes  map[string]bool // what its output goes to, as /proc names it
	zombie int             // looks at which it had ended and was not collected
}

func (w *workspace) pidFile() string { return filepath.Join(w.data, "pid") }

// awaitProcess waits until the launcher left the process id, before the tool has
// run anything of a module's: afterwards the file may hold anything. It returns
// nil and the call's own error when that ended before.
func (w *workspace) awaitProcess(done <-chan error) (*process, error) {
	for {
		if pid := w.pid(); pid != 0 {
			return &process{pid: pid, pipes: map[string]bool{}}, nil
		}
		select {
		case err := <-done:
			return nil, err
		case <-time.After(time.Millisecond):
		}
	}
}

// pid is the process id in the file, if it is a child of ours; else 0.
func (w *workspace) pid() int {
	text, err := os.ReadFile(w.pidFile())
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid < 2 {
		return 0
	}
	if _, parent, _ := stat(pid); parent != os.Getpid() {
		return 0
	}
	return pid
}

// stat is a process's state, its parent and its process group.
func stat(pid int) (state string, parent, group int) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "", 0, 0
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 3 {
		return "", 0, 0
	}
	parent, _ = strconv.Atoi(fields[1])
	group, _ = strconv.Atoi(fields[2])
	return fields[0], parent, group
}

// reapOrphans collects what tools left behind and what has ended since: in a pod
// it is the runner's, which is the first process there. The tools themselves lead
// their process groups and are collected by whoever started them.
func reapOrphans() {
	entries, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(filepath.Base(entry))
		if err != nil {
			continue
		}
		state, parent, group := stat(pid)
		if state == "Z" && parent == os.Getpid() && group != pid && group != syscall.Getpgrp() {
			_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
		}
	}
}

// look finds out whether the tool ended while something else holds its output, so
// that nobody collects it, and ends that: first its process group, then whatever
// has the pipes open.
func (p *process) look() {
	if state, _, _ := stat(p.pid); state != "Z" {
		for _, fd := range []string{"1", "2"} {
			if target, err := os.Readlink("/proc/" + strconv.Itoa(p.pid) + "/fd/" + fd); err == nil && strings.HasPrefix(target, "pipe:") {
				p.pipes[target] = true
			}
		}
		return
	}
	switch p.zombie++; {
	case p.zombie > 6:
		p.killHolders()
	case p.zombie > 3:
		p.killGroup()
	}
}

// killGroup kills the tool with its providers and provisioners: they share its process group.
func (p *process) killGroup() { _ = syscall.Kill(-p.pid, syscall.SIGKILL) }

// killHolders kills what left the process group and still writes into the tool's output.
func (p *process) killHolders() {
	open, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return
	}
	for _, name := range open {
		pid, err := strconv.Atoi(strings.Split(name, "/")[2])
		if err != nil || pid == os.Getpid() {
			continue
		}
		if target, err := os.Readlink(name); err == nil && p.pipes[target] {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}
