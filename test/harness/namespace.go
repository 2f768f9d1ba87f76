package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terrace-dev/terrace/test/controlplane"
)

// OpenNamespace applies config/runner-namespace, the manifest that lets runners
// work in a namespace. It returns how many objects that takes.
func OpenNamespace(ctx context.Context, c client.Client, namespace string) (count int, err error) {
	root, err := controlplane.ModuleRoot()
	if err != nil {
		return 0, err
	}
	err = filepath.WalkDir(filepath.Join(root, "config", "runner-namespace"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || entry.Name() == "kustomization.yaml" {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		for decoder := yaml.NewYAMLOrJSONDecoder(f, 4096); ; count++ {
			object := &unstructured.Unstructured{}
			if err := decoder.Decode(object); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			object.SetNamespace(namespace)
			if err := c.Create(ctx, object); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
		}
	})
	return count, err
}
