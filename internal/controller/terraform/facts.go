package terraform

import (
	"context"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"sigs.k8s.io/controller-runtime/pkg/log"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/reconcile"
)

// decideAndAct decides what to do next and does it.
func (r *Reconciler) decideAndAct(ctx context.Context, s *scope) (reconcile.Result, error) {
	f := s.facts()
	if s.failure != nil && !f.newInput() {
		return reconcile.Result{}, s.fallThrough(s.failure)
	}
	d := decide(f)
	log.FromContext(ctx).V(1).Info("decided", "action", d.Action, "cause", d.Cause)
	return r.act(ctx, s, d)
}

// facts gathers what the decision is made from. It changes nothing.
func (s *scope) facts() facts {
	obj := s.obj
	f := facts{
		Now:               s.now,
		EverPlanned:       everPlanned(obj),
		GenerationChanged: s.generationChanged(),
		SourceChanged:     sourceChanged(obj, s.artifact),
		Requested:         s.requestToken() != "" || s.memory.owed,
		Forced:            s.forceToken() != "" || s.memory.owedForce,
		Reset:             s.resetToken() != "",
		Lost:              s.lost,
		Unstarted:         s.unstarted != nil && s.unstarted.Type == infrav1.OperationPlan,
		Stale:             s.stale,
		Failed:            !s.succeeded && obj.Status.Failures > 0,
		Stalled:           conditions.IsStalled(obj) && obj.Status.Failures > 0,
		RetryAt:           s.retryAt(),
		NextPlanAt:        s.memory.nextPlanAt(s.now, obj.GetRequeueAfter()),
		Mode:              obj.Spec.Approval.GetMode(),
		Drift:             obj.Spec.Drift.GetMode(),
	}
	if plan := pendingPlan(obj); plan != nil {
		f.PlanID, f.PlanDrift, f.Approved = plan.ID, plan.Drift, approved(obj, plan.ID)
		f.PlanMisfit = plan.Generation != obj.Generation || (s.artifact != nil && plan.Revision != s.artifact.Revision)
	}
	return f
}

// newInput says whether there is a reason to try again at once after a failure.
func (f facts) newInput() bool {
	return f.GenerationChanged || f.SourceChanged || f.Requested || f.Forced || f.Reset
}

// everPlanned says whether a plan succeeded at any time.
func everPlanned(obj *infrav1.Terraform) bool {
	return obj.Status.Plan != nil || obj.Status.Applied != nil || conditions.IsTrue(obj, infrav1.PlannedCondition)
}

// approved says whether exactly this plan is approved.
func approved(obj *infrav1.Terraform, id string) bool {
	return id != "" && (obj.Spec.Approval.Plan == id || obj.Annotations[infrav1.ApproveAnnotation] == id)
}

// generationChanged says whether the latest attempt worked on another generation.
func (s *scope) generationChanged() bool {
	generation := s.obj.Generation
	if s.obj.Status.ObservedGeneration == generation || s.memory.attempted == generation {
		return false
	}
	// A retry that an earlier manager scheduled belongs to the generation that its failure was reported for.
	return s.obj.Status.NextRetryAt == nil || conditions.GetObservedGeneration(s.obj, meta.ReadyCondition) != generation
}

// retryAt returns when a failed operation may be tried again.
func (s *scope) retryAt() time.Time {
	if !s.memory.retryAt.IsZero() {
		return s.memory.retryAt
	}
	if next := s.obj.Status.NextRetryAt; next != nil {
		// A clock that was ahead when it was written must not hold the object up.
		latest := s.now.Add(s.obj.GetMaxRetryInterval())
		if next.After(latest) {
			return latest
		}
		return next.Time
	}
	return time.Time{}
}

// requestToken returns the value of a request to reconcile that was not handled yet.
func (s *scope) requestToken() string {
	token, _ := meta.ReconcileAnnotationValue(s.obj.GetAnnotations())
	if token == s.obj.Status.LastHandledReconcileAt {
		return ""
	}
	return token
}

// forceToken returns the value of a force request that was not handled yet.
func (s *scope) forceToken() string {
	obj := s.obj.DeepCopy() // the helper marks the request as handled
	if meta.ShouldHandleForceRequest(obj) {
		return obj.Annotations[meta.ForceRequestAnnotation]
	}
	return ""
}

// resetToken returns the value of a request to forget failures that was not handled yet.
func (s *scope) resetToken() string {
	obj := s.obj.DeepCopy()
	if meta.HandleAnnotationRequest(obj, infrav1.ResetRequestAnnotation, obj.GetLastHandledResetRequestStatus()) {
		return obj.Annotations[infrav1.ResetRequestAnnotation]
	}
	return ""
}
