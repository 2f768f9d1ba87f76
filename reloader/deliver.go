package reloader

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// ErrSuperseded is the cause, see [context.Cause], with which the context of a callback ends when there is newer content.
var ErrSuperseded = errors.New("there is newer content")

// CallbackError is what an error handler is told when a callback fails.
type CallbackError struct {
	// Err is what the callback returned.
	Err error
	// Attempt counts the calls for this content, from 1.
	Attempt int
	// RetryIn is when the callback will be called again, unless there is newer content before.
	RetryIn time.Duration
}

// Error says what failed and what happens next.
func (e *CallbackError) Error() string {
	return fmt.Sprintf("callback failed (attempt %d, again in %s): %s", e.Attempt, e.RetryIn.Round(time.Millisecond), e.Err)
}

// Unwrap is what the callback returned.
func (e *CallbackError) Unwrap() error { return e.Err }

// delivery has the callback called with the latest content until it succeeds. All methods are called from one goroutine; the callback runs in
// another, one at a time.
type delivery struct {
	ctx      context.Context
	callback func(context.Context, []Snapshot) error
	options  options

	content []Snapshot
	// attempts counts the calls for content that have failed; retryAt is zero while none is due.
	attempts int
	retryAt  time.Time
	// cancel is set while the callback runs, stale if it runs with other content than the latest.
	cancel context.CancelCauseFunc
	stale  bool
	done   chan error
}

// hand replaces the content to deliver.
func (d *delivery) hand(content []Snapshot) {
	d.content, d.attempts = content, 0
	if d.cancel == nil {
		d.start()
		return
	}
	d.stale = true
	d.cancel(ErrSuperseded)
}

func (d *delivery) start() {
	ctx, cancel := context.WithCancelCause(d.ctx)
	d.cancel, d.stale, d.retryAt = cancel, false, time.Time{}
	content := d.content
	go func() { d.done <- d.callback(ctx, content) }()
}

// finished takes what a callback returned.
func (d *delivery) finished(err error, now time.Time) {
	d.cancel(nil)
	d.cancel = nil
	switch {
	case d.ctx.Err() != nil:
	case d.stale:
		// Whatever it did, it was not with this content. Should it be the same again (changed and changed back) then a cancelled
		// call may have done half of it.
		d.start()
	case err != nil:
		d.attempts++
		pause := d.options.pause(d.attempts)
		d.retryAt = now.Add(pause)
		d.options.report(&CallbackError{Err: err, Attempt: d.attempts, RetryIn: pause})
	}
}

// retry calls again if that is due.
func (d *delivery) retry(now time.Time) {
	if !d.retryAt.IsZero() && !now.Before(d.retryAt) {
		d.start()
	}
}

// wait returns when no callback runs. The context has ended, and so has the callback's.
func (d *delivery) wait() {
	if d.cancel != nil {
		d.finished(<-d.done, time.Time{})
	}
}

// pause is how long to wait after so many failures.
func (o options) pause(failures int) time.Duration {
	pause := o.minBackoff
	for range failures - 1 {
		if pause >= o.maxBackoff/2 {
			pause = o.maxBackoff
			break
		}
		pause *= 2
	}
	return pause - rand.N(pause/5+1) //nolint:gosec // spreads retries, protects nothing
}
