package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// Kinds that the engine itself looks at.
const (
	kindRetry   = runnerpb.Failure_KIND_RETRY
	kindWaiting = runnerpb.Failure_KIND_WAITING
)

// failure is an error that knows what the manager should do about it.
type failure struct {
	kind    runnerpb.Failure_Kind
	reason  string
	message string
	lock    *runnerpb.Lock
	cause   error
}

func (f *failure) Error() string {
	if f.cause == nil {
		return f.message
	}
	return f.message + ": " + f.cause.Error()
}

func (f *failure) Unwrap() error { return f.cause }

// isKind says whether an error is a failure of that kind.
func isKind(err error, kind runnerpb.Failure_Kind) bool {
	var f *failure
	return errors.As(err, &f) && f.kind == kind
}

// terminal is for what only the user can mend.
func terminal(reason, format string, args ...any) error {
	return &failure{kind: runnerpb.Failure_KIND_TERMINAL, reason: reason, message: fmt.Sprintf(format, args...)}
}

// waiting is for an input that the object refers to and that is not there yet.
func waiting(format string, args ...any) error {
	return &failure{kind: kindWaiting, reason: infrav1.InputNotFoundReason, message: fmt.Sprintf(format, args...)}
}

// retry is for what may go away by itself.
func retry(reason string, cause error, format string, args ...any) error {
	return &failure{kind: runnerpb.Failure_KIND_RETRY, reason: reason, message: fmt.Sprintf(format, args...), cause: cause}
}

// stale says that the saved plan can no longer be applied.
func stale(format string, args ...any) error {
	return &failure{kind: runnerpb.Failure_KIND_STALE_PLAN, reason: infrav1.PlanOutdatedReason, message: fmt.Sprintf(format, args...)}
}

// lost says that the operation was begun before and interrupted.
func lost(format string, args ...any) error {
	return &failure{kind: runnerpb.Failure_KIND_LOST, reason: infrav1.OperationLostReason, message: fmt.Sprintf(format, args...)}
}

// denied explains that the API server refused the runner's ServiceAccount.
func (op *operation) denied(err error) error {
	return &failure{kind: kindWaiting, reason: infrav1.PermissionDeniedReason, cause: err, message: fmt.Sprintf(
		"ServiceAccount %s/%s may not do what a runner has to; open the namespace for runners with config/runner-namespace",
		op.object.Namespace, op.object.Spec.Runner.GetServiceAccountName())}
}

// endsWithNamespace says whether something failed because the object's namespace is
// being deleted. Tools pass on nothing but the API server's words.
func (op *operation) endsWithNamespace(err error) bool {
	return apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) ||
		strings.Contains(oneLine(toolWords(err)), "in namespace "+op.object.Namespace+" because it is being terminated")
}

// terminating explains that nothing can be made in the namespace any more.
func (op *operation) terminating(err error) error {
	return &failure{kind: kindRetry, reason: infrav1.NamespaceTerminatingReason, cause: err, message: fmt.Sprintf(
		"namespace %s is being deleted, so that nothing can be created in it any more", op.object.Namespace)}
}

// failed turns an error into a result. An error without a kind may go away by itself.
func failed(ctx context.Context, err error) *runnerpb.Result {
	if ctx.Err() != nil {
		return &runnerpb.Result{Outcome: runnerpb.Outcome_OUTCOME_CANCELLED} // the server knows why
	}
	var f *failure
	if !errors.As(err, &f) {
		f = &failure{kind: kindRetry, reason: infrav1.RunnerFailedReason, message: err.Error()}
	}
	return &runnerpb.Result{Outcome: runnerpb.Outcome_OUTCOME_FAILED, Failure: &runnerpb.Failure{
		Kind: f.kind, Reason: f.reason, Message: f.Error(), Lock: f.lock,
	}}
}
