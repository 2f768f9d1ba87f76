package terraform

import (
	"strings"
	"testing"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
)

func (b maker) dependsOn(dep infrav1.DependencyReference) maker {
	return b.with(func(s *infrav1.TerraformSpec) { s.DependsOn = append(s.DependsOn, dep) })
}

// allow gives the manager one more right in the namespace.
func (w *world) allow(resource, verb string) {
	w.t.Helper()
	name := metav1.ObjectMeta{Namespace: w.namespace, Name: verb + "-" + resource}
	for _, object := range []client.Object{
		&rbacv1.Role{ObjectMeta: name, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{resource}, Verbs: []string{verb}}}},
		&rbacv1.RoleBinding{
			ObjectMeta: name, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name.Name},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: managerUser}},
		},
	} {
		if err := w.Create(w.t.Context(), object); err != nil {
			w.t.Fatal(err)
		}
	}
}

func TestDependencies(t *testing.T) {
	t.Parallel()
	t.Run("ready by default", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		obj := w.create(w.terraform("b").dependsOn(infrav1.DependencyReference{Name: "a"}))
		obj = w.reason(obj, meta.DependencyNotReadyReason)
		if message := conditions.GetMessage(obj, meta.ReadyCondition); !strings.Contains(message, "does not exist") {
			t.Errorf("message = %s", message)
		}
		w.conform(obj)
		if len(w.engine.plans()) > 0 {
			t.Error("planned before the dependency exists")
		}
		w.ready(w.create(w.terraform("a")))
		w.ready(obj)
	})
	t.Run("ready by expression", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c"}, Data: map[string]string{"stage": "building"}}
		if err := w.Create(t.Context(), config); err != nil {
			t.Fatal(err)
		}
		obj := w.create(w.terraform("b").dependsOn(infrav1.DependencyReference{
			APIVersion: "v1", Kind: "ConfigMap", Name: "c", ReadyExpr: `dep.data.stage == "done" && self.metadata.name == "b"`,
		}))
		w.until(obj, "explaining the missing right", func(o *infrav1.Terraform) bool {
			return strings.Contains(conditions.GetMessage(o, meta.ReadyCondition), "lacks the permission")
		})
		w.allow("configmaps", "get")
		obj = w.until(obj, "waiting for the expression", func(o *infrav1.Terraform) bool {
			return strings.Contains(conditions.GetMessage(o, meta.ReadyCondition), "readyExpr")
		})
		if message := conditions.GetMessage(obj, meta.ReadyCondition); !strings.Contains(message, "ConfigMap") || !strings.Contains(message, "is false") {
			t.Errorf("message = %s", message)
		}
		config.Data["stage"] = "done"
		if err := w.Update(t.Context(), config); err != nil {
			t.Fatal(err)
		}
		w.ready(obj)
	})
	t.Run("a broken expression stalls", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		obj := w.create(w.terraform("b").dependsOn(infrav1.DependencyReference{Name: "a", ReadyExpr: "dep.status +"}))
		obj = w.reason(obj, meta.InvalidCELExpressionReason)
		if !conditions.IsStalled(obj) || !strings.Contains(conditions.GetMessage(obj, meta.ReadyCondition), "spec.dependsOn[0].readyExpr") {
			t.Errorf("not stalled:\n%s", describe(obj))
		}
	})
	t.Run("on itself", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		obj := w.create(w.terraform("a").dependsOn(infrav1.DependencyReference{Name: "a"}))
		w.reason(obj, infrav1.InvalidSpecReason)
	})
	t.Run("an unknown kind is waited for", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		obj := w.create(w.terraform("b").dependsOn(infrav1.DependencyReference{APIVersion: "example.com/v1", Kind: "Thing", Name: "a"}))
		obj = w.reason(obj, meta.DependencyNotReadyReason)
		if message := conditions.GetMessage(obj, meta.ReadyCondition); !strings.Contains(message, "not installed") {
			t.Errorf("message = %s", message)
		}
	})
	t.Run("other namespaces are denied", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		obj := w.create(w.terraform("b").dependsOn(infrav1.DependencyReference{Name: "a", Namespace: "default"}))
		if obj = w.reason(obj, infrav1.AccessDeniedReason); !conditions.IsStalled(obj) {
			t.Errorf("not stalled:\n%s", describe(obj))
		}
	})
	t.Run("other namespaces can be allowed", func(t *testing.T) {
		t.Parallel()
		w := start(t, func(r *Reconciler) { r.NoCrossNamespaceRefs = false })
		obj := w.create(w.terraform("b").dependsOn(infrav1.DependencyReference{Name: "a", Namespace: "default"}))
		w.reason(obj, meta.DependencyNotReadyReason)
	})
}
