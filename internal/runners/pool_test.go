package runners

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/operation"
	"github.com/terrace-dev/terrace/internal/pki"
	"github.com/terrace-dev/terrace/internal/reconcile"
)

func TestObjectsThatAskForTheSameShareARunner(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	if err := suite.client.Create(l.ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: "other"}}); err != nil {
		t.Fatal(err)
	}
	var names sync.Map
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() {
			leased, err := l.pool.Runner(l.ctx, l.object(nil))
			if err != nil {
				t.Error(err)
				return
			}
			names.Store(leased.Name(), true)
			if err := l.await(leased); err != nil {
				t.Error(err)
			}
			leased.Release()
		})
	}
	group.Wait()
	if count := len(l.pods()); count != 1 {
		t.Errorf("%d pods for 20 objects, want 1", count)
	}
	other := l.lease(func(r *infrav1.Runner) { r.ServiceAccountName = "other" })
	if _, known := names.Load(other.Name()); known {
		t.Error("another ServiceAccount shares the pod")
	}
	changed := l.lease(template("", `{"priorityClassName": ""}`, `{"annotations": {"a": "b"}}`))
	if _, known := names.Load(changed.Name()); known {
		t.Error("another template shares the pod")
	}
	if pod := l.pods()[changed.Name()]; pod.Annotations["a"] != "b" {
		t.Errorf("annotations = %v, want the template's among them", pod.Annotations)
	}
}

// template makes a pod template of JSON.
func template(container, spec, metadata string) func(*infrav1.Runner) {
	return func(r *infrav1.Runner) { r.Template = podTemplate(container, spec, metadata) }
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		prepare func(*lab)
		options func(*Options)
		runner  func(*infrav1.Runner)
		reason  string
		kind    reconcile.ErrorKind
		want    string
	}{
		"no ServiceAccount": {
			runner: func(r *infrav1.Runner) { r.ServiceAccountName = "absent" },
			reason: infrav1.ServiceAccountNotFoundReason, kind: reconcile.KindWaiting, want: "config/runner-namespace",
		},
		"a quota": {
			prepare: func(l *lab) { l.quota("0") },
			reason:  infrav1.PodQuotaExceededReason, kind: reconcile.KindWaiting, want: "exceeded quota: pods",
		},
		"a namespace that is going": {
			prepare: func(l *lab) {
				if err := suite.client.Delete(l.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: l.namespace}}); err != nil {
					l.t.Fatal(err)
				}
			},
			reason: infrav1.NamespaceTerminatingReason, kind: reconcile.KindWaiting, want: "is being deleted",
		},
		"a template that the operator forbids": {
			runner: template(`{"securityContext": {"privileged": true}}`, "", ""),
			reason: infrav1.PodTemplateInvalidReason, kind: reconcile.KindTerminal, want: "privileged",
		},
		"a template that the namespace forbids": {
			prepare: func(l *lab) { l.label("pod-security.kubernetes.io/enforce", "restricted") },
			options: func(o *Options) { o.AllowUnrestricted = true },
			runner:  template(`{"securityContext": {"allowPrivilegeEscalation": true}}`, "", ""),
			reason:  infrav1.PodRejectedReason, kind: reconcile.KindRetry, want: `violates PodSecurity "restricted:latest"`,
		},
		"a pod that is none": {
			runner: template(`{"image": ""}`, "", ""),
			reason: infrav1.PodTemplateInvalidReason, kind: reconcile.KindTerminal, want: "spec.containers[0].image",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, test.options)
			if test.prepare != nil {
				test.prepare(l)
			}
			_, err := l.pool.Runner(l.ctx, l.object(test.runner))
			if reconcile.ReasonOf(err) != test.reason || reconcile.KindOf(err) != test.kind || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error = %v (%s), want %s with %q", err, reconcile.ReasonOf(err), test.reason, test.want)
			}
			if len(l.pods()) != 0 {
				t.Errorf("pods = %v, want none", l.pods())
			}
		})
	}
}

// quota limits the pods of the namespace. Nothing here counts them but admission.
func (l *lab) quota(pods string) {
	l.t.Helper()
	hard := corev1.ResourceList{corev1.ResourcePods: resource.MustParse(pods)}
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: "pods"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}
	if err := suite.client.Create(l.ctx, quota); err != nil {
		l.t.Fatal(err)
	}
	quota.Status = corev1.ResourceQuotaStatus{Hard: hard, Used: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}}
	if err := suite.client.Status().Update(l.ctx, quota); err != nil {
		l.t.Fatal(err)
	}
	// Admission looks at a cache of its own.
	l.eventually("the quota to count", func() bool {
		probe := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: "probe"}, Spec: corev1.PodSpec{
			ServiceAccountName: "terrace-runner", Containers: []corev1.Container{{Name: "c", Image: "i"}},
		}}
		err := suite.client.Create(l.ctx, probe)
		if err == nil {
			l.remove(&corev1.Pod{}, "probe")
		}
		return err != nil && strings.Contains(err.Error(), "exceeded quota")
	})
}

func (l *lab) label(key, value string) {
	l.t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: l.namespace}}
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"`+key+`":"`+value+`"}}}`))
	if err := suite.client.Patch(l.ctx, ns, patch); err != nil {
		l.t.Fatal(err)
	}
}

func TestIdleRunnersAreRemoved(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	held, idler := l.ready(template("", "", `{"annotations": {"held": "true"}}`)), l.ready(idle(0))
	idler.Release()
	idler.Release() // does no harm
	l.eventuallyGone(idler.Name())
	if _, there := l.pods()[held.Name()]; !there {
		t.Error("a runner with an operation was removed")
	}
	if again := l.ready(idle(0)); again.Name() == idler.Name() {
		t.Error("the removed runner was leased again")
	}
}

func TestOperationsOfRunnersThatAreGoneAreLost(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	known := l.ready(nil)
	l.remove(&corev1.Pod{}, known.Name())
	l.eventuallyGone(known.Name())
	for _, name := range []string{known.Name(), "terrace-runner-never-was", ""} {
		named, err := l.pool.Named(l.ctx, l.namespace, name)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.await(named); !errors.Is(err, operation.ErrLost) {
			t.Errorf("%q: error = %v, want ErrLost", name, err)
		}
		named.Release()
	}
}

func TestRunnersOfAnEarlierManagerAreKept(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	first, forgotten := l.ready(idle(time.Hour)), l.ready(func(r *infrav1.Runner) {
		template("", "", `{"annotations": {"of": "nobody"}}`)(r)
		idle(0)(r)
	})
	l.stop()
	l.start()
	named, err := l.pool.Named(l.ctx, l.namespace, first.Name())
	if err != nil {
		t.Fatal(err)
	}
	if err := l.await(named); err != nil {
		t.Errorf("the runner of an operation is not found again: %v", err)
	}
	if again := l.ready(nil); again.Name() != first.Name() {
		t.Errorf("got runner %s, want %s, which is warm", again.Name(), first.Name())
	}
	l.eventuallyGone(forgotten.Name())
	if started := suite.kubelet.Started(l.namespace, first.Name()); started != 1 {
		t.Errorf("the runner was started %d times", started)
	}
}

func TestPodsThatDoNotStart(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		hinder func(*lab) (undo func())
		image  string
		reason string
		want   string
	}{
		"no node": {
			hinder: func(l *lab) func() {
				return suite.kubelet.Unschedulable(l.namespace, "0/3 nodes are available: 3 Insufficient cpu")
			},
			reason: infrav1.PodUnschedulableReason, want: "3 Insufficient cpu",
		},
		"a runner that ends again and again": {image: crashing, reason: infrav1.RunnerFailedReason, want: "exit code 1"},
		"no image":                           {image: "absent:1", reason: infrav1.ImagePullFailedReason, want: "image absent:1"},
		"a runner that does not start": {
			hinder: func(l *lab) func() { return suite.kubelet.Hold(l.namespace) },
			reason: infrav1.RunnerStartingReason, want: "did not start within",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, func(o *Options) {
				o.StartTimeout = 2 * time.Second
				if test.image != "" {
					o.Image = test.image
				}
			})
			if test.hinder != nil {
				defer test.hinder(l)()
			}
			leased := l.lease(nil)
			var said []string
			err := leased.Await(l.ctx, func(text string) { said = append(said, text) })
			if reconcile.ReasonOf(err) != test.reason || reconcile.KindOf(err) != reconcile.KindRetry || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error = %v (%s), want %s with %q", err, reconcile.ReasonOf(err), test.reason, test.want)
			}
			if len(said) == 0 {
				t.Error("nothing was said while it was waited for")
			}
			leased.Release()
			l.eventuallyGone(leased.Name())
		})
	}
}

func TestRunnersThatGoAway(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		end     func(*lab, string)
		started bool
		want    error // nil: it can be called again
	}{
		"a deleted pod has lost its operation":             {end: func(l *lab, pod string) { l.remove(&corev1.Pod{}, pod) }, started: true, want: operation.ErrLost},
		"a deleted pod never had an operation":             {end: func(l *lab, pod string) { l.remove(&corev1.Pod{}, pod) }, want: operation.ErrNotStarted},
		"an evicted pod has lost its operation":            {end: evict, started: true, want: operation.ErrLost},
		"a container that was killed comes back":           {end: kill, started: true},
		"and can be called by who has not started with it": {end: kill},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, nil)
			leased := l.ready(nil)
			if test.started {
				named, err := l.pool.Named(l.ctx, l.namespace, leased.Name())
				if err != nil || l.await(named) != nil {
					t.Fatal(err)
				}
				leased = named
			}
			test.end(l, leased.Name())
			l.eventually("the end to be noticed", func() bool {
				_, err := leased.Watch(l.ctx, "none", 0, nil)
				return test.want == nil || errors.Is(err, test.want) || errors.Is(err, operation.ErrLost)
			})
			if err := l.await(leased); !errors.Is(err, test.want) {
				t.Errorf("error = %v, want %v", err, test.want)
			}
			leased.Release()
		})
	}
}

func evict(l *lab, pod string) {
	if err := suite.kubelet.Evict(l.namespace, pod, "The node was low on resource: memory."); err != nil {
		l.t.Fatal(err)
	}
}

func kill(l *lab, pod string) {
	if err := suite.kubelet.Kill(l.namespace, pod); err != nil {
		l.t.Fatal(err)
	}
}

func TestPodsThatEndedAreCollected(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	leased := l.ready(nil)
	evict(l, leased.Name())
	l.eventuallyGone(leased.Name())
	if again := l.ready(nil); again.Name() == leased.Name() {
		t.Error("a pod that ended was leased again")
	}
}

func TestAQuotaIsNotFilledByIdleRunners(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	warm := l.ready(idle(time.Hour))
	warm.Release()
	l.quota("1")
	other := func(r *infrav1.Runner) { template("", "", `{"annotations": {"another": "pod"}}`)(r) }
	if _, err := l.pool.Runner(l.ctx, l.object(other)); reconcile.ReasonOf(err) != infrav1.PodQuotaExceededReason || !strings.Contains(err.Error(), "an idle one is being removed") {
		t.Fatalf("error = %v", err)
	}
	l.eventuallyGone(warm.Name())
}

func TestALostSecretIsWrittenAgain(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	release := suite.kubelet.Hold(l.namespace)
	leased := l.lease(nil)
	l.remove(&corev1.Secret{}, leased.Name())
	release()
	if err := l.await(leased); err != nil {
		t.Error(err)
	}
}

func TestPodsWithOurLabelsThatNobodyHereMadeGetNothing(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	release := suite.kubelet.Hold(l.namespace) // without it the forged pod would have to be played
	defer release()
	own := l.lease(nil)
	made := l.pods()[own.Name()]
	for _, name := range []string{"terrace-runner-aaaaaaaaaa-bbbbbbbbbb", "z"} {
		forged := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: name, Labels: made.Labels, Annotations: made.Annotations}, Spec: *made.Spec.DeepCopy(),
		}
		forged.Spec.NodeName = ""
		if err := suite.client.Create(l.ctx, forged); err != nil {
			t.Fatal(err)
		}
		l.eventually("the pod to be seen", func() bool {
			l.pool.mu.Lock()
			defer l.pool.mu.Unlock()
			return l.pool.pods[l.key(name)] != nil
		})
		if again := l.lease(nil); again.Name() != own.Name() {
			t.Errorf("got runner %s, which somebody else made", again.Name())
		}
		if err := l.pool.certify(l.ctx, l.key(name), forged.UID); err != nil {
			t.Error(err)
		}
		if err := suite.client.Get(l.ctx, l.key(name), &corev1.Secret{}); !apierrors.IsNotFound(err) {
			t.Errorf("pod %s was given a certificate: %v", name, err)
		}
	}
}

func TestAPodWhoseSecretIsSomebodyElsesIsGivenUp(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	release := suite.kubelet.Unschedulable(l.namespace, "wait") // before the Secret is mounted
	defer release()
	leased := l.lease(nil)
	l.remove(&corev1.Secret{}, leased.Name())
	other, err := pki.NewCA(clock.RealClock{}, pki.Lives{})
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := other.IssueServer(serverName(l.key(leased.Name())), 0)
	if err != nil {
		t.Fatal(err)
	}
	certificate, key, err := pki.MarshalLeaf(leaf)
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: leased.Name()},
		Data:       map[string][]byte{"tls.crt": certificate, "tls.key": key, "ca.crt": other.Bundle()},
	}
	if err := suite.client.Create(l.ctx, secret); err != nil {
		t.Fatal(err)
	}
	release()
	if err := l.await(leased); reconcile.ReasonOf(err) != infrav1.RunnerUnreachableReason || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("error = %v (%s)", err, reconcile.ReasonOf(err))
	}
	leased.Release()
	if again := l.ready(nil); again.Name() == leased.Name() {
		t.Error("the pod was leased again")
	}
	l.eventuallyGone(leased.Name())
}

func TestAbandonedHosts(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	gone, there := l.ready(template("", "", `{"annotations": {"this": "goes"}}`)), l.ready(nil)
	l.remove(&corev1.Pod{}, gone.Name())
	l.eventuallyGone(gone.Name())
	for host, want := range map[string]bool{
		gone.Name(): true, there.Name(): false,
		"terrace-runner-aaaaaaaaaa-bbbbbbbbbb": false, "build-agent": false, "": false,
	} {
		if got, err := l.pool.Abandoned(l.ctx, l.namespace, host); got != want || err != nil {
			t.Errorf("%q is abandoned: %v, %v, want %v", host, got, err, want)
		}
	}
	if got, err := l.pool.Abandoned(l.ctx, "elsewhere", gone.Name()); got || err != nil {
		t.Errorf("the name counts in another namespace too: %v, %v", got, err)
	}
}

func TestUnreachableRunnersGetNoOtherOperation(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	leased := l.ready(nil)
	if err := suite.kubelet.Freeze(l.namespace, leased.Name()); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = suite.kubelet.Thaw(l.namespace, leased.Name()) }()
	l.pool.mu.Lock()
	l.pool.pods[l.key(leased.Name())].reached = false // as a call that is not answered in time finds
	l.pool.mu.Unlock()
	ctx, cancel := context.WithTimeout(l.ctx, time.Second)
	defer cancel()
	if err := leased.Await(ctx, func(string) {}); err == nil {
		t.Error("a frozen runner answered")
	}
	leased.Release()
	if next := l.lease(nil); next.Name() == leased.Name() {
		t.Error("the runner that does not answer was leased again")
	}
}
