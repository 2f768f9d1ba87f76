package engine_test

import (
	"context"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/runner/engine"
	"github.com/terrace-dev/terrace/runner/runnerpb"
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

func TestAFirstApplyTakesFourProcessesAndAnUnchangedCycleOne(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	object := l.object("hello", greeting)
	object.Spec.PublishOutputs = []string{"greeting"}

	plan := l.plan(object, &runnerpb.PlanOptions{})
	if !plan.GetChanges() || plan.GetSummary().GetAdd() != 1 || plan.GetSummary().GetOutputs() != 2 || plan.GetDrift() {
		t.Errorf("plan = %v, want one resource to add and two outputs, no drift", plan)
	}
	applied := l.apply(object, plan.GetId())
	l.wantProcesses("init", "plan", "show", "apply")
	if applied.GetAdded() != 1 || applied.GetResourceCount() != 1 || applied.GetResources()[0].GetId() == "" {
		t.Errorf("apply = %v, want one resource with its id", applied)
	}
	if got := applied.GetOutputs(); len(got) != 2 || got[0].GetValue() != `"hello world"` || got[1].GetValue() != "" {
		t.Errorf("outputs = %v, want the published value only", got)
	}

	again := l.plan(object, &runnerpb.PlanOptions{})
	l.wantProcesses("plan")
	if again.GetChanges() || again.GetSkipped() {
		t.Errorf("plan = %v, want no changes", again)
	}
	if skipped := l.plan(object, &runnerpb.PlanOptions{IfChanged: true}); !skipped.GetSkipped() {
		t.Errorf("plan = %v, want it skipped, since nothing changed", skipped)
	}
	l.wantProcesses()
}

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
}`
}

func TestDriftIsRepairedWithThreeProcesses(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	file := l.dir + "/drifting"
	object := l.object("drift", driftingFile(file))
	l.settle(object)
	l.write(file, "changed by hand")

	plan := l.plan(object, &runnerpb.PlanOptions{})
	if !plan.GetDrift() || !plan.GetChanges() {
		t.Fatalf("plan = %v, want drift", plan)
	}
	l.apply(object, plan.GetId())
	l.wantProcesses("plan", "show", "apply")
	if got := l.readFile(file); got != "as declared" {
		t.Errorf("file = %q, want what is declared", got)
	}
	if again := l.plan(object, &runnerpb.PlanOptions{}); again.GetChanges() {
		t.Errorf("plan = %v, want no changes after the repair", again)
	}
}

func TestASavedPlanIsAppliedByAnotherRunnerAndNoOtherPlanIs(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	object := l.object("saved", greeting)
	plan := l.plan(object, &runnerpb.PlanOptions{Save: true})
	l.wantProcesses("init", "plan", "show", "show")

	saved, err := engine.LoadPlan(t.Context(), cluster.Config, l.namespace, "saved")
	if err != nil || saved == nil {
		t.Fatalf("the saved plan cannot be read: %v", err)
	}
	if saved.ID != plan.GetId() || !strings.Contains(saved.Text, "terraform_data.a will be created") {
		t.Errorf("saved plan %s reads %q", saved.ID, saved.Text)
	}
	if text := saved.Text + string(saved.Changes); strings.Contains(text, "sentinel") {
		t.Error("the saved plan shows a sensitive value")
	}

	l.restart(l.dir + "/another") // as if the pod had been replaced
	if result, _ := l.run(l.applyRequest(object, "plan-0123456789abcdef")); result.GetFailure().GetKind() != runnerpb.Failure_KIND_STALE_PLAN {
		t.Errorf("applying another plan's id = %v, want it refused", result)
	}
	l.wantProcesses()
	if applied := l.apply(object, plan.GetId()); applied.GetAdded() != 1 {
		t.Errorf("apply = %v, want one resource", applied)
	}
	l.wantProcesses("init", "apply")
}

func TestThePlanIDNamesTheEffect(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	object := l.object("ids", greeting)
	first := l.plan(object, &runnerpb.PlanOptions{})

	object.Spec.Inline["main.tf"] = greeting + "\n# a comment\n"
	if same := l.plan(object, &runnerpb.PlanOptions{}); same.GetId() != first.GetId() {
		t.Errorf("a change without effect gave id %s after %s", same.GetId(), first.GetId())
	}
	object.Spec.Variables = []infrav1.Variable{{Name: "name", Value: value("moon")}}
	if other := l.plan(object, &runnerpb.PlanOptions{}); other.GetId() == first.GetId() {
		t.Errorf("another effect kept the id %s", first.GetId())
	}
	provisioned := func(command string) string {
		return `resource "terraform_data" "p" { 
  provisioner "local-exec" { command = "` + command + `" }
}`
	}
	object.Spec.Inline["main.tf"] = provisioned("true")
	one := l.plan(object, &runnerpb.PlanOptions{})
	object.Spec.Inline["main.tf"] = provisioned("exit 0")
	if two := l.plan(object, &runnerpb.PlanOptions{}); one.GetId() == two.GetId() {
		t.Error("another provisioner kept the id, although the plan's JSON does not show what it does")
	}
}

func TestAnApprovalCountsOnce(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	file := l.dir + "/drifting"
	object := l.object("once", driftingFile(file))
	l.settle(object)
	var ids []string
	for range 2 { // the same drift twice, corrected each time
		l.write(file, "changed by hand")
		plan := l.plan(object, &runnerpb.PlanOptions{Save: true})
		if again := l.plan(object, &runnerpb.PlanOptions{Save: true}); again.GetId() != plan.GetId() {
			t.Errorf("standing drift went from id %s to %s", plan.GetId(), again.GetId())
		}
		l.apply(object, plan.GetId())
		ids = append(ids, plan.GetId())
	}
	if ids[0] == ids[1] {
		t.Error("the approval of the first correction approves the second one too")
	}
}

func TestAStaleSavedPlanIsRefused(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	object := l.object("stale", greeting)
	plan := l.plan(object, &runnerpb.PlanOptions{Save: true})
	// Somebody else changes the state after the plan was made.
	other := l.object("other", `resource "terraform_data" "b" {}`)
	other.Spec.Backend = &infrav1.Backend{Kubernetes: &infrav1.KubernetesBackend{SecretSuffix: "stale"}}
	l.settle(other)

	result, _ := l.run(l.applyRequest(object, plan.GetId()))
	if f := result.GetFailure(); f.GetKind() != runnerpb.Failure_KIND_STALE_PLAN || f.GetReason() != infrav1.PlanOutdatedReason {
		t.Errorf("result = %v, want a stale plan", result)
	}
}

func TestFailuresSayWhatAndWhere(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		module string
		spec   func(*infrav1.Terraform)
		kind   runnerpb.Failure_Kind
		reason string
		want   []string
	}{
		"broken HCL": {
			module: "resource \"terraform_data\" \"a\" {\n",
			kind:   runnerpb.Failure_KIND_TERMINAL, reason: infrav1.InitFailedReason,
			want: []string{"main.tf:1", "Unclosed configuration block"},
		},
		"an unknown reference": {
			module: "\nresource \"terraform_data\" \"a\" { input = var.nope }\n",
			kind:   runnerpb.Failure_KIND_TERMINAL, reason: infrav1.PlanFailedReason,
			want: []string{"main.tf:2", "Reference to undeclared input variable"},
		},
		"a precondition that fails may hold later": {
			module: `
variable "moon" { default = "new" }
resource "terraform_data" "a" {
  lifecycle {
    precondition {
      condition     = var.moon == "full"
      error_message = "the moon is not full"
    }
  }
}`,
			kind: runnerpb.Failure_KIND_RETRY, reason: infrav1.PlanFailedReason,
			want: []string{"the moon is not full"},
		},
		"a missing Secret": {
			module: greeting,
			spec: func(o *infrav1.Terraform) {
				o.Spec.VariablesFrom = []infrav1.VariablesFrom{{Kind: infrav1.SecretKind, Name: "absent"}}
			},
			kind: runnerpb.Failure_KIND_WAITING, reason: infrav1.InputNotFoundReason,
			want: []string{`Secret "absent" not found`, "spec.variablesFrom[0]"},
		},
		"a path that is not there": {
			module: greeting,
			spec:   func(o *infrav1.Terraform) { o.Spec.Path = "elsewhere"; o.Spec.Inline = nil },
			kind:   runnerpb.Failure_KIND_TERMINAL, reason: infrav1.PathNotFoundReason,
			want: []string{"spec.path", "elsewhere"},
		},
		"a tool the runner lacks": {
			module: greeting,
			spec:   func(o *infrav1.Terraform) { o.Spec.Tool = infrav1.ToolTerraform },
			kind:   runnerpb.Failure_KIND_TERMINAL, reason: infrav1.ToolUnavailableReason,
			want: []string{"spec.tool is Terraform"},
		},
		"a state that would be lost": {
			module: greeting,
			spec:   func(o *infrav1.Terraform) { o.Spec.Backend = &infrav1.Backend{None: &infrav1.NoBackend{}} },
			kind:   runnerpb.Failure_KIND_TERMINAL, reason: infrav1.BackendInvalidReason,
			want: []string{"spec.backend"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			object := l.object("bad", test.module)
			if test.spec != nil {
				test.spec(object)
			}
			request := l.planRequest(object, &runnerpb.PlanOptions{})
			if object.Spec.Inline == nil {
				object.Spec.SourceRef = &infrav1.SourceReference{Kind: "GitRepository", Name: "x"}
				request = l.planRequest(object, &runnerpb.PlanOptions{})
				request.Source = l.upload("main@sha1:1", map[string]string{"main.tf": test.module})
			}
			result, _ := l.run(request)
			f := result.GetFailure()
			if f.GetKind() != test.kind || f.GetReason() != test.reason {
				t.Errorf("failure = %v %s, want %v %s", f.GetKind(), f.GetReason(), test.kind, test.reason)
			}
			for _, want := range test.want {
				if !strings.Contains(f.GetMessage(), want) {
					t.Errorf("message %q does not contain %q", f.GetMessage(), want)
				}
			}
		})
	}
}

func TestCancellingAnApplySavesTheStateAndReleasesTheLock(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	object := l.object("slow", `
resource "terraform_data" "quick" {}
resource "terraform_data" "slow" {
  depends_on = [terraform_data.quick]
  provisioner "local-exec" { command = "sleep 60 & wait" }
}`)
	plan := l.plan(object, &runnerpb.PlanOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	report := &transcript{onLine: func(line string) {
		if strings.Contains(line, "local-exec") {
			cancel()
		}
	}}
	result, _ := l.runContext(ctx, l.applyRequest(object, plan.GetId()), report)
	if result.GetOutcome() != runnerpb.Outcome_OUTCOME_CANCELLED {
		t.Fatalf("result = %v, want it cancelled", result)
	}
	// The state holds what was made, and the lock is free: the next plan works
	// without releasing anything.
	again, _ := l.run(l.planRequest(object, &runnerpb.PlanOptions{}))
	if again.GetPlan().GetSummary().GetAdd()+again.GetPlan().GetSummary().GetReplace() != 1 || len(again.GetWarnings()) != 0 {
		t.Errorf("plan after the interruption = %v, want only the slow resource left", again)
	}
}

func TestOutputsGoWhereTheObjectSays(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	object := l.object("out", greeting)
	object.Spec.Outputs = []infrav1.OutputTarget{
		{Kind: infrav1.SecretKind, Name: "all", Labels: map[string]string{"team": "a"}},
		{Kind: infrav1.ConfigMapKind, Name: "some", Keys: []infrav1.OutputKey{{From: "greeting", To: "text"}}},
	}
	l.settle(object)
	secret := l.getSecret("all")
	if got := string(secret.Data["token"]); got != "sentinel-world" {
		t.Errorf("token = %q", got)
	}
	if got := string(secret.Data["greeting"]); got != "hello world" || secret.Labels["team"] != "a" {
		t.Errorf("greeting = %q, labels = %v", got, secret.Labels)
	}

	// What somebody changed or removed comes back, and nothing is written twice.
	secret.Data["token"] = []byte("tampered")
	if err := l.client.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	l.plan(object, &runnerpb.PlanOptions{})
	l.wantProcesses("plan")
	restored := l.getSecret("all")
	if string(restored.Data["token"]) != "sentinel-world" {
		t.Error("the changed Secret was not restored")
	}
	l.plan(object, &runnerpb.PlanOptions{})
	if l.getSecret("all").ResourceVersion != restored.ResourceVersion {
		t.Error("an unchanged Secret was written again")
	}

	// One that is no longer named goes; a foreign one is not touched.
	l.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "foreign"}, Data: map[string]string{"keep": "me"}})
	object.Spec.Outputs = []infrav1.OutputTarget{{Kind: infrav1.ConfigMapKind, Name: "foreign", Keys: []infrav1.OutputKey{{From: "greeting"}}}}
	result, _ := l.run(l.planRequest(object, &runnerpb.PlanOptions{}))
	if f := result.GetFailure(); f.GetReason() != infrav1.OutputConflictReason || !strings.Contains(f.GetMessage(), "foreign") {
		t.Errorf("result = %v, want a conflict", result)
	}
	object.Spec.Outputs = nil
	l.plan(object, &runnerpb.PlanOptions{})
	if err := l.client.Get(t.Context(), clientKey(l, "all"), &corev1.Secret{}); err == nil {
		t.Error("the Secret that is no longer named is still there")
	}
}

func TestASensitiveOutputNeverGoesIntoAConfigMap(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	object := l.object("leak", greeting)
	object.Spec.Outputs = []infrav1.OutputTarget{{Kind: infrav1.ConfigMapKind, Name: "open", Keys: []infrav1.OutputKey{{From: "token"}}}}
	plan := l.plan(object, &runnerpb.PlanOptions{})
	result, _ := l.run(l.applyRequest(object, plan.GetId()))
	if f := result.GetFailure(); f.GetReason() != infrav1.OutputSensitiveReason || !strings.Contains(f.GetMessage(), `"token"`) {
		t.Errorf("result = %v, want it refused", result)
	}
	if result.GetApply().GetAdded() != 1 {
		t.Errorf("result = %v, want the apply reported: it stands, whatever became of the outputs", result)
	}
}

func TestVariablesComeFromEverywhere(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.secret("creds", map[string]string{"password": "s3cr3t-password", "list": `["x","y"]`})
	l.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"size": "large"}})
	object := l.object("vars", `
variable "typed" { type = object({ n = number, l = list(string) }) }
variable "password" { sensitive = true }
variable "cfg_size" {}
variable "list" { type = list(string) }
variable "region" {}
output "all" { value = "${var.typed.n} ${join(",", var.typed.l)} ${var.cfg_size} ${join("", var.list)} ${var.region} ${nonsensitive(length(var.password))}" }
output "password" {
  value     = var.password
  sensitive = true
}`)
	object.Spec.Inline["env.tfvars"] = `region = "north"` + "\n" + `cfg_size = "overridden"`
	object.Spec.VariableFiles = []string{"env.tfvars"}
	object.Spec.Variables = []infrav1.Variable{
		{Name: "typed", Value: value(map[string]any{"n": 7, "l": []string{"a", "b"}})},
		{Name: "password", ValueFrom: &infrav1.VariableSource{SecretKeyRef: &infrav1.KeyReference{Name: "creds", Key: "password"}}},
	}
	object.Spec.VariablesFrom = []infrav1.VariablesFrom{
		{Kind: infrav1.ConfigMapKind, Name: "settings", Prefix: "cfg_"},
		{Kind: infrav1.SecretKind, Name: "creds", Keys: []infrav1.VariableKey{{From: "list"}}, Format: infrav1.VariableFormatJSON},
		{Kind: infrav1.SecretKind, Name: "absent", Optional: true},
		{Kind: infrav1.SecretKind, Name: "creds", Keys: []infrav1.VariableKey{{From: "absent"}}, Optional: true},
	}
	object.Spec.PublishOutputs = []string{"all", "password"}
	plan := l.plan(object, &runnerpb.PlanOptions{Save: true})
	if got := plan.GetPlannedOutputs(); got["all"] != `"7 a,b large xy north 15"` || got["password"] != "" {
		t.Errorf("planned outputs = %v", got)
	}
	applied := l.apply(object, plan.GetId())
	for _, o := range applied.GetOutputs() {
		if o.GetName() == "password" && o.GetValue() != "" {
			t.Error("a sensitive output was published")
		}
	}
	// Another value of a Secret is another input, although the object is the same.
	secret := l.getSecret("creds")
	secret.Data["password"] = []byte("another-password")
	if err := l.client.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	if plan := l.plan(object, &runnerpb.PlanOptions{IfChanged: true}); plan.GetSkipped() || !plan.GetChanges() || plan.GetDrift() {
		t.Errorf("plan = %v, want changes that are no drift", plan)
	}
}

func TestAPlanOfMoreThanAMegabyteIsSavedAndApplied(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	object := l.object("large", `
variable "noise" {}
resource "terraform_data" "a" { input = var.noise }
output "length" { value = length(var.noise) }`)
	object.Spec.Variables = []infrav1.Variable{{Name: "noise", Value: value(noise(t, 1<<20))}}
	object.Spec.PublishOutputs = []string{"length"}
	object.Spec.Backend = &infrav1.Backend{Custom: `backend "local" { path = "` + l.dir + `/large.tfstate" }`}
	plan := l.plan(object, &runnerpb.PlanOptions{Save: true})
	parts := &corev1.SecretList{}
	if err := l.client.List(t.Context(), parts, inNamespace(l)); err != nil {
		t.Fatal(err)
	}
	if len(parts.Items) < 3 {
		t.Errorf("the record has %d parts, want at least 3 for a plan of over 1 MiB", len(parts.Items))
	}
	l.restart(l.dir + "/another")
	if applied := l.apply(object, plan.GetId()); applied.GetAdded() != 1 {
		t.Errorf("apply = %v", applied)
	}
	// The record shrinks again and its parts go.
	secrets := &corev1.SecretList{}
	if err := l.client.List(t.Context(), secrets, inNamespace(l)); err != nil {
		t.Fatal(err)
	}
	if len(secrets.Items) != 1 {
		t.Errorf("%d Secrets left, want the record's head only", len(secrets.Items))
	}
}

func TestDestroyWorksWithoutSourceAndInputs(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.secret("creds", map[string]string{"name": "mars"})
	object := l.object("gone", "")
	object.Spec.Inline, object.Spec.DeletionPolicy = nil, infrav1.DeletionDestroy
	object.Spec.SourceRef = &infrav1.SourceReference{Kind: "GitRepository", Name: "repo"}
	object.Spec.VariablesFrom = []infrav1.VariablesFrom{{Kind: infrav1.SecretKind, Name: "creds"}}
	object.Spec.Outputs = []infrav1.OutputTarget{{Kind: infrav1.SecretKind, Name: "out"}}
	request := l.planRequest(object, &runnerpb.PlanOptions{})
	request.Source = l.upload("main@sha1:1", map[string]string{"main.tf": strings.Replace(greeting, ` default = "world" `, "", 1)})
	result, _ := l.run(request)
	apply := l.applyRequest(object, result.GetPlan().GetId())
	apply.Source = request.GetSource()
	if result, _ := l.run(apply); result.GetApply() == nil {
		t.Fatalf("apply failed: %v", result)
	}

	if err := l.client.Delete(t.Context(), l.getSecret("creds")); err != nil {
		t.Fatal(err)
	}
	l.restart(l.dir + "/another") // which has no source either
	l.processes()
	if result := l.destroy(object); result.GetApply().GetDestroyed() != 1 {
		t.Errorf("destroy = %v, want one resource destroyed", result)
	}
	l.wantProcesses("init", "plan", "apply")
	if record := l.getSecret(engine.RecordName("gone")); len(record.Data["record"]) > 400 {
		t.Errorf("the record still holds %d bytes", len(record.Data["record"]))
	}
	if again := l.destroy(object); again.GetOutcome() != runnerpb.Outcome_OUTCOME_SUCCEEDED {
		t.Errorf("a repeated destruction = %v", again)
	}
	l.wantProcesses()
	for _, name := range []string{"out", "tfstate-default-gone"} {
		if err := l.client.Get(t.Context(), clientKey(l, name), &corev1.Secret{}); err == nil {
			t.Errorf("Secret %s is still there", name)
		}
	}
	if err := l.client.Get(t.Context(), clientKey(l, "lock-tfstate-default-gone"), &coordinationv1.Lease{}); err == nil {
		t.Error("the Lease of the state's lock is still there")
	}
}

func TestDestroyingWhatNeverWasRunsNothing(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	object := l.object("never", "this is not HCL")
	if result := l.destroy(object); result.GetOutcome() != runnerpb.Outcome_OUTCOME_SUCCEEDED {
		t.Errorf("destroy = %v", result)
	}
	l.wantProcesses()
}
