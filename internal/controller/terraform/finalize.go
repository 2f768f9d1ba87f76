package terraform

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/operation"
	"github.com/terrace-dev/terrace/internal/reconcile"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// orphanHint is the way out of every blocked deletion.
const orphanHint = "to delete the object and leave the resources as they are, set spec.deletionPolicy to Orphan"

// forgetTimeout is how long the object of orphaned resources waits for a runner to tidy up.
const forgetTimeout = 30 * time.Second

// deletion is what happens to an object with a deletion timestamp, suspended or not.
func (r *Reconciler) deletion() []reconcile.Phase[*scope] {
	return []reconcile.Phase[*scope]{
		r.ours,
		r.collectForDeletion,
		r.orphan,
		r.destroySource,
		r.destroy,
	}
}

// ours ends the reconciliation of objects that wait for somebody else's finalizer.
func (r *Reconciler) ours(_ context.Context, s *scope) (reconcile.Result, error) {
	if controllerutil.ContainsFinalizer(s.obj, infrav1.Finalizer) {
		return reconcile.Continue(), nil
	}
	s.gone = true
	r.drop(s.obj.UID)
	return reconcile.Unchanged(), nil
}

// collectForDeletion waits for a running operation. A plan that does not belong to
// the deletion is cancelled; an apply never is.
func (r *Reconciler) collectForDeletion(ctx context.Context, s *scope) (reconcile.Result, error) {
	result, err := r.collect(ctx, s)
	if err != nil {
		if s.obj.GetDeletionPolicy() == infrav1.DeletionOrphan {
			log.FromContext(ctx).Error(err, "the operation of a deleted object cannot be followed; orphaning its resources")
			return reconcile.Continue(), nil
		}
		return reconcile.Result{}, deletionFailure(s.obj, err)
	}
	snapshot, tracked := r.tracker.Get(s.obj.UID)
	if !tracked || snapshot.Done {
		return result, nil
	}
	if snapshot.Type == runnerpb.OperationType_OPERATION_TYPE_FORGET {
		s.obj.Status.Operation = nil // it does not count as work on the object
		return s.awaitForgetting(snapshot), nil
	}
	if snapshot.Type == runnerpb.OperationType_OPERATION_TYPE_PLAN && !snapshot.Meta.Deletion {
		if err := r.tracker.Cancel(ctx, s.obj.UID); err != nil {
			log.FromContext(ctx).Info("the plan of a deleted object could not be cancelled and is waited for", "error", err.Error())
		}
		return reconcile.Progressing(meta.ProgressingReason, "Deletion waits until the running plan has stopped"), nil
	}
	if snapshot.Type == runnerpb.OperationType_OPERATION_TYPE_APPLY && !snapshot.Meta.Deletion {
		return reconcile.Progressing(meta.ProgressingReason, fmt.Sprintf(
			"Deletion waits for the running apply of %s: interrupting it could leave resources that nobody knows%s",
			snapshot.Meta.PlanID, progressText(s.obj, snapshot))), nil
	}
	return result, nil
}

// orphan ends objects whose resources stay.
func (r *Reconciler) orphan(ctx context.Context, s *scope) (reconcile.Result, error) {
	if s.obj.GetDeletionPolicy() != infrav1.DeletionOrphan {
		return reconcile.Continue(), nil
	}
	return r.forget(ctx, s)
}

// forget ends objects of which nothing is destroyed. A runner tidies up before that, if
// there can be one: inputs of an object are not left lying about, and the Secrets of a
// state that was to be destroyed once may be deleted now. Nothing depends on it.
func (r *Reconciler) forget(ctx context.Context, s *scope) (reconcile.Result, error) {
	switch {
	case !s.attempted():
		return r.release(ctx, s, "")
	case !s.forgotten:
		request := &runnerpb.StartOperationRequest{Type: runnerpb.OperationType_OPERATION_TYPE_FORGET}
		_, err := r.start(ctx, s, decision{Action: actionPlan, Cause: causeDeletion, Visibility: operation.Quiet}, request)
		if err == nil {
			return reconcile.Unchanged().After(forgetTimeout), nil
		}
		if reconcile.IsTransient(err) {
			return reconcile.Result{}, err
		}
		s.untidied = err
	}
	if s.untidied != nil {
		r.event(s.obj, eventWarning, infrav1.RunnerFailedReason, fmt.Sprintf(
			"The object is gone and nothing was destroyed, but no runner could tidy up after it (%v). If its record or state Secret cannot be deleted later, remove the finalizer %s from it",
			s.untidied, infrav1.StateFinalizer))
	}
	return r.release(ctx, s, "")
}

// awaitForgetting waits for a runner that tidies up, for some time.
func (s *scope) awaitForgetting(snapshot operation.Snapshot[attempt]) reconcile.Result {
	left := forgetTimeout - s.now.Sub(snapshot.Meta.StartedAt)
	if left > 0 {
		return reconcile.Unchanged().After(left)
	}
	s.forgotten, s.untidied = true, fmt.Errorf("it took longer than %s: %s", forgetTimeout, snapshot.WaitsFor)
	return reconcile.Continue()
}

// destroySource looks for the source. Without it the runner falls back to what it
// remembers, so nothing about a source blocks a deletion.
func (r *Reconciler) destroySource(ctx context.Context, s *scope) (reconcile.Result, error) {
	if _, err := r.resolveSource(ctx, s); err != nil {
		log.FromContext(ctx).Info("destroying without the source", "reason", err.Error())
		s.artifact = nil
	}
	return reconcile.Continue(), nil
}

// destroy brings the resources down, after an approval if the spec asks for one.
func (r *Reconciler) destroy(ctx context.Context, s *scope) (reconcile.Result, error) {
	f := s.facts()
	switch {
	case s.destroyed:
		return r.release(ctx, s, "All resources are destroyed")
	case neverUsed(s.obj): // nothing was applied; a plan that failed may have made an empty state
		return r.forget(ctx, s)
	case s.failure != nil && !f.newInput():
		return reconcile.Result{}, s.fallThrough(deletionFailure(s.obj, s.failure))
	case f.Failed && !f.newInput() && s.now.Before(f.RetryAt):
		return reconcile.Unchanged().After(s.until(f.RetryAt)), nil
	}
	d := decision{Action: actionPlan, Cause: causeDeletion, Visibility: operation.Full}
	switch {
	case f.GenerationChanged: // the first attempt to destroy, or one after a change of the spec
		s.obj.Status.Failures, s.obj.Status.NextRetryAt = 0, nil
	case f.Failed && !f.newInput():
		d.Cause = causeRetry
	}
	var result reconcile.Result
	var err error
	switch plan := pendingPlan(s.obj); {
	case s.obj.Spec.Approval.GetDestroy() != infrav1.DestroyApprovalRequired:
		result, err = r.start(ctx, s, d, &runnerpb.StartOperationRequest{Type: runnerpb.OperationType_OPERATION_TYPE_DESTROY})
	case plan == nil || !plan.Destroy || plan.Generation != s.obj.Generation || s.stale || s.lost || (f.Failed && !s.succeeded):
		d.Save = true
		result, err = r.start(ctx, s, d, planRequest(s.obj, d, true))
	case approved(s.obj, plan.ID):
		result, err = r.start(ctx, s, d, applyRequest(s.obj))
	default:
		return s.awaitDestroyApproval(), nil
	}
	if err != nil && reconcile.KindOf(err) != reconcile.KindBug {
		err = deletionFailure(s.obj, err)
	}
	return result, err
}

func (s *scope) awaitDestroyApproval() reconcile.Result {
	plan := s.obj.Status.Plan
	text := fmt.Sprintf("Deletion waits for an approval to destroy (%s: %s); %s; %s",
		plan.ID, summaryText(plan.Summary), howToApprove(s.obj, plan.ID), orphanHint)
	conditions.MarkTrue(s.obj, infrav1.ApprovalRequiredCondition, infrav1.ApprovalRequiredReason, "%s", text)
	return reconcile.Awaiting(infrav1.ApprovalRequiredReason, text)
}

// neverUsed says that no plan ever succeeded, so that there can be no resources.
func neverUsed(obj *infrav1.Terraform) bool {
	status := &obj.Status
	return !everPlanned(obj) && status.Operation == nil && len(status.History) == 0
}

// release removes the finalizer; the object is gone after that.
func (r *Reconciler) release(ctx context.Context, s *scope, message string) (reconcile.Result, error) {
	controllerutil.RemoveFinalizer(s.obj, infrav1.Finalizer)
	if err := s.patcher.Metadata(ctx, s.obj); err != nil {
		s.unreleased = true // the result of the destruction is still needed
		return reconcile.Result{}, err
	}
	s.gone = true
	r.drop(s.obj.UID)
	if message != "" {
		r.event(s.obj, eventNormal, infrav1.DestroyedReason, message)
	}
	log.FromContext(ctx).Info("released the object", "deletionPolicy", s.obj.GetDeletionPolicy())
	return reconcile.Unchanged(), nil
}

// attempted says that a runner may have something of the object.
func (s *scope) attempted() bool {
	return !neverUsed(s.obj) || s.obj.Status.Tool != nil || s.memory.attempted != 0
}

// drop lets go of everything that is known of an object that is gone.
func (r *Reconciler) drop(uid types.UID) {
	r.tracker.Drop(uid)
	r.memories.forget(uid)
}

// deletionFailure turns whatever stands in the way of a deletion into a message
// with the way out. Nothing makes a deletion give up: it is always tried again.
func deletionFailure(obj *infrav1.Terraform, err error) error {
	reason := reconcile.ReasonOf(err)
	switch reason {
	case infrav1.DestroyFailedReason, infrav1.ApplyFailedReason:
		reason = infrav1.DestroyFailedReason
	case infrav1.NamespaceTerminatingReason:
	default:
		reason = infrav1.DeletionBlockedReason
	}
	remain := "The resources"
	if count := obj.Status.ResourceCount; count != nil && *count > 0 {
		remain = fmt.Sprintf("%d resources", *count)
	}
	text := fmt.Sprintf("%s could not be destroyed: %v; %s", remain, err, orphanHint)
	var typed *reconcile.Error
	if errors.As(err, &typed) && typed.Kind == reconcile.KindWaiting {
		return reconcile.Waiting(max(typed.After, time.Second), reason, text)
	}
	return reconcile.Retry(reason, errors.New(text))
}
