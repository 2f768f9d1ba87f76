package engine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/terraform-exec/tfexec"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// destroy plans the destruction of everything and applies that plan. When the
// configuration of today cannot even be planned, the one that was applied last is used.
func (op *operation) destroy(ctx context.Context) (*runnerpb.Result, error) {
	if nothing, err := op.nothingToDestroy(ctx); err != nil || nothing {
		return succeeded(), err
	}
	result, err := op.destroyWith(ctx, keptIfMissing)
	if isKind(err, runnerpb.Failure_KIND_TERMINAL) && op.record.keepsModule() {
		op.warnings = append(op.warnings, "using the module and the inputs of the last apply, since those of today fail: "+err.Error())
		result, err = op.destroyWith(ctx, keptOnly)
	}
	return result, err
}

func (op *operation) destroyWith(ctx context.Context, use keptUse) (*runnerpb.Result, error) {
	if err := op.prepare(ctx, use); err != nil {
		return nil, err
	}
	if err := op.ready(ctx); err != nil {
		return nil, err
	}
	changes, warnings, err := op.runPlan(ctx, true)
	if err != nil {
		return nil, err
	}
	op.warnings = append(op.warnings, warnings...)
	result := succeeded()
	result.Apply = &runnerpb.ApplyResult{}
	if changes {
		if result.Apply.Destroyed, err = op.applyDestruction(ctx); err != nil {
			return nil, err
		}
	}
	return result, op.cleanUp(context.WithoutCancel(ctx))
}

// applyDestruction applies the plan that was just made and returns how many resources it destroyed.
func (op *operation) applyDestruction(ctx context.Context) (int32, error) {
	file, err := os.ReadFile(op.workspace.planFile())
	if err != nil {
		return 0, err
	}
	m, err := op.runApply(ctx, &savedPlan{ID: "the destruction", File: file, Variables: op.inputs.variablesJSON(), Destroy: true})
	if err != nil {
		return 0, err
	}
	return m.changes[2], nil
}

// nothingToDestroy recognises an object that never had a state, without running a tool.
func (op *operation) nothingToDestroy(ctx context.Context) (bool, error) {
	var err error
	if op.record, err = op.loadRecord(ctx); err != nil {
		return false, err
	}
	if op.record.Destroyed {
		return true, op.cleanUp(ctx)
	}
	if !op.object.UsesKubernetesBackend() {
		return false, nil
	}
	if err := op.collectErrored(); err != nil {
		return false, err
	}
	if op.record.Errored != nil || op.erroredOnDisk() != nil || op.stateMoved() {
		return false, nil
	}
	secret := &corev1.Secret{}
	err = op.client.Get(ctx, types.NamespacedName{Namespace: op.object.Namespace, Name: op.stateSecret()}, secret)
	if ignoreNotFound(err) != nil {
		return false, err
	}
	owner := ""
	if err == nil {
		if owner, err = op.otherOwner(ctx, secret); err != nil {
			return false, err
		}
	}
	if len(secret.Data[stateKey]) > 0 && (owner == "" || op.record.Settled != nil) {
		return false, nil
	}
	if op.record.Settled != nil {
		return false, terminal(infrav1.StateMissingReason, "Secret %s/%s with the state is gone, although there was one; restore it, or set spec.deletionPolicy to Orphan", op.object.Namespace, op.stateSecret())
	}
	return true, op.cleanUp(ctx)
}

// erroredPath keeps a state that the tool could not store, until it is stored.
func (op *operation) erroredPath() string { return filepath.Join(op.dir, "errored.tfstate") }

func (op *operation) erroredOnDisk() []byte {
	state, err := os.ReadFile(op.erroredPath())
	if err != nil {
		return nil
	}
	return state
}

// collectErrored looks for states that a tool left in its working directory, and
// puts the newest where it is safe until it is stored.
func (op *operation) collectErrored() error {
	pattern := filepath.Join(op.dir, "work", "*", "tree", op.object.GetPath(), "errored.tfstate")
	found, err := filepath.Glob(pattern)
	if err != nil {
		return err
	}
	for _, name := range found {
		state, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if err := errors.Join(writeFile(op.erroredPath(), state), os.Remove(name)); err != nil {
			return err
		}
	}
	return nil
}

// keepErroredState saves the state that a failed apply could not store: first
// where this runner finds it, then in the record.
func (op *operation) keepErroredState(ctx context.Context) error {
	if err := op.collectErrored(); err != nil {
		return err
	}
	if state := op.erroredOnDisk(); state != nil {
		op.record.Errored = state
	}
	if op.record.head == nil && op.record.Errored == nil {
		return nil // nothing is worth a record yet
	}
	if err := op.saveRecord(ctx); err != nil && op.record.Errored != nil {
		op.warnings = append(op.warnings, "the state could be stored neither in its backend nor in the record; it is kept in the runner and stored by the next operation")
	}
	return nil
}

// recoverState pushes a state that was not stored before anything else happens.
func (op *operation) recoverState(ctx context.Context) error {
	state := op.record.Errored
	if state == nil {
		state = op.erroredOnDisk()
	}
	if state == nil {
		return nil
	}
	name := filepath.Join(op.workspace.dir, "recovered.tfstate")
	if err := writeFile(name, state); err != nil {
		return err
	}
	err := op.withLock(ctx, op.workspace, true, func() error {
		return op.exec(ctx, op.workspace, "state push", nil, func(ctx context.Context, tf *tfexec.Terraform) error {
			return tf.StatePush(ctx, name)
		})
	})
	if err != nil {
		var f *failure
		if errors.As(err, &f) || errors.Is(err, errInterrupted) {
			return err
		}
		if isOlder(err) {
			op.warnings = append(op.warnings, "a state that an earlier apply could not store is older than the one that is stored, and was dropped")
			return op.dropErrored(ctx, name)
		}
		return retry(infrav1.StateSaveFailedReason, err, "an earlier apply could not store its state, which is kept in Secret %s/%s; storing it now", op.object.Namespace, RecordName(op.object.Name))
	}
	op.warnings = append(op.warnings, "stored the state that an earlier apply could not store")
	return op.dropErrored(ctx, name)
}

// isOlder says whether the tool refused a state because a later one is stored.
func isOlder(err error) bool {
	var tool *toolError
	return errors.As(err, &tool) && strings.Contains(oneLine(tool.stderr), "over newer state")
}

func (op *operation) dropErrored(ctx context.Context, name string) error {
	op.record.Errored = nil
	return errors.Join(os.RemoveAll(op.erroredPath()), os.Remove(name), op.saveRecord(ctx))
}
