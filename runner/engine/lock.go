package engine

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"time"

	"github.com/hashicorp/terraform-exec/tfexec"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// lockField finds the fields of a held lock in the tool's words; every backend
// prints the same block (statemgr.LockInfo of both tools).
var lockField = regexp.MustCompile(`(?m)^\s*(ID|Who|Operation|Created):\s+(.*?)\s*$`)

// toolWords is everything that a tool said when it failed; "" for other errors.
func toolWords(err error) string {
	var tool *toolError
	if !errors.As(err, &tool) {
		return ""
	}
	words := []string{strings.ReplaceAll(ansi.ReplaceAllString(tool.stderr, ""), "│", "")}
	for _, d := range tool.errors {
		words = append(words, d.Summary, d.Detail)
	}
	return strings.Join(words, "\n")
}

// heldLock reads the lock that kept a tool from working; nil when it was something else.
func heldLock(err error) *runnerpb.Lock {
	text := toolWords(err)
	if !strings.Contains(text, "Lock Info:") || keptLock(text) {
		return nil
	}
	lock := &runnerpb.Lock{}
	for _, match := range lockField.FindAllStringSubmatch(text, -1) {
		switch match[1] {
		case "ID":
			lock.Id = match[2]
		case "Who":
			lock.Who = match[2]
		case "Operation":
			lock.Operation = match[2]
		case "Created":
			if created, err := time.Parse("2006-01-02 15:04:05.999999999 -0700 MST", match[2]); err == nil {
				lock.CreatedUnix = created.Unix()
			}
		}
	}
	if lock.Id == "" {
		return nil
	}
	return lock
}

// lockOf is the lock that kept a tool from working, from the lock itself where
// the tool does not tell; nil when it was something else.
func (op *operation) lockOf(ctx context.Context, err error) *runnerpb.Lock {
	lock := heldLock(err)
	if text := toolWords(err); lock == nil && !keptLock(text) &&
		(strings.Contains(text, "already locked") || strings.Contains(text, "Error acquiring the state lock")) {
		lock = op.leaseLock(ctx)
	}
	if lock != nil && lock.Who == "" {
		lock.Who = "somebody unknown"
	}
	if lock != nil && lock.Operation == "" {
		lock.Operation = "an unknown operation"
	}
	return lock
}

// withLock runs something that meets the state lock, and takes it if takes says
// so. A lock that an interrupted operation of ours left behind, or that the object
// names, is released and the run repeated once; any other lock is reported.
func (op *operation) withLock(ctx context.Context, w *workspace, takes bool, run func() error) error {
	err := run()
	if op.cannotLock(err) {
		op.unlocked = true
		op.warnings = append(op.warnings, "working without the state lock: the namespace is being deleted, so that nobody can take it any more")
		err = run()
	}
	lock := op.lockOf(ctx, err)
	if lock == nil {
		op.noteEnd(takes, err)
		return err
	}
	if !op.mayRelease(lock) {
		return op.lockedBy(lock)
	}
	unlockErr := op.unlock(ctx, w, lock.GetId())
	if errors.Is(unlockErr, errInterrupted) {
		return unlockErr
	}
	if unlockErr == nil {
		op.warnings = append(op.warnings, "released the state lock "+lock.GetId()+" of "+lock.GetWho()+" ("+lock.GetOperation()+")")
	}
	// Whoever held it may have released it meanwhile: what is found now counts.
	err = run()
	if found := op.lockOf(ctx, err); found != nil {
		if unlockErr != nil && found.GetId() == lock.GetId() {
			return retry(infrav1.StateLockedReason, unlockErr, "releasing the state lock %s", lock.GetId())
		}
		return op.lockedBy(found)
	}
	op.noteEnd(takes, err)
	return err
}

// cannotLock says whether the lock of a state that is destroyed with its
// namespace cannot be taken because its Lease went first. Nobody can hold it then.
func (op *operation) cannotLock(err error) bool {
	return !op.unlocked && !op.object.DeletionTimestamp.IsZero() && op.object.UsesKubernetesBackend() &&
		op.endsWithNamespace(err) && strings.Contains(toolWords(err), "Error acquiring the state lock")
}

// locks says whether plans and applies take the state lock.
func (op *operation) locks() bool { return op.object.Spec.PlanOptions.GetLock() && !op.unlocked }

// noteEnd remembers in the journal whether the tool could release its lock. A tool
// that failed may have done so before it came to the lock.
func (op *operation) noteEnd(takes bool, err error) {
	var tool *toolError
	switch {
	case errors.Is(err, errKilled), errors.As(err, &tool) && (tool.killed || keptLock(toolWords(err))):
		op.journal.interrupt(time.Now())
	case err == nil && takes:
		op.journal.locked()
	}
}

// keptLock says whether the tool ended without having been able to release its
// lock: it says so itself, or could not even store the state.
func keptLock(words string) bool {
	return strings.Contains(words, "Error releasing the state lock") || strings.Contains(words, "Failed to save state") ||
		strings.Contains(words, "Failed to persist state")
}

// mayRelease decides about a held lock. A foreign lock is only released when the
// object names its id, or the manager knows that its holder is gone.
func (op *operation) mayRelease(lock *runnerpb.Lock) bool {
	switch lock.GetId() {
	case op.object.Spec.StateLock.ID, op.request.GetForceUnlock().GetLockId():
		return true
	}
	if op.object.Spec.StateLock.GetForceUnlock() != infrav1.ForceUnlockStale {
		return false
	}
	if lock.GetId() == op.request.GetStaleLock() {
		return true
	}
	_, hostname, _ := strings.Cut(lock.GetWho(), "@")
	return op.journal.owns(hostname, time.Unix(lock.GetCreatedUnix(), 0))
}

func (op *operation) lockedBy(lock *runnerpb.Lock) error {
	f := &failure{kind: runnerpb.Failure_KIND_LOCKED, reason: infrav1.StateLockedReason, lock: lock}
	f.message = "the state is locked by " + lock.GetWho() + " (" + lock.GetOperation() + ", id " + lock.GetId() + "); if nothing is running there any more, set spec.stateLock.id to this id to release it"
	return f
}

// unlock releases a lock with the tool, and without it where the tool cannot.
func (op *operation) unlock(ctx context.Context, w *workspace, id string) error {
	err := op.exec(ctx, w, "unlock", nil, func(ctx context.Context, tf *tfexec.Terraform) error {
		return tf.ForceUnlock(ctx, id)
	})
	if err == nil || errors.Is(err, errInterrupted) || !op.object.UsesKubernetesBackend() {
		return err
	}
	if released, leaseErr := op.releaseLease(ctx, id); released || leaseErr != nil {
		return leaseErr
	}
	return err
}

// notLocked is how the backends say that a lock to release is not there (OpenTofu 1.12).
var notLocked = []string{"state is already unlocked", "not locked", "no such lock", "lock does not exist"}

func (op *operation) forceUnlock(ctx context.Context) (*runnerpb.Result, error) {
	if err := op.prepare(ctx, keptNever); err != nil {
		return nil, err
	}
	if err := op.initialise(ctx); err != nil {
		return nil, err
	}
	id := op.request.GetForceUnlock().GetLockId()
	err := op.unlock(ctx, op.workspace, id)
	if err == nil || errors.Is(err, errInterrupted) {
		return succeeded(), err
	}
	found := heldLock(err)
	if found == nil {
		found = op.leaseLock(ctx)
	}
	if found != nil && found.GetId() != id {
		return nil, op.lockedBy(found)
	}
	for _, words := range notLocked {
		if found == nil && strings.Contains(toolWords(err), words) {
			op.warnings = append(op.warnings, "the state lock "+id+" was released already")
			return succeeded(), nil
		}
	}
	return nil, retry(infrav1.StateLockedReason, err, "releasing the state lock %s", id)
}
