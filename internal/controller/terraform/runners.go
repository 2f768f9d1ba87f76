package terraform

import (
	"context"
	"errors"
	"fmt"

	"github.com/fluxcd/pkg/apis/meta"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/operation"
	"github.com/terrace-dev/terrace/internal/reconcile"
	"github.com/terrace-dev/terrace/runner"
)

// Runners finds the runner that works for an object.
type Runners interface {
	// Runner returns the runner's name and a client of it. It does not wait: an
	// error made by reconcile.Waiting says that the runner is on its way.
	Runner(ctx context.Context, obj *infrav1.Terraform) (name string, client operation.Runner, err error)
}

// SharedRunner is one runner that works for all objects.
type SharedRunner struct {
	// Name is shown in status.
	Name string
	// Client talks to it.
	Client operation.Runner
}

// Runner implements Runners.
func (s SharedRunner) Runner(context.Context, *infrav1.Terraform) (string, operation.Runner, error) {
	return s.Name, s.Client, nil
}

// runnerFailure maps errors of calls to a runner to the kinds of this operator.
func runnerFailure(err error, obj *infrav1.Terraform) error {
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
