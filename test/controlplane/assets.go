package controlplane

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// assetsVariable names the directory of etcd and kube-apiserver. It is the
// variable that setup-envtest and all Kubebuilder projects use.
const assetsVariable = "KUBEBUILDER_ASSETS"

// findAssets returns the directory that etcd and kube-apiserver are in: the one
// asked for, else the first of $KUBEBUILDER_ASSETS and the module's bin/ that
// has both.
func findAssets(asked string) (string, error) {
	candidates := []string{asked}
	if asked == "" {
		candidates = []string{os.Getenv(assetsVariable)}
		if root, err := ModuleRoot(); err == nil {
			candidates = append(candidates, filepath.Join(root, "bin"))
		}
	}
	var missing []error
	for _, dir := range candidates {
		if dir == "" {
			continue
		}
		err := errors.Join(isExecutable(filepath.Join(dir, "etcd")), isExecutable(filepath.Join(dir, "kube-apiserver")))
		if err == nil {
			return filepath.Abs(dir)
		}
		missing = append(missing, err)
	}
	return "", fmt.Errorf("etcd and kube-apiserver not found: run `make tools` or set %s: %w", assetsVariable, errors.Join(missing...))
}

func isExecutable(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return fmt.Errorf("%s is not a program", path)
	}
	return nil
}

// ModuleRoot returns the nearest directory with a go.mod, at or above the
// working directory. Tests run in their package's directory, so for them it is
// the root of this repository.
func ModuleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no go.mod at or above the working directory")
		}
		dir = parent
	}
}
