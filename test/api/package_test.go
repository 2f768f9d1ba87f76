package api_test

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/terrace-dev/terrace/api/v1alpha1"
)

// fluxObject is what Flux's libraries ask of a kind.
type fluxObject interface {
	conditions.Setter
	meta.ObjectWithAnnotationRequests
	GetLastHandledForceRequestStatus() *string
	GetLastHandledResetRequestStatus() *string
}

var (
	_ fluxObject                  = &v1alpha1.Terraform{}
	_ fluxObject                  = &v1alpha1.KubesprayCluster{}
	_ fluxObject                  = &v1alpha1.ConfigReload{}
	_ meta.ObjectWithDependencies = &v1alpha1.Terraform{}
)

func TestRequestsAreHandledOnce(t *testing.T) {
	t.Parallel()
	for _, obj := range []fluxObject{&v1alpha1.Terraform{}, &v1alpha1.KubesprayCluster{}, &v1alpha1.ConfigReload{}} {
		obj.SetAnnotations(map[string]string{
			meta.ReconcileRequestAnnotation: "now", meta.ForceRequestAnnotation: "now", v1alpha1.ResetRequestAnnotation: "now",
		})
		if !meta.ShouldHandleForceRequest(obj) || meta.ShouldHandleForceRequest(obj) {
			t.Errorf("%T: a force request must be handled exactly once", obj)
		}
		reset := func() bool {
			return meta.HandleAnnotationRequest(obj, v1alpha1.ResetRequestAnnotation, obj.GetLastHandledResetRequestStatus())
		}
		if !reset() || reset() {
			t.Errorf("%T: a reset request must be handled exactly once", obj)
		}
		conditions.MarkTrue(obj, meta.ReadyCondition, meta.SucceededReason, "done")
		if !conditions.IsReady(obj) {
			t.Errorf("%T: the condition was not kept", obj)
		}
	}
}

func TestDependenciesForFluxAreOfTheSameKind(t *testing.T) {
	t.Parallel()
	obj := &v1alpha1.Terraform{Spec: v1alpha1.TerraformSpec{DependsOn: []v1alpha1.DependencyReference{
		{Name: "network"},
		{Name: "dns", Namespace: "other", ReadyExpr: "true", Kind: v1alpha1.TerraformKind},
		{Name: "lab", Kind: v1alpha1.KubesprayClusterKind},
		{Name: "foreign", Kind: v1alpha1.TerraformKind, APIVersion: "example.com/v1"},
	}}}
	want := []meta.DependencyReference{{Name: "network"}, {Name: "dns", Namespace: "other", ReadyExpr: "true"}}
	if got := obj.GetDependsOn(); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestStateIsKeptInKubernetesUnlessTheSpecSaysOtherwise(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		spec       v1alpha1.TerraformSpec
		want       bool
		wantSuffix string
	}{
		"nothing is said":           {want: true, wantSuffix: "hello"},
		"an empty backend":          {spec: v1alpha1.TerraformSpec{Backend: &v1alpha1.Backend{}}, want: true, wantSuffix: "hello"},
		"a backend with a suffix":   {spec: v1alpha1.TerraformSpec{Backend: &v1alpha1.Backend{Kubernetes: &v1alpha1.KubernetesBackend{SecretSuffix: "x"}}}, want: true, wantSuffix: "x"},
		"a backend of its own":      {spec: v1alpha1.TerraformSpec{Backend: &v1alpha1.Backend{Custom: `backend "s3" {}`}}, wantSuffix: "hello"},
		"the backend of the module": {spec: v1alpha1.TerraformSpec{Backend: &v1alpha1.Backend{None: &v1alpha1.NoBackend{}}}, wantSuffix: "hello"},
		"the cloud":                 {spec: v1alpha1.TerraformSpec{Cloud: &v1alpha1.Cloud{}}, wantSuffix: "hello"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			obj := &v1alpha1.Terraform{ObjectMeta: metav1.ObjectMeta{Name: "hello"}, Spec: tc.spec}
			if got := obj.UsesKubernetesBackend(); got != tc.want {
				t.Errorf("UsesKubernetesBackend returned %t, want %t", got, tc.want)
			}
			if got := obj.GetSecretSuffix(); got != tc.wantSuffix {
				t.Errorf("GetSecretSuffix returned %s, want %s", got, tc.wantSuffix)
			}
		})
	}
}

func TestFlapThresholdIsReadAsNumberPerTime(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		restarts int
		per      time.Duration
		wantErr  bool
	}{
		"":       {restarts: 6, per: time.Hour},
		"1/m":    {restarts: 1, per: time.Minute},
		"20/d":   {restarts: 20, per: 24 * time.Hour},
		"0/h":    {wantErr: true},
		"6":      {wantErr: true},
		"6/week": {wantErr: true},
		"x/h":    {wantErr: true},
	} {
		restarts, per, err := v1alpha1.Limits{FlapThreshold: text}.GetFlapThreshold()
		if restarts != want.restarts || per != want.per || (err != nil) != want.wantErr {
			t.Errorf("%q: got %d per %v, error %v", text, restarts, per, err)
		}
	}
}

// TestPackageImportsLittle keeps the dependencies of the operator away from
// programs that only read and write its objects.
func TestPackageImportsLittle(t *testing.T) {
	t.Parallel()
	allowed := []string{
		"k8s.io/apimachinery/", "github.com/fluxcd/pkg/apis/", "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1",
	}
	files, err := filepath.Glob(filepath.Join(apiDir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("found no files: %v", err)
	}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range parsed.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			isStandard := !strings.Contains(strings.Split(path, "/")[0], ".")
			isAllowed := slices.ContainsFunc(allowed, func(prefix string) bool { return strings.HasPrefix(path, prefix) })
			if !isStandard && !isAllowed {
				t.Errorf("%s imports %s", file, path)
			}
		}
	}
}
