package api_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// sampleFile returns the file of a kind's minimal or full sample.
func sampleFile(kind, which string) string {
	return strings.ToLower(kind) + "_" + which + ".yaml"
}

func TestSamplesAreAccepted(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		for _, which := range []string{"minimal", "full"} {
			file := sampleFile(kind, which)
			t.Run(file, func(t *testing.T) {
				t.Parallel()
				obj := readObject(t, filepath.Join(sampleDir, file))
				if obj.GetKind() != kind || obj.GetAPIVersion() != apiVersion {
					t.Errorf("is a %s of %s", obj.GetKind(), obj.GetAPIVersion())
				}
				obj.SetNamespace(metav1.NamespaceDefault)
				if err := try(t.Context(), obj); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// leftOut are the fields that exclude one another, so that a full sample cannot
// have them all, and those that the controller refuses for now.
var leftOut = map[string][]string{
	"Terraform":        {"cloud", "inline", "policies", "healthChecks"},
	"KubesprayCluster": {"endpointFrom"},
}

func TestFullSamplesShowEachFieldOfTheSpec(t *testing.T) {
	t.Parallel()
	for kind, crd := range readCRDs(t) {
		obj := readObject(t, filepath.Join(sampleDir, sampleFile(kind, "full")))
		shown, _ := obj.Object["spec"].(map[string]any)
		for field := range rootSchema(crd).Properties["spec"].Properties {
			_, isShown := shown[field]
			if isLeftOut := slices.Contains(leftOut[kind], field); isShown == isLeftOut {
				t.Errorf("%s: the full sample shows spec.%s: %t", kind, field, isShown)
			}
		}
	}
}

func TestKustomizationsListEachFile(t *testing.T) {
	t.Parallel()
	for dir, pattern := range map[string]string{sampleDir: "*_*.yaml", filepath.Dir(crdDir): "bases/*.yaml"} {
		content, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		var kustomization struct {
			Resources []string `json:"resources"`
		}
		if err := yaml.Unmarshal(content, &kustomization); err != nil {
			t.Fatal(err)
		}
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("found no files in %s: %v", dir, err)
		}
		for i := range files {
			if files[i], err = filepath.Rel(dir, files[i]); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(kustomization.Resources, files) {
			t.Errorf("%s lists %v, want %v", dir, kustomization.Resources, files)
		}
	}
}
