package runner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/terrace-dev/terrace/internal/pki"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

func TestAWatchSurvivesCutConnections(t *testing.T) {
	t.Parallel()
	const batches, lines = 6, 40
	next := make(chan struct{})
	engine := newEngine(t, func(ctx context.Context, _ *runnerpb.StartOperationRequest, report Reporter) *runnerpb.Result {
		for batch := range batches {
			for line := range lines {
				report.Log("info", fmt.Sprint(batch*lines+line+1))
			}
			select {
			case <-next:
			case <-ctx.Done():
			}
		}
		return succeeded()
	})
	authority := newAuthority(t, clock.RealClock{})
	server := serve(t, engine, Options{}, authority.ServerConfig(runnerName))
	proxy := newCutter(t, server.addr)
	client := dial(t, proxy.addr, authority.ClientConfig(runnerName))
	mustStart(t, client, plan("op-1", "u1"))

	ctx := testContext(t)
	last := int64(0)
	result, err := client.Watch(ctx, "op-1", 0, func(event *runnerpb.OperationEvent) {
		if last++; event.GetSequence() != last {
			t.Errorf("event %d came as number %d", event.GetSequence(), last)
		}
		if event.GetResult() != nil {
			return
		}
		if text := event.GetLog().GetText(); text != fmt.Sprint(last) {
			t.Errorf("event %d says %q", last, text)
		}
		switch last % lines {
		case lines / 2:
			proxy.cut() // in the middle of what has been said
		case 0:
			proxy.cut() // while nothing is being said
			select {
			case next <- struct{}{}:
			case <-ctx.Done():
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if result.GetOutcome() != runnerpb.Outcome_OUTCOME_SUCCEEDED || last != batches*lines+1 {
		t.Errorf("%d events, result %v", last, result)
	}
	if proxy.cuts < 2*batches {
		t.Errorf("the connection was cut %d times only", proxy.cuts)
	}
}

func TestAWatchBeginsWhereItIsTold(t *testing.T) {
	t.Parallel()
	engine := newEngine(t, func(_ context.Context, _ *runnerpb.StartOperationRequest, report Reporter) *runnerpb.Result {
		report.Phase("plan")
		report.Progress("null_resource.a", "create", true)
		return succeeded()
	})
	_, client := start(t, engine, Options{})
	mustStart(t, client, plan("op-1", "u1"))
	mustWatch(t, client, "op-1")
	for after, want := range []int{3, 2, 1, 0, 0} {
		got := 0
		result, err := client.Watch(testContext(t), "op-1", int64(after), func(*runnerpb.OperationEvent) { got++ })
		if err != nil || result.GetOutcome() != runnerpb.Outcome_OUTCOME_SUCCEEDED {
			t.Errorf("after %d: %v, %v", after, result, err)
		}
		if got != want {
			t.Errorf("after %d: %d events, want %d", after, got, want)
		}
	}
}

func TestARestartedRunnerKnowsNoOperation(t *testing.T) {
	t.Parallel()
	authority := newAuthority(t, clock.RealClock{})
	engine := newEngine(t, untilInterrupted)
	server := serve(t, engine, Options{}, authority.ServerConfig(runnerName))
	proxy := newCutter(t, server.addr)
	client := dial(t, proxy.addr, authority.ClientConfig(runnerName))
	mustStart(t, client, plan("op-1", "u1"))
	restarted := serve(t, newEngine(t, succeed), Options{}, authority.ServerConfig(runnerName))
	_, err := client.Watch(testContext(t), "op-1", 0, func(event *runnerpb.OperationEvent) {
		if event.GetPhase().GetName() == "apply" {
			proxy.move(restarted.addr)
		}
	})
	if !errors.Is(err, ErrUnknownOperation) {
		t.Errorf("want ErrUnknownOperation, got %v", err)
	}
}

func TestAWatchGivesUpAfterManyFailures(t *testing.T) {
	t.Parallel()
	authority := newAuthority(t, clock.RealClock{})
	proxy := newCutter(t, "127.0.0.1:1") // nobody listens there
	client, err := Dial(proxy.addr, authority.ClientConfig(runnerName), ClientOptions{RetryMin: time.Millisecond, RetryMax: 2 * time.Millisecond, RetryAttempts: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	if _, err := client.Watch(testContext(t), "op-1", 0, nil); !errors.Is(err, ErrUnavailable) {
		t.Errorf("want ErrUnavailable, got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := client.Watch(ctx, "op-1", 0, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("want context.Canceled, got %v", err)
	}
}

func TestWatchersThatHangUpDisturbNobody(t *testing.T) {
	t.Parallel()
	hungUp := make(chan struct{})
	engine := newEngine(t, func(ctx context.Context, _ *runnerpb.StartOperationRequest, report Reporter) *runnerpb.Result {
		report.Phase("apply")
		<-hungUp
		if err := ctx.Err(); err != nil {
			return failed("Disturbed", err.Error())
		}
		for i := range 5000 { // more than is kept, and nobody is in a hurry
			report.Log("info", fmt.Sprint(i))
		}
		return succeeded()
	})
	_, client := start(t, engine, Options{})
	mustStart(t, client, plan("op-1", "u1"))
	var watchers sync.WaitGroup
	for range 20 {
		watchers.Go(func() {
			ctx, cancel := context.WithCancel(testContext(t))
			defer cancel()
			if _, err := client.Watch(ctx, "op-1", 0, func(*runnerpb.OperationEvent) { cancel() }); !errors.Is(err, context.Canceled) {
				t.Errorf("a watch that was ended returned %v", err)
			}
		})
	}
	watchers.Wait()
	close(hungUp)
	if result := mustWatch(t, client, "op-1"); result.GetOutcome() != runnerpb.Outcome_OUTCOME_SUCCEEDED {
		t.Errorf("result %v", result)
	}
}

func TestCertificatesRotateUnderARunningWatch(t *testing.T) {
	t.Parallel()
	now := clocktesting.NewFakePassiveClock(time.Now())
	authority := newAuthority(t, now)
	step := make(chan string)
	engine := newEngine(t, func(_ context.Context, _ *runnerpb.StartOperationRequest, report Reporter) *runnerpb.Result {
		for text := range step {
			report.Log("info", text)
		}
		return succeeded()
	})
	server := serve(t, engine, Options{}, authority.ServerConfig(runnerName))
	proxy := newCutter(t, server.addr)
	client := dial(t, proxy.addr, authority.ClientConfig(runnerName))
	mustStart(t, client, plan("op-1", "u1"))
	seen, ended := make(chan string), make(chan error, 1)
	go func() {
		_, err := client.Watch(testContext(t), "op-1", 0, func(event *runnerpb.OperationEvent) {
			if text := event.GetLog().GetText(); text != "" {
				seen <- text
			}
		})
		ended <- err
	}()
	for _, after := range []time.Duration{0, pki.LeafLife, pki.CALife * 2 / 3, pki.CALife} {
		now.SetTime(now.Now().Add(after))
		step <- after.String()
		if text := await(t, "an event", seen); text != after.String() {
			t.Errorf("got %q, want %q", text, after)
		}
		// A new connection gets new certificates.
		if _, err := dial(t, server.addr, authority.ClientConfig(runnerName)).Handshake(testContext(t)); err != nil {
			t.Errorf("%v later: %v", after, err)
		}
	}
	// So does the old client, once its connection breaks.
	proxy.cut()
	step <- "after the cut"
	if text := await(t, "an event", seen); text != "after the cut" {
		t.Errorf("got %q", text)
	}
	close(step)
	if err := await(t, "the end", ended); err != nil {
		t.Error(err)
	}
	if proxy.cuts != 1 {
		t.Errorf("%d cuts", proxy.cuts)
	}
}
