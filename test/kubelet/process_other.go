//go:build unix && !linux

package kubelet

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

type isolation struct{}

// findIsolation: there are no UTS namespaces here.
func findIsolation() (isolation, error) {
	return isolation{}, errors.New("only Linux has UTS namespaces")
}

func (isolation) works() bool { return false }

func (isolation) apply(cmd *exec.Cmd, _ string) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}

// awaitExit leaves it to the caller to wait.
func awaitExit(int) {}

// kinship is the process group only.
type kinship struct{ pid int }

func newKinship(pid int, _, _ string, _ isolation) kinship { return kinship{pid} }

func (kinship) close() {}

func (kinship) find() []*os.Process { return nil }

func (kinship) sweep() {}

func claim(string) (release func(), err error) { return func() {}, nil }
