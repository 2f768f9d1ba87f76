//go:build linux

package e2e_test

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/test/harness"
)

// losses are ways in which a runner pod goes.
var losses = map[string]func(*tenant, *corev1.Pod){
	"deleted": func(e *tenant, pod *corev1.Pod) { e.kubectl("delete", "pod", "--wait=false", pod.Name) },
	"evicted": func(e *tenant, pod *corev1.Pod) { // as kubectl drain does
		eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
		if err := suite.client.SubResource("eviction").Create(e.ctx, pod, eviction); err != nil {
			e.t.Fatal(err)
		}
	},
	// The kubelet does that when the node runs short of something. Here it is a
	// volume that gets too large, which harms nobody else.
	"evicted by the kubelet": func(e *tenant, pod *corev1.Pod) { e.inside(pod, "head -c 80M /dev/zero >/tmp/large") },
}

// smallVolume makes the kubelet evict a pod that writes much to /tmp.
func smallVolume(o *infrav1.Terraform) {
	auto(o)
	o.Spec.Runner.Template = podSpec(`{"volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "40Mi"}}]}`)
}

func TestARunnerPodThatGoesDuringAnApply(t *testing.T) {
	t.Parallel()
	for way, lose := range losses {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			e := newTenant(t)
			o := e.create("tf", slow, smallVolume)
			first := e.awaitRunner(o, infrav1.OperationApply)
			e.awaitInside(first, "[ -e /tmp/applies ]")
			lose(e, first)
			second := e.awaitSuccessor(o, infrav1.OperationApply, first)
			e.awaitInside(second, "[ -e /tmp/applies ] && touch /tmp/go")
			e.concludeLoss(o)

			// What was applied before is in the state, or it would be to add again.
			said := harness.Results(o)
			if last := o.Status.History[0]; last.Type != infrav1.OperationApply || last.Result != infrav1.OperationSucceeded || last.Summary == nil ||
				last.Summary.Add != 0 && !strings.Contains(way, "kubelet") {
				t.Errorf("the last operation is %+v", last)
			}
			if len(said) != 4 || said[1] != "Apply Cancelled" && said[1] != "Apply Lost" {
				t.Errorf("history = %q, want one apply that was interrupted and one that succeeded", said)
			}
			e.remove(o)
		})
	}
}

// gated is a module whose plan waits, with the lock on the state, if the pod has a named
// pipe /tmp/gate, until somebody writes to it.
const gated = `
resource "terraform_data" "quick" {}
resource "terraform_data" "gated" {
  input = try(file("/tmp/gate"), "open")
}
`

func TestARunnerPodThatGoesDuringAPlan(t *testing.T) {
	t.Parallel()
	for way, lose := range losses {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			e := newTenant(t)
			o := e.create("tf", `resource "terraform_data" "quick" {}`, smallVolume)
			e.await(o, "the object to be ready", harness.IsReady)
			first := e.onlyRunner()
			e.inside(first, "mkfifo /tmp/gate")
			e.change(o, func(o *infrav1.Terraform) { o.Spec.Inline["main.tf"] = gated })
			e.awaitRunner(o, infrav1.OperationPlan)
			e.awaitLock(o)
			lose(e, first)
			e.letEnd(first)
			e.concludeLoss(o)
			e.wantResults(o, "Plan Succeeded", "Apply Succeeded", "Plan Succeeded", "Apply Succeeded")
			if now := e.onlyRunner(); now.UID == first.UID {
				t.Error("the pod is still there")
			}
			e.remove(o)
		})
	}
}

// letEnd opens the gate when the pod is being deleted: a tool that reads a file cannot be
// interrupted. A pod that the kubelet killed needs it no more.
func (e *tenant) letEnd(pod *corev1.Pod) {
	e.t.Helper()
	e.eventually("the plan to end", func(ctx context.Context) (bool, error) {
		// Not twice: who opens it before the interrupt came opens it for good.
		now, err := phaseOf(ctx, pod)
		if err != nil || now == corev1.PodFailed || now == "" {
			return true, err
		}
		if now != terminating {
			return false, nil
		}
		_, err = kubectl(ctx, "-n", e.namespace, "exec", pod.Name, "--", "sh", "-c", "mv /tmp/gate /tmp/opened && : >/tmp/opened")
		return err == nil, nil
	})
}

// concludeLoss waits for a happy end.
func (e *tenant) concludeLoss(o *infrav1.Terraform) {
	e.t.Helper()
	e.await(o, "the object to be ready", harness.IsReady)
	if got := len(e.state(o).Resources); got != 2 {
		e.t.Errorf("the state has %d resources, want 2", got)
	}
	e.wantUnlocked(o)
}
