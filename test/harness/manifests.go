package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	yamlreader "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/terrace-dev/terrace/test/controlplane"
)

// fieldManager owns what Apply applies.
const fieldManager = client.FieldOwner("terrace-harness")

// OpenNamespace applies config/runner-namespace, the manifest that lets runners
// work in a namespace. It returns how many objects that takes.
func OpenNamespace(ctx context.Context, c client.Client, namespace string) (count int, err error) {
	return Apply(ctx, c, filepath.Join("config", "runner-namespace"), namespace)
}

// Apply applies what the kustomization.yaml of a directory lists under resources,
// files and directories, and returns how many objects that are. Nothing else in the
// kustomization counts. A relative dir starts at the module's root. Namespaced
// objects go to namespace; "" leaves them where their manifests say.
func Apply(ctx context.Context, c client.Client, dir, namespace string) (count int, err error) {
	if !filepath.IsAbs(dir) {
		root, err := controlplane.ModuleRoot()
		if err != nil {
			return 0, err
		}
		dir = filepath.Join(root, dir)
	}
	text, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
	if err != nil {
		return 0, err
	}
	var kustomization struct {
		Resources []string `json:"resources"`
	}
	if err := yaml.Unmarshal(text, &kustomization); err != nil {
		return 0, fmt.Errorf("%s: %w", dir, err)
	}
	for _, resource := range kustomization.Resources {
		path := filepath.Join(dir, resource)
		apply := applyFile
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			apply = Apply
		}
		more, err := apply(ctx, c, path, namespace)
		count += more
		if err != nil {
			return count, err
		}
	}
	return count, nil
}

func applyFile(ctx context.Context, c client.Client, path, namespace string) (count int, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	decoder := yamlreader.NewYAMLOrJSONDecoder(f, 4096)
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(object); errors.Is(err, io.EOF) {
			return count, nil
		} else if err != nil {
			return count, fmt.Errorf("%s: %w", path, err)
		}
		if len(object.Object) == 0 {
			continue // a comment between two separators
		}
		if err := applyObject(ctx, c, object, namespace); err != nil {
			return count, fmt.Errorf("%s: %s %s: %w", path, object.GetKind(), object.GetName(), err)
		}
		count++
	}
}

func applyObject(ctx context.Context, c client.Client, object *unstructured.Unstructured, namespace string) error {
	if namespace != "" {
		namespaced, err := c.IsObjectNamespaced(object)
		if err != nil {
			return err
		}
		if namespaced {
			object.SetNamespace(namespace)
		}
	}
	return c.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), fieldManager, client.ForceOwnership)
}
