// Package api_test asks a real API server whether the custom resource
// definitions accept what they should, refuse what they should, and say why.
package api_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/test/controlplane"
)

const (
	crdDir     = "../../config/crd/bases"
	sampleDir  = "../../config/samples"
	apiDir     = "../../api/v1alpha1"
	apiVersion = "infra.terrace.dev/v1alpha1"
)

// kinds are all kinds of the API group.
var kinds = []string{v1alpha1.TerraformKind, v1alpha1.KubesprayClusterKind, v1alpha1.ConfigReloadKind}

// The tests of this package share one API server: none of them leaves anything
// behind that another could stumble over.
var (
	cluster *controlplane.ControlPlane

	// server refuses fields that the schema does not know.
	server client.Client
)

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	var err error
	cluster, err = controlplane.Start(controlplane.Options{CRDs: []string{"config/crd/bases"}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = cluster.Stop() }()

	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	server, err = client.New(cluster.Config, client.Options{Scheme: scheme})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	server = client.WithFieldValidation(server, metav1.FieldValidationStrict)
	return m.Run()
}

// minimal returns the smallest object of a kind that the API server accepts,
// which is the minimal sample, in the namespace default.
func minimal(t *testing.T, kind string) *unstructured.Unstructured {
	t.Helper()
	obj := readObject(t, filepath.Join(sampleDir, sampleFile(kind, "minimal")))
	obj.SetNamespace(metav1.NamespaceDefault)
	return obj
}

// variant returns the minimal object of a kind with the YAML patch merged into
// its spec: null in the patch removes a field.
func variant(t *testing.T, kind, patch string) *unstructured.Unstructured {
	t.Helper()
	obj := minimal(t, kind)
	changes := map[string]any{}
	if err := yaml.Unmarshal([]byte(patch), &changes); err != nil {
		t.Fatalf("the patch is not YAML: %v\n%s", err, patch)
	}
	spec, _, err := unstructured.NestedMap(obj.Object, "spec")
	if err != nil {
		t.Fatal(err)
	}
	obj.Object["spec"] = mergePatch(spec, changes)
	return obj
}

// mergePatch merges changes into target as RFC 7386 says.
func mergePatch(target, changes map[string]any) map[string]any {
	if target == nil {
		target = map[string]any{}
	}
	for key, change := range changes {
		nested, isMap := change.(map[string]any)
		switch {
		case change == nil:
			delete(target, key)
		case isMap:
			old, _ := target[key].(map[string]any)
			target[key] = mergePatch(old, nested)
		default:
			target[key] = change
		}
	}
	return target
}

// try asks the API server to accept the object without storing it.
func try(ctx context.Context, obj *unstructured.Unstructured) error {
	return server.Create(ctx, obj.DeepCopy(), client.DryRunAll)
}

func readObject(t *testing.T, path string) *unstructured.Unstructured {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	obj := &unstructured.Unstructured{}
	if err := yaml.UnmarshalStrict(content, &obj.Object); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return obj
}
