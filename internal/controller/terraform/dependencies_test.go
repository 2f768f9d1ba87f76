package terraform

import (
	"strings"
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
)

func (b maker) dependsOn(dep infrav1.DependencyReference) maker {
	return b.with(func(s *infrav1.TerraformSpec) { s.DependsOn = append(s.DependsOn, dep) })
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
		repository := w.git("c")
		obj := w.create(w.terraform("b").dependsOn(infrav1.DependencyReference{
			APIVersion: "source.toolkit.fluxcd.io/v1", Kind: "GitRepository", Name: "c", ReadyExpr: `dep.spec.interval != "1h0m0s" && self.metadata.name == "b"`,
		}))
		obj = w.until(obj, "waiting for the expression", func(o *infrav1.Terraform) bool {
			return strings.Contains(conditions.GetMessage(o, meta.ReadyCondition), "readyExpr")
		})
		if message := conditions.GetMessage(obj, meta.ReadyCondition); !strings.Contains(message, "GitRepository") || !strings.Contains(message, "is false") {
			t.Errorf("message = %s", message)
		}
		repository.Spec.Interval.Duration = 2 * time.Hour
		if err := w.Update(t.Context(), repository); err != nil {
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
		obj := w.create(w.terraform("b").dependsOn(infrav1.DependencyReference{APIVersion: "image.toolkit.fluxcd.io/v1", Kind: "Thing", Name: "a"}))
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
	t.Run("only kinds of this operator and of Flux are read", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		for name, version := range map[string]string{"a": "v1", "b": "apps/v1", "c": "nottoolkit.fluxcd.io/v1"} {
			obj := w.create(w.terraform(name).dependsOn(infrav1.DependencyReference{APIVersion: version, Kind: "Secret", Name: "x", ReadyExpr: "dep.data.a == 'b'"}))
			obj = w.reason(obj, infrav1.AccessDeniedReason)
			if !conditions.IsStalled(obj) || !strings.Contains(conditions.GetMessage(obj, meta.ReadyCondition), "spec.dependsOn[0].apiVersion") {
				t.Errorf("not refused:\n%s", describe(obj))
			}
		}
	})
	t.Run("expressions are bounded", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		w.git("c")
		list := "[" + strings.Repeat("1,", 200) + "1]"
		lists := "[1,1].map(l, [l,l,l,l])" + strings.Repeat(".map(l, [l,l,l,l,l,l,l,l,l,l])", 8)
		for name, expression := range map[string]string{
			"all":     list + ".all(a, " + list + ".all(b, " + list + ".all(c, " + list + ".all(d, a == 1))))",
			"replace": "'aaaaaaaa'" + strings.Repeat(".replace('a', 'aaaaaaaaaaaaaaaaaaaaaaaa')", 20) + " == ''",
			"strings": "['aaaaaaaaaaaaaaaa']" + strings.Repeat(".map(x, x + x)", 60) + ".size() == 2",
			"equal":   lists + " == " + lists,
		} {
			obj := w.create(w.terraform(name).dependsOn(infrav1.DependencyReference{
				APIVersion: "source.toolkit.fluxcd.io/v1", Kind: "GitRepository", Name: "c", ReadyExpr: expression,
			}))
			if obj = w.reason(obj, meta.InvalidCELExpressionReason); !conditions.IsStalled(obj) {
				t.Errorf("not stalled:\n%s", describe(obj))
			}
		}
		w.ready(w.create(w.terraform("other")))
	})
}
