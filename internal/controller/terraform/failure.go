package terraform

import (
	"context"
	"errors"
	"time"

	"github.com/fluxcd/pkg/runtime/conditions"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/operation"
	"github.com/terrace-dev/terrace/internal/reconcile"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// maxStale is how many plans in a row may be stale when they are applied before
// the object backs off: somebody else keeps changing the state.
const maxStale = 3

// callFailure maps errors of calls to the runner and of the source on its way to it.
func (r *Reconciler) callFailure(s *scope, err error) error {
	if source, ok := errors.AsType[*operation.SourceError](err); ok {
		return r.sourceFailure(source.Err)
	}
	return runnerFailure(err, s.obj)
}

// recordFailure notes how an operation failed, by the kind that the runner gave.
func (s *scope) recordFailure(ctx context.Context, r *Reconciler, snapshot operation.Snapshot[attempt]) {
	failure := snapshot.Result.GetFailure()
	if failure.GetKind() == runnerpb.Failure_KIND_STALE_PLAN && s.memory.stale < maxStale {
		if s.memory.staleID != snapshot.ID {
			s.memory.stale, s.memory.staleID = s.memory.stale+1, snapshot.ID
		}
		s.stale = true
		return
	}
	if lock := failure.GetLock(); lock != nil {
		if r.recordLock(ctx, s, lock) {
			s.lost = true // the next attempt releases it
			return
		}
		failure = &runnerpb.Failure{ // the manager knows more of it than the runner
			Kind: failure.GetKind(), Reason: failure.GetReason(), Message: conditions.GetMessage(s.obj, infrav1.StateLockedCondition),
		}
	}
	err := toolFailure(failure, waitInterval(s.obj))
	if snapshot.Type == runnerpb.OperationType_OPERATION_TYPE_APPLY && snapshot.Result.GetApply() != nil {
		s.recordApply(snapshot) // it stands; what failed came after it
		s.count(err)
		if isOutputReason(failure.GetReason()) {
			conditions.MarkFalse(s.obj, infrav1.OutputsWrittenCondition, failure.GetReason(), "%s", err.Error())
		}
		return
	}
	s.fail(snapshot, err)
}

// count notes a failure so that it is remembered even if a later phase has
// something else to report.
func (s *scope) count(err error) {
	s.failure = err
	if status := &s.obj.Status; status.Failures == 0 {
		status.Failures, s.counted = 1, true
	}
}

// fail notes a failure in the operation's own condition.
func (s *scope) fail(snapshot operation.Snapshot[attempt], err error) {
	s.count(err)
	reason, message := reconcile.ReasonOf(err), err.Error()
	condition := infrav1.PlannedCondition
	switch {
	case isOutputReason(reason):
		condition = infrav1.OutputsWrittenCondition
	case snapshot.Type == runnerpb.OperationType_OPERATION_TYPE_APPLY:
		condition = infrav1.AppliedCondition
	case snapshot.Type == runnerpb.OperationType_OPERATION_TYPE_DESTROY:
		condition = ""
	}
	if condition != "" {
		conditions.MarkFalse(s.obj, condition, reason, "%s", message)
	}
	if snapshot.Type != runnerpb.OperationType_OPERATION_TYPE_PLAN {
		result := infrav1.OperationFailed
		if snapshot.Result.GetOutcome() == runnerpb.Outcome_OUTCOME_CANCELLED {
			result = infrav1.OperationCancelled
		}
		s.remember(snapshot, result, message)
	}
}

// fallThrough returns the failure of the operation as the outcome of the
// reconciliation. Retries are counted where their delay is computed.
func (s *scope) fallThrough(err error) error {
	if s.counted && reconcile.KindOf(err) == reconcile.KindRetry {
		s.obj.Status.Failures, s.counted = 0, false
	}
	return err
}

// minWait bounds how often an object looks again for what it waits for, since this
// pace does not slow down. The API allows a shorter spec.retryInterval.
const minWait = time.Second

func waitInterval(obj *infrav1.Terraform) time.Duration { return max(obj.GetRetryInterval(), minWait) }

// isOutputReason tells failures that concern the outputs only.
func isOutputReason(reason string) bool {
	switch reason {
	case infrav1.OutputsFailedReason, infrav1.OutputConflictReason, infrav1.OutputSensitiveReason, infrav1.OutputNotFoundReason:
		return true
	default:
		return false
	}
}

// toolFailure maps a runner's failure to the kinds of this operator, one to one.
func toolFailure(failure *runnerpb.Failure, retryInterval time.Duration) error {
	reason, message := failure.GetReason(), failure.GetMessage()
	if reason == "" {
		reason = infrav1.RunnerFailedReason
	}
	if message == "" {
		message = "the runner reported a failure without a message"
	}
	switch failure.GetKind() {
	case runnerpb.Failure_KIND_TERMINAL:
		return reconcile.Terminal(reason, message)
	case runnerpb.Failure_KIND_WAITING:
		return reconcile.Waiting(retryInterval, reason, message)
	default:
		return reconcile.Retry(reason, errors.New(message))
	}
}
