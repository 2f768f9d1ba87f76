package terraform

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"github.com/fluxcd/pkg/runtime/jitter"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/reconcile"
)

// scope is what one reconciliation knows about its object.
type scope struct {
	obj     *infrav1.Terraform
	patcher *reconcile.Patcher
	memory  *memory
	now     time.Time
	// ready is the Ready condition as it was read; events tell what changed.
	ready *metav1.Condition
	// artifact is what the object works on; the source phase sets it.
	artifact *meta.Artifact

	// What the operation that just ended came to.
	finished  string // its id; it is forgotten once the status is written
	succeeded bool   // a plan or an apply ended well
	lost      bool   // the runner does not know it any more
	// unstarted was announced and never started. What is decided now may be the same.
	unstarted *infrav1.OperationStatus
	stale     bool  // the saved plan does not fit any more
	destroyed bool  // nothing is left to destroy
	failure   error // it failed
	counted   bool  // the failure is the first one and was counted already
	earlier   bool  // it was for an earlier generation, and this one will not be attempted now

	// forgotten says that a runner tidied up after the object, or that it is not
	// waited for any longer; untidied is why it did not.
	forgotten bool
	untidied  error
	// gone says that the finalizer is removed and there is no status to write.
	gone bool
	// unreleased says that the finalizer should be removed and could not be.
	unreleased bool
}

func (r *Reconciler) newScope(obj *infrav1.Terraform) *scope {
	s := &scope{
		obj:     obj,
		patcher: reconcile.NewPatcher(r.Client, fieldOwner, obj),
		memory:  r.memories.of(obj.UID),
		now:     r.now(),
	}
	if ready := conditions.Get(obj, meta.ReadyCondition); ready != nil {
		s.ready = ready.DeepCopy()
	}
	return s
}

// summarizer writes this reconciliation's outcome into the object.
func (s *scope) summarizer() reconcile.Summarizer {
	status := &s.obj.Status
	return reconcile.Summarizer{
		Object: s.obj,
		Fields: reconcile.Fields{
			ObservedGeneration:     &status.ObservedGeneration,
			LastHandledReconcileAt: &status.LastHandledReconcileAt,
			Failures:               &status.Failures,
			NextRetryAt:            &status.NextRetryAt,
		},
		Backoff: reconcile.Backoff{Base: s.obj.GetRetryInterval(), Max: s.obj.GetMaxRetryInterval()},
		Now:     s.now,
		Earlier: s.earlier,
	}
}

// memory is what the manager remembers about an object between reconciliations.
// Losing it, with the manager, costs at most a plan that was not necessary.
type memory struct {
	// nextPlan is when the interval ends.
	nextPlan time.Time
	// retryAt is when a failed operation may be tried again.
	retryAt time.Time
	// attempted is the generation that the latest operation worked on.
	attempted int64
	// owed and owedForce are requests that were answered with "waiting" and have
	// not led to a plan yet.
	owed, owedForce bool
	// stale counts plans in a row that were stale when they were applied; staleID
	// is the operation that was counted last.
	stale   int
	staleID string
	// released is the lock whose release was tried last.
	released string
	// unstarted is the operation whose intent could not be written, as far as the answer told.
	unstarted string
}

// planned starts a new interval.
func (m *memory) planned(now time.Time, interval time.Duration) {
	m.nextPlan = now.Add(jitter.JitteredIntervalDuration(interval))
}

// skipped notes a plan for which no tool ran. That does not start a new interval,
// unless nobody looks for drift, but a shorter one takes effect.
func (m *memory) skipped(now time.Time, interval time.Duration, drift infrav1.DriftMode) {
	before := m.nextPlan
	m.planned(now, interval)
	if drift != infrav1.DriftDisabled && !before.IsZero() && before.Before(m.nextPlan) {
		m.nextPlan = before
	}
}

// nextPlanAt returns when the interval ends. An object that this manager has not
// planned yet gets a random moment within its interval, so that a restarted
// manager does not plan all of them at once.
func (m *memory) nextPlanAt(now time.Time, interval time.Duration) time.Time {
	if m.nextPlan.IsZero() {
		m.nextPlan = now.Add(time.Duration(rand.Int64N(int64(max(interval, 1))))) //nolint:gosec // spreads load, guards nothing
	}
	return m.nextPlan
}

// memories holds the memory of each object. One object is never reconciled twice
// at the same time, so that only the map needs a lock.
type memories struct {
	mu    sync.Mutex
	byUID map[types.UID]*memory
}

func (m *memories) of(uid types.UID) *memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byUID == nil {
		m.byUID = map[types.UID]*memory{}
	}
	if m.byUID[uid] == nil {
		m.byUID[uid] = &memory{}
	}
	return m.byUID[uid]
}

func (m *memories) forget(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.byUID, uid)
}
