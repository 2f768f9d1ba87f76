package terraform

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/fluxcd/pkg/runtime/conditions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/operation"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// record writes what an operation came to into status and scope. Ready is not its
// business: later phases may have more to say.
func (s *scope) record(ctx context.Context, r *Reconciler, snapshot operation.Snapshot[attempt]) {
	made, status := snapshot.Meta, &s.obj.Status
	announced := status.Operation
	status.Operation = nil
	if snapshot.Type == runnerpb.OperationType_OPERATION_TYPE_FORGET {
		s.forgotten, s.untidied = true, snapshot.Err
		if failure := snapshot.Result.GetFailure(); failure != nil {
			s.untidied = errors.New(failure.GetMessage())
		}
		return
	}
	s.earlier = made.Generation != s.obj.Generation && s.obj.Spec.Suspend && s.obj.DeletionTimestamp.IsZero()
	if errors.Is(snapshot.Err, operation.ErrNotStarted) {
		s.notStarted(announced)
		return
	}
	s.memory.attempted, s.memory.retryAt = made.Generation, time.Time{}
	s.recordAttempt(made)
	result := snapshot.Result
	for _, warning := range result.GetWarnings() {
		log.FromContext(ctx).Info("warning from the runner", "operation", snapshot.ID, "warning", warning)
	}
	if tool := result.GetTool(); tool != nil {
		status.Tool = &infrav1.ToolStatus{Name: infrav1.Tool(tool.GetName()), Version: tool.GetVersion()}
	}
	switch {
	case errors.Is(snapshot.Err, operation.ErrLost), result.GetFailure().GetKind() == runnerpb.Failure_KIND_LOST:
		s.lost = true
		if snapshot.Type != runnerpb.OperationType_OPERATION_TYPE_PLAN {
			s.remember(snapshot, infrav1.OperationLost, "the runner ended before it could report; the next plan finds out what was done")
		}
	case snapshot.Err != nil:
		s.fail(snapshot, r.callFailure(s, snapshot.Err))
	case result.GetFailure() != nil, result.GetOutcome() != runnerpb.Outcome_OUTCOME_SUCCEEDED:
		s.recordFailure(ctx, r, snapshot)
	default:
		s.recordSuccess(snapshot)
	}
}

// notStarted notes that an operation that was announced never began.
func (s *scope) notStarted(announced *infrav1.OperationStatus) {
	s.unstarted = announced
	if announced != nil && announced.PlanID != "" { // its plan was made for this generation
		s.memory.attempted = announced.Generation
	}
}

// recordAttempt notes what was worked on and which requests are answered by it.
func (s *scope) recordAttempt(made attempt) {
	status := &s.obj.Status
	if made.Source != nil {
		status.Source, status.LastAttemptedRevision = made.Source, made.Source.Revision
	}
	if made.RequestedAt != "" {
		status.LastHandledReconcileAt = made.RequestedAt
	}
	if made.ForceAt != "" {
		status.LastHandledForceAt = made.ForceAt
	}
	if made.ResetAt != "" {
		status.LastHandledResetAt = made.ResetAt
	}
}

func (s *scope) recordSuccess(snapshot operation.Snapshot[attempt]) {
	s.succeeded = true
	switch snapshot.Type {
	case runnerpb.OperationType_OPERATION_TYPE_PLAN:
		s.recordPlan(snapshot)
	case runnerpb.OperationType_OPERATION_TYPE_APPLY:
		s.recordApply(snapshot)
	case runnerpb.OperationType_OPERATION_TYPE_DESTROY:
		s.destroyed = true
		s.remember(snapshot, infrav1.OperationSucceeded, "")
	default: // nothing else is ever started
	}
}

// recordPlan notes a plan. One that the runner skipped changes nothing: a pending
// plan and its approval stay as they are.
func (s *scope) recordPlan(snapshot operation.Snapshot[attempt]) {
	plan, obj := snapshot.Result.GetPlan(), s.obj
	s.recoverApplied(plan.GetLastApply())
	if plan.GetSkipped() {
		switch pending := pendingPlan(obj); {
		case pending == nil:
		case pending.ID == plan.GetId(): // the runner would make the same plan again
			pending.Generation, pending.Revision = snapshot.Meta.Generation, snapshot.Meta.revision()
		default: // the runner would apply another one: what pends comes from a spec that was taken back
			s.recordNothingPending(snapshot)
			s.lost = plan.GetId() != ""
		}
		s.memory.skipped(s.now, obj.GetRequeueAfter(), obj.Spec.Drift.GetMode())
		if pendingPlan(obj) == nil {
			s.recordNothingPending(snapshot)
			s.recordPlanOutputs(plan)
		}
		return
	}
	s.memory.planned(s.now, obj.GetRequeueAfter())
	s.unlocked()
	s.recordPlanOutputs(plan)
	if plan.GetChanges() {
		s.recordChanges(snapshot)
		return
	}
	s.recoverLost()
	s.recordNothingPending(snapshot)
	s.restoreApplied()
	s.destroyed = snapshot.Meta.Deletion && plan.GetDestroy()
}

// recordPlanOutputs notes the outputs as they stand, if the plan says anything about them.
func (s *scope) recordPlanOutputs(plan *runnerpb.PlanResult) {
	if len(plan.GetOutputs()) > 0 {
		s.recordOutputs(plan.GetOutputs())
	}
	s.recordOutputsWritten(plan.GetOutputsWritten())
}

// recordNothingPending notes that there is nothing to apply. The plan stays as a
// trace of what was planned; one that says the same is not a newer one.
func (s *scope) recordNothingPending(snapshot operation.Snapshot[attempt]) {
	obj, last := s.obj, s.obj.Status.Plan
	next := &infrav1.PlanStatus{Generation: snapshot.Meta.Generation, Revision: snapshot.Meta.revision(), CreatedAt: new(timeOf(s.now))}
	if last == nil || last.HasChanges || last.Generation != next.Generation || last.Revision != next.Revision {
		obj.Status.Plan = next
	}
	obj.Status.Drift = nil
	conditions.Delete(obj, infrav1.DriftedCondition)
	conditions.MarkTrue(obj, infrav1.PlannedCondition, infrav1.PlannedNoChangesReason, "%s", "No changes")
}

// pendingPlan returns the plan that could be applied, if there is one.
func pendingPlan(obj *infrav1.Terraform) *infrav1.PlanStatus {
	if plan := obj.Status.Plan; plan != nil && plan.HasChanges {
		return plan
	}
	return nil
}

// restoreApplied takes back the failure of an earlier apply: the world is now as
// the configuration wants it.
func (s *scope) restoreApplied() {
	if !conditions.IsFalse(s.obj, infrav1.AppliedCondition) {
		return
	}
	conditions.Delete(s.obj, infrav1.AppliedCondition)
	if applied := s.obj.Status.Applied; applied != nil {
		conditions.MarkTrue(s.obj, infrav1.AppliedCondition, infrav1.AppliedReason, "Applied %s%s", applied.PlanID, of(applied.Revision))
	}
}

// recoverApplied notes an apply that nobody reported: its runner ended too early.
func (s *scope) recoverApplied(last *runnerpb.LastApply) {
	known := s.obj.Status.Applied
	if last.GetPlanId() == "" || known != nil && (known.PlanID == last.GetPlanId() || known.At != nil && known.At.Unix() >= last.GetUnixSeconds()) {
		return
	}
	s.markApplied(&infrav1.AppliedStatus{
		PlanID: truncate(last.GetPlanId(), maxPlanID), Revision: last.GetRevision(), Generation: last.GetGeneration(),
		At: new(timeOf(time.Unix(last.GetUnixSeconds(), 0))),
	})
}

// recoverLost notes that the pending plan is applied if its apply was lost and now
// nothing of it is left to do: the runner ended before it could write that down.
func (s *scope) recoverLost() {
	plan, history := pendingPlan(s.obj), s.obj.Status.History
	latest := slices.IndexFunc(history, func(e infrav1.HistoryEntry) bool { return e.Type == infrav1.OperationApply })
	if plan == nil || plan.Destroy || latest < 0 || history[latest].Result != infrav1.OperationLost || history[latest].PlanID != plan.ID {
		return
	}
	s.markApplied(&infrav1.AppliedStatus{PlanID: plan.ID, Revision: plan.Revision, Generation: plan.Generation, At: new(timeOf(s.now))})
}

func (s *scope) markApplied(applied *infrav1.AppliedStatus) {
	s.obj.Status.Applied, s.obj.Status.LastAppliedRevision = applied, applied.Revision
	conditions.MarkTrue(s.obj, infrav1.AppliedCondition, infrav1.AppliedReason, "Applied %s%s", applied.PlanID, of(applied.Revision))
}

// recordChanges notes a plan that would change something.
func (s *scope) recordChanges(snapshot operation.Snapshot[attempt]) {
	plan, obj := snapshot.Result.GetPlan(), s.obj
	known := pendingPlan(obj) != nil && obj.Status.Plan.ID == plan.GetId()
	next := newPlanStatus(obj, snapshot)
	next.CreatedAt = new(timeOf(s.now))
	if known {
		next.CreatedAt, next.ApprovedAt = obj.Status.Plan.CreatedAt, obj.Status.Plan.ApprovedAt
	}
	obj.Status.Plan = next
	text := summaryText(next.Summary)
	conditions.MarkTrue(obj, infrav1.PlannedCondition, infrav1.PlannedWithChangesReason, "%s: %s", next.ID, text)
	if !next.Drift {
		obj.Status.Drift = nil
		conditions.Delete(obj, infrav1.DriftedCondition)
	} else {
		s.recordDrift(plan)
	}
	if !known {
		s.remember(snapshot, infrav1.OperationSucceeded, "")
	}
}

func (s *scope) recordDrift(plan *runnerpb.PlanResult) {
	obj := s.obj
	drift := &infrav1.DriftStatus{DetectedAt: new(timeOf(s.now))}
	if obj.Status.Drift != nil {
		drift.DetectedAt = obj.Status.Drift.DetectedAt
	}
	drift.Resources = driftedResources(plan.GetChanged())
	obj.Status.Drift = drift
	conditions.MarkTrue(obj, infrav1.DriftedCondition, infrav1.DriftDetectedReason,
		"%s: not as it was applied (%s)", driftText(drift), plan.GetId())
}

// recordApply notes a successful apply. What was applied counts for the source and
// generation that it was applied for: had they changed what the plan does, there
// would be another plan.
func (s *scope) recordApply(snapshot operation.Snapshot[attempt]) {
	apply, obj := snapshot.Result.GetApply(), s.obj
	applied := &infrav1.AppliedStatus{PlanID: snapshot.Meta.PlanID, Generation: snapshot.Meta.Generation, At: new(timeOf(s.now))}
	if source := snapshot.Meta.Source; source != nil {
		applied.Revision = source.Revision
	}
	if plan := pendingPlan(obj); plan != nil && plan.ID == snapshot.Meta.PlanID {
		s.destroyed = snapshot.Meta.Deletion && plan.Destroy
	}
	s.remember(snapshot, infrav1.OperationSucceeded, "")
	s.markApplied(applied)
	s.recordNothingPending(snapshot)
	s.memory.stale = 0
	s.memory.planned(s.now, obj.GetRequeueAfter())
	s.unlocked()
	s.recordOutputs(apply.GetOutputs())
	s.recordOutputsWritten(apply.GetOutputsWritten())
	s.recordResources(apply.GetResources(), apply.GetResourceCount())
}

// unlocked notes that no lock stands in the way any more.
func (s *scope) unlocked() {
	s.obj.Status.Lock = nil
	conditions.Delete(s.obj, infrav1.StateLockedCondition)
}

// remember adds an operation to the history, the newest first.
func (s *scope) remember(snapshot operation.Snapshot[attempt], result infrav1.OperationResult, message string) {
	obj, made := s.obj, snapshot.Meta
	entry := infrav1.HistoryEntry{
		ID: snapshot.ID, Type: operationType(snapshot.Type), PlanID: made.PlanID, Result: result,
		StartedAt: new(timeOf(made.StartedAt)),
		Duration:  &metav1.Duration{Duration: s.now.Sub(made.StartedAt).Round(time.Millisecond)},
		Message:   truncate(message, infrav1.MaxStatusMessageLength),
	}
	if made.Source != nil {
		entry.Revision = made.Source.Revision
	}
	if id := snapshot.Result.GetPlan().GetId(); id != "" {
		entry.PlanID = id
	}
	if plan := obj.Status.Plan; plan != nil && plan.ID == entry.PlanID {
		entry.Summary = plan.Summary.DeepCopy()
	}
	limit := min(obj.GetHistoryLimit(), infrav1.MaxHistory)
	history := append([]infrav1.HistoryEntry{entry}, obj.Status.History...)
	obj.Status.History = history[:min(len(history), limit)]
}
