package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Fields points to the fields of a status that the skeleton keeps.
type Fields struct {
	// ObservedGeneration is status.observedGeneration.
	ObservedGeneration *int64
	// LastHandledReconcileAt is status.lastHandledReconcileAt.
	LastHandledReconcileAt *string
	// Failures counts failed attempts in a row.
	Failures *int64
	// NextRetryAt is when the next attempt after a failure is due.
	NextRetryAt **metav1.Time
}

// Summarizer writes outcomes into one object.
type Summarizer struct {
	// Object has the conditions.
	Object conditions.Setter
	// Fields are the object's.
	Fields Fields
	// Backoff paces retries.
	Backoff Backoff
	// Now is the time of the reconciliation.
	Now time.Time
	// Earlier says that the outcome is that of an earlier generation, so that the
	// present one stays unobserved.
	Earlier bool
}

// Summary says what follows from an outcome.
type Summary struct {
	// Result and Err are for controller-runtime.
	Result ctrl.Result
	Err    error
	// RetryAt is when the next attempt is due; zero if none is scheduled.
	RetryAt time.Time
	// Message is what people should read about a failure; empty without one.
	Message string
	// Transient says that the error tells nothing about the object: nothing was
	// changed and nothing should be written.
	Transient bool
}

// ConflictDelay is the time after which a lost race for the object is run again.
// The watch usually delivers the newer object before.
const ConflictDelay = 200 * time.Millisecond

// Summarize writes the outcome of a reconciliation into Ready, Reconciling and
// Stalled, and says when to reconcile again.
//
// observedGeneration advances when the object is Ready, Stalled or waiting for a
// human. A request (reconcile.fluxcd.io/requestedAt) counts as handled with
// every outcome but progress.
func (s Summarizer) Summarize(result Result, err error) Summary {
	if err != nil {
		return s.failure(err)
	}
	switch result.State {
	case StateReady:
		conditions.Delete(s.Object, meta.StalledCondition)
		conditions.Delete(s.Object, meta.ReconcilingCondition)
		conditions.MarkTrue(s.Object, meta.ReadyCondition, result.Reason, "%s", result.Message)
		s.succeed()
	case StateAwaiting:
		conditions.Delete(s.Object, meta.StalledCondition)
		conditions.Delete(s.Object, meta.ReconcilingCondition)
		conditions.MarkFalse(s.Object, meta.ReadyCondition, result.Reason, "%s", result.Message)
		s.succeed()
	case StateProgressing:
		MarkProgressing(s.Object, result)
	case StateContinue, StateUnchanged:
	}
	return Summary{Result: ctrl.Result{RequeueAfter: result.RequeueAfter}}
}

// MarkProgressing sets Reconciling, and Ready to Unknown unless the result keeps it.
func MarkProgressing(obj conditions.Setter, result Result) {
	conditions.MarkReconciling(obj, result.Reason, "%s", result.Message)
	if !result.KeepReady || !conditions.Has(obj, meta.ReadyCondition) {
		conditions.MarkUnknown(obj, meta.ReadyCondition, meta.ProgressingReason, "%s", result.Message)
	}
}

func (s Summarizer) failure(err error) Summary {
	e := asError(err)
	if e == nil {
		return s.bug(err)
	}
	summary := Summary{Message: e.Message}
	switch e.Kind {
	case KindTerminal:
		conditions.MarkFalse(s.Object, meta.ReadyCondition, e.Reason, "%s", e.Message)
		conditions.MarkStalled(s.Object, e.Reason, "%s", e.Message)
		*s.Fields.NextRetryAt = nil
		s.settle()
		summary.Err = ctrlreconcile.TerminalError(err)
		return summary
	case KindWaiting:
		summary.Result.RequeueAfter = e.After
		*s.Fields.NextRetryAt = nil
		s.markFailing(e.Reason, e.Message)
	default:
		*s.Fields.Failures++
		delay := s.Backoff.Delay(*s.Fields.Failures)
		next := metav1.NewTime(s.Now.Add(delay).UTC().Truncate(time.Second))
		*s.Fields.NextRetryAt = &next
		summary.Result.RequeueAfter = delay
		s.markFailing(e.Reason, fmt.Sprintf("%s (failure %d, next try at %s)", e.Message, *s.Fields.Failures, next.Format(time.RFC3339)))
	}
	summary.RetryAt = s.Now.Add(summary.Result.RequeueAfter)
	s.handled()
	return summary
}

func (s Summarizer) bug(err error) Summary {
	if apierrors.IsConflict(err) || errors.Is(err, context.Canceled) {
		return Summary{Result: ctrl.Result{RequeueAfter: ConflictDelay}, Transient: true}
	}
	if IsTransient(err) {
		return Summary{Err: err, Transient: true} // backs off
	}
	s.markFailing(meta.FailedReason, err.Error())
	return Summary{Err: err, Message: err.Error()}
}

func (s Summarizer) markFailing(reason, message string) {
	conditions.MarkFalse(s.Object, meta.ReadyCondition, reason, "%s", message)
	conditions.MarkReconciling(s.Object, meta.ProgressingWithRetryReason, "%s", message)
}

func (s Summarizer) succeed() {
	*s.Fields.Failures = 0
	*s.Fields.NextRetryAt = nil
	s.settle()
}

// settle records that this generation was dealt with, in the object and in all of
// its conditions: those that did not change hold for the new generation too.
func (s Summarizer) settle() {
	if s.Earlier {
		s.handled()
		return
	}
	*s.Fields.ObservedGeneration = s.Object.GetGeneration()
	list := slices.Clone(s.Object.GetConditions())
	for i := range list {
		list[i].ObservedGeneration = s.Object.GetGeneration()
	}
	s.Object.SetConditions(list)
	s.handled()
}

func (s Summarizer) handled() {
	if token, ok := meta.ReconcileAnnotationValue(s.Object.GetAnnotations()); ok {
		*s.Fields.LastHandledReconcileAt = token
	}
}

// Changed says whether two versions of a condition would read differently to a
// person. Missing conditions are nil.
func Changed(before, after *metav1.Condition) bool {
	if before == nil || after == nil {
		return before != after
	}
	return before.Status != after.Status || before.Reason != after.Reason || before.Message != after.Message
}
