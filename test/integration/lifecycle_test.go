package integration_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/runner/engine"
	"github.com/terrace-dev/terrace/test/harness"
)

const greeting = `
variable "name" { default = "world" }
resource "terraform_data" "a" { input = "hello ${var.name}" }
output "greeting" { value = terraform_data.a.output }
output "token" {
  value     = "sentinel-${var.name}"
  sensitive = true
}
`

// driftingFile declares a file that a test can change behind the object's back.
func driftingFile(path string) string {
	return `
terraform {
  required_providers {
    testing = { source = "terrace-dev/testing" }
  }
}
resource "testing_file" "f" {
  path    = "` + path + `"
  content = "as declared"
}
`
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func manual(o *infrav1.Terraform) { o.Spec.Approval.Mode = infrav1.ApprovalManual }

func TestNothingIsAppliedThatWasNotApproved(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, l *lab) {
		l.create(greeting, func(o *infrav1.Terraform) {
			manual(o)
			o.Spec.PublishOutputs = []string{"greeting"}
			o.Spec.Outputs = []infrav1.OutputTarget{{Kind: infrav1.SecretKind, Name: "out"}}
		})
		o, message := l.awaitReason(infrav1.ApprovalRequiredReason)
		id := o.Status.Plan.ID
		l.wantMessage(message, id, "1 to add", "spec.approval.plan")
		if conditions.Get(o, meta.ReconcilingCondition) != nil || o.Status.ObservedGeneration != o.Generation {
			t.Error("waiting for a person looks like progress")
		}
		l.wantProcesses("init", "plan", "show", "show")

		l.annotate(infrav1.ApproveAnnotation, "plan-0123456789abcdef")
		l.change(func(o *infrav1.Terraform) { o.Spec.Approval.Plan = "plan-fedcba9876543210" })
		l.await("the change to be seen", func(o *infrav1.Terraform) bool {
			return o.Status.ObservedGeneration == o.Generation && readyReason(o) == infrav1.ApprovalRequiredReason
		})
		l.wantProcesses()

		l.annotate(infrav1.ApproveAnnotation, id)
		o = l.awaitReady()
		l.wantProcesses("apply", "output") // output, since a sensitive value has to go into a Secret
		if o.Status.Applied == nil || o.Status.Applied.PlanID != id {
			t.Errorf("applied = %+v, want %s", o.Status.Applied, id)
		}
		secret := &corev1.Secret{}
		if err := suite.client.Get(l.ctx, client.ObjectKey{Namespace: l.namespace, Name: "out"}, secret); err != nil {
			t.Fatal(err)
		}
		if string(secret.Data["token"]) != "sentinel-world" || string(secret.Data["greeting"]) != "hello world" {
			t.Error("the output Secret does not hold the outputs")
		}
	})
}

func TestAnIdleObjectCausesNoWrites(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, l *lab) {
		l.create(greeting, func(o *infrav1.Terraform) { o.Spec.Interval.Duration = time.Second })
		l.awaitReady()
		first := l.writes()
		if len(first) > 8 {
			t.Errorf("the first apply took %d writes of the manager, want at most 8: %q", len(first), first)
		}
		o := l.get()
		l.processes()
		for cycles := 0; cycles < 3; { // three intervals go by
			time.Sleep(20 * time.Millisecond)
			cycles += len(l.processes())
		}
		if now := l.get(); now.ResourceVersion != o.ResourceVersion {
			t.Error("an unchanged interval cycle wrote to the object")
		}
		if again := l.writes(); len(again) != len(first) {
			t.Errorf("unchanged interval cycles wrote %q", again[len(first):])
		}

		l.change(func(o *infrav1.Terraform) { o.Spec.Interval.Duration = time.Hour })
		l.awaitReady()
		l.request() // ends what the short interval may still have started
		l.processes()
		before := len(l.writes())
		l.request()
		if requested := l.writes()[before:]; len(requested) > 2 {
			t.Errorf("an unchanged requested cycle took %q, want at most 2 writes", requested)
		}
		l.wantProcesses("plan")
	})
}

func TestANewCommitWithoutEffectKeepsThePlanID(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.commit(map[string]string{"main.tf": greeting})
	l.create("", func(o *infrav1.Terraform) { fromSource(o); manual(o) })
	o, _ := l.awaitReason(infrav1.ApprovalRequiredReason)
	id := o.Status.Plan.ID

	revision := l.commit(map[string]string{"main.tf": greeting + "# no effect\n"})
	o = l.await("the new revision to be planned", func(o *infrav1.Terraform) bool {
		return o.Status.Source.Revision == revision && readyReason(o) == infrav1.ApprovalRequiredReason
	})
	if o.Status.Plan.ID != id {
		t.Errorf("the plan id went from %s to %s without another effect", id, o.Status.Plan.ID)
	}
	// An approval that comes with the commit that it approves: both at once.
	l.commit(map[string]string{"main.tf": greeting + "# and the approval in the same commit\n"})
	l.change(func(o *infrav1.Terraform) { o.Spec.Approval.Plan = id })
	if o := l.awaitReady(); o.Status.Applied.PlanID != id {
		t.Errorf("applied %s, want %s", o.Status.Applied.PlanID, id)
	}

	l.commit(map[string]string{"main.tf": strings.Replace(greeting, "hello", "good bye", 1)})
	o, _ = l.awaitReason(infrav1.ApprovalRequiredReason)
	if o.Status.Plan.ID == id {
		t.Error("another effect kept the plan id, so that the old approval would approve it")
	}
}

func TestAChangeThatWasTakenBackIsNotApplied(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.create(greeting, nil)
	l.awaitReady()
	bad := strings.Replace(greeting, "hello", "bad", 1)
	l.change(func(o *infrav1.Terraform) { manual(o); o.Spec.Inline["main.tf"] = bad })
	l.awaitReason(infrav1.ApprovalRequiredReason)
	l.processes()
	// Back to what is applied, and from now on nothing needs an approval.
	l.change(func(o *infrav1.Terraform) {
		o.Spec.Approval.Mode = infrav1.ApprovalAuto
		o.Spec.Inline["main.tf"] = greeting
	})
	l.awaitReady()
	l.request()
	if processes := l.processes(); slices.Contains(processes, "apply") {
		t.Errorf("tool processes = %q: the change that was taken back was applied", processes)
	}
}

func TestAStalePlanIsPlannedAgainBeforeAnythingIsApplied(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.create(greeting, manual)
	o, _ := l.awaitReason(infrav1.ApprovalRequiredReason)
	old := o.Status.Plan.ID

	// Another object shares the state, which has to be made possible by hand, and applies first.
	other := &infrav1.Terraform{ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: "other"}}
	other.Spec = *o.Spec.DeepCopy()
	other.Spec.Approval.Mode = infrav1.ApprovalAuto
	other.Spec.Inline = map[string]string{"main.tf": `resource "terraform_data" "b" {}`}
	other.Spec.Backend = &infrav1.Backend{Kubernetes: &infrav1.KubernetesBackend{SecretSuffix: "tf"}}
	l.disown("tfstate-default-tf")
	l.make(other)
	first := l.object
	l.object = other
	l.awaitReady()
	l.object = first

	l.change(func(o *infrav1.Terraform) { o.Spec.Approval.Plan = old })
	o = l.await("a new plan", func(o *infrav1.Terraform) bool {
		return readyReason(o) == infrav1.ApprovalRequiredReason && o.Status.Plan.ID != old
	})
	if o.Status.Applied != nil || o.Status.Plan.Summary.Destroy != 1 {
		t.Errorf("status = %+v, want the plan that also destroys the other resource, and nothing applied", o.Status)
	}
}

// disown takes from a state Secret the note whose it is.
func (l *lab) disown(name string) {
	l.t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: name}}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"infra.terrace.dev/owner":null}}}`))
	if err := suite.client.Patch(l.ctx, secret, patch); err != nil {
		l.t.Fatal(err)
	}
}

func TestDriftIsCorrectedWithThreeProcesses(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, l *lab) {
		file := filepath.Join(t.TempDir(), "f")
		l.create(driftingFile(file), nil)
		l.awaitReady()
		l.processes()
		write(t, file, "changed by hand")
		l.request()
		l.awaitReady()
		l.wantProcesses("plan", "show", "apply")
		if got := read(t, file); got != "as declared" {
			t.Errorf("the file reads %q after the correction", got)
		}
	})
}

func TestStandingDriftIsReportedOnce(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	file := filepath.Join(t.TempDir(), "f")
	l.create(driftingFile(file), func(o *infrav1.Terraform) { o.Spec.Drift.Mode = infrav1.DriftReport })
	l.awaitReady()
	write(t, file, "changed by hand")
	for range 3 {
		o := l.request()
		if !conditions.IsTrue(o, infrav1.DriftedCondition) || !harness.IsReady(o) || o.Status.Drift == nil {
			t.Fatalf("conditions = %+v, want Drifted and Ready", o.Status.Conditions)
		}
	}
	if notes := l.awaitEvent(infrav1.DriftDetectedReason); len(notes) != 1 || !strings.Contains(notes[0], "testing_file.f") {
		t.Errorf("events = %q, want one that names the resource", notes)
	}
	if got := read(t, file); got != "changed by hand" {
		t.Error("reported drift was corrected")
	}
	// A drift plan is a plan like any other.
	l.change(func(o *infrav1.Terraform) { o.Spec.Approval.Plan = l.get().Status.Plan.ID })
	l.await("the approved drift plan to be applied", func(o *infrav1.Terraform) bool {
		return harness.IsReady(o) && !conditions.IsTrue(o, infrav1.DriftedCondition)
	})
	if got := read(t, file); got != "as declared" {
		t.Errorf("the file reads %q after the approval", got)
	}
}

func TestNeverOnlyPlans(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.create(greeting, func(o *infrav1.Terraform) { o.Spec.Approval.Mode = infrav1.ApprovalNever })
	o := l.awaitReady()
	l.wantMessage(conditions.GetMessage(o, meta.ReadyCondition), "1 to add", "Never")
	l.annotate(infrav1.ApproveAnnotation, o.Status.Plan.ID)
	l.request()
	for _, process := range l.processes() {
		if process == "apply" {
			t.Error("something was applied in mode Never")
		}
	}
	plan, err := engine.LoadPlan(l.ctx, suite.plane.Config, l.namespace, "tf")
	if err != nil || plan == nil || !strings.Contains(plan.Text, "terraform_data.a will be created") {
		t.Errorf("the plan cannot be read: %v", err)
	}
}
