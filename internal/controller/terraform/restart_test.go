package terraform

import (
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

func TestManagerRestartDuringAnApply(t *testing.T) {
	t.Parallel()
	t.Run("a runner that survives is found again", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		g := newGate(applied(planA))
		w.engine.on(always(changes(planA)), g.answer, nil)
		obj := w.create(w.terraform("a").auto())
		<-g.entered
		w.kill()
		obj = w.until(obj, "applying", func(o *infrav1.Terraform) bool { return o.Status.Operation != nil })
		if obj.Status.Operation.Type != infrav1.OperationApply || obj.Status.Operation.PlanID != planA {
			t.Errorf("the intent is not written down: %+v", obj.Status.Operation)
		}
		w.manage()
		close(g.open)
		obj = w.ready(obj)
		if len(w.engine.applies()) != 1 || len(w.engine.plans()) != 1 {
			t.Errorf("want one plan and one apply:\n%s", w.engine.story())
		}
		if obj.Status.Applied.Generation != obj.Generation || obj.Status.Applied.PlanID != planA {
			t.Errorf("applied = %+v", obj.Status.Applied)
		}
	})
	t.Run("a result that came meanwhile is recorded", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		g := newGate(applied(planA))
		w.engine.on(always(changes(planA)), g.answer, nil)
		obj := w.create(w.terraform("a").auto())
		<-g.entered
		w.kill()
		close(g.open)
		w.eventually(func() bool {
			w.engine.mu.Lock()
			defer w.engine.mu.Unlock()
			return w.engine.ended == 2
		}, w.engine.story)
		w.manage()
		w.ready(obj)
		if len(w.engine.applies()) != 1 {
			t.Errorf("want one apply:\n%s", w.engine.story())
		}
	})
	t.Run("a runner that does not survive is planned anew", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		g := newGate(applied(planA))
		w.engine.on(always(changes(planA)), g.answer, nil)
		obj := w.create(w.terraform("a").auto())
		<-g.entered
		w.kill()
		w.runner.stop() // interrupts the apply, as the end of the process would
		w.runner = w.serve()
		w.engine.on(inTurn(changes(planB), noChanges()), applies, nil)
		w.manage()
		obj = w.until(obj, "applied", func(o *infrav1.Terraform) bool { return o.Status.Applied != nil && conditions.IsReady(o) })
		if obj.Status.Applied.PlanID != planB || len(w.engine.plans()) != 2 {
			t.Errorf("want what the second plan found:\n%s\n%s", describe(obj), w.engine.story())
		}
		var results []infrav1.OperationResult
		for _, entry := range obj.Status.History {
			results = append(results, entry.Result)
		}
		if len(results) != 4 || results[2] != infrav1.OperationLost {
			t.Errorf("history = %v, want the lost apply between the plans", results)
		}
	})
}

func TestAPlanThatIsShownLateNamesItsRunnerForTheNextManager(t *testing.T) {
	t.Parallel()
	w := start(t)
	obj := w.ready(w.create(w.terraform("a").auto()))
	g := newGate(noChanges())
	w.engine.on(g.answer, nil, nil)
	w.annotate(obj, meta.ReconcileRequestAnnotation, "one") // its intent is not written before it starts
	<-g.entered
	obj = w.until(obj, "shown", func(o *infrav1.Terraform) bool { return o.Status.Operation != nil })
	if got := obj.Status.Operation.Runner; got != "runner" {
		t.Errorf("the runner in status is %q: a manager that starts now does not find it", got)
	}
	close(g.open)
	w.ready(obj)
}

func TestAnApplyThatWasLostCountsIfItLeftNothingToDo(t *testing.T) {
	t.Parallel()
	lost := failure(runnerpb.Failure_KIND_LOST, infrav1.OperationLostReason, "the runner ended")
	for name, test := range map[string]struct {
		next *runnerpb.Result
		want string
	}{
		"nothing is left":                {noChanges(), planA},
		"something is left, and applied": {changes(planB), planB},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := start(t)
			w.engine.on(inTurn(changes(planA), test.next, noChanges()), inTurn(lost, applied(planB)), nil)
			obj := w.ready(w.create(w.terraform("a").auto()))
			if applied := obj.Status.Applied; applied == nil || applied.PlanID != test.want || !conditions.IsTrue(obj, infrav1.AppliedCondition) {
				t.Errorf("want %s applied:\n%s", test.want, describe(obj))
			}
		})
	}
}

func TestManagerRestartDoesNotPlanWhatIsReady(t *testing.T) {
	t.Parallel()
	w := start(t)
	obj := w.ready(w.create(w.terraform("a").auto()))
	w.event(obj, "ReconciliationSucceeded")
	w.kill()
	before := len(w.writes.list())
	w.manage()
	other := w.ready(w.create(w.terraform("b").auto())) // the new manager works
	if plans := w.engine.plans(); len(plans) != 2 || plans[1].object.Name != other.Name {
		t.Errorf("the restart planned a:\n%s", w.engine.story())
	}
	for _, write := range w.writes.list()[before:] {
		if write == "PATCH /apis/infra.terrace.dev/v1alpha1/namespaces/"+w.namespace+"/terraforms/a/status" {
			t.Errorf("the restart wrote a: %s", write)
		}
	}
	if now := w.ready(obj); now.ResourceVersion != obj.ResourceVersion {
		t.Errorf("resource version %s, want %s", now.ResourceVersion, obj.ResourceVersion)
	}
}

func TestManagerRestartKeepsThePaceOfRetries(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.engine.on(always(failure(2, infrav1.PlanFailedReason, "no route to host")), nil, nil)
	obj := w.create(w.terraform("a").with(func(s *infrav1.TerraformSpec) {
		s.RetryInterval.Duration, s.MaxRetryInterval.Duration = time.Hour, time.Hour
	}))
	obj = w.reason(obj, infrav1.PlanFailedReason)
	w.kill()
	w.manage()
	w.engine.on(always(noChanges()), nil, nil)
	w.ready(w.create(w.terraform("b")))
	if plans := w.engine.plans(); len(plans) != 2 {
		t.Errorf("the restart retried a at once:\n%s", w.engine.story())
	}
	w.reason(obj, infrav1.PlanFailedReason)
}
