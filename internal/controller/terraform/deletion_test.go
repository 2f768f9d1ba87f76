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

func TestDeletion(t *testing.T) {
	t.Parallel()
	t.Run("Orphan needs no runner", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		obj := w.ready(w.create(w.terraform("a").auto()))
		before := len(w.engine.ran)
		w.runner.stop()
		w.delete(obj)
		w.gone(obj)
		if len(w.engine.ran) != before {
			t.Errorf("the runner had to work:\n%s", w.engine.story())
		}
	})
	t.Run("Destroy destroys", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		w.engine.on(inTurn(changes(planA), noChanges()), nil, nil)
		obj := w.ready(w.create(w.terraform("a").auto().destroy()))
		w.delete(obj)
		w.gone(obj)
		w.event(obj, infrav1.DestroyedReason)
		if destroys := w.engine.destroys(); len(destroys) != 1 || len(w.engine.plans()) != 1 {
			t.Errorf("want one plan, one apply, one destroy:\n%s", w.engine.story())
		}
	})
	t.Run("what was never planned needs no runner", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		obj := w.create(w.terraform("a").destroy().source("GitRepository", "missing"))
		w.reason(obj, infrav1.SourceNotFoundReason)
		w.delete(obj)
		w.gone(obj)
		if len(w.engine.ran) > 0 {
			t.Errorf("the runner had to work:\n%s", w.engine.story())
		}
	})
	t.Run("works when suspended", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		obj := w.ready(w.create(w.terraform("a").auto().destroy()))
		w.update(obj, func(o *infrav1.Terraform) { o.Spec.Suspend = true })
		w.delete(obj)
		w.gone(obj)
		if len(w.engine.destroys()) != 1 {
			t.Errorf("not destroyed:\n%s", w.engine.story())
		}
	})
	t.Run("works when stalled", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		w.engine.on(inTurn(noChanges(), failure(runnerpb.Failure_KIND_TERMINAL, infrav1.PlanFailedReason, "broken")), nil, nil)
		obj := w.ready(w.create(w.terraform("a").destroy()))
		w.annotate(obj, meta.ReconcileRequestAnnotation, "one")
		w.reason(obj, infrav1.PlanFailedReason)
		w.delete(obj)
		w.gone(obj)
		if len(w.engine.destroys()) != 1 {
			t.Errorf("not destroyed:\n%s", w.engine.story())
		}
	})
	t.Run("works without the source", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		repository := w.git("repo", file("main.tf", t.Name()))
		obj := w.ready(w.create(w.terraform("a").auto().destroy().source("GitRepository", "repo")))
		if err := w.Delete(t.Context(), repository); err != nil {
			t.Fatal(err)
		}
		w.delete(obj)
		w.gone(obj)
		if destroys := w.engine.destroys(); len(destroys) != 1 || destroys[0].request.GetSource() != nil {
			t.Errorf("want one destroy without a source:\n%s", w.engine.story())
		}
	})
	t.Run("works when the artifact is gone", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		repository := w.git("repo", file("main.tf", t.Name()))
		obj := w.ready(w.create(w.terraform("a").auto().destroy().source("GitRepository", "repo")))
		w.engine.forgetSources()
		repository.Status.Artifact.URL += ".gone"
		if err := w.Status().Update(t.Context(), repository); err != nil {
			t.Fatal(err)
		}
		w.delete(obj)
		w.gone(obj)
		if destroys := w.engine.destroys(); len(destroys) != 1 || destroys[0].request.GetSource() != nil {
			t.Errorf("want one destroy without a source:\n%s", w.engine.story())
		}
	})
	t.Run("says what blocks it and how to get out", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		w.engine.on(nil, nil, always(failure(runnerpb.Failure_KIND_TERMINAL, infrav1.InitFailedReason, "no credentials")))
		obj := w.ready(w.create(w.terraform("a").auto().destroy()))
		w.delete(obj)
		obj = w.reason(obj, infrav1.DeletionBlockedReason)
		message := conditions.GetMessage(obj, meta.ReadyCondition)
		if !strings.Contains(message, "no credentials") || !strings.Contains(message, "spec.deletionPolicy to Orphan") || !strings.Contains(message, "next try") {
			t.Errorf("message = %s", message)
		}
		w.conform(obj)
		w.eventually(func() bool { return len(w.engine.destroys()) >= 3 }, w.engine.story)
		w.update(obj, func(o *infrav1.Terraform) { o.Spec.DeletionPolicy = infrav1.DeletionOrphan })
		w.gone(obj)
	})
	t.Run("waits for a running apply", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		g := newGate(applied(planA))
		w.engine.on(always(changes(planA)), g.answer, nil)
		obj := w.create(w.terraform("a").auto().destroy())
		<-g.entered
		w.delete(obj)
		w.until(obj, "waiting for the apply", func(o *infrav1.Terraform) bool {
			return strings.Contains(conditions.GetMessage(o, meta.ReconcilingCondition), "Deletion waits for the running apply of "+planA)
		})
		close(g.open)
		w.gone(obj)
		if len(w.engine.applies()) != 1 || len(w.engine.destroys()) != 1 {
			t.Errorf("want one apply, one destroy:\n%s", w.engine.story())
		}
	})
	t.Run("cancels a running plan", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		g := newGate(nil)
		w.engine.on(g.answer, nil, nil)
		obj := w.create(w.terraform("a").auto().destroy())
		<-g.entered
		w.delete(obj)
		w.gone(obj) // the gate never opens
	})
	t.Run("waits for an approval if asked to", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		obj := w.ready(w.create(w.terraform("a").auto().destroy().with(func(s *infrav1.TerraformSpec) {
			s.Approval.Destroy = infrav1.DestroyApprovalRequired
		})))
		w.engine.on(always(destruction(planB)), nil, nil)
		w.delete(obj)
		obj = w.until(obj, "waiting for an approval", settled(planB))
		if !obj.Status.Plan.Destroy || !strings.Contains(conditions.GetMessage(obj, meta.ReadyCondition), "3 to destroy") {
			t.Errorf("plan:\n%s", describe(obj))
		}
		if plans := w.engine.plans(); !plans[len(plans)-1].request.GetPlan().GetDestroy() || !plans[len(plans)-1].request.GetPlan().GetSave() {
			t.Errorf("the last plan is not a saved one of the destruction:\n%s", w.engine.story())
		}
		w.annotate(obj, infrav1.ApproveAnnotation, planA)
		w.update(obj, func(o *infrav1.Terraform) { o.Spec.Interval.Duration = 2 * time.Hour })
		w.until(obj, "still waiting", settled(planB))
		if len(w.engine.applies()) != 0 {
			t.Fatalf("applied without an approval:\n%s", w.engine.story())
		}
		w.annotate(obj, infrav1.ApproveAnnotation, planB)
		w.gone(obj)
		if len(w.engine.applies()) != 1 || len(w.engine.destroys()) != 0 {
			t.Errorf("want one apply of the destruction:\n%s", w.engine.story())
		}
	})
	t.Run("a destruction that was planned before is another one", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		w.engine.on(always(destruction(planA)), nil, nil) // of a part, by spec.planOptions.targets
		obj := w.create(w.terraform("a").destroy().with(func(s *infrav1.TerraformSpec) {
			s.Approval.Destroy = infrav1.DestroyApprovalRequired
		}))
		w.until(obj, "waiting for an approval", settled(planA))
		w.update(obj, func(o *infrav1.Terraform) { o.Spec.Suspend, o.Spec.Approval.Plan = true, planA })
		w.engine.on(always(destruction(planB)), nil, nil)
		w.delete(obj)
		w.until(obj, "waiting for another approval", settled(planB))
		if len(w.engine.applies()) != 0 {
			t.Errorf("the part was taken for the whole:\n%s", w.engine.story())
		}
	})
}
