package terraform

import (
	"time"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/operation"
)

// facts are everything that a decision is made from.
type facts struct {
	// Now is the time of the decision.
	Now time.Time

	// EverPlanned says that a plan succeeded at any time.
	EverPlanned bool
	// GenerationChanged and SourceChanged say that the latest attempt worked on
	// something else.
	GenerationChanged, SourceChanged bool
	// Requested, Forced and Reset are requests that nobody handled yet.
	Requested, Forced, Reset bool

	// Lost says that the operation that was under way is not known any more.
	Lost bool
	// Unstarted says that a plan was announced and never started.
	Unstarted bool
	// Stale says that the plan just turned out not to fit the state any more.
	Stale bool
	// Failed says that the latest operation failed, Stalled that only a human can
	// help. RetryAt is when it may be tried again; zero means now.
	Failed, Stalled bool
	RetryAt         time.Time
	// NextPlanAt is when the interval ends.
	NextPlanAt time.Time

	// PlanID is the pending plan's; empty if there is nothing to apply.
	PlanID string
	// PlanMisfit says that the pending plan was made for another generation or revision.
	PlanMisfit bool
	// PlanDrift says that the pending plan corrects drift.
	PlanDrift bool
	// Approved says that exactly the pending plan is approved.
	Approved bool
	// Mode and Drift are the spec's.
	Mode  infrav1.ApprovalMode
	Drift infrav1.DriftMode
}

// action is what a decision asks for.
type action string

const (
	// actionNone leaves everything as it is.
	actionNone action = "None"
	// actionRest says that the object is done until its interval ends.
	actionRest action = "Rest"
	// actionAwait waits for an approval.
	actionAwait action = "Await"
	// actionPlan plans.
	actionPlan action = "Plan"
	// actionApply applies the pending plan.
	actionApply action = "Apply"
)

// cause says why.
type cause string

const (
	causeFirst      cause = "FirstPlan"
	causeLost       cause = "OperationLost"
	causeStale      cause = "PlanStale"
	causeUnstarted  cause = "NotStarted"
	causeRequest    cause = "Requested"
	causeForce      cause = "Forced"
	causeReset      cause = "RetriesReset"
	causeGeneration cause = "SpecChanged"
	causeSource     cause = "SourceChanged"
	causeMisfit     cause = "PlanMisfit"
	causeInterval   cause = "IntervalElapsed"
	causeRetry      cause = "RetryDue"
	causeBackoff    cause = "RetryPending"
	causeStalled    cause = "Stalled"
	causeAuto       cause = "ApprovalNotNeeded"
	causeApproved   cause = "Approved"
	causeUnapproved cause = "NotApproved"
	causeNever      cause = "ApprovalNever"
	causeDrift      cause = "DriftOnlyReported"
	causeUpToDate   cause = "UpToDate"
	causeDeletion   cause = "Deletion"
)

// decision is what to do next, and why.
type decision struct {
	Action action
	Cause  cause
	// Wake is when to look again if nothing is to be done now.
	Wake time.Time

	// IfChanged lets the runner skip a plan for which nothing changed.
	IfChanged bool
	// Save keeps the plan beyond the runner, because somebody may have to approve it.
	Save bool
	// Force forgets the tool that the object is bound to.
	Force bool
	// Visibility of the operation.
	Visibility operation.Visibility
}

// fresh says that earlier failures say nothing about the new attempt.
func (d decision) fresh() bool {
	return d.Cause == causeGeneration || d.Cause == causeSource || d.Cause == causeReset
}

// decide says what to do next. The order of the cases is the priority.
func decide(f facts) decision {
	switch {
	case f.Lost:
		return f.plan(causeLost, operation.Full)
	case f.Stale:
		return f.plan(causeStale, operation.Full)
	case f.Forced:
		return f.plan(causeForce, operation.Quiet)
	case f.Reset && f.Failed:
		return f.plan(causeReset, operation.Quiet)
	case f.Requested:
		return f.plan(causeRequest, operation.Quiet)
	case f.Unstarted: // why it was to be made does not stand in the status
		return f.plan(causeUnstarted, operation.Full)
	case f.Failed:
		return afterFailure(f)
	case !f.EverPlanned:
		return f.plan(causeFirst, operation.Full)
	case f.GenerationChanged:
		return f.planIfChanged(causeGeneration, operation.Full)
	case f.SourceChanged:
		return f.planIfChanged(causeSource, operation.Full)
	}
	verdict := judge(f)
	if verdict.Action != actionApply && verdict.Action != actionPlan && !f.Now.Before(f.NextPlanAt) {
		return f.interval()
	}
	return verdict
}

// afterFailure decides about an object whose latest operation failed.
func afterFailure(f facts) decision {
	switch {
	case f.GenerationChanged:
		return f.plan(causeGeneration, operation.Full)
	case f.SourceChanged:
		return f.plan(causeSource, operation.Full)
	case f.Stalled:
		return decision{Action: actionNone, Cause: causeStalled}
	case f.Now.Before(f.RetryAt):
		return decision{Action: actionNone, Cause: causeBackoff, Wake: f.RetryAt}
	default:
		return f.plan(causeRetry, operation.Quiet)
	}
}

// judge decides about the pending plan.
func judge(f facts) decision {
	switch {
	case f.PlanID == "":
		return decision{Action: actionRest, Cause: causeUpToDate, Wake: f.NextPlanAt}
	case f.PlanMisfit: // nobody decided about it in view of what the spec says now
		return f.planIfChanged(causeMisfit, operation.Full)
	case f.Mode == infrav1.ApprovalNever:
		return decision{Action: actionRest, Cause: causeNever, Wake: f.NextPlanAt}
	case f.Approved:
		return decision{Action: actionApply, Cause: causeApproved, Visibility: operation.Full}
	case f.PlanDrift && f.Drift != infrav1.DriftCorrect:
		return decision{Action: actionRest, Cause: causeDrift, Wake: f.NextPlanAt}
	case f.Mode == infrav1.ApprovalAuto:
		return decision{Action: actionApply, Cause: causeAuto, Visibility: operation.Full}
	default:
		return decision{Action: actionAwait, Cause: causeUnapproved, Wake: f.NextPlanAt}
	}
}

// plan is a plan that runs the tool in any case.
func (f facts) plan(why cause, visibility operation.Visibility) decision {
	return decision{Action: actionPlan, Cause: why, Visibility: visibility, Save: f.save(), Force: f.Forced}
}

// planIfChanged is a plan that the runner skips if nothing that shapes it changed.
func (f facts) planIfChanged(why cause, visibility operation.Visibility) decision {
	d := f.plan(why, visibility)
	d.IfChanged = true
	return d
}

// interval is the plan at the end of the interval. Nobody notices it unless it
// finds something. Without interest in drift only changed inputs count.
func (f facts) interval() decision {
	d := f.plan(causeInterval, operation.Silent)
	d.IfChanged = f.Drift == infrav1.DriftDisabled
	return d
}

// save says whether the plan may have to outlive the runner's workspace.
func (f facts) save() bool {
	return f.Mode != infrav1.ApprovalAuto || f.Drift != infrav1.DriftCorrect
}
