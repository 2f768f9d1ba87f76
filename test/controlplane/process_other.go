//go:build unix && !linux

package controlplane

import "syscall"

// endWithParent cannot promise more here than that the child gets Ctrl-C too.
func endWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
