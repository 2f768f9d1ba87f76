//go:build linux

package e2e_test

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/test/harness"
)

// slow is a module whose apply lasts until the pod has a file /tmp/go, and leaves a line
// in /tmp/applies each time.
const slow = `
resource "terraform_data" "quick" {}
resource "terraform_data" "slow" {
  depends_on = [terraform_data.quick]
  provisioner "local-exec" {
    command = "echo begun >>/tmp/applies; until [ -e /tmp/go ]; do sleep 0.1; done"
  }
}
`

func TestAnApplyGoesOnWithoutItsManager(t *testing.T) {
	t.Parallel()
	// One after the other: there is one manager for all tests.
	for _, way := range []struct {
		name    string
		disturb func(*tenant, *corev1.Pod)
	}{
		{"rolled", roll},
		{"killed", kill},
	} {
		t.Run(way.name, func(t *testing.T) {
			e := newTenant(t)
			undisturbed := e.create("undisturbed", strings.Replace(slow, "[ -e /tmp/go ]", "true", 1), auto)
			e.await(undisturbed, "an apply that nothing disturbs", harness.IsReady)
			e.inside(e.onlyRunner(), "rm /tmp/applies")

			o := e.create("disturbed", slow, auto)
			pod := e.awaitRunner(o, infrav1.OperationApply)
			e.awaitInside(pod, "[ -e /tmp/applies ]")
			operation := o.Status.Operation.ID
			leader := e.leader()
			way.disturb(e, e.managerPod(leader))
			e.eventually("another leader", func(context.Context) (bool, error) {
				now := e.leader()
				return now != "" && now != leader, nil
			})
			led := time.Now()
			e.await(o, "the same operation", func(o *infrav1.Terraform) bool {
				return o.Status.Operation != nil && o.Status.Operation.ID == operation
			})

			e.inside(pod, "touch /tmp/go")
			e.await(o, "the object to be ready", harness.IsReady)
			t.Logf("ready %v after another manager led", time.Since(led).Round(10*time.Millisecond))
			if got := e.inside(pod, "cat /tmp/applies"); got != "begun\n" {
				t.Errorf("it was applied more than once: %q", got)
			}
			e.wantResults(o, "Plan Succeeded", "Apply Succeeded")
			if o.Status.History[0].ID != operation {
				t.Errorf("the history knows the apply as %s, not %s", o.Status.History[0].ID, operation)
			}
			if got, want := e.state(o), e.state(undisturbed); got.Serial != want.Serial || len(got.Resources) != 2 {
				t.Errorf("the state is %+v, without a disturbance %+v", got, want)
			}
			e.wantUnlocked(o)
			if now := e.onlyRunner(); now.UID != pod.UID || now.Status.ContainerStatuses[0].RestartCount > 0 {
				t.Errorf("the runner is %s, restarted %d times; it was %s", now.Name, now.Status.ContainerStatuses[0].RestartCount, pod.Name)
			}
			e.remove(o)
			e.remove(undisturbed)
		})
	}
}

// leader is who leads the managers; empty if nobody does.
func (e *tenant) leader() string {
	e.t.Helper()
	_, holder, err := harness.Leader(e.ctx, suite.client)
	if err != nil {
		e.t.Fatal(err)
	}
	return holder
}

// managerPod is the pod of a leader, which calls itself by its host name and a random part.
func (e *tenant) managerPod(leader string) *corev1.Pod {
	e.t.Helper()
	name, _, _ := strings.Cut(leader, "_")
	pod := &corev1.Pod{}
	if err := suite.client.Get(e.ctx, client.ObjectKey{Namespace: managerNamespace, Name: name}, pod); err != nil {
		e.t.Fatal(err)
	}
	return pod
}

func roll(e *tenant, pod *corev1.Pod) {
	e.t.Helper()
	for _, args := range [][]string{
		{"rollout", "restart", "deployment/" + managerName},
		{"rollout", "status", "deployment/" + managerName, "--timeout=" + patience.String()},
	} {
		if _, err := kubectl(e.ctx, append([]string{"-n", managerNamespace}, args...)...); err != nil {
			e.t.Fatal(err)
		}
	}
	e.eventually("the manager of before to go", func(ctx context.Context) (bool, error) {
		phase, err := phaseOf(ctx, pod)
		return phase == "", err
	})
}

func kill(e *tenant, pod *corev1.Pod) {
	e.t.Helper()
	pid, err := harness.ContainerProcess(pod)
	if err != nil {
		e.t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil { // root can who is on the node, and the node is here
		e.t.Fatal(err)
	}
}
