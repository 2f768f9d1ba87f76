package terraform

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fluxcd/pkg/apis/meta"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/operation"
	"github.com/terrace-dev/terrace/internal/reconcile"
	"github.com/terrace-dev/terrace/runner"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// Runners finds the runners that work for objects. Whoever gets a lease of one has
// to release it, or to hand it to the tracker, which does.
type Runners interface {
	// Runner leases a runner for the object's next operation. It makes one if need
	// be, and does not wait for it: the lease does. Errors are of package reconcile's kinds.
	Runner(ctx context.Context, obj *infrav1.Terraform) (operation.Runner, error)
	// Named leases the runner in the namespace that an operation was given to
	// before. Of one that is gone it returns a lease that says so.
	Named(ctx context.Context, namespace, name string) (operation.Runner, error)
	// Abandoned says whether a host that holds a lock was a runner of this
	// installation in the namespace, and is gone for good.
	Abandoned(ctx context.Context, namespace, host string) (bool, error)
}

// SharedRunner is one runner that works for all objects, and is always there.
type SharedRunner struct {
	*runner.Client
	// RunnerName is shown in status.
	RunnerName string
}

// Runner implements Runners.
func (s SharedRunner) Runner(context.Context, *infrav1.Terraform) (operation.Runner, error) {
	return s, nil
}

// Named implements Runners.
func (s SharedRunner) Named(context.Context, string, string) (operation.Runner, error) { return s, nil }

// Abandoned implements Runners. A shared runner recognises its own locks by its journals.
func (s SharedRunner) Abandoned(context.Context, string, string) (bool, error) { return false, nil }

// Name implements operation.Runner.
func (s SharedRunner) Name() string { return s.RunnerName }

// Await implements operation.Runner.
func (s SharedRunner) Await(context.Context, func(string)) error { return nil }

// Release implements operation.Runner.
func (s SharedRunner) Release() {}

// effectsGrace is how much longer than its timeout an operation with effects may
// take: until the interrupted tool has saved its state, or is killed.
const effectsGrace = 15 * time.Minute

// endurance is how long a runner may be out of reach while it has an operation. One
// with effects is not given up before it must have ended: it is not started twice.
func endurance(obj *infrav1.Terraform, t runnerpb.OperationType) time.Duration {
	switch t {
	case runnerpb.OperationType_OPERATION_TYPE_APPLY, runnerpb.OperationType_OPERATION_TYPE_DESTROY:
		return obj.GetTimeout() + effectsGrace
	default:
		return 0
	}
}

// runnerFailure maps errors of calls to a runner to the kinds of this operator.
func runnerFailure(err error, obj *infrav1.Terraform) error {
	if typed, ok := errors.AsType[*reconcile.Error](err); ok {
		return typed
	}
	switch {
	case errors.Is(err, runner.ErrIncompatible):
		return reconcile.Terminalf(infrav1.RunnerIncompatibleReason,
			"The runner and this operator do not understand each other: %v; use images of the same release", err)
	case errors.Is(err, runner.ErrInvalid):
		return reconcile.Terminalf(infrav1.InvalidSpecReason, "The runner refuses the request: %v", err)
	case errors.Is(err, runner.ErrOverloaded):
		return reconcile.Waiting(waitInterval(obj), meta.ProgressingReason, "The runner has too much to do; the operation is tried again")
	case errors.Is(err, runner.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		return reconcile.Retry(infrav1.RunnerUnreachableReason, fmt.Errorf("the runner of %s/%s cannot be reached: %w", obj.Namespace, obj.Name, err))
	default:
		return reconcile.Retry(infrav1.RunnerFailedReason, fmt.Errorf("the runner of %s/%s: %w", obj.Namespace, obj.Name, err))
	}
}
