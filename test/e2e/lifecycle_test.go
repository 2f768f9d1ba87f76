//go:build linux

package e2e_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/test/harness"
)

// greeting is a module that needs no provider from outside.
const greeting = `
resource "terraform_data" "greeting" {
  input = "hello, world"
}

output "greeting" {
  value = terraform_data.greeting.output
}
`

func TestAnObjectIsPlannedApprovedAppliedAndDestroyedInAPodOfItsNamespace(t *testing.T) {
	t.Parallel()
	e := newTenant(t)
	o := e.create("hello", greeting, nil)

	e.await(o, "a plan to approve", func(o *infrav1.Terraform) bool { return o.Status.Plan != nil && o.Status.Plan.ID != "" })
	if harness.IsReady(o) || o.Status.Applied != nil {
		t.Error("something was applied that nobody approved")
	}
	e.kubectl("annotate", "terraform", "hello", "infra.terrace.dev/approve="+o.Status.Plan.ID)
	e.await(o, "the object to be ready", harness.IsReady)
	if !e.exists("tfstate-default-hello") {
		t.Error("there is no state")
	}

	pods := e.runners()
	if len(pods) != 1 {
		t.Fatalf("there are %d runner pods, want 1", len(pods))
	}
	pod := pods[0]
	if got := pod.Spec.Containers[0].Image; got != runnerImage {
		t.Errorf("the runner's image is %s, want %s", got, runnerImage)
	}
	if pod.Status.Phase != corev1.PodRunning || pod.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the runner is %s and was restarted %d times", pod.Status.Phase, pod.Status.ContainerStatuses[0].RestartCount)
	}
	for command, want := range map[string]string{
		"id -u":                         "65532",
		"touch /file || echo read-only": "read-only",
		"tofu version":                  "OpenTofu v",
		"git --version":                 "git version",
		"ssh -V 2>&1":                   "OpenSSH",
		"ls /etc/ssl/certs":             "ca-certificates.crt",
	} {
		if got := e.kubectl("exec", pod.Name, "--", "sh", "-c", command); !strings.Contains(got, want) {
			t.Errorf("in the runner, %s prints %q, want %q", command, got, want)
		}
	}

	e.remove(o)
	if e.exists("tfstate-default-hello") {
		t.Error("the state is left after the destruction")
	}
}
