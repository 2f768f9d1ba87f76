package reconcile

import (
	"context"
	"time"
)

// State says what a reconciliation came to when no phase failed.
type State int

const (
	// StateContinue means that the phase has nothing to say: the next one runs.
	StateContinue State = iota
	// StateReady means that the object is as its spec wants it.
	StateReady
	// StateProgressing means that work goes on elsewhere and will wake the object up.
	StateProgressing
	// StateAwaiting means that the object waits for a human. That is neither an
	// error nor progress: Ready=False without Reconciling.
	StateAwaiting
	// StateUnchanged means that the conditions are right as they stand.
	StateUnchanged
)

// Result is what a phase returns. The zero value lets the next phase run.
type Result struct {
	// State ends the reconciliation unless it is StateContinue.
	State State
	// Reason and Message are for Ready, or for Reconciling with StateProgressing.
	Reason, Message string
	// RequeueAfter runs the reconciliation again after this time; zero does not.
	RequeueAfter time.Duration
	// KeepReady leaves Ready as it is while the object is progressing: what was
	// reported stays true until the work shows otherwise.
	KeepReady bool
}

// Continue lets the next phase run.
func Continue() Result { return Result{} }

// Ready ends the reconciliation: the object is as its spec wants it.
func Ready(reason, message string) Result {
	return Result{State: StateReady, Reason: reason, Message: message}
}

// Progressing ends the reconciliation: something else works and will wake the object up.
func Progressing(reason, message string) Result {
	return Result{State: StateProgressing, Reason: reason, Message: message}
}

// Awaiting ends the reconciliation: a human has to decide. The message says how.
func Awaiting(reason, message string) Result {
	return Result{State: StateAwaiting, Reason: reason, Message: message}
}

// Unchanged ends the reconciliation and leaves Ready, Reconciling and Stalled alone.
func Unchanged() Result { return Result{State: StateUnchanged} }

// After returns the result with a time at which to reconcile again.
func (r Result) After(d time.Duration) Result {
	r.RequeueAfter = d
	return r
}

// Phase is one step of a reconciliation. Everything that it reads once and later
// phases need goes into the scope.
type Phase[S any] func(ctx context.Context, scope S) (Result, error)

// Run runs the phases in order until one fails or ends the reconciliation. When
// all of them continue, the result is StateUnchanged.
func Run[S any](ctx context.Context, scope S, phases ...Phase[S]) (Result, error) {
	for _, phase := range phases {
		result, err := phase(ctx, scope)
		if err != nil || result.State != StateContinue {
			return result, err
		}
	}
	return Unchanged(), nil
}
