package reconcile

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"github.com/fluxcd/pkg/runtime/conditions/check"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrlreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
)

var now = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// object is a Terraform at generation 3 that was last dealt with at generation 2.
func object() *infrav1.Terraform {
	obj := &infrav1.Terraform{ObjectMeta: metav1.ObjectMeta{
		Generation: 3, Annotations: map[string]string{meta.ReconcileRequestAnnotation: "token"},
	}}
	obj.Status.ObservedGeneration = 2
	obj.Status.Failures = 1
	obj.Status.Conditions = []metav1.Condition{
		{Type: "Planned", Status: metav1.ConditionTrue, Reason: "Planned", ObservedGeneration: 2},
		{Type: meta.ReconcilingCondition, Status: metav1.ConditionTrue, Reason: "Progressing", ObservedGeneration: 2},
	}
	return obj
}

func summarizer(obj *infrav1.Terraform) Summarizer {
	status := &obj.Status
	return Summarizer{
		Object: obj,
		Fields: Fields{
			ObservedGeneration: &status.ObservedGeneration, LastHandledReconcileAt: &status.LastHandledReconcileAt,
			Failures: &status.Failures, NextRetryAt: &status.NextRetryAt,
		},
		Backoff: Backoff{Base: time.Minute, Max: time.Hour},
		Now:     now,
	}
}

func TestSummarize(t *testing.T) {
	t.Parallel()
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "terraforms"}, "a", errors.New("changed"))
	for name, test := range map[string]struct {
		result Result
		err    error

		wantReady       metav1.ConditionStatus // empty: no Ready condition
		wantReason      string
		wantReconciling string // its reason; empty: absent
		wantStalled     bool
		wantObserved    int64
		wantFailures    int64
		wantHandled     bool
		wantRequeue     time.Duration
		wantMessage     string // a part of Ready's
		wantTerminal    bool
		wantErr         bool
	}{
		"ready": {
			result: Ready("Done", "all is well").After(time.Minute), wantReady: metav1.ConditionTrue, wantReason: "Done",
			wantObserved: 3, wantHandled: true, wantRequeue: time.Minute, wantMessage: "all is well",
		},
		"waiting for a human is neither progress nor an error": {
			result: Awaiting("ApprovalRequired", "please approve"), wantReady: metav1.ConditionFalse, wantReason: "ApprovalRequired",
			wantObserved: 3, wantHandled: true, wantMessage: "please approve",
		},
		"progress": {
			result: Progressing("Progressing", "planning"), wantReady: metav1.ConditionUnknown, wantReason: "Progressing",
			wantReconciling: "Progressing", wantObserved: 2, wantFailures: 1,
		},
		"nothing new": {
			result: Unchanged(), wantReconciling: "Progressing", wantObserved: 2, wantFailures: 1,
		},
		"terminal errors stall and are observed": {
			err: Terminal("PlanFailed", "no such provider"), wantReady: metav1.ConditionFalse, wantReason: "PlanFailed",
			wantStalled: true, wantObserved: 3, wantFailures: 1, wantHandled: true, wantMessage: "no such provider",
			wantTerminal: true, wantErr: true,
		},
		"waiting errors look again without growing": {
			err: fmt.Errorf("wrapped: %w", Waiting(30*time.Second, "DependencyNotReady", "not yet")), wantReady: metav1.ConditionFalse,
			wantReason: "DependencyNotReady", wantReconciling: meta.ProgressingWithRetryReason, wantObserved: 2, wantFailures: 1,
			wantHandled: true, wantRequeue: 30 * time.Second, wantMessage: "not yet",
		},
		"retries grow and say when": {
			err: Retry("PlanFailed", errors.New("timeout")), wantReady: metav1.ConditionFalse, wantReason: "PlanFailed",
			wantReconciling: meta.ProgressingWithRetryReason, wantObserved: 2, wantFailures: 2, wantHandled: true,
			wantRequeue: 2 * time.Minute, wantMessage: "timeout (failure 2, next try at 2026-05-04T12:02:00Z)",
		},
		"a retry caused by a conflict is still a retry": {
			err: Retry("OutputsFailed", conflict), wantReady: metav1.ConditionFalse, wantReason: "OutputsFailed",
			wantReconciling: meta.ProgressingWithRetryReason, wantObserved: 2, wantFailures: 2, wantHandled: true,
			wantRequeue: 2 * time.Minute, wantMessage: "changed",
		},
		"bugs go to the runtime": {
			err: errors.New("nil map"), wantReady: metav1.ConditionFalse, wantReason: meta.FailedReason,
			wantReconciling: meta.ProgressingWithRetryReason, wantObserved: 2, wantFailures: 1, wantMessage: "nil map", wantErr: true,
		},
		"conflicts say nothing about the object": {
			err: fmt.Errorf("writing: %w", conflict), wantReconciling: "Progressing", wantObserved: 2, wantFailures: 1, wantRequeue: ConflictDelay,
		},
		"the end of the process says nothing about the object": {
			err: context.Canceled, wantReconciling: "Progressing", wantObserved: 2, wantFailures: 1, wantRequeue: ConflictDelay,
		},
		"an overloaded API server says nothing about the object and is given time": {
			err: apierrors.NewInternalError(errors.New("etcd")), wantReconciling: "Progressing", wantObserved: 2, wantFailures: 1, wantErr: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			obj := object()
			summary := summarizer(obj).Summarize(test.result, test.err)

			ready := conditions.Get(obj, meta.ReadyCondition)
			switch {
			case test.wantReady == "" && ready != nil:
				t.Errorf("Ready = %+v, want none", ready)
			case test.wantReady != "" && (ready == nil || ready.Status != test.wantReady || ready.Reason != test.wantReason || !strings.Contains(ready.Message, test.wantMessage)):
				t.Errorf("Ready = %+v, want %s %s with %q", ready, test.wantReady, test.wantReason, test.wantMessage)
			}
			if got := conditions.GetReason(obj, meta.ReconcilingCondition); got != test.wantReconciling {
				t.Errorf("Reconciling has reason %q, want %q", got, test.wantReconciling)
			}
			if got := conditions.IsStalled(obj); got != test.wantStalled {
				t.Errorf("Stalled = %v, want %v", got, test.wantStalled)
			}
			if obj.Status.ObservedGeneration != test.wantObserved {
				t.Errorf("observedGeneration = %d, want %d", obj.Status.ObservedGeneration, test.wantObserved)
			}
			if obj.Status.Failures != test.wantFailures {
				t.Errorf("failures = %d, want %d", obj.Status.Failures, test.wantFailures)
			}
			if got := obj.Status.LastHandledReconcileAt == "token"; got != test.wantHandled {
				t.Errorf("request handled = %v, want %v", got, test.wantHandled)
			}
			if summary.Result.RequeueAfter != test.wantRequeue {
				t.Errorf("requeue after %v, want %v", summary.Result.RequeueAfter, test.wantRequeue)
			}
			if got := errors.Is(summary.Err, ctrlreconcile.TerminalError(nil)); got != test.wantTerminal {
				t.Errorf("terminal = %v, want %v", got, test.wantTerminal)
			}
			if (summary.Err != nil) != test.wantErr {
				t.Errorf("error = %v, want one: %v", summary.Err, test.wantErr)
			}
			if test.wantReady == "" {
				return // nothing was written, so there is nothing to check
			}
			conform(t, obj, test.result.State == StateProgressing)
		})
	}
}

// conform runs Flux's checker of the status contract.
func conform(t *testing.T, obj *infrav1.Terraform, inProgress bool) {
	t.Helper()
	checker := check.NewChecker(nil, &check.Conditions{NegativePolarity: []string{meta.StalledCondition, meta.ReconcilingCondition}})
	if inProgress {
		checker = check.NewInProgressChecker(nil)
	}
	checker.DisableFetch = true
	if fail, warn := checker.Check(t.Context(), obj); fail != nil || warn != nil {
		t.Errorf("the status breaks the contract: %v %v", fail, warn)
	}
}

func TestSettledConditionsHoldForTheNewGeneration(t *testing.T) {
	t.Parallel()
	obj := object()
	summarizer(obj).Summarize(Ready("Done", "all is well"), nil)
	for _, condition := range obj.Status.Conditions {
		if condition.ObservedGeneration != 3 {
			t.Errorf("%s was observed at generation %d, want 3", condition.Type, condition.ObservedGeneration)
		}
	}
}

func TestProgressMayKeepReady(t *testing.T) {
	t.Parallel()
	obj := object()
	conditions.MarkTrue(obj, meta.ReadyCondition, "Done", "%s", "all is well")
	result := Progressing("Progressing", "looking for drift")
	result.KeepReady = true
	summarizer(obj).Summarize(result, nil)
	if !conditions.IsTrue(obj, meta.ReadyCondition) || !conditions.IsReconciling(obj) {
		t.Errorf("conditions = %+v, want Ready and Reconciling", obj.Status.Conditions)
	}
}

func TestRunStopsAtTheFirstOutcome(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	phase := func(name string, result Result, err error) Phase[*[]string] {
		return func(_ context.Context, ran *[]string) (Result, error) {
			*ran = append(*ran, name)
			return result, err
		}
	}
	for name, test := range map[string]struct {
		phases    []Phase[*[]string]
		wantRan   string
		wantState State
		wantErr   error
	}{
		"all continue": {
			[]Phase[*[]string]{phase("a", Continue(), nil), phase("b", Continue(), nil)}, "a b", StateUnchanged, nil,
		},
		"an outcome ends it": {
			[]Phase[*[]string]{phase("a", Continue(), nil), phase("b", Ready("r", "m"), nil), phase("c", Continue(), nil)}, "a b", StateReady, nil,
		},
		"an error ends it": {
			[]Phase[*[]string]{phase("a", Continue(), broken), phase("b", Continue(), nil)}, "a", StateContinue, broken,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var ran []string
			result, err := Run(t.Context(), &ran, test.phases...)
			if got := strings.Join(ran, " "); got != test.wantRan {
				t.Errorf("ran %q, want %q", got, test.wantRan)
			}
			if result.State != test.wantState || !errors.Is(err, test.wantErr) {
				t.Errorf("got %v, %v, want %v, %v", result.State, err, test.wantState, test.wantErr)
			}
		})
	}
}

func TestKindOf(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err  error
		want ErrorKind
	}{
		"terminal": {Terminalf("r", "%d", 1), KindTerminal},
		"waiting":  {Waitingf(time.Second, "r", "%d", 1), KindWaiting},
		"retry":    {Retry("r", errors.New("x")), KindRetry},
		"wrapped":  {fmt.Errorf("x: %w", Terminal("r", "m")), KindTerminal},
		"bug":      {errors.New("x"), KindBug},
		"nothing":  {nil, KindBug},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := KindOf(test.err); got != test.want {
				t.Errorf("KindOf(%v) = %v, want %v", test.err, got, test.want)
			}
		})
	}
}
