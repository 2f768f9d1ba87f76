package terraform

import (
	"context"
	"fmt"
	"strings"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/cel"
	celtypes "github.com/google/cel-go/cel"

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
		{"spec.runner.template", spec.Runner.Template != nil},
	} {
		if field.set {
			fields = append(fields, field.name)
		}
	}
	return fields
}

// readyExpression compiles the readyExpr of a dependency.
func readyExpression(text string) (*cel.Expression, error) {
	expression, err := cel.NewExpression(text,
		cel.WithCompile(),
		cel.WithOutputType(celtypes.BoolType),
		cel.WithStructVariables("self", "dep"))
	if err != nil {
		return nil, fmt.Errorf("the expression cannot be used: %w", err)
	}
	return expression, nil
}
