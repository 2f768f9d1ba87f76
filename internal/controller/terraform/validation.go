package terraform

import (
	"context"
	"strings"

	"github.com/fluxcd/pkg/apis/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/reconcile"
)

// validate refuses what the API server cannot see.
func (r *Reconciler) validate(_ context.Context, s *scope) (reconcile.Result, error) {
	if fields := unsupported(&s.obj.Spec); len(fields) > 0 {
		return reconcile.Result{}, reconcile.Terminalf(infrav1.NotSupportedReason,
			"This version of the operator does not act on %s. Nothing was planned, so that the fields are not ignored silently; remove them to go on",
			strings.Join(fields, ", "))
	}
	for i, dep := range s.obj.Spec.DependsOn {
		if dependsOnItself(s.obj, dep) {
			return reconcile.Result{}, reconcile.Terminalf(infrav1.InvalidSpecReason, "spec.dependsOn[%d] is the object itself, which would wait for ever", i)
		}
		if !readable(dep) {
			return reconcile.Result{}, reconcile.Terminalf(infrav1.AccessDeniedReason,
				"spec.dependsOn[%d].apiVersion is %s; this operator reads only kinds of %s and of Flux (*%s) for others, whatever it may read itself",
				i, dep.GetAPIVersion(), infrav1.GroupName, fluxGroups)
		}
		if dep.ReadyExpr == "" {
			continue
		}
		if _, err := readyExpression(dep.ReadyExpr); err != nil {
			return reconcile.Result{}, reconcile.Terminalf(meta.InvalidCELExpressionReason, "spec.dependsOn[%d].readyExpr: %v", i, err)
		}
	}
	return reconcile.Continue(), nil
}

func dependsOnItself(obj *infrav1.Terraform, dep infrav1.DependencyReference) bool {
	return dep.GetKind() == infrav1.TerraformKind && dep.GetAPIVersion() == infrav1.GroupVersion.String() &&
		dep.Name == obj.Name && (dep.Namespace == "" || dep.Namespace == obj.Namespace)
}

// fluxGroups is what the API groups of Flux end in.
const fluxGroups = ".toolkit.fluxcd.io"

// readable says whether the manager reads such a dependency with its own rights,
// which may be larger than those of who wrote the object.
func readable(dep infrav1.DependencyReference) bool {
	group := schema.FromAPIVersionAndKind(dep.GetAPIVersion(), dep.GetKind()).Group
	return group == infrav1.GroupName || strings.HasSuffix(group, fluxGroups)
}

// unsupported names the fields that are set and not acted upon.
func unsupported(spec *infrav1.TerraformSpec) []string {
	var fields []string
	for _, field := range []struct {
		name string
		set  bool
	}{
		{"spec.policies", len(spec.Policies) > 0},
		{"spec.approval.autoWhen", spec.Approval.AutoWhen != ""},
		{"spec.cloud", spec.Cloud != nil},
		{"spec.healthChecks", len(spec.HealthChecks) > 0},
		{"spec.drift.ignore", len(spec.Drift.Ignore) > 0},
	} {
		if field.set {
			fields = append(fields, field.name)
		}
	}
	return fields
}
