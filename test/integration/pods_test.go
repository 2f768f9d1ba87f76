package integration_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/test/harness"
)

// podSpec is a template that changes a pod's spec.
func podSpec(spec string) *infrav1.PodTemplate {
	return &infrav1.PodTemplate{Spec: &apiextensionsv1.JSON{Raw: []byte(spec)}}
}

// podLabel is a template that makes a pod another one.
func podLabel(value string) *infrav1.PodTemplate {
	return &infrav1.PodTemplate{Metadata: &apiextensionsv1.JSON{Raw: fmt.Appendf(nil, `{"labels": {"test": %q}}`, value)}}
}

// quota bounds the pods of the namespace and plays the controller that counts them.
func (l *lab) quota(pods string) {
	l.t.Helper()
	hard := corev1.ResourceList{corev1.ResourcePods: resource.MustParse(pods)}
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: "few-pods"}}
	if err := suite.client.Get(l.ctx, client.ObjectKeyFromObject(quota), quota); err != nil {
		l.make(quota)
	}
	quota.Spec.Hard = hard
	if err := suite.client.Update(l.ctx, quota); err != nil {
		l.t.Fatal(err)
	}
	quota.Status = corev1.ResourceQuotaStatus{Hard: hard, Used: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}}
	if err := suite.client.Status().Update(l.ctx, quota); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) awaitQuota() {
	l.t.Helper()
	l.eventually("the quota to count", func() bool { // admission has a cache of its own
		probe := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: "probe"}, Spec: corev1.PodSpec{
			ServiceAccountName: "terrace-runner", Containers: []corev1.Container{{Name: "c", Image: "i"}},
		}}
		err := suite.client.Create(l.ctx, probe, client.DryRunAll)
		return err != nil && strings.Contains(err.Error(), "exceeded quota")
	})
}

func TestAQuotaIsNamedAndHeals(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.quota("0")
	l.awaitQuota()
	l.create(greeting, nil)
	o, message := l.awaitReason(infrav1.PodQuotaExceededReason)
	l.wantMessage(message, "exceeded quota: few-pods", "pods=1", "limited: pods=0", "tried again")
	if conditions.IsStalled(o) || conditions.GetReason(o, meta.ReconcilingCondition) != meta.ProgressingWithRetryReason {
		t.Errorf("conditions = %+v", o.Status.Conditions)
	}
	l.quota("1")
	l.awaitReady()
}

// troubles keep a pod from starting. While that is waited for the object says why,
// and when it took too long it fails for that reason.
func TestAPodThatDoesNotStartIsExplained(t *testing.T) {
	t.Parallel()
	const nodes = "0/3 nodes are available: 3 Insufficient memory."
	for name, test := range map[string]struct {
		trouble func(*lab) (heal func())
		edit    func(*infrav1.Terraform)
		reason  string
		want    []string
	}{
		"no node has room": {
			trouble: func(l *lab) func() { return suite.kubelet.Unschedulable(l.namespace, nodes) },
			reason:  infrav1.PodUnschedulableReason, want: []string{nodes},
		},
		"its image cannot be pulled": {
			trouble: func(*lab) func() { return func() {} },
			edit: func(o *infrav1.Terraform) {
				o.Spec.Runner.Template = podSpec(`{"containers": [{"name": "runner", "image": "nowhere.test/runner:1"}]}`)
			},
			reason: infrav1.ImagePullFailedReason, want: []string{"nowhere.test/runner:1", "not found"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			l.own("--runner-start-timeout=12s")
			heal := test.trouble(l)
			t.Cleanup(heal)
			l.create(greeting, test.edit)
			o := l.await("the trouble to show", func(o *infrav1.Terraform) bool {
				return strings.Contains(conditions.GetMessage(o, meta.ReconcilingCondition), test.want[0])
			})
			if !conditions.IsUnknown(o, meta.ReadyCondition) {
				t.Errorf("Ready = %+v", conditions.Get(o, meta.ReadyCondition))
			}
			l.wantMessage(conditions.GetMessage(o, meta.ReadyCondition), append(test.want, o.Status.Operation.Runner)...)
			_, message := l.awaitReason(test.reason)
			l.wantMessage(message, append(test.want, "did not start within 12s")...)
			l.awaitPodGone(o.Status.Operation.Runner)
			heal()
			if test.edit != nil {
				l.change(func(o *infrav1.Terraform) { o.Spec.Runner.Template = nil })
			}
			l.awaitReady()
		})
	}
}

func TestATemplateThatChangesDuringAnApplyCountsFromTheNextOperation(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	g := newGate(t)
	l.create(g.gated(), func(o *infrav1.Terraform) { o.Spec.Runner.IdleTimeout = &metav1.Duration{} })
	g.await(l)
	first := l.pod()
	l.change(func(o *infrav1.Terraform) { o.Spec.Runner.Template = podLabel("another") })
	g.open(l)
	o := l.awaitReady()
	if got := harness.Results(o); !slices.Equal(got, []string{"Plan Succeeded", "Apply Succeeded"}) {
		t.Errorf("history = %q", got)
	}
	l.request()
	l.awaitPodGone(first)
	pods := l.pods()
	if len(pods) != 1 || pods[0].Labels["test"] != "another" {
		t.Errorf("pods = %v", pods)
	}
	if processes := l.processes(); count(processes, "apply") != 1 {
		t.Errorf("tool processes = %q", processes)
	}
}

func TestAPodWithoutIdleTimeoutGoesAfterItsWork(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.create(greeting, func(o *infrav1.Terraform) { o.Spec.Runner.IdleTimeout = &metav1.Duration{} })
	l.awaitReady()
	if started := suite.kubelet.Started(l.namespace, ""); started != 1 {
		t.Errorf("%d containers for a plan and its apply, want one", started)
	}
	l.eventually("the pod to go", func() bool { return len(l.pods()) == 0 })
	l.change(func(o *infrav1.Terraform) {
		o.Spec.Inline["main.tf"] = strings.Replace(greeting, "hello", "good bye", 1)
	})
	o := l.awaitReady()
	if started := suite.kubelet.Started(l.namespace, ""); started != 2 {
		t.Errorf("%d containers for two plans and their applies, want two", started)
	}
	if got := harness.Results(o); !slices.Equal(got, []string{"Plan Succeeded", "Apply Succeeded", "Plan Succeeded", "Apply Succeeded"}) {
		t.Errorf("history = %q", got)
	}
}

func TestAWarmCycleStartsNoContainer(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.create(greeting, nil)
	l.awaitReady()
	for range 2 {
		l.request()
	}
	if started := suite.kubelet.Started(l.namespace, ""); started != 1 || len(l.pods()) != 1 {
		t.Errorf("%d containers, %d pods", started, len(l.pods()))
	}
}

// TestManyObjectsShareAPod also looks at how many tools run in it at the same time:
// each waits at a gate, and the pod has no room for more.
func TestManyObjectsShareAPod(t *testing.T) {
	t.Parallel()
	const objects, room = 30, 4
	l := newLab(t)
	g := newGate(t)
	template := podSpec(g.holding("plan"))
	others := make([]*infrav1.Terraform, 0, objects)
	for i := range objects {
		o := &infrav1.Terraform{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("tf-%d", i)}}
		o.Spec.Interval = metav1.Duration{Duration: time.Hour}
		o.Spec.Approval.Mode = infrav1.ApprovalNever
		o.Spec.Inline = map[string]string{"main.tf": fmt.Sprintf("output \"a\" { value = %d }", i)}
		o.Spec.Runner.Template = template
		l.make(o)
		others = append(others, o)
	}
	phase := func(o *infrav1.Terraform) infrav1.OperationPhase {
		if err := suite.client.Get(l.ctx, client.ObjectKeyFromObject(o), o); err != nil {
			t.Fatal(err)
		}
		if o.Status.Operation == nil {
			return ""
		}
		return o.Status.Operation.Phase
	}
	l.object = others[0]
	l.eventually("all others to queue", func() bool {
		queued := 0
		for _, o := range others {
			if phase(o) == "queued" {
				queued++
			}
		}
		return g.reached() == room && queued == objects-room
	})
	if pods := l.pods(); len(pods) != 1 || suite.kubelet.Started(l.namespace, "") != 1 {
		t.Errorf("%d pods, %d containers", len(pods), suite.kubelet.Started(l.namespace, ""))
	}
	g.open(l)
	for _, o := range others {
		l.object = o
		l.awaitReady()
	}
	if started := suite.kubelet.Started(l.namespace, ""); started != 1 {
		t.Errorf("%d containers, want one", started)
	}
}

func TestAnObjectWithItsOwnAccountHasItsOwnPod(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.account("special")
	l.create(greeting, nil)
	l.awaitReady()
	l.make(&infrav1.Terraform{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Spec: infrav1.TerraformSpec{
		Interval: metav1.Duration{Duration: time.Hour}, Approval: infrav1.Approval{Mode: infrav1.ApprovalAuto},
		Inline: map[string]string{"main.tf": greeting}, Runner: infrav1.Runner{ServiceAccountName: "special"},
	}})
	other := &infrav1.Terraform{}
	l.eventually("the other object", func() bool {
		if err := suite.client.Get(l.ctx, client.ObjectKey{Namespace: l.namespace, Name: "other"}, other); err != nil {
			t.Fatal(err)
		}
		return harness.IsReady(other)
	})
	var accounts []string
	for _, pod := range l.pods() {
		accounts = append(accounts, pod.Spec.ServiceAccountName)
	}
	if slices.Sort(accounts); !slices.Equal(accounts, []string{"special", "terrace-runner"}) {
		t.Errorf("accounts of the pods = %q", accounts)
	}
}

// account makes a ServiceAccount that may do what a runner has to.
func (l *lab) account(name string) {
	l.t.Helper()
	l.make(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}})
	binding := l.binding()
	binding.ObjectMeta = metav1.ObjectMeta{Name: name}
	binding.Subjects[0].Name = name
	l.make(binding)
}

// binding is what gives the runner its rights.
func (l *lab) binding() *rbacv1.RoleBinding {
	l.t.Helper()
	list := &rbacv1.RoleBindingList{}
	if err := suite.client.List(l.ctx, list, client.InNamespace(l.namespace)); err != nil {
		l.t.Fatal(err)
	}
	for i := range list.Items {
		if b := &list.Items[i]; len(b.Subjects) == 1 && b.Subjects[0].Name == "terrace-runner" {
			return b
		}
	}
	text, _ := json.Marshal(list.Items)
	l.t.Fatalf("no binding of the runner among %s", text)
	return nil
}
