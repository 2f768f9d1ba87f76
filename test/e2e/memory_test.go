//go:build linux

package e2e_test

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/test/harness"
)

// mended is a module that needs no memory to speak of.
const mended = `
resource "terraform_data" "mended" {}
`

// eating is a module with a provisioner.
func eating(command string) string {
	return `
resource "terraform_data" "eater" {
  provisioner "local-exec" {
    command = "` + command + `"
  }
}
`
}

// little is soon used up.
const little = `{"requests": {"memory": "64Mi"}, "limits": {"memory": "256Mi"}}`

// TestMemoryThatRunsOut has the kernel kill in a runner pod. Whom it kills is its own
// choice: whoever has most. With cgroup v2 the kubelet has it kill the whole container.
func TestMemoryThatRunsOut(t *testing.T) {
	t.Parallel()
	for eater, test := range map[string]struct {
		module    string
		reason    string // if the runner survives
		resources string // default: little
	}{
		"in a provisioner": {module: eating("tail /dev/zero"), reason: infrav1.ApplyFailedReason},
		"in the tool": {reason: infrav1.PlanFailedReason, module: `
locals {
  many = [for p in setproduct(range(1000), range(1000), range(4)) : "${p[0]}-${p[1]}"]
}
resource "terraform_data" "eater" {
  input = length(local.many)
}
`},
		// The runner needs least of all, so that the module has to offer it. That counts
		// only where requests are limits: else the kubelet offers all processes.
		"in the runner": {
			module:    eating("echo 1000 >/proc/1/oom_score_adj; tail /dev/zero"),
			resources: `{"requests": {"cpu": "400m", "memory": "256Mi"}, "limits": {"cpu": "400m", "memory": "256Mi"}}`,
		},
	} {
		t.Run(eater, func(t *testing.T) {
			t.Parallel()
			e := newTenant(t)
			o := e.create("eater", test.module, func(o *infrav1.Terraform) {
				auto(o)
				o.Spec.RetryInterval = &metav1.Duration{Duration: 5 * time.Second}
				o.Spec.Runner.Template = podSpec(`{"containers": [{"name": "runner", "resources": ` + cmp.Or(test.resources, little) + `}]}`)
			})
			e.await(o, "the object to say that memory ran out", func(o *infrav1.Terraform) bool {
				words := said(o)
				return strings.Contains(words, "memory") && strings.Contains(words, "spec.runner.template")
			})
			killed := strings.Contains(said(o), "OOMKilled")
			if !killed && conditions.GetReason(o, meta.ReadyCondition) != test.reason {
				t.Errorf("the reason is not %s: %s", test.reason, said(o))
			}
			if test.reason == "" {
				e.await(o, "the apply to be lost", func(o *infrav1.Terraform) bool { return slices.Contains(harness.Results(o), "Apply Lost") })
			}

			e.change(o, func(o *infrav1.Terraform) { o.Spec.Inline["main.tf"] = mended })
			e.await(o, "the object to be ready", harness.IsReady)
			if got := e.state(o).Resources; len(got) != 1 || got[0].Name != "mended" {
				t.Errorf("the state has %+v", got)
			}
			e.wantUnlocked(o)
			e.remove(o)
		})
	}
}
