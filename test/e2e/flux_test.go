//go:build linux

package e2e_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/test/harness"
)

// saying is a module whose output is the text.
func saying(text string) map[string]string {
	return map[string]string{"main.tf": fmt.Sprintf(`
resource "terraform_data" "greeting" {
  input = %[1]q
}

output "greeting" {
  value = terraform_data.greeting.output
}
`, text)}
}

// plans says whether the object has a plan of a revision that would change something.
func plans(revision string) func(*infrav1.Terraform) bool {
	return func(o *infrav1.Terraform) bool {
		return o.Status.Plan != nil && o.Status.Plan.ID != "" && o.Status.Plan.Revision == revision
	}
}

// applied says whether a revision is what the object is ready with.
func applied(revision string) func(*infrav1.Terraform) bool {
	return func(o *infrav1.Terraform) bool { return harness.IsReady(o) && o.Status.LastAppliedRevision == revision }
}

// fails says whether the object is not ready for a reason.
func fails(reason string) func(*infrav1.Terraform) bool {
	return func(o *infrav1.Terraform) bool {
		ready := apimeta.FindStatusCondition(o.Status.Conditions, meta.ReadyCondition)
		return ready != nil && ready.Status == "False" && ready.Reason == reason
	}
}

func TestEachCommitIsPlannedAndAppliedWhenItIsApproved(t *testing.T) {
	t.Parallel()
	r, first := newRepository(t, saying("hello"))
	o := r.object(infrav1.ApprovalManual, nil)
	r.await(o, "a plan of the first commit", plans(first))
	r.approve(o)
	r.await(o, "the first commit to be applied", applied(first))

	begin := time.Now()
	second := r.push(saying("good bye"))
	committed := time.Since(begin)
	r.await(o, "a plan of the second commit", plans(second))
	t.Logf("plan of a new commit: %.2f s after the request to look at it, which %.2f s of committing preceded",
		(time.Since(begin) - committed).Seconds(), committed.Seconds())
	if o.Status.LastAppliedRevision != first || o.Status.LastAttemptedRevision != second || o.Status.Source.Revision != second {
		t.Errorf("applied is %s, attempted %s, the source at %s; want %s, and twice %s",
			o.Status.LastAppliedRevision, o.Status.LastAttemptedRevision, o.Status.Source.Revision, first, second)
	}
	r.awaitEvent(o, infrav1.ApprovalRequiredReason, second)
	r.approve(o)
	r.await(o, "the second commit to be applied", applied(second))
	r.awaitEvent(o, meta.ReconciliationSucceededReason, second)
	if got := o.Status.Applied.Revision; got != second {
		t.Errorf("status.applied has revision %s, want %s", got, second)
	}
	r.remove(o)
}

func TestACommitThatCannotBePlannedIsReportedAndKeepsWhatIsApplied(t *testing.T) {
	t.Parallel()
	r, first := newRepository(t, saying("hello"))
	o := r.object(infrav1.ApprovalAuto, nil)
	r.await(o, "the first commit to be applied", applied(first))
	resources := o.Status.Resources

	broken := r.push(map[string]string{"main.tf": `resource "terraform_data" {`})
	r.await(o, "the broken commit to be reported", fails(infrav1.InitFailedReason))
	ready := apimeta.FindStatusCondition(o.Status.Conditions, meta.ReadyCondition)
	if !strings.Contains(ready.Message, "main.tf") {
		t.Errorf("the message does not say where the error is: %s", ready.Message)
	}
	if o.Status.LastAttemptedRevision != broken || o.Status.LastAppliedRevision != first {
		t.Errorf("attempted is %s, applied %s; want %s and %s", o.Status.LastAttemptedRevision, o.Status.LastAppliedRevision, broken, first)
	}
	if !slices.Equal(o.Status.Resources, resources) || !r.exists("tfstate-default-greeting") {
		t.Errorf("of %v, %v is left", resources, o.Status.Resources)
	}
	r.awaitEvent(o, infrav1.InitFailedReason, broken)

	mended := r.push(saying("hello again"))
	r.await(o, "the mended commit to be applied", applied(mended))
	r.remove(o)
}

func TestARepositoryThatIsGoneChangesNothingForItsObjects(t *testing.T) {
	t.Parallel()
	r, first := newRepository(t, saying("hello"))
	o := r.object(infrav1.ApprovalAuto, nil)
	r.await(o, "the commit to be applied", applied(first))

	r.git("remove", nil)
	r.awaitLook(r.look())
	if apimeta.IsStatusConditionTrue(r.source.Status.Conditions, meta.ReadyCondition) {
		t.Fatal("Flux can still fetch the repository")
	}
	// Flux keeps the last artifact, and that is what objects work with.
	r.request(o)
	if !applied(first)(o) {
		t.Errorf("after a plan on request the object is not ready with %s: %+v", first, o.Status.Conditions)
	}
	r.remove(o)
}

func TestLookingAtAnUnchangedRepositoryWritesNothing(t *testing.T) {
	t.Parallel()
	r, first := newRepository(t, saying("hello"))
	o := r.object(infrav1.ApprovalAuto, nil)
	r.await(o, "the commit to be applied", applied(first))
	other, _ := newRepository(t, saying("hello"))
	later := other.object(infrav1.ApprovalManual, nil)
	other.await(later, "a plan", func(o *infrav1.Terraform) bool { return o.Status.Plan != nil && o.Status.Plan.ID != "" })

	version, source := o.ResourceVersion, r.source.ResourceVersion
	for range 3 {
		r.awaitLook(r.look())
		if r.source.ResourceVersion == source {
			t.Fatal("Flux has written nothing, so there was nothing for the manager to see")
		}
		source = r.source.ResourceVersion
	}
	// The manager sees sources in the order of their changes: when it has dealt with
	// this one, it has with those before.
	second := other.push(saying("good bye"))
	other.await(later, "a plan of the second commit", plans(second))
	r.await(o, "a look at it", func(*infrav1.Terraform) bool { return true })
	if o.ResourceVersion != version {
		t.Errorf("the object was written: its version is %s and was %s", o.ResourceVersion, version)
	}
	r.remove(o)
	other.remove(later)
}

func TestAnObjectIsDestroyedWhenItsSourceIsGone(t *testing.T) {
	t.Parallel()
	// The script must be executable still when it comes from the copy of the module
	// that was kept beside the state.
	r, first := newRepository(t, map[string]string{
		"module/main.tf": `
resource "terraform_data" "greeting" {
  input = "hello"

  provisioner "local-exec" {
    when    = destroy
    command = "${path.module}/scripts/bye.sh"
  }
}
`,
		"module/scripts/bye.sh": "#!/bin/sh\necho good bye\n",
		"README.md":             "not a part of the module",
	})
	o := r.object(infrav1.ApprovalAuto, func(o *infrav1.Terraform) { o.Spec.Path = "module" })
	r.await(o, "the commit to be applied", applied(first))

	if err := suite.client.Delete(r.ctx, r.source); err != nil {
		t.Fatal(err)
	}
	r.kubectl("wait", "--for=delete", "gitrepository", r.source.Name, "--timeout="+patience.String())
	r.kubectl("annotate", "terraform", o.Name, meta.ReconcileRequestAnnotation+"=now")
	r.await(o, "the loss to be reported", fails(infrav1.SourceNotFoundReason))
	if o.Status.LastAppliedRevision != first {
		t.Errorf("applied is %s, want %s", o.Status.LastAppliedRevision, first)
	}
	// Without the runner's own copy of the source.
	for _, pod := range r.runners() {
		r.kubectl("delete", "pod", pod.Name)
	}
	r.remove(o)
	if r.exists("tfstate-default-greeting") {
		t.Error("the state is left after the destruction")
	}
}

func TestProgramsInARepositoryCanBeExecuted(t *testing.T) {
	t.Parallel()
	provider := "terrace-dev/testing/0.1.0/linux_" + runtime.GOARCH + "/terraform-provider-testing_v0.1.0"
	program, err := os.ReadFile(filepath.Join(suite.root, "bin", "providers", "registry.opentofu.org", provider))
	if err != nil {
		t.Skip("make tools builds the provider: ", err)
	}
	r, first := newRepository(t, map[string]string{
		"main.tf": `
terraform {
  required_providers {
    testing = { source = "terrace-dev/testing" }
  }
}

resource "testing_file" "greeting" {
  path    = "/tmp/greeting"
  content = "hello"
}

resource "terraform_data" "script" {
  triggers_replace = testing_file.greeting.sha256

  provisioner "local-exec" {
    command = "scripts/greet.sh"
  }
}
`,
		"scripts/greet.sh": "#!/bin/sh\ncat /tmp/greeting\n",
		"scripts/notes":    "plain text",
		"terraform.d/plugins/registry.opentofu.org/" + provider: string(program),
	})
	o := r.object(infrav1.ApprovalAuto, nil)
	r.await(o, "the commit to be applied", applied(first))
	r.remove(o)
}

// The network plugin of the tests' cluster enforces no policies, so this only tells
// whether ours means the pods that there are.
func TestTheNetworkPolicyForFluxMeansTheManagerAndSourceController(t *testing.T) {
	t.Parallel()
	newTenant(t)
	if err := installFlux(); err != nil {
		t.Fatal(err)
	}
	policy := &networkingv1.NetworkPolicy{}
	if err := suite.client.Get(t.Context(), client.ObjectKey{Namespace: fluxNamespace, Name: managerName}, policy); err != nil {
		t.Fatal(err)
	}
	rule := policy.Spec.Ingress[0]
	manager := selected(t, managerNamespace, rule.From[0].PodSelector)
	if len(manager) == 0 || manager[0].Spec.ServiceAccountName != managerName {
		t.Errorf("%d pods may call that are not the manager", len(manager))
	}
	namespace := &corev1.Namespace{}
	if err := suite.client.Get(t.Context(), client.ObjectKey{Name: managerNamespace}, namespace); err != nil {
		t.Fatal(err)
	}
	if of, err := metav1.LabelSelectorAsSelector(rule.From[0].NamespaceSelector); err != nil || !of.Matches(labels.Set(namespace.Labels)) {
		t.Errorf("the manager's namespace, with labels %v, is not meant: %v", namespace.Labels, err)
	}
	server := selected(t, fluxNamespace, &policy.Spec.PodSelector)
	if len(server) != 1 || !slices.ContainsFunc(server[0].Spec.Containers[0].Ports, func(p corev1.ContainerPort) bool {
		return p.Name == rule.Ports[0].Port.String() && p.ContainerPort == 9090
	}) {
		t.Errorf("of %d pods that may be called, none serves artifacts at port %s", len(server), rule.Ports[0].Port)
	}
}

// selected returns the pods of a namespace that a policy means.
func selected(t *testing.T, namespace string, selector *metav1.LabelSelector) []corev1.Pod {
	t.Helper()
	of, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		t.Fatal(err)
	}
	pods := &corev1.PodList{}
	if err := suite.client.List(t.Context(), pods, client.InNamespace(namespace), client.MatchingLabelsSelector{Selector: of}); err != nil {
		t.Fatal(err)
	}
	return pods.Items
}

// awaitEvent waits for an event about the object that has the revision.
func (r *repository) awaitEvent(o *infrav1.Terraform, reason, revision string) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("an event %s of %s", reason, revision), func(ctx context.Context) (bool, error) {
		events := &eventsv1.EventList{}
		err := suite.client.List(ctx, events, client.InNamespace(r.namespace))
		return slices.ContainsFunc(events.Items, func(e eventsv1.Event) bool {
			return e.Regarding.Name == o.Name && e.Reason == reason && e.Annotations[infrav1.GroupName+"/revision"] == revision
		}), err
	})
}
