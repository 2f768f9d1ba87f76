package terraform

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/operation"
	"github.com/terrace-dev/terrace/internal/reconcile"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// attempt is what the controller remembers about an operation that it started.
type attempt struct {
	// Generation and Source are what the operation works on.
	Generation int64
	Source     *infrav1.SourceStatus
	// PlanID is the plan that it applies.
	PlanID string
	// RequestedAt, ForceAt and ResetAt are the requests that it answers.
	RequestedAt, ForceAt, ResetAt string
	// StartedAt is when the operation was decided upon.
	StartedAt time.Time
	// IfChanged says that the runner may have skipped the plan.
	IfChanged bool
	// Deletion says that the operation is a part of the object's deletion.
	Deletion bool
	// Retry says that the operation follows a failure, which stays in Ready meanwhile.
	Retry bool
}

// revision is that of the source; modules without one have none.
func (a attempt) revision() string {
	if a.Source == nil {
		return ""
	}
	return a.Source.Revision
}

// act does what was decided.
func (r *Reconciler) act(ctx context.Context, s *scope, d decision) (reconcile.Result, error) {
	switch d.Action {
	case actionPlan:
		return r.start(ctx, s, d, planRequest(s.obj, d, false))
	case actionApply:
		return r.start(ctx, s, d, applyRequest(s.obj))
	case actionNone:
		return reconcile.Unchanged().After(s.until(d.Wake)), nil
	default:
		return s.rest(d.Cause).After(s.until(d.Wake)), nil
	}
}

// until returns the time until a moment, at least a little, and zero for none.
func (s *scope) until(moment time.Time) time.Duration {
	if moment.IsZero() {
		return 0
	}
	return max(moment.Sub(s.now), time.Millisecond)
}

func planRequest(obj *infrav1.Terraform, d decision, destroy bool) *runnerpb.StartOperationRequest {
	// After an operation that did not end well, what the runner knows of the outputs may be old.
	history := obj.Status.History
	anew := d.Cause == causeLost || d.Cause == causeRetry || len(history) > 0 && history[0].Result == infrav1.OperationLost
	return &runnerpb.StartOperationRequest{
		Type: runnerpb.OperationType_OPERATION_TYPE_PLAN,
		Options: &runnerpb.StartOperationRequest_Plan{Plan: &runnerpb.PlanOptions{
			IfChanged: d.IfChanged, Save: d.Save, Force: d.Force, Destroy: destroy, ReadOutputs: anew,
		}},
	}
}

func applyRequest(obj *infrav1.Terraform) *runnerpb.StartOperationRequest {
	return &runnerpb.StartOperationRequest{
		Type: runnerpb.OperationType_OPERATION_TYPE_APPLY,
		Options: &runnerpb.StartOperationRequest_Apply{Apply: &runnerpb.ApplyOptions{
			PlanId: obj.Status.Plan.ID, PlanDigest: obj.Status.Plan.Digest,
		}},
	}
}

// start writes down what is about to happen, as far as it has to be known after a
// crash or should be seen, and hands the operation to the tracker. It does not
// wait for anything but the API server.
func (r *Reconciler) start(ctx context.Context, s *scope, d decision, request *runnerpb.StartOperationRequest) (reconcile.Result, error) {
	lease, err := r.Runners.Runner(ctx, s.obj)
	if err != nil {
		return reconcile.Result{}, err
	}
	followed := false
	defer func() {
		if !followed {
			lease.Release()
		}
	}()
	made := s.attempt(request, d)
	request.Id = s.operationID(request.GetType(), made)
	result := reconcile.Unchanged()
	if made.PlanID != "" {
		conditions.Delete(s.obj, infrav1.ApprovalRequiredCondition)
	}
	if d.Visibility == operation.Full {
		result = s.announce(request, made, lease.Name())
	}
	if made.ResetAt != "" || d.fresh() {
		s.obj.Status.Failures, s.obj.Status.NextRetryAt = 0, nil
	}
	if err := r.complete(ctx, s, request); err != nil {
		return reconcile.Result{}, err
	}
	if err := s.write(ctx); err != nil {
		s.obj.Status.Operation = nil
		if !made.Deletion || !refused(err) {
			if !apierrors.IsConflict(err) { // which says for sure that it was not written
				s.memory.unstarted = request.GetId()
			}
			return reconcile.Result{}, err
		}
		d.Visibility = operation.Quiet // nothing about status blocks a deletion
	}
	r.forgetFinished(s)
	followed = r.tracker.Follow(operation.Spec[attempt]{
		UID: s.obj.UID, Name: client.ObjectKeyFromObject(s.obj), Request: request, Runner: lease,
		Source: r.sourceFunc(s.artifact), SourceOptional: made.Deletion,
		Visibility: d.Visibility, Patience: endurance(s.obj, request.GetType()), Meta: made,
	})
	s.memory.attempted, s.memory.owed, s.memory.owedForce = made.Generation, false, false
	log.FromContext(ctx).Info("started operation", "operation", request.GetId(), "type", shortType(request.GetType()), "cause", d.Cause)
	return result, nil
}

// attempt remembers what an operation is for.
func (s *scope) attempt(request *runnerpb.StartOperationRequest, d decision) attempt {
	return attempt{
		Generation:  s.obj.Generation,
		Source:      sourceStatus(s.artifact),
		PlanID:      request.GetApply().GetPlanId(),
		RequestedAt: s.requestToken(),
		ForceAt:     s.forceToken(),
		ResetAt:     s.resetToken(),
		StartedAt:   s.now,
		IfChanged:   request.GetPlan().GetIfChanged(),
		Deletion:    !s.obj.DeletionTimestamp.IsZero(),
		Retry:       d.Cause == causeRetry,
	}
}

// operationID returns the id of an operation. One that was announced, and not started
// before the manager ended, keeps its id, and so does one that answers a request: a
// runner that has it already goes on with it.
func (s *scope) operationID(t runnerpb.OperationType, made attempt) string {
	if again := s.unstarted; again != nil && again.Type == operationType(t) && again.PlanID == made.PlanID && again.Generation == made.Generation {
		return again.ID
	}
	if made.RequestedAt == "" || made.Retry {
		return shortType(t) + "-" + utilrand.String(12)
	}
	sum := sha256.Sum256(fmt.Append(nil, s.obj.UID, made.RequestedAt, made.Generation, made.PlanID, made.revision(), s.obj.Status.Failures, len(s.obj.Status.History)))
	return shortType(t) + "-" + hex.EncodeToString(sum[:6])
}

// announce puts the operation into status: its intent, before it has any effect.
func (s *scope) announce(request *runnerpb.StartOperationRequest, made attempt, runnerName string) reconcile.Result {
	status := &s.obj.Status
	now := metav1.NewTime(s.now.UTC().Truncate(time.Second))
	text := workText(s.obj, request.GetType(), made)
	status.Operation = &infrav1.OperationStatus{
		ID:         request.GetId(),
		Type:       operationType(request.GetType()),
		Runner:     runnerName,
		Phase:      infrav1.OperationPending,
		Message:    text,
		StartedAt:  &now,
		PlanID:     made.PlanID,
		Generation: made.Generation,
	}
	if s.unstarted != nil && s.unstarted.ID == request.GetId() {
		status.Operation.StartedAt = s.unstarted.StartedAt
	}
	if made.Source != nil {
		status.Operation.Revision = made.Source.Revision
		status.Source, status.LastAttemptedRevision = made.Source, made.Source.Revision
	}
	if plan := status.Plan; plan != nil && made.PlanID == plan.ID && plan.ApprovedAt == nil {
		plan.ApprovedAt = &now
	}
	result := reconcile.Progressing(meta.ProgressingReason, text)
	reconcile.MarkProgressing(s.obj, result)
	return result
}

// complete fills in what every request carries: the object, so that both sides act
// on the same version of it, its source, its timeout, and a lock in its way that
// nobody holds any more.
func (r *Reconciler) complete(ctx context.Context, s *scope, request *runnerpb.StartOperationRequest) error {
	obj := s.obj.DeepCopy()
	obj.SetGroupVersionKind(infrav1.GroupVersion.WithKind(infrav1.TerraformKind))
	obj.ManagedFields = nil
	obj.Spec.Runner.ServiceAccountName = ServiceAccount(obj, r.DefaultServiceAccount)
	if lock := obj.Status.Lock; lock != nil && r.releasable(ctx, s, lock.Who) {
		request.StaleLock = lock.ID
	}
	data, err := json.Marshal(obj)
	if err != nil {
		return fmt.Errorf("serialising the object for the runner: %w", err)
	}
	request.Object = data
	request.TimeoutSeconds = int64(max(obj.GetTimeout().Seconds(), 1))
	if s.artifact != nil {
		request.Source = &runnerpb.Source{Digest: s.artifact.Digest, Revision: s.artifact.Revision}
	}
	return nil
}

// ServiceAccount returns the account that an object's runner acts as, given the
// operator's default, which takes the place of the API's unless it is empty.
func ServiceAccount(obj *infrav1.Terraform, standard string) string {
	name := obj.Spec.Runner.GetServiceAccountName()
	if standard != "" && name == infrav1.DefaultRunnerServiceAccountName {
		return standard
	}
	return name
}

// forgetFinished drops the operation whose result is written.
func (r *Reconciler) forgetFinished(s *scope) {
	if s.finished != "" {
		r.tracker.Forget(s.obj.UID, s.finished)
		s.finished = ""
	}
}

// operationTypes are the protocol's operation types as the API names them.
var operationTypes = map[runnerpb.OperationType]infrav1.OperationType{
	runnerpb.OperationType_OPERATION_TYPE_PLAN:         infrav1.OperationPlan,
	runnerpb.OperationType_OPERATION_TYPE_APPLY:        infrav1.OperationApply,
	runnerpb.OperationType_OPERATION_TYPE_DESTROY:      infrav1.OperationDestroy,
	runnerpb.OperationType_OPERATION_TYPE_FORCE_UNLOCK: infrav1.OperationForceUnlock,
	runnerpb.OperationType_OPERATION_TYPE_SHOW_PLAN:    infrav1.OperationShowPlan,
}

func operationType(t runnerpb.OperationType) infrav1.OperationType { return operationTypes[t] }

// requestType is the reverse of operationType.
func requestType(t infrav1.OperationType) runnerpb.OperationType {
	for request, known := range operationTypes {
		if known == t {
			return request
		}
	}
	return runnerpb.OperationType_OPERATION_TYPE_PLAN
}

func shortType(t runnerpb.OperationType) string {
	switch operationType(t) {
	case infrav1.OperationApply:
		return "apply"
	case infrav1.OperationDestroy:
		return "destroy"
	case "":
		return "forget"
	default:
		return "plan"
	}
}
