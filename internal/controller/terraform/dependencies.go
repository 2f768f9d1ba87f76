package terraform

import (
	"context"
	"errors"
	"fmt"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/reconcile"
)

// dependencies waits for the objects in spec.dependsOn. They are read from the API
// server itself: a dependency that was ready a moment ago may be changing now.
func (r *Reconciler) dependencies(ctx context.Context, s *scope) (reconcile.Result, error) {
	for i := range s.obj.Spec.DependsOn {
		dep := s.obj.Spec.DependsOn[i]
		if dep.Namespace == "" {
			dep.Namespace = s.obj.Namespace
		}
		if err := r.allowed(s.obj, dep.Namespace, fmt.Sprintf("spec.dependsOn[%d]", i)); err != nil {
			return reconcile.Result{}, err
		}
		found, err := r.dependency(ctx, dep)
		if err != nil {
			return reconcile.Result{}, err
		}
		why, err := notReady(ctx, s.obj, found, dep.ReadyExpr)
		if err != nil {
			return reconcile.Result{}, err
		}
		if why != "" {
			return reconcile.Result{}, r.dependencyNotReady("%s is not ready: %s", dep, why)
		}
	}
	return reconcile.Continue(), nil
}

// allowed refuses references to other namespaces unless the manager allows them.
func (r *Reconciler) allowed(obj *infrav1.Terraform, namespace, field string) error {
	if namespace == obj.Namespace || !r.NoCrossNamespaceRefs {
		return nil
	}
	return reconcile.Terminalf(infrav1.AccessDeniedReason,
		"%s points to namespace %s, and this operator allows references within %s only; move the object there, or run the operator with --no-cross-namespace-refs=false",
		field, namespace, obj.Namespace)
}

func (r *Reconciler) dependency(ctx context.Context, dep infrav1.DependencyReference) (*unstructured.Unstructured, error) {
	found := &unstructured.Unstructured{}
	found.SetGroupVersionKind(schema.FromAPIVersionAndKind(dep.GetAPIVersion(), dep.GetKind()))
	err := r.APIReader.Get(ctx, types.NamespacedName{Namespace: dep.Namespace, Name: dep.Name}, found)
	switch {
	case err == nil:
		return found, nil
	case apierrors.IsNotFound(err):
		return nil, r.dependencyNotReady("%s does not exist", dep)
	case apimeta.IsNoMatchError(err):
		return nil, r.dependencyNotReady("%s: the kind is not installed in %s", dep, dep.GetAPIVersion())
	case apierrors.IsForbidden(err):
		return nil, r.dependencyNotReady("%s cannot be read, because the operator lacks the permission: %v", dep, err)
	default:
		return nil, fmt.Errorf("reading dependency %s: %w", dep, err)
	}
}

func (r *Reconciler) dependencyNotReady(format string, args ...any) error {
	return reconcile.Waitingf(r.RequeueDependency, meta.DependencyNotReadyReason, "Dependency "+format, args...)
}

// notReady says why a dependency is not ready, or nothing if it is: by its own
// expression, else by its Ready condition and observed generation.
func notReady(ctx context.Context, obj *infrav1.Terraform, dep *unstructured.Unstructured, expression string) (string, error) {
	if expression != "" {
		return expressionFalse(ctx, obj, dep, expression)
	}
	observed, found, err := unstructured.NestedInt64(dep.Object, "status", "observedGeneration")
	if err != nil {
		return "", fmt.Errorf("status.observedGeneration of %s %s: %w", dep.GetKind(), dep.GetName(), err)
	}
	if found && observed < dep.GetGeneration() {
		return "its latest change is still being worked on", nil
	}
	getter := conditions.UnstructuredGetter(dep)
	if conditions.IsTrue(getter, meta.ReadyCondition) {
		return "", nil
	}
	if message := conditions.GetMessage(getter, meta.ReadyCondition); message != "" {
		return message, nil
	}
	return "it has no Ready condition yet", nil
}

func expressionFalse(ctx context.Context, obj *infrav1.Terraform, dep *unstructured.Unstructured, text string) (string, error) {
	expression, err := readyExpression(text)
	if err != nil {
		return "", reconcile.Terminal(meta.InvalidCELExpressionReason, err.Error())
	}
	self, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return "", err
	}
	ready, err := evaluate(ctx, expression, map[string]any{"self": self, "dep": dep.UnstructuredContent()})
	switch {
	case errors.Is(err, errTooExpensive):
		return "", reconcile.Terminalf(meta.InvalidCELExpressionReason, "readyExpr %q: %v", text, err)
	case err != nil:
		// A field that is not there yet is the usual reason; it may come.
		return err.Error(), nil //nolint:nilerr // why it is not ready is no error
	case ready:
		return "", nil
	default:
		return fmt.Sprintf("readyExpr %q is false", text), nil
	}
}
