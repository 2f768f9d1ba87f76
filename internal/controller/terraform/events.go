package terraform

import (
	eventv1 "github.com/fluxcd/pkg/apis/event/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	corev1 "k8s.io/api/core/v1"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/reconcile"
)

const (
	eventNormal  = corev1.EventTypeNormal
	eventWarning = corev1.EventTypeWarning
	// eventAction is what the controller was doing; events.k8s.io wants to know.
	eventAction = "Reconcile"
)

// announceOutcome sends an event when Ready tells people something new. What goes
// on in between, and what stays as it was, is silent.
func (r *Reconciler) announceOutcome(s *scope, result reconcile.Result, err error, message string) {
	if err == nil && result.State != reconcile.StateReady && result.State != reconcile.StateAwaiting {
		return
	}
	ready := conditions.Get(s.obj, meta.ReadyCondition)
	if ready == nil || !reconcile.Changed(s.ready, ready) {
		return
	}
	kind := eventNormal
	if err != nil && reconcile.KindOf(err) != reconcile.KindWaiting {
		kind = eventWarning
	}
	if message == "" {
		message = ready.Message
	}
	r.event(s.obj, kind, ready.Reason, message)
}

// event sends an event with the revision, from which commit statuses are made.
func (r *Reconciler) event(obj *infrav1.Terraform, kind, reason, message string) {
	metadata := map[string]string{}
	if source := obj.Status.Source; source != nil {
		metadata[infrav1.GroupName+"/"+eventv1.MetaRevisionKey] = source.Revision
		metadata[infrav1.GroupName+"/"+eventv1.MetaCommitStatusKey] = eventv1.MetaCommitStatusUpdateValue
		if source.OriginRevision != "" {
			metadata[infrav1.GroupName+"/"+eventv1.MetaOriginRevisionKey] = source.OriginRevision
		}
	}
	r.Recorder.AnnotatedEventf(obj, nil, metadata, kind, reason, eventAction, "%s", message)
}
