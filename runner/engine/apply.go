package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/terraform-exec/tfexec"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// apply applies the saved plan with the requested id, and no other.
func (op *operation) apply(ctx context.Context) (*runnerpb.Result, error) {
	id := op.request.GetApply().GetPlanId()
	plan, err := op.openPlan(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := op.ready(ctx); err != nil {
		return nil, err
	}
	m, err := op.runApply(ctx, plan)
	if err != nil {
		return nil, err
	}
	// What was applied is recorded, whatever happens meanwhile.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	op.dropPlan()
	op.basis = plan.Basis
	op.record.Applies++
	op.settle(op.basis)
	if plan.Destroy && !op.object.DeletionTimestamp.IsZero() {
		return succeeded(), op.cleanUp(ctx)
	}
	op.record.Last = &lastApply{
		PlanID: plan.ID, Revision: op.request.GetSource().GetRevision(), Generation: op.object.Generation, At: time.Now().UTC(),
	}
	op.takeOutputs(m.outputs, plan.SensitiveOutputs)
	result := op.applyResult(plan, m)
	result.Apply.OutputsWritten, err = op.recordApply(ctx)
	result.Apply.Outputs = op.shownOutputs()
	op.warnOfSize(ctx)
	return result, err
}

// recordApply writes the record and then the outputs, which may be refused: the
// apply stands whatever becomes of them. It says whether outputs are asked for.
func (op *operation) recordApply(ctx context.Context) (written bool, err error) {
	readErr := op.readOutputs(ctx, false)
	op.noteTargets()
	err = errors.Join(readErr, op.keepForDestroy(), op.saveRecord(ctx))
	if readErr != nil {
		return false, err
	}
	written, writeErr := op.writeOutputs(ctx)
	return written, errors.Join(err, writeErr, op.saveRecord(ctx))
}

func (op *operation) applyResult(plan *savedPlan, m *messages) *runnerpb.Result {
	result := succeeded()
	resources := op.inventory(plan, m)
	result.Apply = &runnerpb.ApplyResult{
		PlanId: plan.ID, Added: m.changes[0], Changed: m.changes[1], Destroyed: m.changes[2],
		ResourceCount: int64(len(resources)),
	}
	if op.object.GetInventory() {
		result.Apply.Resources = resources[:min(len(resources), infrav1.MaxStatusResources)]
	}
	return result
}

// recordTimeout bounds the recording of a finished apply.
const recordTimeout = time.Minute

// openPlan finds the plan and a workspace that fits it. The plan holds the
// configuration and the inputs it was made of, so that those of today are only
// needed when the workspace is gone.
func (op *operation) openPlan(ctx context.Context, id string) (*savedPlan, error) {
	var err error
	if op.record, err = op.loadRecord(ctx); err != nil {
		return nil, err
	}
	plan := op.findPlan(id)
	if plan == nil {
		return nil, stale("the saved plan %s is gone", id)
	}
	if digest := op.request.GetApply().GetPlanDigest(); digest != "" && digest != plan.digest() || !workspaceKey.MatchString(plan.Workspace) {
		return nil, stale("the saved plan %s is not the one that was shown: somebody changed it", id)
	}
	op.hide(plan.Secrets...)
	op.recordKeyFromPlan()
	if err := op.bind(ctx); err != nil {
		return nil, err
	}
	// Values that are gone meanwhile stand in the plan.
	if err := op.loadInputs(ctx, keptIfMissing); err != nil && !isKind(err, kindWaiting) {
		return nil, err
	}
	if err := json.Unmarshal(plan.Variables, &op.inputs.Variables); err != nil {
		return nil, err
	}
	w, err := op.newWorkspace(plan.Workspace)
	if err != nil {
		return nil, err
	}
	if w.exists() && w.initialised() {
		return plan, errors.Join(op.writeKubeconfig(), op.openJournal(), op.useWorkspace(w), op.placePlan(plan))
	}
	if err := op.prepare(ctx, op.keptUse(plan.Destroy)); err != nil {
		return nil, err
	}
	if op.workspace.key != plan.Workspace {
		return nil, stale("the module changed since plan %s was made", id)
	}
	return plan, op.placePlan(plan)
}

// placePlan writes the plan's files into the workspace. The lock file has to be
// the plan's byte for byte, or the tool refuses the plan.
func (op *operation) placePlan(plan *savedPlan) error {
	w := op.workspace
	var lockErr error
	if plan.LockFile != nil {
		lockErr = writeFile(w.lockFile(), plan.LockFile)
	}
	return errors.Join(lockErr, writeFile(w.planFile(), plan.File), writeFile(w.variablesFile(), plan.Variables))
}

// stalePlan are the summaries with which the tools refuse a saved plan that no
// longer fits (OpenTofu 1.12, Terraform 1.11).
var stalePlan = []string{
	"Saved plan is stale",
	"Saved plan does not match the given state",
	"Inconsistent dependency lock file",
	"Failed to read plan from plan file",
	"Failed to load",
	"Can't change variable when applying a saved plan",
}

func (op *operation) runApply(ctx context.Context, plan *savedPlan) (*messages, error) {
	w := op.workspace
	options := []tfexec.ApplyOption{tfexec.DirOrPlan(w.planFile()), tfexec.Parallelism(int(op.object.Spec.PlanOptions.GetParallelism()))}
	if timeout := op.object.Spec.PlanOptions.GetLockTimeout(); timeout > 0 {
		options = append(options, tfexec.LockTimeout(timeout.String()))
	}
	if len(plan.Variables) > len("{}") {
		// Ephemeral variables are not in the plan. The others are, and have to be equal.
		options = append(options, tfexec.VarFile(w.variablesFile()))
	}
	var m *messages
	err := op.withLock(ctx, w, op.locks(), func() error {
		m = op.newMessages()
		return op.exec(ctx, w, "apply", m, func(ctx context.Context, tf *tfexec.Terraform) error {
			return tf.ApplyJSON(ctx, m, append(options, tfexec.Lock(op.locks()))...)
		})
	})
	if err == nil {
		op.warnings = append(op.warnings, m.warnings()...)
		return m, nil
	}
	if m.started > 0 {
		op.dropPlan() // what it would do is partly done
	}
	saved, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	if keepErr := op.keepErroredState(saved); keepErr != nil {
		return nil, errors.Join(err, keepErr)
	}
	var tool *toolError
	if !errors.As(err, &tool) {
		return nil, err
	}
	if m.started == 0 && len(tool.errors) > 0 && isStale(tool.errors[0]) {
		op.dropPlan()
		return nil, stale("plan %s cannot be applied any more: %s", plan.ID, tool.errors[0].line())
	}
	if op.endsWithNamespace(err) {
		return nil, op.terminating(err)
	}
	return nil, retry(infrav1.ApplyFailedReason, nil, "apply of %s failed (changes done: %d): %s", plan.ID, len(m.completed), tool.Error())
}

func isStale(d diagnostic) bool {
	return slices.ContainsFunc(stalePlan, func(summary string) bool { return strings.HasPrefix(d.Summary, summary) })
}

// inventory is the state's resources after the apply.
func (op *operation) inventory(plan *savedPlan, m *messages) []*runnerpb.Resource {
	found := map[string]*runnerpb.Resource{}
	for _, resource := range plan.Resources {
		found[resource.GetAddress()] = resource
	}
	for _, msg := range m.completed {
		hook := msg.Hook
		if hook.Action == "delete" || hook.Action == "remove" {
			delete(found, hook.Resource.Address)
			continue
		}
		resource := &runnerpb.Resource{Address: hook.Resource.Address, Type: hook.Resource.Type, Provider: hook.Resource.Provider}
		if old := found[resource.Address]; old != nil {
			resource.Provider, resource.Id = old.GetProvider(), old.GetId()
		}
		if hook.IDKey == "id" {
			resource.Id = hook.IDValue
		}
		found[resource.Address] = resource
	}
	resources := make([]*runnerpb.Resource, 0, len(found))
	for _, resource := range found {
		resources = append(resources, resource)
	}
	slices.SortFunc(resources, func(a, b *runnerpb.Resource) int { return strings.Compare(a.GetAddress(), b.GetAddress()) })
	return resources
}

// stateWarning is the size of a compressed state from which we warn, in bytes:
// OpenTofu does not split a state, and the API server refuses objects over 1 MiB.
const stateWarning = 700 << 10

func (op *operation) warnOfSize(ctx context.Context) {
	if !op.object.UsesKubernetesBackend() || op.tool.name != string(infrav1.ToolOpenTofu) {
		return
	}
	secret := &corev1.Secret{}
	if op.client.Get(ctx, types.NamespacedName{Namespace: op.object.Namespace, Name: op.stateSecret()}, secret) != nil {
		return
	}
	if size := len(secret.Data["tfstate"]); size > stateWarning {
		op.warnings = append(op.warnings, fmt.Sprintf("the compressed state has %d KiB; OpenTofu cannot store more than 1024 KiB in a Secret: split the module or use another backend", size>>10))
	}
}
