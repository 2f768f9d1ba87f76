//go:build linux

package e2e_test

import (
	"testing"

	"github.com/fluxcd/pkg/runtime/conditions"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/test/harness"
)

// file is a module whose resource is a file in the runner pod, for which it needs a
// provider from outside.
const file = `
terraform {
  required_providers {
    testing = { source = "terrace-dev/testing" }
  }
}
resource "testing_file" "world" {
  path    = "/tmp/world"
  content = "as declared"
}
`

func TestDriftIsReportedAndCorrectedWhenThatIsApproved(t *testing.T) {
	t.Parallel()
	e := newTenant(t)
	o := e.create("file", file, func(o *infrav1.Terraform) {
		o.Spec.Runner.Template = podSpec(`{"containers": [{"name": "runner", "image": "` + runnerTestImage + `"}]}`)
	})
	e.awaitPlan(o)
	first := o.Status.Plan.ID
	e.approve(o)
	e.await(o, "the object to be ready", harness.IsReady)
	pod := e.onlyRunner()
	if got := e.inside(pod, "cat /tmp/world"); got != "as declared" {
		t.Fatalf("the file reads %q", got)
	}

	e.inside(pod, "printf 'by hand' >/tmp/world")
	e.request(o)
	e.awaitPlan(o)
	if !conditions.IsTrue(o, infrav1.DriftedCondition) || o.Status.Drift == nil || len(o.Status.Drift.Resources) != 1 ||
		o.Status.Drift.Resources[0].Address != "testing_file.world" {
		t.Errorf("drift = %+v, %s", o.Status.Drift, said(o))
	}
	e.request(o) // once more, since the first plan was approved
	if got := e.inside(pod, "cat /tmp/world"); got != "by hand" || o.Status.Plan.ID == first {
		t.Errorf("the file reads %q, the plan is %s after %s", got, o.Status.Plan.ID, first)
	}

	e.approve(o)
	e.await(o, "the correction", func(o *infrav1.Terraform) bool {
		return harness.IsReady(o) && !conditions.Has(o, infrav1.DriftedCondition)
	})
	if got := e.inside(pod, "cat /tmp/world"); got != "as declared" || o.Status.Drift != nil {
		t.Errorf("the file reads %q after the correction, drift = %+v", got, o.Status.Drift)
	}
	e.wantResults(o, "Plan Succeeded", "Apply Succeeded", "Plan Succeeded", "Apply Succeeded")

	e.remove(o)
	if got := e.inside(pod, "cat /tmp/world 2>/dev/null || echo destroyed"); got != "destroyed\n" {
		t.Errorf("after the destruction the file reads %q", got)
	}
}
