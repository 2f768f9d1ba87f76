//go:build linux

package e2e_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/test/harness"
)

func TestTenantsDoNotTouchEachOther(t *testing.T) {
	t.Parallel()
	a, b := newTenant(t), newTenant(t)
	mine, theirs := a.create("hello", greeting, nil), b.create("hello", greeting, nil)
	a.awaitPlan(mine)
	b.awaitPlan(theirs)
	if mine.Status.Plan.ID == theirs.Status.Plan.ID {
		t.Error("equal plans of two tenants have one id, so that an approval of one is good for the other")
	}

	// An approval of the one does nothing for the other, even in the other's object.
	b.kubectl("annotate", "terraform", "hello", infrav1.ApproveAnnotation+"="+mine.Status.Plan.ID)
	a.approve(mine)
	a.await(mine, "the object to be ready", harness.IsReady)
	b.request(theirs)
	if conditions.GetReason(theirs, meta.ReadyCondition) != infrav1.ApprovalRequiredReason || theirs.Status.Applied != nil || len(b.state(theirs).Resources) > 0 {
		t.Errorf("an approval of another tenant's plan counted: %s", said(theirs))
	}
	b.approve(theirs)
	b.await(theirs, "the object to be ready", harness.IsReady)

	// Each has a pod of its own, with an account of its own.
	for _, e := range []*tenant{a, b} {
		pod := e.onlyRunner()
		got, err := subject(e.inside(pod, "cat /var/run/secrets/kubernetes.io/serviceaccount/token"))
		if want := "system:serviceaccount:" + e.namespace + ":terrace-runner"; err != nil || got != want {
			t.Errorf("the runner's token is that of %q, %v; want %s", got, err, want)
		}
	}
	a.wantNoAccess(b)
	a.wantNoTheft(b)

	a.remove(mine)
	if now := b.state(theirs); len(now.Resources) != 1 {
		t.Errorf("after the destruction of another tenant's resources the state is %+v", now)
	}
	b.remove(theirs)
}

// wantNoAccess has the token in a tenant's runner pod try what belongs to another tenant.
func (e *tenant) wantNoAccess(other *tenant) {
	e.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", suite.kubeconfig)
	if err != nil {
		e.t.Fatal(err)
	}
	config = rest.AnonymousClientConfig(config)
	config.BearerToken = e.inside(e.onlyRunner(), "cat /var/run/secrets/kubernetes.io/serviceaccount/token")
	c, err := harness.NewClient(config)
	if err != nil {
		e.t.Fatal(err)
	}
	key := client.ObjectKey{Name: "tfstate-default-hello"}
	approval := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"x"}}}`, infrav1.ApproveAnnotation))
	for what, try := range map[string]func(namespace string) error{
		"get the state": func(namespace string) error {
			key.Namespace = namespace
			return c.Get(e.ctx, key, &corev1.Secret{})
		},
		"list Secrets": func(namespace string) error {
			return c.List(e.ctx, &corev1.SecretList{}, client.InNamespace(namespace))
		},
		"delete the pod": func(namespace string) error {
			pod := other.onlyRunner()
			pod.Namespace = namespace
			return c.Delete(e.ctx, pod)
		},
		"approve": func(namespace string) error {
			o := &infrav1.Terraform{}
			o.Namespace, o.Name = namespace, "hello"
			return c.Patch(e.ctx, o, approval)
		},
	} {
		if err := try(other.namespace); !apierrors.IsForbidden(err) {
			e.t.Errorf("another tenant's runner can %s: %v, want Forbidden", what, err)
		}
		if own := try(e.namespace); strings.Contains(what, "state") && own != nil {
			e.t.Errorf("a runner cannot %s of its own tenant: %v", what, own)
		}
	}
}

// wantNoTheft has a tenant's module read another tenant's state.
func (e *tenant) wantNoTheft(other *tenant) {
	e.t.Helper()
	theft := `
data "terraform_remote_state" "loot" {
  backend = "kubernetes"
  config  = { secret_suffix = "hello", namespace = "` + other.namespace + `" }
}
output "loot" { value = data.terraform_remote_state.loot.outputs }
`
	thief := e.create("thief", theft, nil)
	e.await(thief, "the theft to fail", func(o *infrav1.Terraform) bool {
		return conditions.GetReason(o, meta.ReadyCondition) == infrav1.PlanFailedReason
	})
	if words := said(thief); !strings.Contains(words, "forbidden") || strings.Contains(words, "hello, world") {
		e.t.Errorf("a module that reads another tenant's state says %s", words)
	}
	e.remove(thief)
}
