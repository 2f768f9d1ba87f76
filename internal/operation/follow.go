package operation

import (
	"context"
	"errors"
	"time"

	"github.com/terrace-dev/terrace/runner"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// ErrLost means that the runner does not know the operation: it was restarted, or
// never heard of it.
var ErrLost = errors.New("the runner lost the operation")

// ErrNotStarted means that the operation was not started: its runner went away
// before, or, of an operation that an earlier manager was to start, does not know
// it. It may be started under the same id: a runner refuses one that it began once.
var ErrNotStarted = errors.New("the operation was not started")

// SourceError means that the archive could not be brought to the runner.
type SourceError struct{ Err error }

// Error implements error.
func (e *SourceError) Error() string { return e.Err.Error() }

// Unwrap returns what the SourceFunc returned.
func (e *SourceError) Unwrap() error { return e.Err }

// PhaseSource is the phase of an operation whose source is on its way to the runner.
const PhaseSource = "fetching the source"

// maxUploads bounds how often a runner may ask for the same source in one operation.
const maxUploads = 3

// answered is how long only a call lasts that the runner answers: silence ends it sooner.
const answered = time.Minute

// maxRetryDelay bounds the delay between attempts to reach a runner.
const maxRetryDelay = 15 * time.Second

type tracked[M any] struct {
	spec     Spec[M]
	snapshot Snapshot[M] // guarded by the tracker's mutex
}

// follow sees one operation through.
func (t *Tracker[M]) follow(op *tracked[M]) {
	ended := make(chan struct{})
	if op.spec.Visibility != Silent {
		t.running.Go(func() { t.notices(op, ended) })
	}
	var result *runnerpb.Result
	var err error
	if !op.spec.Attach {
		err = t.start(op)
	}
	if err == nil {
		result, err = t.watch(op, op.snapshot.ID)
	}
	close(ended)
	op.spec.Runner.Release()
	if t.context.Err() != nil {
		return // the manager ends; the operation goes on and is found again by its id
	}
	t.update(op, func(s *Snapshot[M]) { s.Done, s.Result, s.Err = true, result, err })
	t.notify(op.spec)
}

// notices wakes the object up while the operation runs, at growing distances, if
// there is anything new to say.
func (t *Tracker[M]) notices(op *tracked[M], ended <-chan struct{}) {
	said, distance := "", t.options.FirstNotice
	for {
		select {
		case <-ended:
			return
		case <-t.context.Done():
			return
		case <-time.After(distance):
		}
		t.mu.Lock()
		news := op.snapshot.WaitsFor + op.snapshot.Phase + op.snapshot.Resource + op.snapshot.SilentSince.String()
		t.mu.Unlock()
		if news != said {
			said = news
			t.notify(op.spec)
		}
		if op.spec.Visibility == Quiet && said != "" {
			return
		}
		distance = min(2*distance, t.options.MaxNotice)
	}
}

// start brings the operation, and its source if need be, to the runner.
func (t *Tracker[M]) start(op *tracked[M]) error {
	uploads := 0
	for {
		var needSource bool
		err := t.reach(op, func(ctx context.Context) (err error) {
			needSource, err = op.spec.Runner.Start(ctx, op.spec.Request)
			return err
		})
		if other := busyWith(err); other != "" && other != op.snapshot.ID {
			// An earlier manager's operation nobody recorded; its end is waited for.
			if _, err := t.watch(op, other); err != nil && !errors.Is(err, ErrLost) {
				return err
			}
			continue
		}
		if err != nil || !needSource {
			return err
		}
		if uploads++; uploads > maxUploads {
			return &SourceError{Err: errors.New("the runner keeps losing the source it was sent")}
		}
		if err := t.upload(op); err != nil {
			if !op.spec.SourceOptional {
				return err
			}
			op.spec.Request.Source = nil
		}
	}
}

func (t *Tracker[M]) upload(op *tracked[M]) error {
	t.update(op, func(s *Snapshot[M]) { s.Phase = PhaseSource })
	if op.spec.Source == nil {
		return &SourceError{Err: errors.New("the runner asks for a source that the operation does not have")}
	}
	return t.reach(op, func(ctx context.Context) error {
		err := op.spec.Source(ctx, op.spec.Runner)
		var call *runner.CallError
		if err == nil || (errors.As(err, &call) && unavailable(err)) {
			return err
		}
		return &SourceError{Err: err}
	})
}

// watch follows an operation to its end, across lost connections.
func (t *Tracker[M]) watch(op *tracked[M], id string) (*runnerpb.Result, error) {
	var after int64
	var result *runnerpb.Result
	err := t.reach(op, func(ctx context.Context) (err error) {
		result, err = op.spec.Runner.Watch(ctx, id, after, func(e *runnerpb.OperationEvent) {
			after = e.GetSequence()
			t.observe(op, e)
		})
		return err
	})
	switch {
	case !errors.Is(err, runner.ErrUnknownOperation):
		return result, err
	case op.spec.Attach:
		return nil, ErrNotStarted
	default:
		return nil, ErrLost
	}
}

func (t *Tracker[M]) observe(op *tracked[M], e *runnerpb.OperationEvent) {
	t.update(op, func(s *Snapshot[M]) {
		if phase := e.GetPhase(); phase != nil {
			s.Phase = phase.GetName()
		}
		if progress := e.GetProgress(); progress != nil {
			s.Resource = progress.GetAddress()
			if progress.GetDone() && progress.GetAction() != "read" {
				s.ResourcesDone++
			}
		}
	})
}

func (t *Tracker[M]) update(op *tracked[M], change func(*Snapshot[M])) {
	t.mu.Lock()
	defer t.mu.Unlock()
	change(&op.snapshot)
}

// reach waits for the runner and calls it until it answers. It gives up when the
// runner was out of reach for the operation's Patience, and returns all other
// errors at once.
func (t *Tracker[M]) reach(op *tracked[M], call func(context.Context) error) error {
	delay := t.options.RetryDelay
	var since time.Time
	for {
		began := time.Now()
		err := t.await(op)
		if err == nil {
			err = call(t.context)
		}
		if t.context.Err() != nil {
			return t.context.Err()
		}
		if !unavailable(err) {
			return err
		}
		switch {
		case since.IsZero(), time.Since(began) > min(answered, op.spec.Patience):
			since, delay = time.Now(), t.options.RetryDelay
		case time.Since(since) > op.spec.Patience:
			return err
		}
		t.silent(op, err, since)
		select {
		case <-t.context.Done():
			return t.context.Err()
		case <-time.After(delay):
		}
		delay = min(2*delay, maxRetryDelay)
	}
}

// await returns when the runner can be called.
func (t *Tracker[M]) await(op *tracked[M]) error {
	err := op.spec.Runner.Await(t.context, func(waitsFor string) { t.waits(op, waitsFor) })
	if err == nil {
		t.waits(op, "")
	}
	return err
}

func (t *Tracker[M]) waits(op *tracked[M], what string) {
	t.update(op, func(s *Snapshot[M]) { s.WaitsFor, s.SilentSince, s.PatientUntil = what, time.Time{}, time.Time{} })
}

// silent notes that the runner could not be called.
func (t *Tracker[M]) silent(op *tracked[M], err error, since time.Time) {
	t.waits(op, err.Error())
	if !errors.Is(err, runner.ErrOverloaded) { // that is an answer
		t.update(op, func(s *Snapshot[M]) { s.SilentSince, s.PatientUntil = since, since.Add(op.spec.Patience) })
	}
}

// unavailable tells errors that another attempt may not see.
func unavailable(err error) bool {
	var source *SourceError
	if err == nil || errors.As(err, &source) {
		return false
	}
	return errors.Is(err, runner.ErrUnavailable) || errors.Is(err, runner.ErrOverloaded) || errors.Is(err, context.DeadlineExceeded)
}

func busyWith(err error) string {
	var call *runner.CallError
	if errors.As(err, &call) && errors.Is(err, runner.ErrObjectBusy) {
		return call.Operation
	}
	return ""
}
