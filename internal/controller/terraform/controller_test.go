package terraform

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/runner"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

func TestFirstApply(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.engine.on(inTurn(changes("plan-0000000000000001"), noChanges()), nil, nil)
	obj := w.create(w.terraform("a").auto())
	obj = w.ready(obj)
	w.event(obj, meta.ReconciliationSucceededReason)

	if got := w.writes.list(); len(got) > 8 {
		t.Errorf("%d writes, want at most 8:\n%s", len(got), strings.Join(got, "\n"))
	}
	plans := w.engine.plans()
	if len(plans) != 1 || plans[0].request.GetPlan().GetSave() || plans[0].request.GetPlan().GetIfChanged() {
		t.Errorf("plans %v, want one for real that is not saved", plans)
	}
	if applies := w.engine.applies(); len(applies) != 1 || applies[0].request.GetApply().GetPlanId() != "plan-0000000000000001" {
		t.Errorf("applies %v, want one of the plan", applies)
	}
	status := obj.Status
	if status.Applied == nil || status.Applied.PlanID != "plan-0000000000000001" || status.Applied.Generation != obj.Generation {
		t.Errorf("applied = %+v", status.Applied)
	}
	if pendingPlan(obj) != nil || status.Operation != nil || status.Failures != 0 {
		t.Errorf("plan %v, operation %v, failures %d are left over", status.Plan, status.Operation, status.Failures)
	}
	if len(status.Outputs) != 2 || status.Outputs[0].Value == nil || status.Outputs[1].Value != nil || status.Outputs[1].Type != "list(string)" {
		t.Errorf("outputs = %+v", status.Outputs)
	}
	if len(status.Resources) != 1 || status.ResourceCount == nil || *status.ResourceCount != 1 {
		t.Errorf("resources = %+v of %v", status.Resources, status.ResourceCount)
	}
	if len(status.History) != 2 || status.History[0].Type != infrav1.OperationApply || status.History[0].Summary == nil {
		t.Errorf("history = %+v, want the apply, then the plan", status.History)
	}
	if !conditions.IsTrue(obj, infrav1.AppliedCondition) || !conditions.IsTrue(obj, infrav1.PlannedCondition) {
		t.Errorf("conditions:\n%s", describe(obj))
	}
}

func TestUnchangedIntervalsWriteNothing(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.engine.on(inTurn(changes("plan-0000000000000001"), noChanges()), nil, nil)
	obj := w.ready(w.create(w.terraform("a").auto().interval(time.Second)))
	w.event(obj, meta.ReconciliationSucceededReason)
	before := len(w.writes.list())

	// With the fourth silent plan under way, three cycles are complete.
	w.eventually(func() bool { return len(w.engine.plans()) >= 5 }, w.engine.story)
	if got := w.writes.list()[before:]; len(got) > 0 {
		t.Errorf("unchanged cycles wrote:\n%s", strings.Join(got, "\n"))
	}
	if now := w.ready(obj); now.ResourceVersion != obj.ResourceVersion {
		t.Errorf("resource version %s, want %s", now.ResourceVersion, obj.ResourceVersion)
	}
	for _, plan := range w.engine.plans()[1:] {
		if plan.request.GetPlan().GetIfChanged() {
			t.Errorf("the interval does not look for drift: %v", plan.request)
		}
	}
}

func TestUnchangedRequestWritesOnce(t *testing.T) {
	t.Parallel()
	w := start(t)
	obj := w.ready(w.create(w.terraform("a").auto()))
	w.event(obj, meta.ReconciliationSucceededReason)
	before := len(w.writes.list())

	w.annotate(obj, meta.ReconcileRequestAnnotation, "one")
	obj = w.until(obj, "handled", func(o *infrav1.Terraform) bool { return o.Status.LastHandledReconcileAt == "one" })
	if !conditions.IsReady(obj) {
		t.Errorf("not ready:\n%s", describe(obj))
	}
	if got := w.writes.list()[before:]; len(got) > 2 {
		t.Errorf("%d writes, want at most 2:\n%s", len(got), strings.Join(got, "\n"))
	}
	if plans := w.engine.plans(); len(plans) != 2 || plans[1].request.GetPlan().GetIfChanged() || plans[1].request.GetPlan().GetForce() {
		t.Errorf("plans %v, want a second one for real", plans)
	}
}

func TestForceRequest(t *testing.T) {
	t.Parallel()
	w := start(t)
	obj := w.ready(w.create(w.terraform("a").auto()))
	w.annotate(obj, meta.ReconcileRequestAnnotation, "one", meta.ForceRequestAnnotation, "one")
	w.until(obj, "handled", func(o *infrav1.Terraform) bool {
		return o.Status.LastHandledReconcileAt == "one" && o.Status.LastHandledForceAt == "one"
	})
	plans := w.engine.plans()
	if len(plans) != 2 || !plans[1].request.GetPlan().GetForce() {
		t.Fatalf("plans %v, want a second, forced one", plans)
	}
	w.annotate(obj, meta.ReconcileRequestAnnotation, "two")
	w.until(obj, "handled", func(o *infrav1.Terraform) bool { return o.Status.LastHandledReconcileAt == "two" })
	if plans := w.engine.plans(); len(plans) != 3 || plans[2].request.GetPlan().GetForce() {
		t.Errorf("plans %v, want a third one that is not forced", plans)
	}
}

func TestNewGenerationIsPlannedIfItMatters(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.engine.on(inTurn(changes("plan-0000000000000001"), skipped()), nil, nil)
	obj := w.ready(w.create(w.terraform("a").auto()))
	w.update(obj, func(o *infrav1.Terraform) { o.Spec.Interval.Duration = 2 * time.Hour })
	obj = w.ready(obj)
	plans := w.engine.plans()
	if len(plans) != 2 || !plans[1].request.GetPlan().GetIfChanged() {
		t.Errorf("plans %v, want a second one if it matters", plans)
	}
	if len(w.engine.applies()) != 1 || obj.Status.Applied == nil {
		t.Errorf("applied again, or forgot it:\n%s", describe(obj))
	}
}

func TestAShorterIntervalTakesEffect(t *testing.T) {
	t.Parallel()
	w := start(t)
	obj := w.ready(w.create(w.terraform("a").auto()))
	w.engine.on(inTurn(skipped(), noChanges()), nil, nil)
	w.update(obj, func(o *infrav1.Terraform) { o.Spec.Interval.Duration = time.Second })
	w.eventually(func() bool { return len(w.engine.plans()) >= 4 }, w.engine.story)
}

func TestSuspend(t *testing.T) {
	t.Parallel()
	w := start(t)
	obj := w.create(w.terraform("a").auto().with(func(s *infrav1.TerraformSpec) { s.Suspend = true }))
	w.until(obj, "with a finalizer", func(o *infrav1.Terraform) bool { return len(o.Finalizers) == 1 })
	other := w.ready(w.create(w.terraform("b").auto())) // the queue has moved on
	if plans := w.engine.plans(); len(plans) != 1 || plans[0].object.Name != other.Name {
		t.Errorf("planned %v, want b only", plans)
	}
	w.update(obj, func(o *infrav1.Terraform) { o.Spec.Suspend = false })
	w.ready(obj)
}

func TestSuspendedObjectsReportWhatWasRunning(t *testing.T) {
	t.Parallel()
	w := start(t)
	g := newGate(applied("plan-0000000000000001"))
	w.engine.on(always(changes("plan-0000000000000001")), g.answer, nil)
	obj := w.create(w.terraform("a").auto())
	<-g.entered
	w.update(obj, func(o *infrav1.Terraform) { o.Spec.Suspend = true })
	close(g.open)
	obj = w.until(obj, "applied", func(o *infrav1.Terraform) bool { return o.Status.Applied != nil })
	if obj.Status.Operation != nil || len(w.engine.plans()) != 1 {
		t.Errorf("a suspended object went on:\n%s\n%s", describe(obj), w.engine.story())
	}
	if obj.Status.ObservedGeneration == obj.Generation || conditions.GetReason(obj, meta.ReadyCondition) != meta.SuspendedReason {
		t.Errorf("a generation that was not planned is reported:\n%s", describe(obj))
	}
	w.engine.on(always(noChanges()), nil, nil)
	w.update(obj, func(o *infrav1.Terraform) { o.Spec.Suspend = false })
	w.ready(obj)
}

func TestSuspendedObjectsDoNotStallForWhatWasNotTried(t *testing.T) {
	t.Parallel()
	w := start(t)
	g := newGate(failure(runnerpb.Failure_KIND_TERMINAL, infrav1.PlanFailedReason, "broken"))
	w.engine.on(g.answer, nil, nil)
	obj := w.create(w.terraform("a"))
	<-g.entered
	w.update(obj, func(o *infrav1.Terraform) { o.Spec.Suspend = true })
	close(g.open)
	if obj = w.reason(obj, infrav1.PlanFailedReason); obj.Status.ObservedGeneration == obj.Generation {
		t.Errorf("a generation that was not planned is reported:\n%s", describe(obj))
	}
}

func TestSuspendedObjectsStayReady(t *testing.T) {
	t.Parallel()
	w := start(t, func(r *Reconciler) { r.Times.FirstNotice = 10 * time.Millisecond })
	obj := w.terraform("a").obj
	if err := w.Create(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	w.ready(obj)
	g := newGate(noChanges())
	w.engine.on(g.answer, nil, nil)
	w.annotate(obj, meta.ReconcileRequestAnnotation, "one")
	w.until(obj, "planning", func(o *infrav1.Terraform) bool { return conditions.IsReconciling(o) })
	w.update(obj, func(o *infrav1.Terraform) { o.Spec.Suspend = true })
	close(g.open)
	obj = w.until(obj, "planned", func(o *infrav1.Terraform) bool { return o.Status.LastHandledReconcileAt == "one" })
	if !conditions.IsReady(obj) || conditions.IsReconciling(obj) || obj.Status.ObservedGeneration == obj.Generation {
		t.Errorf("not as it was:\n%s", describe(obj))
	}
}

func TestProgressIsShown(t *testing.T) {
	t.Parallel()
	w := start(t, func(r *Reconciler) { r.Times.FirstNotice = 10 * time.Millisecond })
	g := newGate(applied("plan-0000000000000001"))
	w.engine.on(inTurn(changes("plan-0000000000000001"), noChanges()), func(ctx context.Context, request *runnerpb.StartOperationRequest, report runner.Reporter) *runnerpb.Result {
		report.Progress("terraform_data.a", "create", true)
		report.Progress("terraform_data.b", "create", false)
		return g.answer(ctx, request, report)
	}, nil)
	obj := w.create(w.terraform("a").auto())
	obj = w.until(obj, "showing progress", func(o *infrav1.Terraform) bool {
		return conditions.GetMessage(o, meta.ReconcilingCondition) == "Applying plan-0000000000000001: 1 of 3 changes done, now terraform_data.b"
	})
	if !conditions.IsUnknown(obj, meta.ReadyCondition) || obj.Status.Operation == nil || obj.Status.Operation.Phase != "apply" || obj.Status.Operation.Runner != "runner" {
		t.Errorf("progress:\n%s", describe(obj))
	}
	w.conform(obj)
	close(g.open)
	w.ready(obj)
}

func TestUnsupportedFieldsAreRefused(t *testing.T) {
	t.Parallel()
	w := start(t)
	obj := w.create(w.terraform("a").with(func(s *infrav1.TerraformSpec) {
		s.Approval.AutoWhen = "true"
		s.Drift.Ignore = []string{"a.b"}
	}))
	obj = w.reason(obj, infrav1.NotSupportedReason)
	message := conditions.GetMessage(obj, meta.ReadyCondition)
	if !conditions.IsStalled(obj) || !strings.Contains(message, "spec.approval.autoWhen") || !strings.Contains(message, "spec.drift.ignore") {
		t.Errorf("the message does not name the fields, or the object is not stalled:\n%s", describe(obj))
	}
	if len(w.engine.plans()) > 0 {
		t.Error("something was planned")
	}
	w.update(obj, func(o *infrav1.Terraform) { o.Spec.Approval.AutoWhen, o.Spec.Drift.Ignore = "", nil })
	w.ready(obj)
}

func TestFailures(t *testing.T) {
	t.Parallel()
	t.Run("terminal ones stall until something changes", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		w.engine.on(inTurn(failure(runnerpb.Failure_KIND_TERMINAL, infrav1.PlanFailedReason, "main.tf:1: no such thing"), noChanges()), nil, nil)
		obj := w.create(w.terraform("a").interval(time.Second))
		obj = w.reason(obj, infrav1.PlanFailedReason)
		if !conditions.IsStalled(obj) || conditions.IsReconciling(obj) || obj.Status.ObservedGeneration != obj.Generation {
			t.Errorf("not stalled:\n%s", describe(obj))
		}
		if event := w.event(obj, infrav1.PlanFailedReason); event.Type != eventWarning || !strings.Contains(event.Message, "no such thing") {
			t.Errorf("event = %s %s", event.Type, event.Message)
		}
		w.conform(obj)
		w.update(obj, func(o *infrav1.Terraform) { o.Spec.Inline["main.tf"] = "# mended" })
		obj = w.ready(obj)
		if plans := w.engine.plans(); len(plans) != 2 || plans[1].request.GetPlan().GetIfChanged() {
			t.Errorf("plans %v, want one more for real", plans)
		}
		if obj.Status.Failures != 0 || conditions.IsStalled(obj) {
			t.Errorf("failures are left over:\n%s", describe(obj))
		}
	})
	t.Run("retries grow and end", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		broken := failure(runnerpb.Failure_KIND_RETRY, infrav1.PlanFailedReason, "no route to host")
		w.engine.on(inTurn(broken, broken, broken, noChanges()), nil, nil)
		obj := w.create(w.terraform("a"))
		obj = w.until(obj, "failed twice", func(o *infrav1.Terraform) bool { return o.Status.Failures == 2 })
		message := conditions.GetMessage(obj, meta.ReadyCondition)
		if !strings.Contains(message, "no route to host (failure 2, next try at ") || obj.Status.NextRetryAt == nil {
			t.Errorf("the message does not say what happens next: %s", message)
		}
		w.conform(obj)
		obj = w.ready(obj)
		if obj.Status.Failures != 0 || obj.Status.NextRetryAt != nil || len(w.engine.plans()) != 4 {
			t.Errorf("%d plans, want 4:\n%s", len(w.engine.plans()), describe(obj))
		}
	})
	t.Run("what is missing heals without growing", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		missing := failure(runnerpb.Failure_KIND_WAITING, infrav1.InputNotFoundReason, `secret "a" not found`)
		w.engine.on(always(missing), nil, nil)
		obj := w.create(w.terraform("a"))
		obj = w.reason(obj, infrav1.InputNotFoundReason)
		w.eventually(func() bool { return len(w.engine.plans()) > 5 }, w.engine.story)
		if now := w.reason(obj, infrav1.InputNotFoundReason); now.ResourceVersion != obj.ResourceVersion {
			t.Errorf("waiting writes:\n%s\n%s", describe(obj), describe(now))
		}
		w.engine.on(always(noChanges()), nil, nil)
		w.ready(obj)
	})
	t.Run("a failed apply is planned anew", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		w.engine.on(always(changes("plan-0000000000000001")),
			inTurn(failure(runnerpb.Failure_KIND_RETRY, infrav1.ApplyFailedReason, "quota exceeded"), applied("plan-0000000000000001")), nil)
		obj := w.create(w.terraform("a").auto())
		w.event(obj, infrav1.ApplyFailedReason)
		obj = w.ready(obj)
		if len(w.engine.plans()) != 2 || len(w.engine.applies()) != 2 {
			t.Errorf("want two plans and two applies:\n%s", w.engine.story())
		}
		if !conditions.IsTrue(obj, infrav1.AppliedCondition) {
			t.Errorf("not applied:\n%s", describe(obj))
		}
	})
	t.Run("locks are explained", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		locked := failure(runnerpb.Failure_KIND_LOCKED, infrav1.StateLockedReason, "the state is locked by jo@laptop")
		locked.Failure.Lock = &runnerpb.Lock{Id: "lock-1", Who: "jo@laptop", Operation: "OperationTypeApply", CreatedUnix: 1700000000}
		w.engine.on(inTurn(noChanges(), locked, locked, noChanges()), nil, nil)
		obj := w.ready(w.create(w.terraform("a").interval(time.Second)))
		obj = w.reason(obj, infrav1.StateLockedReason)
		text := conditions.GetMessage(obj, infrav1.StateLockedCondition)
		for _, part := range []string{"jo@laptop", "lock-1", "2023-11-14T22:13:20Z", "spec.stateLock.id"} {
			if !strings.Contains(text, part) {
				t.Errorf("StateLocked does not name %s: %s", part, text)
			}
		}
		if obj.Status.Lock == nil || obj.Status.Lock.ID != "lock-1" {
			t.Errorf("lock = %+v", obj.Status.Lock)
		}
		obj = w.ready(obj)
		if obj.Status.Lock != nil || conditions.Has(obj, infrav1.StateLockedCondition) {
			t.Errorf("the lock is left over:\n%s", describe(obj))
		}
	})
	t.Run("resetAt forgets failures", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		w.engine.on(inTurn(failure(runnerpb.Failure_KIND_RETRY, infrav1.PlanFailedReason, "no route to host"), noChanges()), nil, nil)
		obj := w.create(w.terraform("a").with(func(s *infrav1.TerraformSpec) {
			s.RetryInterval.Duration, s.MaxRetryInterval.Duration = time.Hour, time.Hour
		}))
		w.reason(obj, infrav1.PlanFailedReason)
		w.annotate(obj, meta.ReconcileRequestAnnotation, "one", infrav1.ResetRequestAnnotation, "one")
		obj = w.ready(obj)
		if obj.Status.LastHandledResetAt != "one" {
			t.Errorf("lastHandledResetAt = %q", obj.Status.LastHandledResetAt)
		}
	})
}
