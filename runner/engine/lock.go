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

// heldLock reads the lock that kept a tool from working; nil when it was something else.
func heldLock(err error) *runnerpb.Lock {
	var tool *toolError
	if !errors.As(err, &tool) {
		return nil
	}
	text := ansi.ReplaceAllString(tool.stderr, "")
	text = strings.ReplaceAll(text, "│", "")
	for _, d := range tool.errors {
		text += "\n" + d.Detail
	}
	if !strings.Contains(text, "Lock Info:") {
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

// withLock runs something that takes the state lock. A lock that an interrupted
// operation of ours left behind, or that the object names, is released and the
// run repeated once; any other lock is reported.
func (op *operation) withLock(ctx context.Context, w *workspace, run func() error) error {
	err := run()
	lock := heldLock(err)
	if lock == nil {
		op.noteEnd(err)
		return err
	}
	if !op.mayRelease(lock) {
		return op.lockedBy(lock)
	}
	op.warnings = append(op.warnings, "released the state lock "+lock.GetId()+" of "+lock.GetWho()+" ("+lock.GetOperation()+")")
	if err := op.unlock(ctx, w, lock.GetId()); err != nil {
		return err
	}
	err = run()
	if lock := heldLock(err); lock != nil {
		return op.lockedBy(lock)
	}
	op.noteEnd(err)
	return err
}

// noteEnd remembers in the journal whether the tool could release its lock.
func (op *operation) noteEnd(err error) {
	var tool *toolError
	if errors.Is(err, errKilled) || errors.As(err, &tool) && (tool.killed || tool.keptLock()) {
		op.journal.interrupt(time.Now())
		return
	}
	op.journal.locked()
}

// keptLock says whether the tool ended without having been able to release its
// lock: it says so itself, or could not even store the state.
func (e *toolError) keptLock() bool {
	words := []string{e.stderr}
	for _, d := range e.errors {
		words = append(words, d.Summary, d.Detail)
	}
	text := strings.Join(words, "\n")
	return strings.Contains(text, "Error releasing the state lock") || strings.Contains(text, "Failed to save state") ||
		strings.Contains(text, "Failed to persist state")
}

// mayRelease decides about a held lock. A foreign lock is only released when the object names its id.
func (op *operation) mayRelease(lock *runnerpb.Lock) bool {
	if id := op.object.Spec.StateLock.ID; id != "" && id == lock.GetId() {
		return true
	}
	if op.object.Spec.StateLock.GetForceUnlock() != infrav1.ForceUnlockStale {
		return false
	}
	_, hostname, _ := strings.Cut(lock.GetWho(), "@")
	return op.journal.owns(hostname, time.Unix(lock.GetCreatedUnix(), 0))
}

func (op *operation) lockedBy(lock *runnerpb.Lock) error {
	f := &failure{kind: runnerpb.Failure_KIND_LOCKED, reason: infrav1.StateLockedReason, lock: lock}
	f.message = "the state is locked by " + lock.GetWho() + " (" + lock.GetOperation() + ", id " + lock.GetId() + "); if nothing is running there any more, set spec.stateLock.id to this id to release it"
	return f
}

func (op *operation) unlock(ctx context.Context, w *workspace, id string) error {
	err := op.exec(ctx, w, "unlock", nil, func(ctx context.Context, tf *tfexec.Terraform) error {
		return tf.ForceUnlock(ctx, id)
	})
	if err != nil && !errors.Is(err, errInterrupted) {
		return retry(infrav1.StateLockedReason, err, "releasing the state lock %s", id)
	}
	return err
}

func (op *operation) forceUnlock(ctx context.Context) (*runnerpb.Result, error) {
	if err := op.prepare(ctx, keptNever); err != nil {
		return nil, err
	}
	return succeeded(), op.unlock(ctx, op.workspace, op.request.GetForceUnlock().GetLockId())
}
