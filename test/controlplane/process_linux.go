package controlplane

import "syscall"

// endWithParent has the kernel kill the child when its parent ends, however that
// happens. The child gets a process group of its own, so that Ctrl-C reaches it
// through Stop only.
func endWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
