package runner

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// resultOf waits, in a bubble without a network, for an operation's result.
func resultOf(t *testing.T, server *Server, id string) *runnerpb.Result {
	t.Helper()
	op, ok := server.operations.get(id)
	if !ok {
		t.Fatalf("operation %s is unknown", id)
	}
	for after := int64(0); ; {
		events, done, changed := op.events.after(after)
		if done {
			return events[len(events)-1].GetResult()
		}
		if len(events) > 0 {
			after = events[len(events)-1].GetSequence()
		}
		<-changed
	}
}

func TestTimeoutsInterrupt(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		seconds int64
		want    time.Duration
	}{
		"of the operation": {seconds: 90, want: 90 * time.Second},
		"by default":       {want: time.Hour},
		"of a week":        {seconds: 7 * 24 * 3600, want: MaxTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				server := NewServer(newEngine(t, untilInterrupted), Options{})
				request := plan("op-1", "u1")
				request.TimeoutSeconds = test.seconds
				begun := time.Now()
				if _, err := server.StartOperation(t.Context(), request); err != nil {
					t.Fatal(err)
				}
				result := resultOf(t, server, "op-1")
				if took := time.Since(begun); took != test.want {
					t.Errorf("interrupted after %v, want %v", took, test.want)
				}
				failure := result.GetFailure()
				if failure.GetReason() != ReasonTimedOut || !strings.Contains(failure.GetMessage(), test.want.String()) {
					t.Errorf("failure %v", failure)
				}
			})
		})
	}
}

func TestWaitingForCapacityDoesNotCountAsRunning(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := NewServer(newEngine(t, untilInterrupted), Options{Capacity: 1})
		begun := time.Now()
		for i := range 3 {
			request := plan(fmt.Sprint("op-", i), fmt.Sprint("u", i))
			request.TimeoutSeconds = 60
			if _, err := server.StartOperation(t.Context(), request); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		for i := range 3 {
			resultOf(t, server, fmt.Sprint("op-", i))
			if took, want := time.Since(begun), time.Duration(i+1)*time.Minute; took != want {
				t.Errorf("operation %d ended after %v, want %v", i, took, want)
			}
		}
	})
}

func TestFinishedOperationsAreKeptForAWhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := NewServer(newEngine(t, succeed), Options{RetainPerObject: 2, RetainFor: time.Hour, RetainTotal: 6})
		finish := func(id, uid string) {
			t.Helper()
			if _, err := server.StartOperation(t.Context(), plan(id, uid)); err != nil {
				t.Fatal(err)
			}
			resultOf(t, server, id)
			synctest.Wait()
			time.Sleep(time.Second)
		}
		known := func(want string) {
			t.Helper()
			var ids []string
			for _, ref := range server.operations.list() {
				ids = append(ids, ref.GetId())
			}
			if got := strings.Join(ids, " "); got != want {
				t.Errorf("known are %q, want %q", got, want)
			}
		}
		finish("a1", "a")
		finish("a2", "a")
		finish("a3", "a")
		finish("b1", "b")
		known("a1 a2 a3 b1") // all of them are young
		time.Sleep(2 * time.Hour)
		finish("b2", "b")
		known("a2 a3 b1 b2") // a1 is old, and not among the last two
		for i := range 4 {
			finish(fmt.Sprint("c", i), "c")
		}
		known("b1 b2 c0 c1 c2 c3") // too many in total: the oldest go
		if _, ok := server.operations.get("a3"); ok {
			t.Error("a forgotten operation is still found")
		}
	})
}

func TestWhatFinishedOperationsHoldIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engine := newEngine(t, func(context.Context, *runnerpb.StartOperationRequest, Reporter) *runnerpb.Result {
			result := succeeded()
			result.Shown = &runnerpb.ShownPlan{Text: strings.Repeat("x", 1<<20)}
			return result
		})
		server := NewServer(engine, Options{RetainBytes: 3<<20 + 1<<19})
		for i := range 10 {
			id := fmt.Sprint("op-", i)
			if _, err := server.StartOperation(t.Context(), plan(id, "u1")); err != nil {
				t.Fatal(err)
			}
			resultOf(t, server, id)
			synctest.Wait()
		}
		if n := len(server.operations.list()); n != 3 {
			t.Errorf("%d results of 1 MiB are kept", n)
		}
	})
}

func TestTheEventLogIsBounded(t *testing.T) {
	t.Parallel()
	log := newEventLog(100, time.Now)
	log.Phase("init")
	log.Phase("apply")
	for i := range 1000 {
		log.Log("info", fmt.Sprint(i))
	}
	events, done, _ := log.after(0)
	if done || len(events) != 101 {
		t.Fatalf("%d events, done: %v", len(events), done)
	}
	if events[0].GetPhase().GetName() != "apply" {
		t.Errorf("the current phase was lost: %v", events[0])
	}
	if first, last := events[1].GetSequence(), events[100].GetSequence(); first != 903 || last != 1002 {
		t.Errorf("events %d to %d are kept", first, last)
	}
	log.finish(succeeded())
	log.Log("info", "too late")
	log.finish(&runnerpb.Result{})
	for _, after := range []int64{1002, 1003, 5000} {
		events, done, _ = log.after(after)
		if !done || len(events) != 1 || events[0].GetSequence() != 1003 || events[0].GetResult().GetOutcome() != runnerpb.Outcome_OUTCOME_SUCCEEDED {
			t.Errorf("after %d: done %v, %v", after, done, events)
		}
	}
}

func TestLongLinesAreCutAndBounded(t *testing.T) {
	t.Parallel()
	log := newEventLog(1000, time.Now)
	line := strings.Repeat("ä", 1<<20)
	for range 200 {
		log.Log("info", line)
	}
	if size := log.size(); size > maxLogBytes {
		t.Errorf("the log holds %d bytes", size)
	}
	events, _, _ := log.after(0)
	text := events[0].GetLog().GetText()
	if len(text) > maxTextBytes+len("…") || !strings.HasSuffix(text, "ä…") {
		t.Errorf("%d bytes, ending in %q", len(text), text[len(text)-8:])
	}
	log.Log("info", "not UTF-8: \xff\xfe")
	if _, err := proto.Marshal(log.events[len(log.events)-1]); err != nil {
		t.Errorf("an event that cannot be sent: %v", err)
	}
}

func TestAnyResultCanBeSent(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 5<<20)
	many := make([]*runnerpb.Resource, 40000)
	for i := range many {
		many[i] = &runnerpb.Resource{Address: strings.Repeat("a", 120), Id: fmt.Sprint(i)}
	}
	for name, result := range map[string]*runnerpb.Result{
		"a large plan": {Shown: &runnerpb.ShownPlan{Id: "plan-1", Text: large, Json: large}},
		"many resources": {
			Plan:  &runnerpb.PlanResult{Id: "plan-1", Summary: &runnerpb.Summary{Add: 7}},
			Apply: &runnerpb.ApplyResult{PlanId: "plan-1", Resources: many},
		},
		"large outputs":   {Apply: &runnerpb.ApplyResult{PlanId: "plan-1", Outputs: []*runnerpb.Output{{Name: "a", Value: large}}}},
		"a large failure": {Failure: &runnerpb.Failure{Kind: runnerpb.Failure_KIND_LOCKED, Message: large}},
		"large warnings":  {Warnings: []string{large}},
		"text that is not UTF-8": {
			Failure:  &runnerpb.Failure{Message: "\xff", Lock: &runnerpb.Lock{Who: "\xfe"}},
			Warnings: []string{"\xff"},
			Plan: &runnerpb.PlanResult{
				PlannedOutputs: map[string]string{"a\xff": "\xff", "b": "c"},
				Changed:        []*runnerpb.ResourceChange{{Address: "\xff", Actions: []string{"\xff"}}},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			result.Outcome = runnerpb.Outcome_OUTCOME_FAILED
			planID, kind := result.GetPlan().GetId(), result.GetFailure().GetKind()
			got := complete(t.Context(), result, time.Hour)
			event := &runnerpb.OperationEvent{Event: &runnerpb.OperationEvent_Result{Result: got}}
			data, err := proto.Marshal(event)
			if err != nil || len(data) > MaxMessageBytes {
				t.Errorf("%d bytes, %v", len(data), err)
			}
			if got.GetOutcome() != runnerpb.Outcome_OUTCOME_FAILED || got.GetPlan().GetId() != planID || got.GetFailure().GetKind() != kind {
				t.Errorf("what matters was lost: %.200s", got)
			}
		})
	}
}
