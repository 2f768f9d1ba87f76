package integration_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/test/harness"
)

// applyInPod creates an object whose apply takes long the first time, waits until
// it is in the middle, and returns the pod.
func (l *lab) applyInPod(edit func(*infrav1.Terraform)) (pod string) {
	l.t.Helper()
	flag := l.t.TempDir() + "/flag"
	l.create(slow(flag), edit)
	l.awaitFile(flag)
	return l.pod()
}

func TestARunnerThatIsTerminatedSavesWhatWasApplied(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	first := l.applyInPod(nil)
	l.deletePod(first)
	o := l.await("the interruption to be reported", func(o *infrav1.Terraform) bool { return len(o.Status.History) > 1 })
	entry := o.Status.History[0]
	if entry.Type != infrav1.OperationApply || entry.Result != infrav1.OperationCancelled {
		t.Errorf("history = %+v, want the cancelled apply", o.Status.History)
	}
	if said := conditions.Get(o, infrav1.AppliedCondition); said == nil || said.Reason != "RunnerShutdown" {
		t.Errorf("Applied = %+v, want the reason RunnerShutdown", said)
	}
	l.wantMessage(entry.Message, "runner")
	l.awaitPodGone(first)
	o = l.awaitReady()
	if *o.Status.ResourceCount != 2 || l.lockHolder() != "" {
		t.Errorf("%d resources, the lock is held by %q", *o.Status.ResourceCount, l.lockHolder())
	}
	// What was created before the interruption is in the state, or it would be to add again.
	again := o.Status.History[0].Summary
	if again == nil || again.Add != 0 || again.Replace != 1 {
		t.Errorf("the second apply did %+v, want one replacement", again)
	}
	processes := l.processes()
	if count(processes, "force-unlock") != 0 || count(processes, "apply") != 2 {
		t.Errorf("tool processes = %q", processes)
	}
	if pods := l.pods(); len(pods) != 1 || pods[0].Name == first {
		t.Errorf("the object did not go on in another pod, but in %v", pods)
	}
}

func TestARunnerThatIsKilledGoesOnInItsPod(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	pod := l.applyInPod(nil)
	if err := suite.kubelet.Kill(l.namespace, pod); err != nil {
		t.Fatal(err)
	}
	if l.lockHolder() == "" {
		t.Fatal("there is no stale lock")
	}
	o := l.awaitReady()
	if *o.Status.ResourceCount != 2 || l.lockHolder() != "" {
		t.Errorf("%d resources, the lock is held by %q", *o.Status.ResourceCount, l.lockHolder())
	}
	if said := harness.Results(o); !slices.Contains(said, "Apply Lost") || said[len(said)-1] != "Apply Succeeded" {
		t.Errorf("history = %q", said)
	}
	processes := l.processes()
	if count(processes, "force-unlock") != 1 || count(processes, "apply") != 2 {
		t.Errorf("tool processes = %q", processes)
	}
	pods := l.pods()
	if len(pods) != 1 || pods[0].Name != pod || pods[0].Status.ContainerStatuses[0].RestartCount != 1 {
		t.Errorf("pods = %+v, want the same one, restarted once", pods)
	}
}

// ask is request, for an object that goes on failing.
func (l *lab) ask() *infrav1.Terraform {
	l.t.Helper()
	token := time.Now().Format(time.RFC3339Nano)
	l.annotate(meta.ReconcileRequestAnnotation, token)
	return l.await("the request to be handled", func(o *infrav1.Terraform) bool {
		return o.Status.LastHandledReconcileAt == token && o.Status.Operation == nil
	})
}

func force() client.DeleteOption { return client.GracePeriodSeconds(0) }

func TestTheLockOfARunnerThatIsGone(t *testing.T) {
	t.Parallel()
	t.Run("is released by the next one", func(t *testing.T) {
		t.Parallel()
		l := newLab(t)
		first := l.applyInPod(nil)
		l.deletePod(first, force())
		l.concludeLoss()
	})
	t.Run("stays as long as the object says so", func(t *testing.T) {
		t.Parallel()
		l := newLab(t)
		first := l.applyInPod(func(o *infrav1.Terraform) { o.Spec.StateLock.ForceUnlock = infrav1.ForceUnlockNever })
		id := l.lockHolder()
		l.deletePod(first, force())
		o := l.await("the lock to show", func(o *infrav1.Terraform) bool { return conditions.IsTrue(o, infrav1.StateLockedCondition) })
		for _, condition := range []string{infrav1.StateLockedCondition, meta.ReadyCondition} {
			l.wantMessage(conditions.GetMessage(o, condition), id, "@"+first, "since 2", "runner is gone", "spec.stateLock.forceUnlock to Stale")
		}
		if lock := o.Status.Lock; lock == nil || lock.ID != id || !strings.HasSuffix(lock.Who, "@"+first) || time.Since(lock.CreatedAt.Time) > 2*patience {
			t.Errorf("lock = %+v", lock)
		}
		l.ask()
		if l.lockHolder() != id {
			t.Error("the lock was released although nothing may be")
		}
		l.change(func(o *infrav1.Terraform) { o.Spec.StateLock.ForceUnlock = infrav1.ForceUnlockStale })
		l.concludeLoss()
	})
}

// concludeLoss says what has to be true after an apply that was lost with its pod.
func (l *lab) concludeLoss() {
	l.t.Helper()
	o := l.awaitReady()
	if *o.Status.ResourceCount != 2 || l.lockHolder() != "" || o.Status.Lock != nil || conditions.Has(o, infrav1.StateLockedCondition) {
		l.t.Errorf("%d resources, the lock is held by %q; status = %+v", *o.Status.ResourceCount, l.lockHolder(), o.Status.Lock)
	}
	if said := harness.Results(o); !slices.Contains(said, "Apply Lost") || said[len(said)-1] != "Apply Succeeded" {
		l.t.Errorf("history = %q", said)
	}
	if processes := l.processes(); count(processes, "force-unlock") != 1 || count(processes, "apply") != 2 {
		l.t.Errorf("tool processes = %q", processes)
	}
}

// hold takes the state lock as the kubernetes backend does.
func (l *lab) hold(who string) (id string) {
	l.t.Helper()
	lease := &coordinationv1.Lease{}
	if err := suite.client.Get(l.ctx, client.ObjectKey{Namespace: l.namespace, Name: "lock-tfstate-default-tf"}, lease); err != nil {
		l.t.Fatal(err)
	}
	id = "11111111-2222-3333-4444-555555555555"
	info, err := json.Marshal(map[string]any{
		"ID": id, "Operation": "OperationTypeApply", "Who": who, "Version": "1.12.6", "Created": time.Now().Add(-time.Hour).UTC(),
	})
	if err != nil {
		l.t.Fatal(err)
	}
	lease.Spec.HolderIdentity = &id
	lease.Annotations = map[string]string{"app.terraform.io/lock-info": string(info)}
	if err := suite.client.Update(l.ctx, lease); err != nil {
		l.t.Fatal(err)
	}
	return id
}

func TestAForeignLockIsNeverReleased(t *testing.T) {
	t.Parallel()
	for name, who := range map[string]string{
		"of a person":                      "alice@laptop",
		"of a pod that nobody here issued": "runner@terrace-runner-abcdefghij-klmnopqrst",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			l.create(greeting, nil)
			l.awaitReady()
			l.processes()
			id := l.hold(who)
			for range 2 {
				o := l.ask()
				for _, condition := range []string{infrav1.StateLockedCondition, meta.ReadyCondition} {
					l.wantMessage(conditions.GetMessage(o, condition), who, id, "since "+time.Now().UTC().Format("2006"), "spec.stateLock.id")
				}
				if o.Status.Lock == nil || o.Status.Lock.Who != who || o.Status.Lock.CreatedAt == nil {
					t.Errorf("lock = %+v", o.Status.Lock)
				}
			}
			l.change(func(o *infrav1.Terraform) { o.Spec.StateLock.ID = "22222222-2222-3333-4444-555555555555" }) // another one
			l.await("the change to be seen", func(o *infrav1.Terraform) bool {
				ready := conditions.Get(o, meta.ReadyCondition)
				return ready.ObservedGeneration == o.Generation && ready.Reason == infrav1.StateLockedReason
			})
			if processes := l.processes(); l.lockHolder() != id || count(processes, "force-unlock") > 0 {
				t.Fatalf("the lock of %s is held by %q; tool processes = %q", who, l.lockHolder(), processes)
			}
			l.change(func(o *infrav1.Terraform) { o.Spec.StateLock.ID = id })
			o := l.awaitReady()
			if l.lockHolder() != "" || o.Status.Lock != nil || conditions.Has(o, infrav1.StateLockedCondition) {
				t.Errorf("the lock is held by %q; status = %+v", l.lockHolder(), o.Status)
			}
			if processes := l.processes(); count(processes, "force-unlock") != 1 {
				t.Errorf("tool processes = %q", processes)
			}
		})
	}
}

func TestARunnerThatDoesNotAnswerIsWaitedFor(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	g := newGate(t)
	l.create(g.gated(), nil)
	g.await(l)
	name := l.pod()
	if err := suite.kubelet.Freeze(l.namespace, name); err != nil {
		t.Fatal(err)
	}
	o := l.await("the connection to be missed", func(o *infrav1.Terraform) bool {
		return strings.Contains(o.Status.Operation.Message, "has not answered since")
	})
	for _, message := range []string{o.Status.Operation.Message, conditions.GetMessage(o, meta.ReconcilingCondition)} {
		l.wantMessage(message, name, "not started a second time", "waited for until", "kubectl delete pod -n "+l.namespace+" "+name)
	}
	if !conditions.IsUnknown(o, meta.ReadyCondition) {
		t.Errorf("Ready = %+v", conditions.Get(o, meta.ReadyCondition))
	}
	g.open(l)
	if err := suite.kubelet.Thaw(l.namespace, name); err != nil {
		t.Fatal(err)
	}
	o = l.awaitReady()
	l.wantProcesses("init", "plan", "show", "apply")
	if got := harness.Results(o); !slices.Equal(got, []string{"Plan Succeeded", "Apply Succeeded"}) || suite.kubelet.Started(l.namespace, "") != 1 {
		t.Errorf("history = %q, %d containers", got, suite.kubelet.Started(l.namespace, ""))
	}
}

func TestAnIdleRunnerEndsAtOnce(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.create(greeting, nil)
	l.awaitReady()
	pod := l.pods()[0]
	if pod.Spec.TerminationGracePeriodSeconds == nil || *pod.Spec.TerminationGracePeriodSeconds < int64(2*patience.Seconds()) {
		t.Fatal("the grace is too short to tell")
	}
	l.deletePod(pod.Name)
	l.awaitPodGone(pod.Name)
	l.request() // gets another one
	if pods := l.pods(); len(pods) != 1 || pods[0].Name == pod.Name {
		t.Errorf("pods = %v", pods)
	}
}
