package terraform

import (
	"strings"
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

const (
	planA = "plan-aaaaaaaaaaaaaaaa"
	planB = "plan-bbbbbbbbbbbbbbbb"
)

// settled says that the object waits for an approval of this plan and for nothing else.
func settled(plan string) func(*infrav1.Terraform) bool {
	return func(o *infrav1.Terraform) bool {
		return conditions.GetReason(o, meta.ReadyCondition) == infrav1.ApprovalRequiredReason &&
			o.Status.ObservedGeneration == o.Generation && o.Status.Plan != nil && o.Status.Plan.ID == plan
	}
}

func TestApproval(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		approve func(*world, *infrav1.Terraform, string)
	}{
		"by the spec": {func(w *world, o *infrav1.Terraform, id string) {
			w.update(o, func(o *infrav1.Terraform) { o.Spec.Approval.Plan = id })
		}},
		"by annotation": {func(w *world, o *infrav1.Terraform, id string) {
			w.annotate(o, infrav1.ApproveAnnotation, id)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := start(t)
			w.engine.on(inTurn(changes(planA), skipped()), nil, nil)
			obj := w.create(w.terraform("a"))
			obj = w.until(obj, "waiting for an approval", settled(planA))
			if conditions.IsReconciling(obj) || conditions.IsStalled(obj) || !conditions.IsTrue(obj, infrav1.ApprovalRequiredCondition) {
				t.Errorf("waiting for a human is no progress and no error:\n%s", describe(obj))
			}
			for _, part := range []string{planA, "2 to add, 1 to change", "spec.approval.plan", infrav1.ApproveAnnotation} {
				if message := conditions.GetMessage(obj, meta.ReadyCondition); !strings.Contains(message, part) {
					t.Errorf("the message does not name %q: %s", part, message)
				}
			}
			w.event(obj, infrav1.ApprovalRequiredReason)
			w.conform(obj)
			if plans := w.engine.plans(); !plans[0].request.GetPlan().GetSave() {
				t.Error("a plan that waits for an approval is not saved")
			}

			// The approval of another plan applies nothing.
			test.approve(w, obj, planB)
			w.annotate(obj, meta.ReconcileRequestAnnotation, "one")
			w.engine.on(always(changes(planA)), nil, nil)
			w.until(obj, "handled", func(o *infrav1.Terraform) bool { return o.Status.LastHandledReconcileAt == "one" })
			w.until(obj, "still waiting", settled(planA))
			if n := len(w.engine.applies()); n != 0 {
				t.Fatalf("%d applies of a plan that nobody approved", n)
			}

			w.engine.on(always(skipped()), nil, nil)
			test.approve(w, obj, planA)
			obj = w.ready(obj)
			if applies := w.engine.applies(); len(applies) != 1 || applies[0].request.GetApply().GetPlanId() != planA {
				t.Errorf("applies %v, want one of the approved plan", applies)
			}
			if conditions.Has(obj, infrav1.ApprovalRequiredCondition) || obj.Status.Applied == nil || obj.Status.Applied.PlanID != planA {
				t.Errorf("not applied:\n%s", describe(obj))
			}
		})
	}
}

func TestStalePlan(t *testing.T) {
	t.Parallel()
	stale := failure(runnerpb.Failure_KIND_STALE_PLAN, "PlanStale", "the state changed")
	t.Run("an equal plan is applied under the same approval", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		w.engine.on(always(changes(planA)), inTurn(stale, applied(planA)), nil)
		obj := w.create(w.terraform("a"))
		w.until(obj, "waiting for an approval", settled(planA))
		w.annotate(obj, infrav1.ApproveAnnotation, planA)
		w.ready(obj)
		if len(w.engine.plans()) != 2 || len(w.engine.applies()) != 2 {
			t.Errorf("want plan, apply, plan, apply:\n%s", w.engine.story())
		}
	})
	t.Run("another plan needs another approval", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		w.engine.on(inTurn(changes(planA), changes(planB)), inTurn(stale, applied(planB)), nil)
		obj := w.create(w.terraform("a"))
		w.until(obj, "waiting for an approval", settled(planA))
		w.annotate(obj, infrav1.ApproveAnnotation, planA)
		w.until(obj, "waiting for another approval", settled(planB))
		if len(w.engine.applies()) != 1 {
			t.Fatalf("want one apply, which was stale:\n%s", w.engine.story())
		}
		w.annotate(obj, infrav1.ApproveAnnotation, planB)
		if obj = w.ready(obj); obj.Status.Applied.PlanID != planB {
			t.Errorf("applied = %+v", obj.Status.Applied)
		}
	})
	t.Run("a state that never stands still is not chased", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		w.engine.on(always(changes(planA)), always(stale), nil)
		obj := w.create(w.terraform("a").auto().with(func(s *infrav1.TerraformSpec) {
			s.RetryInterval.Duration, s.MaxRetryInterval.Duration = time.Hour, time.Hour
		}))
		w.until(obj, "backing off", func(o *infrav1.Terraform) bool { return o.Status.Failures == 1 && o.Status.NextRetryAt != nil })
		if n := len(w.engine.applies()); n != maxStale+1 {
			t.Errorf("%d applies, want %d", n, maxStale+1)
		}
	})
}

func TestNeverAppliesNothing(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.engine.on(always(changes(planA)), nil, nil)
	obj := w.create(w.terraform("a").interval(time.Second).with(func(s *infrav1.TerraformSpec) { s.Approval.Mode = infrav1.ApprovalNever }))
	obj = w.ready(obj)
	if conditions.GetReason(obj, meta.ReadyCondition) != infrav1.PlanOnlyReason || obj.Status.Plan == nil {
		t.Errorf("not plan-only:\n%s", describe(obj))
	}
	w.annotate(obj, infrav1.ApproveAnnotation, planA)
	w.eventually(func() bool { return len(w.engine.plans()) > 3 }, w.engine.story)
	if n := len(w.engine.applies()); n != 0 {
		t.Errorf("%d applies", n)
	}
}

func TestDrift(t *testing.T) {
	t.Parallel()
	t.Run("reported once", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		w.engine.on(inTurn(changes(planA), drift(planB)), nil, nil)
		obj := w.create(w.terraform("a").auto().interval(time.Second).with(func(s *infrav1.TerraformSpec) { s.Drift.Mode = infrav1.DriftReport }))
		obj = w.until(obj, "drifted", func(o *infrav1.Terraform) bool { return conditions.IsTrue(o, infrav1.DriftedCondition) })
		if !conditions.IsReady(obj) || conditions.GetReason(obj, meta.ReadyCondition) != infrav1.DriftDetectedReason {
			t.Errorf("drift that is only reported is no failure:\n%s", describe(obj))
		}
		if obj.Status.Drift == nil || len(obj.Status.Drift.Resources) != 1 || obj.Status.Drift.Resources[0].Address != "terraform_data.a" {
			t.Errorf("drift = %+v", obj.Status.Drift)
		}
		w.event(obj, infrav1.DriftDetectedReason)
		before, plans := len(w.writes.list()), len(w.engine.plans())
		w.eventually(func() bool { return len(w.engine.plans()) >= plans+3 }, w.engine.story)
		if got := w.writes.list()[before:]; len(got) > 0 {
			t.Errorf("standing drift wrote:\n%s", strings.Join(got, "\n"))
		}
		if event := w.event(obj, infrav1.DriftDetectedReason); event.Count != 1 {
			t.Errorf("%d events", event.Count)
		}
		if len(w.engine.applies()) != 1 {
			t.Fatalf("drift was corrected:\n%s", w.engine.story())
		}

		w.engine.on(inTurn(noChanges()), nil, nil)
		w.annotate(obj, infrav1.ApproveAnnotation, planB)
		obj = w.until(obj, "corrected", func(o *infrav1.Terraform) bool { return !conditions.Has(o, infrav1.DriftedCondition) })
		if obj.Status.Drift != nil {
			t.Errorf("drift = %+v", obj.Status.Drift)
		}
	})
	t.Run("corrected", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		w.engine.on(inTurn(changes(planA), drift(planB), noChanges()), nil, nil)
		obj := w.create(w.terraform("a").auto().interval(time.Second))
		w.until(obj, "corrected", func(o *infrav1.Terraform) bool {
			return o.Status.Applied != nil && o.Status.Applied.PlanID == planB && conditions.IsReady(o)
		})
	})
	t.Run("needs an approval in Manual", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		w.engine.on(inTurn(noChanges(), drift(planB)), nil, nil)
		obj := w.create(w.terraform("a").interval(time.Second))
		obj = w.until(obj, "waiting for an approval", settled(planB))
		if !conditions.IsTrue(obj, infrav1.DriftedCondition) {
			t.Errorf("not drifted:\n%s", describe(obj))
		}
	})
	t.Run("not looked for", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		w.engine.on(inTurn(noChanges(), skipped()), nil, nil)
		obj := w.ready(w.create(w.terraform("a").interval(time.Second).with(func(s *infrav1.TerraformSpec) { s.Drift.Mode = infrav1.DriftDisabled })))
		w.eventually(func() bool { return len(w.engine.plans()) >= 3 }, w.engine.story)
		for _, plan := range w.engine.plans()[1:] {
			if !plan.request.GetPlan().GetIfChanged() {
				t.Errorf("looked for drift: %v", plan.request)
			}
		}
		w.ready(obj)
	})
}

func TestAPendingPlanMustFitTheSpec(t *testing.T) {
	t.Parallel()
	t.Run("or it is made anew", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		elsewhere := w.terraform(w.namespace).obj
		elsewhere.Namespace = "default"
		if err := w.Create(t.Context(), elsewhere); err != nil {
			t.Fatal(err)
		}
		w.engine.on(always(changes(planA)), nil, nil)
		obj := w.create(w.terraform("a"))
		w.until(obj, "waiting for an approval", settled(planA))
		w.update(obj, func(o *infrav1.Terraform) {
			o.Spec.Approval.Mode = infrav1.ApprovalAuto
			o.Spec.Inline = map[string]string{"main.tf": "# another module"}
			o.Spec.DependsOn = []infrav1.DependencyReference{{Name: elsewhere.Name, Namespace: "default", ReadyExpr: "true"}}
		})
		w.until(obj, "refused", func(o *infrav1.Terraform) bool {
			return conditions.IsStalled(o) && o.Status.ObservedGeneration == o.Generation
		})
		w.kill()
		w.engine.on(inTurn(changes(planB), noChanges()), nil, nil)
		w.manage(func(r *Reconciler) { r.NoCrossNamespaceRefs = false })
		obj = w.ready(obj)
		if applies := w.engine.applies(); len(applies) != 1 || obj.Status.Applied.PlanID != planB {
			t.Errorf("want one apply, of what the spec says now:\n%s", w.engine.story())
		}
		if plans := w.engine.plans(); !plans[1].request.GetPlan().GetIfChanged() {
			t.Errorf("the plan could not be skipped: %v", plans[1].request)
		}
	})
	t.Run("one that the runner would make again fits", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		w.engine.on(inTurn(changes(planA), skipped()), nil, nil)
		obj := w.create(w.terraform("a"))
		w.until(obj, "waiting for an approval", settled(planA))
		w.update(obj, func(o *infrav1.Terraform) { o.Spec.Interval.Duration = 2 * time.Hour })
		obj = w.until(obj, "waiting again", settled(planA))
		if obj.Status.Plan.Generation != obj.Generation || len(w.engine.plans()) != 2 {
			t.Errorf("want the plan in the new generation:\n%s\n%s", describe(obj), w.engine.story())
		}
	})
}

func TestWhatIsAppliedHasTheDigestThatWasPlanned(t *testing.T) {
	t.Parallel()
	w := start(t)
	first, second := changes(planA), changes(planA)
	first.Plan.Digest, second.Plan.Digest = "sha256:1", "sha256:2"
	w.engine.on(inTurn(first, second), nil, nil)
	obj := w.create(w.terraform("a"))
	obj = w.until(obj, "waiting for an approval", settled(planA))
	if obj.Status.Plan.Digest != "sha256:1" {
		t.Errorf("digest %q", obj.Status.Plan.Digest)
	}
	w.annotate(obj, meta.ReconcileRequestAnnotation, "one")
	w.until(obj, "planned again", func(o *infrav1.Terraform) bool { return o.Status.Plan.Digest == "sha256:2" })
	w.annotate(obj, infrav1.ApproveAnnotation, planA)
	w.eventually(func() bool { return len(w.engine.applies()) == 1 }, w.engine.story)
	if digest := w.engine.applies()[0].request.GetApply().GetPlanDigest(); digest != "sha256:2" {
		t.Errorf("applied with digest %q", digest)
	}
}
