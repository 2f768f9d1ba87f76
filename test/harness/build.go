package harness

import (
	"fmt"
	"os/exec"

	"github.com/terrace-dev/terrace/test/controlplane"
)

// Build builds a package of the tree that is tested into a program, with go build's
// flags, and returns the program's path.
func Build(program, pkg string, flags ...string) (string, error) {
	root, err := controlplane.ModuleRoot()
	if err != nil {
		return "", err
	}
	cmd := exec.Command("go", append(append([]string{"build", "-o", program}, flags...), pkg)...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s: %w\n%s", pkg, err, out)
	}
	return program, nil
}
