//go:build linux

package e2e_test

import (
	"context"
	"strings"
	"testing"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/test/harness"
)

// witnessed is a module whose destruction leaves a trace in the runner's pod.
const witnessed = `
resource "terraform_data" "a" {
  provisioner "local-exec" {
    when    = destroy
    command = "echo destroyed >>/tmp/destroyed"
  }
}
`

func TestAnObjectIsDestroyedThoughItsRunnerPodIsGone(t *testing.T) {
	t.Parallel()
	e := newTenant(t)
	o := e.create("tf", witnessed, auto)
	e.await(o, "the object to be ready", harness.IsReady)
	first := e.onlyRunner()
	e.kubectl("delete", "pod", first.Name)
	e.remove(o)
	if got := e.inside(e.onlyRunner(), "cat /tmp/destroyed"); got != "destroyed\n" {
		t.Errorf("the destruction left %q", got)
	}
	if e.exists("tfstate-default-tf") {
		t.Error("the state is left after the destruction")
	}
}

// TestANamespaceThatIsDeletedKeepsItsStates follows the documentation: nothing is
// destroyed and nothing is lost until somebody lets the object go.
func TestANamespaceThatIsDeletedKeepsItsStates(t *testing.T) {
	t.Parallel()
	e := newTenant(t)
	o := e.create("tf", witnessed, auto)
	e.await(o, "the object to be ready", harness.IsReady)
	if _, err := kubectl(e.ctx, "delete", "namespace", "--wait=false", e.namespace); err != nil {
		t.Fatal(err)
	}
	e.await(o, "the object to say what is the matter", func(o *infrav1.Terraform) bool {
		return conditions.GetReason(o, meta.ReadyCondition) == infrav1.NamespaceTerminatingReason
	})
	e.eventually("the runner pods to go", func(context.Context) (bool, error) { return len(e.runners()) == 0, nil })
	if words := said(o); !strings.Contains(words, "Orphan") {
		t.Errorf("nothing tells the way out: %s", words)
	}
	if len(e.state(o).Resources) != 1 {
		t.Error("the state is gone")
	}

	e.change(o, func(o *infrav1.Terraform) { o.Spec.DeletionPolicy = infrav1.DeletionOrphan })
	e.eventually("the object to go", func(ctx context.Context) (bool, error) {
		err := suite.client.Get(ctx, client.ObjectKeyFromObject(o), o)
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
	for _, name := range []string{"tfstate-default-tf", "terrace-record-tf"} {
		if e.exists(name) {
			e.kubectl("patch", "secret", name, "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
		}
	}
	e.eventually("the namespace to go", func(ctx context.Context) (bool, error) {
		err := suite.client.Get(ctx, client.ObjectKey{Name: e.namespace}, &corev1.Namespace{})
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
}
