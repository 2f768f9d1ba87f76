package reloader

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Watch calls back with the content of dirs, and again whenever it is another, until ctx ends. It takes volumes of Kubernetes, by their
// mount path, as well as plain directories, files, and links to any of them; see [Read] for what is read.
//
// The callback gets one snapshot for each of dirs, in their order. What counts is content: a volume that is written anew with the same content
// calls nothing. A path that is missing, at the start or later, is waited for; the content there was before remains the latest.
//
// The callback is called until it returns nil: after an error again with the same content, after a pause that grows. It never runs concurrently with
// itself. When there is newer content its context ends with [ErrSuperseded] as the cause, and it is called with that content next: a callback has
// to return soon after its context ends, or newer content waits for it. Changes in between may be skipped, the latest never is.
//
// Watch returns nil after ctx ended, once the callback has returned. It returns an error only for arguments that make no sense. The rest goes to
// the handler of [WithErrorHandler], and Watch carries on.
func Watch(ctx context.Context, dirs []string, callback func(context.Context, []Snapshot) error, opts ...Option) error {
	options, err := newOptions(dirs, opts)
	if err == nil && callback == nil {
		err = errors.New("there is no callback")
	}
	if err != nil {
		return fmt.Errorf("reloader: %w", err)
	}
	w := watch{
		options:  options,
		dirs:     slices.Clone(dirs),
		sentry:   sentry{open: options.open},
		delivery: delivery{ctx: ctx, callback: callback, options: options, done: make(chan error, 1)},
		latest:   options.baseline,
		reported: map[kind]string{},
		volumes:  make([]bool, len(dirs)),
		first:    true,
	}
	defer w.delivery.wait()
	defer w.sentry.reset()
	w.run(ctx)
	return nil
}

// watch is the state of one call of Watch.
type watch struct {
	options  options
	dirs     []string
	sentry   sentry
	delivery delivery
	places   places

	// latest is the content that was handed over last.
	latest []Snapshot
	// candidate is other content, seen since changedAt. pendingAt is when there was the first such content since the last was handed over.
	candidate            []Snapshot
	changedAt, pendingAt time.Time
	// first is set until the first look is over.
	first bool
	// volumes tells which of the paths are volumes.
	volumes []bool

	// lookAt is when to look next, earliest how soon events may cause that.
	lookAt, earliest time.Time
	// reported are the last errors that the handler was told.
	reported map[kind]string
}

// kind is what an error is about.
type kind string

const (
	reading  kind = "reading"
	watching kind = "watching"
)

// Between two looks that events ask for there is a moment, and four times as long as the first one took, so that somebody who writes all
// the time costs no more than a fifth of a processor.
const (
	lookPause = 5 * time.Millisecond
	lookShare = 4
)

// run looks and delivers until ctx ends.
func (w *watch) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.sentry.news():
			w.happened()
		case err := <-w.delivery.done:
			w.delivery.finished(err, time.Now())
		case <-timer.C:
			w.delivery.retry(time.Now())
			if !time.Now().Before(w.lookAt) {
				w.look()
			}
		}
		next := w.lookAt
		if retryAt := w.delivery.retryAt; !retryAt.IsZero() && retryAt.Before(next) {
			next = retryAt
		}
		timer.Reset(time.Until(next))
	}
}

// happened takes what the system reported. After an error events may be lost and everything is watched anew; should that fail too, look reports it.
func (w *watch) happened() {
	names, err := w.sentry.take()
	if err != nil {
		w.lookBy(time.Now().Add(w.options.quiet))
	}
	if slices.ContainsFunc(names, w.places.concern) {
		w.lookBy(w.earliest)
	}
}

func (w *watch) lookBy(at time.Time) {
	if at.Before(w.lookAt) {
		w.lookAt = at
	}
}

// look reads everything and decides when to look next.
func (w *watch) look() {
	began := time.Now()
	found, watchErr := w.read()
	now := time.Now()
	w.places = found.places
	w.earliest = now.Add(max(lookPause, lookShare*now.Sub(began)))
	w.lookAt = now.Add(w.options.poll)
	if watchErr != nil || found.err != nil {
		w.lookBy(now.Add(w.options.pollAlone))
	}
	w.reportOnce(watching, watchErr)
	w.reportOnce(reading, found.err)
	switch {
	case errors.Is(found.err, ErrUnsettled):
		w.lookBy(now.Add(w.options.quiet))
	case found.err == nil:
		w.seen(found.snapshots, now)
	}
	w.first = false
}

// read reads everything after having seen to it that later changes are reported.
func (w *watch) read() (found, error) {
	var watchErr error
	for range 5 { // twice, unless directories come and go
		result := readSet(w.dirs, w.options.limits)
		var unseen bool
		unseen, watchErr = w.sentry.watch(result.places)
		if !unseen {
			return w.whole(result), watchErr
		}
	}
	return found{places: places{}, err: fmt.Errorf("%w: directories come and go", ErrUnsettled)}, watchErr
}

// whole makes an error of a volume that is just being set up: what was a volume, and is now empty, will have its link in a moment.
func (w *watch) whole(result found) found {
	if result.err != nil {
		return result
	}
	for i, snapshot := range result.snapshots {
		if w.volumes[i] && !result.volumes[i] && len(snapshot.Files) == 0 {
			return found{places: result.places, err: fmt.Errorf("%s: was a volume and is empty now", snapshot.Dir)}
		}
	}
	w.volumes = result.volumes
	return result
}

// seen decides whether content is handed over, which happens when it was the same for a while. What is there at the start has been so long enough.
func (w *watch) seen(content []Snapshot, now time.Time) {
	if equal(content, w.latest) {
		w.candidate, w.pendingAt = nil, time.Time{}
		return
	}
	if !equal(content, w.candidate) {
		w.candidate, w.changedAt = content, now
	}
	if w.pendingAt.IsZero() {
		w.pendingAt = now
	}
	due := w.changedAt.Add(w.options.quiet)
	if limit := w.pendingAt.Add(w.options.maxWait); limit.Before(due) {
		due = limit
	}
	if now.Before(due) && !w.first {
		w.lookBy(due)
		return
	}
	w.latest, w.candidate, w.pendingAt = w.candidate, nil, time.Time{}
	w.delivery.hand(w.latest)
}

// reportOnce tells the handler of an error, unless it was told the same last.
func (w *watch) reportOnce(about kind, err error) {
	if err == nil {
		delete(w.reported, about)
		return
	}
	if text := err.Error(); w.reported[about] != text {
		w.reported[about] = text
		w.options.report(err)
	}
}

func equal(a, b []Snapshot) bool {
	return slices.EqualFunc(a, b, Snapshot.Equal)
}
