package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/terraform-exec/tfexec"
	tfjson "github.com/hashicorp/terraform-json"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// keptUse says when the record stands in for the source and the inputs.
type keptUse int

const (
	keptNever keptUse = iota
	// keptIfMissing is for a destruction whose source or inputs are gone.
	keptIfMissing
	// keptOnly is for a destruction whose source or inputs are of no use.
	keptOnly
)

// prepare reads everything that an operation works on.
func (op *operation) prepare(ctx context.Context, use keptUse) error {
	op.report.Phase("prepare")
	var err error
	if op.record, err = op.loadRecord(ctx); err != nil {
		return err
	}
	op.recordKeyFromPlan()
	if err := op.bind(ctx); err != nil {
		return err
	}
	if err := op.loadInputs(ctx, use); err != nil {
		return err
	}
	if err := errors.Join(op.writeKubeconfig(), op.openJournal()); err != nil {
		return err
	}
	kept := use == keptOnly || use == keptIfMissing && op.object.Spec.SourceRef != nil && !op.engine.HasSource(op.request.GetSource().GetDigest())
	if kept && !op.record.keepsModule() {
		return terminal(infrav1.SourceNotFoundReason, "the source is gone and the runner kept no copy of the module (none was applied with deletionPolicy Destroy, or it is larger than 1 MiB); restore the source, or set spec.deletionPolicy to Orphan")
	}
	if err := op.collectErrored(); err != nil {
		return err
	}
	if err := op.openWorkspace(ctx, kept); err != nil {
		return err
	}
	return op.computeBasis()
}

// recordKeyFromPlan adopts the key of a plan that this runner made before the
// object's record was first written.
func (op *operation) recordKeyFromPlan() {
	if plan := op.planOnDisk(); plan != nil && op.record.head == nil {
		op.record.Key = plan.Key
	}
}

// computeBasis digests everything that shapes a plan.
func (op *operation) computeBasis() error {
	shape, err := json.Marshal([]any{
		op.workspace.key, op.inputs, op.object.Spec.PlanOptions, op.object.Spec.VariableFiles, op.request.GetPlan().GetDestroy(),
	})
	if err != nil {
		return err
	}
	op.basis = op.record.digest(shape)
	return nil
}

func (op *operation) plan(ctx context.Context) (*runnerpb.Result, error) {
	options := op.request.GetPlan()
	if err := op.prepare(ctx, op.keptUse(options.GetDestroy())); err != nil {
		return nil, err
	}
	if options.GetIfChanged() && !options.GetForce() && op.isPlanned() {
		if op.guards() != op.record.Guarded {
			if err := op.guardState(ctx); err != nil {
				return nil, err
			}
		}
		return op.unchanged(ctx, true)
	}
	if err := op.ready(ctx); err != nil {
		return nil, err
	}
	changes, warnings, err := op.runPlan(ctx, options.GetDestroy())
	if err != nil {
		return nil, err
	}
	op.warnings = append(op.warnings, warnings...)
	if !changes && options.GetDestroy() && !op.object.DeletionTimestamp.IsZero() {
		result := succeeded()
		result.Plan = &runnerpb.PlanResult{Destroy: true}
		return result, op.cleanUp(ctx)
	}
	if !changes {
		op.dropPlan()
		op.settle(op.basis)
		return op.unchanged(ctx, false)
	}
	return op.changed(ctx)
}

// isPlanned says whether the last plan was made on the same basis and is the one
// that would be applied, if any would.
func (op *operation) isPlanned() bool {
	pending := op.findPlan("")
	return bytes.Equal(op.record.Planned, op.basis) && (pending == nil || bytes.Equal(pending.Basis, op.basis))
}

// ready makes the workspace and the state fit for work.
func (op *operation) ready(ctx context.Context) error {
	if err := op.guardState(ctx); err != nil {
		return err
	}
	if err := op.initialise(ctx); err != nil {
		return err
	}
	if err := op.checkState(); err != nil {
		return err
	}
	return op.recoverState(ctx)
}

// keptUse lets the record stand in only where everything is destroyed.
func (op *operation) keptUse(destroy bool) keptUse {
	if destroy && !op.object.DeletionTimestamp.IsZero() {
		return keptIfMissing
	}
	return keptNever
}

// runPlan plans into the workspace's plan file; the exit code says whether anything changes.
func (op *operation) runPlan(ctx context.Context, destroy bool) (changes bool, warnings []string, err error) {
	w := op.workspace
	if err := writeFile(w.variablesFile(), op.inputs.variablesJSON()); err != nil {
		return false, nil, err
	}
	options, err := op.planOptions(w, destroy)
	if err != nil {
		return false, nil, err
	}
	var m *messages
	err = op.withLock(ctx, w, op.locks(), func() error {
		m = op.newMessages()
		return op.exec(ctx, w, "plan", m, func(ctx context.Context, tf *tfexec.Terraform) error {
			changes, err = tf.PlanJSON(ctx, m, append(options, tfexec.Lock(op.locks()))...)
			return err
		})
	})
	if err != nil {
		return false, nil, op.classify(ctx, infrav1.PlanFailedReason, err)
	}
	return changes, m.warnings(), nil
}

func (op *operation) planOptions(w *workspace, destroy bool) ([]tfexec.PlanOption, error) {
	files, err := op.variableFiles(w)
	if err != nil {
		return nil, err
	}
	options := []tfexec.PlanOption{tfexec.Out(w.planFile())}
	for _, name := range files {
		options = append(options, tfexec.VarFile(name))
	}
	spec := op.object.Spec.PlanOptions
	if spec == nil {
		spec = &infrav1.PlanOptions{}
	}
	if destroy || spec.Destroy {
		options = append(options, tfexec.Destroy(true))
	}
	if spec.LockTimeout != nil {
		options = append(options, tfexec.LockTimeout(spec.LockTimeout.Duration.String()))
	}
	if spec.Parallelism != nil && *spec.Parallelism > 0 {
		options = append(options, tfexec.Parallelism(int(*spec.Parallelism)))
	}
	if destroy {
		return options, nil // a part would leave the rest behind
	}
	if spec.Refresh != nil {
		options = append(options, tfexec.Refresh(*spec.Refresh))
	}
	if spec.RefreshOnly {
		options = append(options, tfexec.RefreshOnly(true))
	}
	for _, target := range spec.Targets {
		options = append(options, tfexec.Target(target))
	}
	for _, address := range spec.Replace {
		options = append(options, tfexec.Replace(address))
	}
	return options, nil
}

// unchanged ends a plan that has nothing to do.
func (op *operation) unchanged(ctx context.Context, skipped bool) (*runnerpb.Result, error) {
	written := false
	if op.record.Plan == nil { // outputs of what is not applied yet are not there yet
		var err error
		anew := op.request.GetPlan().GetForce() || op.request.GetPlan().GetReadOutputs()
		if written, err = op.refreshOutputs(ctx, anew); err != nil {
			return nil, err
		}
		if err := op.keepForDestroy(); err != nil {
			return nil, err
		}
	}
	if err := op.saveRecord(ctx); err != nil {
		return nil, err
	}
	result := succeeded()
	result.Plan = &runnerpb.PlanResult{
		Skipped: skipped, Destroy: op.request.GetPlan().GetDestroy(), ModuleDigest: op.workspace.moduleDigest,
		Outputs: op.shownOutputs(), OutputsWritten: written,
	}
	if pending := op.findPlan(""); skipped && pending != nil {
		result.Plan.Id = pending.ID
	}
	return result, nil
}

// changed reads the plan that was just made, gives it its id and keeps it.
func (op *operation) changed(ctx context.Context) (*runnerpb.Result, error) {
	w := op.workspace
	var shown *tfjson.Plan
	err := op.exec(ctx, w, "show", nil, func(ctx context.Context, tf *tfexec.Terraform) (err error) {
		shown, err = tf.ShowPlanFile(ctx, w.planFile(), tfexec.JSONNumber(true))
		return err
	})
	if err != nil {
		return nil, op.classify(ctx, infrav1.PlanFailedReason, err)
	}
	plan, err := op.newSavedPlan(shown)
	if err != nil {
		return nil, err
	}
	result := op.planResult(shown, plan)
	if op.request.GetPlan().GetSave() {
		if err := op.keepReadable(ctx, shown, plan); err != nil {
			return nil, err
		}
		op.record.Plan, op.record.Planned = plan, op.basis
		if err := op.saveRecord(ctx); err != nil {
			return nil, err
		}
		result.Plan.Saved = true
	} else if op.record.Plan != nil {
		op.record.Plan = nil // it is not what would be applied any more
		if err := op.saveRecord(ctx); err != nil {
			return nil, err
		}
	}
	return result, op.writePlan(plan)
}

func (op *operation) newSavedPlan(shown *tfjson.Plan) (*savedPlan, error) {
	w := op.workspace
	file, err := os.ReadFile(w.planFile())
	if err != nil {
		return nil, err
	}
	lockFile, err := os.ReadFile(w.lockFile())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	id, err := op.planID(shown, lockFile)
	if err != nil {
		return nil, err
	}
	plan := &savedPlan{
		ID: id, Key: op.record.Key, CreatedAt: time.Now().UTC().Truncate(time.Second), Revision: op.revision(),
		Basis: op.basis, Workspace: w.key, Destroy: op.destroys(),
		File: file, LockFile: lockFile, Variables: op.inputs.variablesJSON(),
		Secrets: op.inputs.secrets, Resources: priorResources(shown),
	}
	for _, change := range shown.OutputChanges {
		plan.SensitiveOutputs = plan.SensitiveOutputs || change.AfterSensitive == true && !change.Actions.NoOp()
	}
	return plan, nil
}

func (op *operation) destroys() bool {
	spec := op.object.Spec.PlanOptions
	return op.request.GetPlan().GetDestroy() || spec != nil && spec.Destroy
}

// keepReadable adds what people and programs read before they approve.
func (op *operation) keepReadable(ctx context.Context, shown *tfjson.Plan, plan *savedPlan) error {
	err := op.exec(ctx, op.workspace, "show", nil, func(ctx context.Context, tf *tfexec.Terraform) (err error) {
		plan.Text, err = tf.ShowPlanFileRaw(ctx, op.workspace.planFile())
		return err
	})
	if err != nil {
		return op.classify(ctx, infrav1.PlanFailedReason, err)
	}
	plan.Text = op.redact(plan.Text)
	changes, err := json.Marshal(redactedChanges(shown))
	plan.Changes = json.RawMessage(op.redact(string(changes)))
	return err
}

func (op *operation) planResult(shown *tfjson.Plan, plan *savedPlan) *runnerpb.Result {
	result := succeeded()
	result.Plan = &runnerpb.PlanResult{
		Changes: true, Id: plan.ID, Digest: plan.digest(), Destroy: plan.Destroy,
		Drift:          bytes.Equal(op.record.Settled, op.basis) && !plan.Destroy,
		Summary:        summarize(shown),
		Changed:        changedResources(shown),
		PlannedOutputs: op.plannedOutputs(shown),
		ModuleDigest:   op.workspace.moduleDigest,
	}
	return result
}

// plannedOutputs are the values that published outputs will have, where they are known.
func (op *operation) plannedOutputs(shown *tfjson.Plan) map[string]string {
	planned := map[string]string{}
	for _, name := range op.object.Spec.PublishOutputs {
		change := shown.OutputChanges[name]
		if change == nil || change.AfterSensitive == true || anyTrue(change.AfterSensitive) || anyTrue(change.AfterUnknown) {
			continue
		}
		if value, err := json.Marshal(change.After); err == nil {
			planned[name] = string(value)
		}
	}
	return planned
}

// planPath is where the last plan waits to be applied by this runner.
func (op *operation) planPath() string { return filepath.Join(op.dir, "plan.json") }

func (op *operation) writePlan(plan *savedPlan) error {
	data, err := json.Marshal(plan)
	if err != nil {
		return err
	}
	return writeFile(op.planPath(), data)
}

func (op *operation) dropPlan() {
	op.record.Plan = nil
	_ = os.Remove(op.planPath())
}

func (op *operation) planOnDisk() *savedPlan {
	data, err := os.ReadFile(op.planPath())
	plan := &savedPlan{}
	if err != nil || json.Unmarshal(data, plan) != nil {
		return nil
	}
	return plan
}

// findPlan returns the plan of that id, from this runner or from the record;
// with an empty id any plan that may still be applied.
func (op *operation) findPlan(id string) *savedPlan {
	if plan := op.planOnDisk(); plan != nil && (id == "" || plan.ID == id) {
		return plan
	}
	if plan := op.record.Plan; plan != nil && (id == "" || plan.ID == id) {
		return plan
	}
	return nil
}

// keepForDestroy keeps module and inputs of what was applied, for an object
// whose resources are destroyed with it.
func (op *operation) keepForDestroy() error {
	if op.object.GetDeletionPolicy() != infrav1.DeletionDestroy {
		op.record.Applied = nil
		return nil
	}
	if op.request.GetPlan().GetDestroy() || op.record.Applied != nil && bytes.Equal(op.record.Applied.Basis, op.basis) {
		return nil
	}
	w := op.workspace
	relative, err := filepath.Rel(w.tree, w.module)
	if err != nil {
		return err
	}
	files, err := findModule(w.tree, relative)
	if err != nil {
		return err
	}
	module, err := files.archive(maxKeptSource)
	if err != nil {
		return err
	}
	if module == nil {
		op.warnings = append(op.warnings, fmt.Sprintf("the module is larger than %d KiB compressed, so that its source has to exist until the object is destroyed", maxKeptSource>>10))
	}
	op.record.Applied = &kept{Basis: op.basis, Revision: op.revision(), Module: module, Inputs: op.inputs, Secrets: op.inputs.secrets}
	return nil
}
