package integration_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fluxcd/pkg/runtime/leaderelection"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/test/controlplane"
	"github.com/terrace-dev/terrace/test/harness"
)

// gate is a place where a tool waits until the test lets it go on.
type gate struct{ dir string }

func newGate(t *testing.T) gate {
	t.Helper()
	return gate{dir: t.TempDir()}
}

// waiting is a command that waits at the gate.
func (g gate) waiting() string {
	return fmt.Sprintf("touch '%s/at.sh'; while [ ! -e '%s/go' ]; do sleep 0.1; done", g.dir, g.dir)
}

// holding is a change of a pod in which processes of that command of the tool wait at the gate.
func (g gate) holding(command string) string {
	return fmt.Sprintf(`{"containers": [{"name": "runner", "env": [{"name": %q, "value": %q}, {"name": %q, "value": %q}]}]}`,
		harness.HoldVariable, command, harness.GateVariable, strings.TrimPrefix(g.dir, "/"))
}

// reached counts those who wait, or waited.
func (g gate) reached() int {
	found, _ := filepath.Glob(filepath.Join(g.dir, "at.*")) // of a good pattern
	return len(found)
}

func (g gate) await(l *lab) {
	l.t.Helper()
	l.await("somebody at the gate", func(*infrav1.Terraform) bool { return g.reached() > 0 })
}

func (g gate) open(l *lab) {
	l.t.Helper()
	write(l.t, filepath.Join(g.dir, "go"), "")
}

// gated creates a resource at once and another one that waits at the gate.
func (g gate) gated() string { return g.module("") }

// clinging is destroyed like that.
func (g gate) clinging() string { return g.module("when = destroy") }

func (g gate) module(when string) string {
	return `
resource "terraform_data" "quick" {}
resource "terraform_data" "slow" {
  depends_on = [terraform_data.quick]
  provisioner "local-exec" {
    ` + when + `
    command = "` + g.waiting() + `"
  }
}
`
}

// pod is the runner pod of the object's operation.
func (l *lab) pod() string {
	l.t.Helper()
	o := l.await("an operation with a runner", func(o *infrav1.Terraform) bool {
		return o.Status.Operation != nil && o.Status.Operation.Runner != ""
	})
	return o.Status.Operation.Runner
}

// pods are the runner pods of the namespace, in the order of their age.
func (l *lab) pods() []corev1.Pod {
	l.t.Helper()
	list := &corev1.PodList{}
	if err := suite.client.List(l.ctx, list, client.InNamespace(l.namespace)); err != nil {
		l.t.Fatal(err)
	}
	slices.SortFunc(list.Items, func(a, b corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	return list.Items
}

// eventually waits for something else than the state of the object.
func (l *lab) eventually(what string, done func() bool) {
	l.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if done() {
			return
		}
	}
	l.t.Fatalf("waited %v for %s", patience, what)
}

func (l *lab) awaitPodGone(name string) {
	l.t.Helper()
	l.eventually("pod "+name+" to go", func() bool {
		return apierrors.IsNotFound(suite.client.Get(l.ctx, client.ObjectKey{Namespace: l.namespace, Name: name}, &corev1.Pod{}))
	})
}

func (l *lab) deletePod(name string, options ...client.DeleteOption) {
	l.t.Helper()
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name = l.namespace, name
	if err := suite.client.Delete(l.ctx, pod, options...); err != nil {
		l.t.Fatal(err)
	}
}

// count counts processes of the tool since it was asked last.
func count(processes []string, command string) (n int) {
	for _, process := range processes {
		if process == command {
			n++
		}
	}
	return n
}

// elections are flags with which a leader is missed soon.
var elections = []string{
	"--enable-leader-election=true", "--leader-election-lease-duration=4s",
	"--leader-election-renew-deadline=3s", "--leader-election-retry-period=500ms",
}

// leader is who leads the test's managers; empty if nobody does.
func (l *lab) leader() string {
	l.t.Helper()
	lease := &coordinationv1.Lease{}
	name := leaderelection.GenerateID("terrace", ownLabel+"="+l.namespace)
	err := suite.client.Get(l.ctx, client.ObjectKey{Namespace: harness.ManagerNamespace, Name: name}, lease)
	if client.IgnoreNotFound(err) != nil {
		l.t.Fatal(err)
	}
	if err != nil || lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

func (l *lab) awaitOtherLeader(than string) string {
	l.t.Helper()
	now := ""
	l.eventually("another leader", func() bool {
		now = l.leader()
		return now != "" && now != than
	})
	return now
}

// zombie is what a manager calls itself to the API server that will be frozen.
const zombie = "zombie"

// succession is how one manager follows another. It starts one; what it returns has
// another one take over, and what that returns is called when all is done.
type succession func(l *lab) (takeOver func() (conclude func()))

var successions = map[string]succession{
	"killed": func(l *lab) func() func() {
		m := l.own()
		return func() func() {
			m.Kill()
			l.own()
			return func() {}
		}
	},
	"stopped": func(l *lab) func() func() {
		m := l.own()
		return func() func() {
			if err := m.Stop(); err != nil {
				l.t.Error(err)
			}
			l.own()
			return func() {}
		}
	},
	"replaced by another leader": func(l *lab) func() func() {
		m := l.own(elections...)
		first := l.awaitOtherLeader("")
		l.own(elections...)
		return func() func() {
			m.Kill()
			l.awaitOtherLeader(first)
			return func() {}
		}
	},
	"frozen until another one leads": freeze,
}

// freeze stops a leader where it is, and has it go on when another one has done its work.
func freeze(l *lab) func() func() {
	program := filepath.Join(l.t.TempDir(), zombie)
	if err := os.Symlink(suite.manager, program); err != nil {
		l.t.Fatal(err)
	}
	m := l.start(managerOptions{mode: harness.ModePod, program: program, args: elections})
	first := l.awaitOtherLeader("")
	l.own(elections...)
	return func() func() {
		wake := func() { _ = syscall.Kill(m.PID(), syscall.SIGCONT) } // it may have ended
		l.t.Cleanup(wake)
		if err := syscall.Kill(m.PID(), syscall.SIGSTOP); err != nil {
			l.t.Fatal(err)
		}
		l.awaitOtherLeader(first)
		before := len(l.writesOf(zombie))
		return func() {
			wake()
			l.eventually("the manager to see that it leads no more", func() bool {
				select {
				case <-m.Ended():
					return true
				default:
					return false
				}
			})
			if late := l.writesOf(zombie)[before:]; len(late) > 0 {
				l.t.Errorf("a manager that led no more wrote %q", late)
			}
		}
	}
}

// writesOf are the successful writes in the test's namespace by whoever calls itself that.
func (l *lab) writesOf(agent string) (found []string) {
	l.t.Helper()
	events, err := controlplane.ReadAuditLog(suite.audit)
	if err != nil {
		l.t.Fatal(err)
	}
	for _, e := range events {
		if e.IsWrite() && e.ObjectRef != nil && e.ObjectRef.Namespace == l.namespace && e.ResponseStatus.Code < 300 &&
			strings.HasPrefix(e.UserAgent, agent+"/") {
			found = append(found, e.Verb+" "+e.ObjectRef.Resource+"/"+e.ObjectRef.Subresource)
		}
	}
	return found
}

func TestAnOperationOutlivesItsManager(t *testing.T) {
	t.Parallel()
	for way, begin := range successions {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			for step, test := range map[string]func(*testing.T, *lab, succession){
				"plan": outliveDuringPlan, "apply": outliveDuringApply, "destroy": outliveDuringDestroy,
			} {
				t.Run("during a "+step, func(t *testing.T) {
					t.Parallel()
					test(t, newLab(t), begin)
				})
			}
		})
	}
}

// handOver has another manager take over while an operation waits at the gate, and
// lets the operation go on.
func (l *lab) handOver(g gate, takeOver func() func()) (conclude func()) {
	l.t.Helper()
	g.await(l)
	name := l.pod()
	before, err := suite.kubelet.PID(l.namespace, name)
	if err != nil {
		l.t.Fatal(err)
	}
	finish := takeOver()
	g.open(l)
	return func() {
		l.t.Helper()
		finish()
		// The next cycle needs no new pod either.
		if o := l.object; o.DeletionTimestamp.IsZero() {
			l.request()
		}
		now, err := suite.kubelet.PID(l.namespace, name)
		if err != nil {
			l.t.Fatal(err)
		}
		if now != before || suite.kubelet.Started(l.namespace, "") != 1 {
			l.t.Errorf("the runner is process %d, %d before; %d containers were started", now, before, suite.kubelet.Started(l.namespace, ""))
		}
	}
}

func outliveDuringPlan(t *testing.T, l *lab, begin succession) {
	t.Helper()
	takeOver, g := begin(l), newGate(t)
	l.create(greeting, func(o *infrav1.Terraform) { o.Spec.Runner.Template = podSpec(g.holding("plan")) })
	conclude := l.handOver(g, takeOver)
	o := l.awaitReady()
	l.wantProcesses("init", "plan", "show", "apply")
	if got := harness.Results(o); !slices.Equal(got, []string{"Plan Succeeded", "Apply Succeeded"}) {
		t.Errorf("history = %q", got)
	}
	conclude()
	l.wantProcesses("plan")
}

func outliveDuringApply(t *testing.T, l *lab, begin succession) {
	t.Helper()
	takeOver, g := begin(l), newGate(t)
	l.create(g.gated(), nil)
	conclude := l.handOver(g, takeOver)
	o := l.awaitReady()
	l.wantProcesses("init", "plan", "show", "apply")
	if got := harness.Results(o); !slices.Equal(got, []string{"Plan Succeeded", "Apply Succeeded"}) || *o.Status.ResourceCount != 2 {
		t.Errorf("history = %q, %d resources", got, *o.Status.ResourceCount)
	}
	if o.Status.Applied == nil || o.Status.Applied.PlanID != o.Status.History[0].PlanID {
		t.Errorf("applied = %+v", o.Status.Applied)
	}
	conclude()
	l.wantProcesses("plan")
}

func outliveDuringDestroy(t *testing.T, l *lab, begin succession) {
	t.Helper()
	takeOver, g := begin(l), newGate(t)
	l.create(g.clinging(), func(o *infrav1.Terraform) { o.Spec.DeletionPolicy = infrav1.DeletionDestroy })
	l.awaitReady()
	l.processes()
	l.delete()
	conclude := l.handOver(g, takeOver)
	l.awaitGone()
	l.wantProcesses("plan", "apply")
	conclude()
}

// delete deletes the object as a user does, without waiting.
func (l *lab) delete() {
	l.t.Helper()
	if err := suite.client.Delete(l.ctx, l.object); err != nil {
		l.t.Fatal(err)
	}
	l.object.DeletionTimestamp = new(metav1.Now())
}

func TestLeadershipIsReleasedOnShutdown(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	m := l.own("--enable-leader-election=true")
	l.awaitOtherLeader("")
	g := newGate(t)
	l.create(g.gated(), nil)
	g.await(l) // that something runs keeps nobody from stepping down
	if err := m.Stop(); err != nil {
		t.Fatal(err)
	}
	if leader := l.leader(); leader != "" {
		t.Errorf("%s still leads after its end", leader)
	}
	l.own("--enable-leader-election=true")
	g.open(l)
	l.awaitReady()
	l.wantProcesses("init", "plan", "show", "apply")
}
