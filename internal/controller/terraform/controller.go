// Package terraform is the controller of the Terraform kind. It decides when to
// plan and what may be applied; runners do the work, and no reconciliation waits
// for them.
package terraform

import (
	"context"
	"errors"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	runtimectrl "github.com/fluxcd/pkg/runtime/controller"
	"github.com/fluxcd/pkg/runtime/events"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/artifact"
	"github.com/terrace-dev/terrace/internal/operation"
	"github.com/terrace-dev/terrace/internal/reconcile"
)

// fieldOwner is the field manager of everything that the controller writes.
// Changing it orphans the fields that it owns in existing clusters.
const fieldOwner = "terrace-terraform"

// OwnedConditions are the conditions that the controller sets.
var OwnedConditions = []string{
	meta.ReadyCondition,
	meta.ReconcilingCondition,
	meta.StalledCondition,
	infrav1.PlannedCondition,
	infrav1.ApprovalRequiredCondition,
	infrav1.AppliedCondition,
	infrav1.DriftedCondition,
	infrav1.OutputsWrittenCondition,
	infrav1.StateLockedCondition,
}

// Reconciler reconciles Terraform objects. Set the exported fields, then call
// SetupWithManager.
type Reconciler struct {
	client.Client
	runtimectrl.Metrics

	// APIReader reads dependencies from the API server itself.
	APIReader client.Reader
	// Recorder sends events.
	Recorder events.Recorder
	// Runners finds the runner of an object.
	Runners Runners
	// Fetcher fetches artifacts for runners that lack them.
	Fetcher *artifact.Fetcher
	// NoCrossNamespaceRefs denies references to other namespaces.
	NoCrossNamespaceRefs bool
	// DefaultServiceAccount replaces the API's default account of runners; empty keeps it.
	DefaultServiceAccount string
	// RequeueDependency is the time between two looks at something that is not there yet.
	RequeueDependency time.Duration
	// Times of the operation tracker; the zero value means the defaults.
	Times operation.Options
	// Clock is for tests; nil means time.Now.
	Clock func() time.Time

	tracker  *operation.Tracker[attempt]
	memories memories
	sources  sourceWatches
}

// +kubebuilder:rbac:groups=infra.terrace.dev,resources=terraforms,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=infra.terrace.dev,resources=terraforms/status,verbs=patch
// +kubebuilder:rbac:groups=infra.terrace.dev,resources=kubesprayclusters;configreloads,verbs=get
// +kubebuilder:rbac:groups=kustomize.toolkit.fluxcd.io,resources=kustomizations,verbs=get
// +kubebuilder:rbac:groups=helm.toolkit.fluxcd.io,resources=helmreleases,verbs=get
// +kubebuilder:rbac:groups=source.toolkit.fluxcd.io,resources=gitrepositories;ocirepositories;buckets;externalartifacts,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch

// Reconcile brings one object a step further. It starts operations and collects
// their results; it never waits for one.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	obj := &infrav1.Terraform{}
	if err := r.Get(ctx, req.NamespacedName, obj); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	s := r.newScope(obj)
	defer func() { r.RecordDuration(ctx, obj, s.now) }()

	result, err := r.reconcile(ctx, s)
	return r.conclude(ctx, s, result, err)
}

func (r *Reconciler) reconcile(ctx context.Context, s *scope) (reconcile.Result, error) {
	if !s.obj.DeletionTimestamp.IsZero() {
		return reconcile.Run(ctx, s, r.deletion()...)
	}
	if controllerutil.AddFinalizer(s.obj, infrav1.Finalizer) {
		if err := s.patcher.Metadata(ctx, s.obj); err != nil {
			return reconcile.Result{}, err
		}
	}
	if s.obj.Spec.Suspend {
		return reconcile.Run(ctx, s, r.collect, r.suspended)
	}
	return reconcile.Run(ctx, s,
		r.collect,
		r.validate,
		r.dependencies,
		r.resolveSource,
		r.decideAndAct,
	)
}

// suspended leaves the object alone. Only the result of an operation that was
// already running is reported; it says nothing about the generation that suspends.
func (r *Reconciler) suspended(ctx context.Context, s *scope) (reconcile.Result, error) {
	switch {
	case s.finished == "" && !s.lost:
		log.FromContext(ctx).V(1).Info("suspended")
		return reconcile.Unchanged(), nil
	case s.failure != nil:
		return reconcile.Result{}, s.fallThrough(s.failure)
	case s.lost || s.stale || s.unstarted != nil:
		return reconcile.Result{}, reconcile.Retry(infrav1.OperationLostReason,
			errors.New("the operation that was under way has to be planned anew once the object is resumed"))
	}
	pending := pendingPlan(s.obj)
	if pending == nil && conditions.IsTrue(s.obj, meta.ReadyCondition) {
		conditions.Delete(s.obj, meta.ReconcilingCondition)
		return reconcile.Unchanged(), nil
	}
	text := "The operation that was under way ended well; what comes next is decided once the object is resumed"
	if pending != nil {
		text = pending.ID + of(pending.Revision) + " waits until the object is resumed"
	}
	return reconcile.Awaiting(meta.SuspendedReason, text), nil
}

// conclude writes the outcome into status, in one request if anything changed,
// then lets go of what was written and tells people what is new.
func (r *Reconciler) conclude(ctx context.Context, s *scope, result reconcile.Result, err error) (ctrl.Result, error) {
	if s.gone || s.unreleased {
		return ctrl.Result{}, err
	}
	waiting := err != nil && reconcile.KindOf(err) == reconcile.KindWaiting && s.finished == ""
	owed, owedForce := waiting && s.requestToken() != "", waiting && s.forceToken() != ""
	summary := s.summarizer().Summarize(result, err)
	if summary.Transient {
		log.FromContext(ctx).V(1).Info("trying again", "error", err.Error())
		return summary.Result, summary.Err
	}
	if written := s.write(ctx); written != nil {
		if apierrors.IsConflict(written) {
			log.FromContext(ctx).V(1).Info("trying again", "error", written.Error())
			return ctrl.Result{RequeueAfter: reconcile.ConflictDelay}, nil
		}
		return ctrl.Result{}, written
	}
	r.forgetFinished(s)
	s.memory.owed, s.memory.owedForce = s.memory.owed || owed, s.memory.owedForce || owedForce
	if err != nil || result.State != reconcile.StateUnchanged {
		s.memory.retryAt = summary.RetryAt
	}
	r.announceOutcome(s, result, err, summary.Message)
	if err != nil && summary.Err == nil {
		log.FromContext(ctx).Info("reconciliation failed", "reason", reconcile.ReasonOf(err), "message", err.Error())
	}
	return summary.Result, summary.Err
}

func (r *Reconciler) now() time.Time {
	if r.Clock != nil {
		return r.Clock()
	}
	return time.Now()
}
