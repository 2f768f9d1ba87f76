package terraform

import (
	"context"

	"github.com/fluxcd/pkg/apis/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/operation"
	"github.com/terrace-dev/terrace/internal/reconcile"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// collect looks after the object's operation: one that runs ends the
// reconciliation, one that ended is recorded, one that an earlier manager started
// is followed again.
func (r *Reconciler) collect(ctx context.Context, s *scope) (reconcile.Result, error) {
	snapshot, tracked := r.tracker.Get(s.obj.UID)
	switch {
	case tracked && snapshot.Done && recorded(s.obj, snapshot):
		r.tracker.Forget(s.obj.UID, snapshot.ID)
		return r.untracked(ctx, s)
	case tracked && snapshot.Done:
		s.finished = snapshot.ID
		s.record(ctx, r, snapshot)
		return reconcile.Continue(), nil
	case tracked:
		return s.progress(snapshot), nil
	default:
		return r.untracked(ctx, s)
	}
}

// untracked looks after the operation that stands in status, if there is one.
func (r *Reconciler) untracked(ctx context.Context, s *scope) (reconcile.Result, error) {
	switch written := s.obj.Status.Operation; {
	case written == nil:
		return reconcile.Continue(), nil
	case written.ID == s.memory.unstarted:
		// It was written although the answer said otherwise, and never started.
		s.obj.Status.Operation = nil
		s.notStarted(written)
		return reconcile.Continue(), nil
	default:
		return r.attach(ctx, s)
	}
}

// recorded says whether the result of an operation that stood in status was taken
// from there already: by a write whose answer was lost, or by another manager.
func recorded(obj *infrav1.Terraform, snapshot operation.Snapshot[attempt]) bool {
	written := obj.Status.Operation
	return snapshot.Visibility == operation.Full && (written == nil || written.ID != snapshot.ID)
}

// attach follows an operation that stands in status and that this manager did not start.
func (r *Reconciler) attach(ctx context.Context, s *scope) (reconcile.Result, error) {
	written := s.obj.Status.Operation
	lease, err := r.Runners.Named(ctx, s.obj.Namespace, written.Runner)
	if err != nil {
		return reconcile.Result{}, err
	}
	made := attempt{
		Generation: written.Generation,
		Source:     s.obj.Status.Source,
		PlanID:     written.PlanID,
		StartedAt:  s.now,
		// A deletion makes a new generation: what was started before is no part of it.
		Deletion: !s.obj.DeletionTimestamp.IsZero() && written.Generation == s.obj.Generation,
	}
	if written.StartedAt != nil {
		made.StartedAt = written.StartedAt.Time
	}
	kind := requestType(written.Type)
	if !r.tracker.Follow(operation.Spec[attempt]{
		UID: s.obj.UID, Name: client.ObjectKeyFromObject(s.obj), Attach: true, Runner: lease,
		Request:    &runnerpb.StartOperationRequest{Id: written.ID, Type: kind},
		Visibility: operation.Full, Patience: endurance(s.obj, kind), Meta: made,
	}) {
		lease.Release()
	}
	log.FromContext(ctx).Info("following an operation that was started before", "operation", written.ID, "type", written.Type)
	return reconcile.Unchanged(), nil
}

// progress shows a running operation, unless it is one that nobody has to notice.
func (s *scope) progress(snapshot operation.Snapshot[attempt]) reconcile.Result {
	if snapshot.Visibility == operation.Silent {
		return reconcile.Unchanged()
	}
	text := workText(s.obj, snapshot.Type, snapshot.Meta)
	phase := infrav1.OperationRunning
	if snapshot.Visibility == operation.Full {
		text += progressText(s.obj, snapshot)
		if snapshot.Phase != "" {
			phase = infrav1.OperationPhase(truncate(snapshot.Phase, 64))
		}
	}
	written := s.obj.Status.Operation
	if written == nil || written.ID != snapshot.ID {
		started := timeOf(snapshot.Meta.StartedAt)
		written = &infrav1.OperationStatus{
			ID: snapshot.ID, Type: operationType(snapshot.Type), Runner: snapshot.Runner, StartedAt: &started,
			PlanID: snapshot.Meta.PlanID, Generation: snapshot.Meta.Generation,
		}
		if source := snapshot.Meta.Source; source != nil {
			written.Revision = source.Revision
		}
		s.obj.Status.Operation = written
	}
	written.Phase, written.Message = phase, truncate(text, infrav1.MaxStatusMessageLength)
	reason := meta.ProgressingReason
	if snapshot.Meta.Retry {
		reason = meta.ProgressingWithRetryReason
	}
	result := reconcile.Progressing(reason, text)
	result.KeepReady = snapshot.Visibility == operation.Quiet
	return result
}
