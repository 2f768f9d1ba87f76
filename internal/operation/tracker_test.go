package operation

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/terrace-dev/terrace/runner"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// scripted is a runner whose answers are functions.
type scripted struct {
	start func(call int, request *runnerpb.StartOperationRequest) (bool, error)
	watch func(ctx context.Context, call int, id string, after int64, handle func(*runnerpb.OperationEvent)) (*runnerpb.Result, error)

	mu        sync.Mutex
	starts    []*runnerpb.StartOperationRequest
	watches   []string
	uploads   int
	cancelled []string
	awaits    int
	released  int

	await func(call int, report func(string)) error
}

func (s *scripted) Name() string { return "scripted" }

func (s *scripted) Await(_ context.Context, report func(string)) error {
	s.mu.Lock()
	s.awaits++
	call := s.awaits
	s.mu.Unlock()
	if s.await == nil {
		return nil
	}
	return s.await(call, report)
}

func (s *scripted) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.released++
}

func (s *scripted) Upload(context.Context, string, io.Reader) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uploads++
	return 1, nil
}

func (s *scripted) Start(_ context.Context, request *runnerpb.StartOperationRequest) (bool, error) {
	s.mu.Lock()
	s.starts = append(s.starts, request)
	call := len(s.starts)
	s.mu.Unlock()
	if s.start == nil {
		return false, nil
	}
	return s.start(call, request)
}

func (s *scripted) Watch(ctx context.Context, id string, after int64, handle func(*runnerpb.OperationEvent)) (*runnerpb.Result, error) {
	s.mu.Lock()
	s.watches = append(s.watches, id)
	call := len(s.watches)
	s.mu.Unlock()
	if s.watch == nil {
		return succeeded, nil
	}
	return s.watch(ctx, call, id, after, handle)
}

func (s *scripted) Cancel(_ context.Context, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancelled = append(s.cancelled, id)
	return nil
}

var (
	succeeded  = &runnerpb.Result{Outcome: runnerpb.Outcome_OUTCOME_SUCCEEDED}
	unreached  = &runner.CallError{Call: "calling", Kind: runner.ErrUnavailable}
	unknown    = &runner.CallError{Call: "watching", Kind: runner.ErrUnknownOperation}
	quickTimes = Options{FirstNotice: time.Millisecond, MaxNotice: 4 * time.Millisecond, RetryDelay: time.Millisecond, Unreachable: 50 * time.Millisecond}
)

// follow tracks one operation, and returns what is known about it after its end.
func follow(t *testing.T, spec Spec[string]) Snapshot[string] {
	t.Helper()
	tracker := New[string](t.Context(), quickTimes)
	spec.UID, spec.Meta = "uid", "meta"
	if spec.Request == nil {
		spec.Request = &runnerpb.StartOperationRequest{Id: "plan-1", Source: &runnerpb.Source{Digest: "sha256:ab"}}
	}
	if !tracker.Follow(spec) {
		t.Fatal("the operation is not followed")
	}
	return ended(t, tracker)
}

func ended(t *testing.T, tracker *Tracker[string]) Snapshot[string] {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		select {
		case <-tracker.Events():
		case <-deadline:
			t.Fatal("the operation does not end")
		}
		if snapshot, ok := tracker.Get("uid"); ok && snapshot.Done {
			return snapshot
		}
	}
}

func TestFollow(t *testing.T) {
	t.Parallel()
	gone := errors.New("artifact not found")
	for name, test := range map[string]struct {
		runner *scripted
		spec   Spec[string]

		wantErr     error // nil: a result
		wantStarts  int
		wantUploads int
		wantNoWatch bool
	}{
		"start and watch": {wantStarts: 1},
		"attach starts nothing": {
			spec: Spec[string]{Attach: true}, wantStarts: 0,
		},
		"a missing source is uploaded": {
			runner: &scripted{start: func(call int, _ *runnerpb.StartOperationRequest) (bool, error) { return call == 1, nil }},
			spec:   Spec[string]{Source: send(nil)}, wantStarts: 2, wantUploads: 1,
		},
		"a runner that keeps losing the source is given up": {
			runner: &scripted{start: func(int, *runnerpb.StartOperationRequest) (bool, error) { return true, nil }},
			spec:   Spec[string]{Source: send(nil)}, wantErr: &SourceError{}, wantStarts: maxUploads + 1, wantUploads: maxUploads, wantNoWatch: true,
		},
		"a source that is gone fails": {
			runner: &scripted{start: func(int, *runnerpb.StartOperationRequest) (bool, error) { return true, nil }},
			spec:   Spec[string]{Source: send(gone)}, wantErr: gone, wantStarts: 1, wantNoWatch: true,
		},
		"an optional source that is gone does not": {
			runner: &scripted{start: func(_ int, request *runnerpb.StartOperationRequest) (bool, error) {
				return request.GetSource() != nil, nil
			}},
			spec: Spec[string]{Source: send(gone), SourceOptional: true}, wantStarts: 2,
		},
		"an operation that was started and is unknown is lost": {
			runner: &scripted{watch: func(context.Context, int, string, int64, func(*runnerpb.OperationEvent)) (*runnerpb.Result, error) {
				return nil, unknown
			}},
			wantStarts: 1, wantErr: ErrLost,
		},
		"one that an earlier manager was to start was not started": {
			runner: &scripted{watch: func(context.Context, int, string, int64, func(*runnerpb.OperationEvent)) (*runnerpb.Result, error) {
				return nil, unknown
			}},
			spec: Spec[string]{Attach: true}, wantErr: ErrNotStarted,
		},
		"a runner out of reach for a moment is waited for": {
			runner: &scripted{start: func(call int, _ *runnerpb.StartOperationRequest) (bool, error) {
				if call < 3 {
					return false, unreached
				}
				return false, nil
			}}, wantStarts: 3,
		},
		"a refused request is not repeated": {
			runner: &scripted{start: func(int, *runnerpb.StartOperationRequest) (bool, error) {
				return false, &runner.CallError{Kind: runner.ErrInvalid}
			}}, wantErr: runner.ErrInvalid, wantStarts: 1, wantNoWatch: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if test.runner == nil {
				test.runner = &scripted{}
			}
			test.spec.Runner = test.runner
			snapshot := follow(t, test.spec)
			if test.wantErr == nil && (snapshot.Err != nil || snapshot.Result != succeeded) {
				t.Errorf("got %v, %v, want a result", snapshot.Result, snapshot.Err)
			}
			if source := new(SourceError); errors.As(test.wantErr, &source) {
				if !errors.As(snapshot.Err, &source) {
					t.Errorf("error = %v, want a SourceError", snapshot.Err)
				}
			} else if !errors.Is(snapshot.Err, test.wantErr) {
				t.Errorf("error = %v, want %v", snapshot.Err, test.wantErr)
			}
			if len(test.runner.starts) != test.wantStarts || test.runner.uploads != test.wantUploads {
				t.Errorf("%d starts and %d uploads, want %d and %d", len(test.runner.starts), test.runner.uploads, test.wantStarts, test.wantUploads)
			}
			if (len(test.runner.watches) == 0) != test.wantNoWatch {
				t.Errorf("watched %v", test.runner.watches)
			}
			if snapshot.Meta != "meta" {
				t.Errorf("meta = %q, want what was given", snapshot.Meta)
			}
		})
	}
}

func TestLeases(t *testing.T) {
	t.Parallel()
	pod := errors.New("no node takes the pod")
	for name, test := range map[string]struct {
		await    func(call int, report func(string)) error
		attach   bool
		patience time.Duration
		wantErr  error
		starts   int
	}{
		"a runner that comes up is called then": {starts: 1, await: func(call int, _ func(string)) error {
			if call < 4 {
				return unreached
			}
			return nil
		}},
		"a runner that cannot come up fails the operation":       {wantErr: pod, await: func(int, func(string)) error { return pod }},
		"a runner that went away before the start is told apart": {wantErr: ErrNotStarted, await: func(int, func(string)) error { return ErrNotStarted }},
		"a runner that is gone has lost what it was given":       {attach: true, wantErr: ErrLost, await: func(int, func(string)) error { return ErrLost }},
		"patience outlasts the usual time": {patience: time.Minute, starts: 1, await: func(call int, _ func(string)) error {
			if call == 1 {
				time.Sleep(2 * quickTimes.Unreachable)
			}
			if call < 8 {
				return unreached
			}
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target := &scripted{await: test.await}
			snapshot := follow(t, Spec[string]{Runner: target, Attach: test.attach, Patience: test.patience})
			if !errors.Is(snapshot.Err, test.wantErr) || len(target.starts) != test.starts {
				t.Errorf("error %v after %d starts, want %v after %d", snapshot.Err, len(target.starts), test.wantErr, test.starts)
			}
			if target.released != 1 || snapshot.WaitsFor != "" && test.wantErr == nil {
				t.Errorf("released %d times, waits for %q", target.released, snapshot.WaitsFor)
			}
		})
	}
}

func TestWhatARunnerWaitsForIsShown(t *testing.T) {
	t.Parallel()
	shown := make(chan struct{})
	target := &scripted{await: func(call int, report func(string)) error {
		report("a node")
		if call == 1 {
			<-shown
		}
		return nil
	}}
	tracker := New[string](t.Context(), quickTimes)
	tracker.Follow(Spec[string]{UID: "uid", Runner: target, Visibility: Full, Request: &runnerpb.StartOperationRequest{Id: "a"}})
	<-tracker.Events()
	if snapshot, _ := tracker.Get("uid"); snapshot.WaitsFor != "a node" || snapshot.Done {
		t.Errorf("snapshot = %+v, want it to wait for a node", snapshot)
	}
	close(shown)
	if snapshot := ended(t, tracker); snapshot.Err != nil || snapshot.WaitsFor != "" {
		t.Errorf("snapshot = %+v, want a result", snapshot)
	}
}

func TestDroppedOperationsAreForgotten(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	target := &scripted{watch: func(context.Context, int, string, int64, func(*runnerpb.OperationEvent)) (*runnerpb.Result, error) {
		<-release
		return succeeded, nil
	}}
	tracker := New[string](t.Context(), quickTimes)
	tracker.Follow(Spec[string]{UID: "uid", Runner: target, Request: &runnerpb.StartOperationRequest{Id: "a"}})
	tracker.Drop("uid")
	if _, ok := tracker.Get("uid"); ok {
		t.Error("a dropped operation is still known")
	}
	close(release)
	<-tracker.Events()
	if _, ok := tracker.Get("uid"); ok {
		t.Error("a dropped operation is known again after its end")
	}
}

func TestUnreachableRunnerIsGivenUp(t *testing.T) {
	t.Parallel()
	target := &scripted{start: func(int, *runnerpb.StartOperationRequest) (bool, error) { return false, unreached }}
	snapshot := follow(t, Spec[string]{Runner: target})
	if !errors.Is(snapshot.Err, runner.ErrUnavailable) {
		t.Errorf("error = %v, want ErrUnavailable", snapshot.Err)
	}
	if len(target.starts) < 3 {
		t.Errorf("%d attempts, want several", len(target.starts))
	}
}

func TestBrokenWatchResumesAfterTheLastEvent(t *testing.T) {
	t.Parallel()
	var afters []int64
	target := &scripted{watch: func(_ context.Context, call int, _ string, after int64, handle func(*runnerpb.OperationEvent)) (*runnerpb.Result, error) {
		afters = append(afters, after)
		if call == 1 {
			handle(&runnerpb.OperationEvent{Sequence: 7, Event: &runnerpb.OperationEvent_Phase{Phase: &runnerpb.Phase{Name: "plan"}}})
			return nil, unreached
		}
		return succeeded, nil
	}}
	snapshot := follow(t, Spec[string]{Runner: target})
	if snapshot.Result != succeeded || len(afters) != 2 || afters[1] != 7 {
		t.Errorf("result %v, watched after %v, want the second watch after 7", snapshot.Result, afters)
	}
	if snapshot.Phase != "plan" {
		t.Errorf("phase = %q, want plan", snapshot.Phase)
	}
}

func TestAnotherOperationOfTheObjectIsWaitedFor(t *testing.T) {
	t.Parallel()
	target := &scripted{start: func(call int, _ *runnerpb.StartOperationRequest) (bool, error) {
		if call == 1 {
			return false, &runner.CallError{Kind: runner.ErrObjectBusy, Operation: "plan-0"}
		}
		return false, nil
	}}
	snapshot := follow(t, Spec[string]{Runner: target})
	if snapshot.Err != nil || len(target.watches) != 2 || target.watches[0] != "plan-0" || target.watches[1] != "plan-1" {
		t.Errorf("error %v, watched %v, want plan-0, then plan-1", snapshot.Err, target.watches)
	}
}

func TestProgress(t *testing.T) {
	t.Parallel()
	progress := func(address, action string, done bool) *runnerpb.OperationEvent {
		return &runnerpb.OperationEvent{Event: &runnerpb.OperationEvent_Progress{Progress: &runnerpb.Progress{Address: address, Action: action, Done: done}}}
	}
	target := &scripted{watch: func(_ context.Context, _ int, _ string, _ int64, handle func(*runnerpb.OperationEvent)) (*runnerpb.Result, error) {
		handle(progress("data.a", "read", true))
		handle(progress("a.b", "create", false))
		handle(progress("a.b", "create", true))
		handle(progress("a.c", "create", false))
		return succeeded, nil
	}}
	snapshot := follow(t, Spec[string]{Runner: target})
	if snapshot.ResourcesDone != 1 || snapshot.Resource != "a.c" {
		t.Errorf("%d done, at %s, want 1 done, at a.c", snapshot.ResourcesDone, snapshot.Resource)
	}
}

func TestVisibility(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		visibility Visibility
		wantMin    int // notices before the end
		wantMax    int
	}{
		"silent operations notify at their end only": {Silent, 0, 0},
		"quiet ones once before":                     {Quiet, 1, 1},
		"full ones with each phase":                  {Full, 3, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			noticed := make(chan struct{}, 100)
			target := &scripted{watch: func(_ context.Context, _ int, _ string, _ int64, handle func(*runnerpb.OperationEvent)) (*runnerpb.Result, error) {
				for i, phase := range []string{"init", "plan", "show"} {
					handle(&runnerpb.OperationEvent{Event: &runnerpb.OperationEvent_Phase{Phase: &runnerpb.Phase{Name: phase}}})
					if i < test.wantMin {
						<-noticed
					}
				}
				return succeeded, nil
			}}
			tracker := New[string](t.Context(), quickTimes)
			tracker.Follow(Spec[string]{UID: "uid", Runner: target, Visibility: test.visibility, Request: &runnerpb.StartOperationRequest{Id: "a"}})
			notices := 0
			for done := false; !done; {
				<-tracker.Events()
				snapshot, _ := tracker.Get("uid")
				if done = snapshot.Done; !done {
					notices++
					noticed <- struct{}{}
				}
			}
			if notices < test.wantMin || notices > test.wantMax {
				t.Errorf("%d notices, want %d to %d", notices, test.wantMin, test.wantMax)
			}
		})
	}
}

func TestOneOperationPerObject(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	target := &scripted{watch: func(context.Context, int, string, int64, func(*runnerpb.OperationEvent)) (*runnerpb.Result, error) {
		<-release
		return succeeded, nil
	}}
	tracker := New[string](t.Context(), quickTimes)
	spec := Spec[string]{UID: "uid", Runner: target, Request: &runnerpb.StartOperationRequest{Id: "a"}}
	if !tracker.Follow(spec) || tracker.Follow(spec) {
		t.Fatal("want the first followed and the second refused")
	}
	tracker.Forget("uid", "a")
	if _, ok := tracker.Get("uid"); !ok {
		t.Fatal("a running operation was forgotten")
	}
	if err := tracker.Cancel(t.Context(), "uid"); err != nil || len(target.cancelled) != 1 {
		t.Errorf("Cancel: %v, cancelled %v", err, target.cancelled)
	}
	close(release)
	ended(t, tracker)
	tracker.Forget("uid", "b")
	if _, ok := tracker.Get("uid"); !ok {
		t.Fatal("an operation was forgotten by another's id")
	}
	tracker.Forget("uid", "a")
	if !tracker.Follow(spec) {
		t.Error("the next operation is refused")
	}
	ended(t, tracker)
}

func TestTheEndOfTheManagerIsNoResult(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	watching := make(chan struct{})
	target := &scripted{watch: func(ctx context.Context, _ int, _ string, _ int64, _ func(*runnerpb.OperationEvent)) (*runnerpb.Result, error) {
		close(watching)
		<-ctx.Done()
		return nil, &runner.CallError{Kind: context.Canceled}
	}}
	tracker := New[string](ctx, quickTimes)
	tracker.Follow(Spec[string]{UID: "uid", Runner: target, Visibility: Full, Request: &runnerpb.StartOperationRequest{Id: "a"}})
	<-watching
	stop()
	tracker.Wait()
	if snapshot, _ := tracker.Get("uid"); snapshot.Done {
		t.Errorf("the operation has ended with %v, want it still running", snapshot.Err)
	}
}

// send is a source that is uploaded, unless it fails.
func send(err error) SourceFunc {
	return func(ctx context.Context, to Runner) error {
		if err != nil {
			return err
		}
		_, err := to.Upload(ctx, "sha256:ab", nil)
		return err
	}
}
