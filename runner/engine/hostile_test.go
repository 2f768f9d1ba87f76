package engine_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/runner/engine"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// editRecord changes a record as somebody who may write Secrets could.
func (l *lab) editRecord(object string, edit func(map[string]any)) {
	l.t.Helper()
	head := l.getSecret(engine.RecordName(object))
	zr, err := gzip.NewReader(bytes.NewReader(head.Data["record"]))
	if err != nil {
		l.t.Fatal(err)
	}
	content, err := io.ReadAll(zr)
	if err != nil {
		l.t.Fatal(err)
	}
	record := map[string]any{}
	if err := json.Unmarshal(content, &record); err != nil {
		l.t.Fatal(err)
	}
	edit(record)
	if content, err = json.Marshal(record); err != nil {
		l.t.Fatal(err)
	}
	var b bytes.Buffer
	zw := gzip.NewWriter(&b)
	if _, err := zw.Write(content); err != nil {
		l.t.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		l.t.Fatal(err)
	}
	sum := sha256.Sum256(b.Bytes())
	head.Data["record"] = b.Bytes()
	head.Annotations["infra.terrace.dev/digest"] = hex.EncodeToString(sum[:])
	if err := l.client.Update(l.t.Context(), head); err != nil {
		l.t.Fatal(err)
	}
}

func planOf(t *testing.T, record map[string]any) map[string]any {
	t.Helper()
	plan, ok := record["plan"].(map[string]any)
	if !ok {
		t.Fatal("the record holds no plan")
	}
	return plan
}

func TestASwappedPlanIsNotApplied(t *testing.T) {
	t.Parallel()
	for name, swap := range map[string]func(plan, evil map[string]any){
		"its file":      func(plan, evil map[string]any) { plan["file"] = evil["file"] },
		"its workspace": func(plan, _ map[string]any) { plan["workspace"] = "../../other/0123" },
		"its variables": func(plan, _ map[string]any) { plan["variables"] = base64.StdEncoding.EncodeToString([]byte(`{"x":1}`)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			object := l.object("swapped", `resource "terraform_data" "evil" {}`)
			l.plan(object, &runnerpb.PlanOptions{Save: true})
			var evil map[string]any
			l.editRecord("swapped", func(r map[string]any) { evil = planOf(t, r) })
			object.Spec.Inline["main.tf"] = `resource "terraform_data" "good" {}`
			good := l.plan(object, &runnerpb.PlanOptions{Save: true})
			l.editRecord("swapped", func(r map[string]any) { swap(planOf(t, r), evil) })
			l.restart(l.dir + "/another")
			l.processes()
			request := l.applyRequest(object, good.GetId())
			request.GetApply().PlanDigest = good.GetDigest()
			result, _ := l.run(request)
			if result.GetFailure().GetKind() != runnerpb.Failure_KIND_STALE_PLAN {
				t.Errorf("result = %v, want the plan refused", result)
			}
			l.wantProcesses()
		})
	}
}

func TestThePlanIDCoversWhatThePlanDoesNotShow(t *testing.T) {
	t.Parallel()
	aliased := func(alias string) string {
		return `
terraform {
  required_providers {
    testing = { source = "terrace-dev/testing" }
  }
}
provider "testing" { alias = "dev" }
provider "testing" { alias = "prod" }
resource "testing_file" "f" {
  provider = testing.` + alias + `
  path     = "/nonexistent/terrace/f"
  content  = "x"
}`
	}
	unknown := func(from string) string {
		return `
resource "terraform_data" "a" {}
resource "terraform_data" "b" {}
output "nodes" { value = terraform_data.` + from + `.id }`
	}
	atTheEnd := func(command string) string {
		return `
resource "terraform_data" "a" {
  provisioner "local-exec" {
    when    = destroy
    command = "` + command + `"
  }
}`
	}
	for name, test := range map[string]struct {
		one, two string
		destroy  bool
	}{
		"another provider configuration": {one: aliased("dev"), two: aliased("prod")},
		"another unknown output":         {one: unknown("a"), two: unknown("b")},
		"another provisioner at the end": {one: atTheEnd("true"), two: atTheEnd("exit 0"), destroy: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			object := l.object("ids", test.one)
			if test.destroy {
				l.settle(object)
			}
			one := l.plan(object, &runnerpb.PlanOptions{Destroy: test.destroy})
			object.Spec.Inline["main.tf"] = test.two
			two := l.plan(object, &runnerpb.PlanOptions{Destroy: test.destroy})
			if one.GetId() == two.GetId() || one.GetId() == "" {
				t.Errorf("both plans have the id %q", one.GetId())
			}
		})
	}
}

func TestAChangeThatWasTakenBackIsNotPending(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	object := l.object("revert", greeting)
	l.settle(object)
	object.Spec.Inline["main.tf"] = strings.Replace(greeting, "hello", "bad", 1)
	bad := l.plan(object, &runnerpb.PlanOptions{IfChanged: true})
	if skipped := l.plan(object, &runnerpb.PlanOptions{IfChanged: true}); skipped.GetId() != bad.GetId() {
		t.Errorf("plan = %v, want the pending one, skipped or not", skipped)
	}
	object.Spec.Inline["main.tf"] = greeting
	if good := l.plan(object, &runnerpb.PlanOptions{IfChanged: true}); good.GetSkipped() || good.GetChanges() {
		t.Errorf("plan = %v, want it made anew: another one was pending", good)
	}
	if result, _ := l.run(l.applyRequest(object, bad.GetId())); result.GetFailure().GetKind() != runnerpb.Failure_KIND_STALE_PLAN {
		t.Errorf("result = %v, want the plan of the reverted change gone", result)
	}
}

func TestNothingIsCalledDestroyedThatIsNot(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	object := l.object("missing", greeting)
	object.Spec.DeletionPolicy = infrav1.DeletionDestroy
	l.settle(object)
	state := l.getSecret("tfstate-default-missing")
	state.Finalizers = nil // somebody insists
	if err := errors.Join(l.client.Update(t.Context(), state), l.client.Delete(t.Context(), state)); err != nil {
		t.Fatal(err)
	}
	result := l.destroy(object)
	if f := result.GetFailure(); f.GetReason() != infrav1.StateMissingReason || !strings.Contains(f.GetMessage(), "tfstate-default-missing") {
		t.Errorf("destroy = %v, want the missing state named", result)
	}
}

func TestAModuleCannotMoveTheState(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	object := l.object("override", greeting)
	object.Spec.Inline["zz_override.tf"] = `terraform {
  backend "local" { path = "` + l.dir + `/own.tfstate" }
}`
	result, _ := l.run(l.planRequest(object, &runnerpb.PlanOptions{}))
	if f := result.GetFailure(); f.GetReason() != infrav1.BackendInvalidReason {
		t.Errorf("result = %v, want the override refused", result)
	}
}

func TestOutputsNeverOverwriteStatesAndRecords(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	object := l.object("onto", greeting)
	object.Spec.Outputs = []infrav1.OutputTarget{{Kind: infrav1.SecretKind, Name: "tfstate-default-onto"}}
	plan := l.plan(object, &runnerpb.PlanOptions{})
	result, _ := l.run(l.applyRequest(object, plan.GetId()))
	if f := result.GetFailure(); f.GetReason() != infrav1.OutputConflictReason {
		t.Errorf("result = %v, want the name refused", result)
	}
	if len(l.getSecret("tfstate-default-onto").Data["tfstate"]) == 0 {
		t.Error("the state is gone")
	}
}

func TestValuesOfSecretsAreHiddenInEveryForm(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	const password = "p4ss w/rd&\"x\""
	l.secret("creds", map[string]string{
		"database": "postgres", "url": "postgres://user:" + password + "@host/db",
		"password": password, "json": `{"deep":["hidden-deep-value"]}`, "key": "-----BEGIN KEY-----\nMIIEvQIBADANBg\n-----END KEY-----\n",
	})
	object := l.object("hide", `
variable "url" {}
variable "password" {}
variable "json" {}
variable "key" {}
resource "terraform_data" "a" {
  for_each = toset([var.password])
  provisioner "local-exec" {
    command = "cat \"$FILE\" >&2; exit 1"
    environment = { FILE = "`+l.dir+`/words" }
  }
}
output "published" { value = "at ${var.url}" }
`)
	object.Spec.VariablesFrom = []infrav1.VariablesFrom{{Kind: infrav1.SecretKind, Name: "creds"}}
	object.Spec.PublishOutputs = []string{"published"}
	quoted, err := json.Marshal(password)
	if err != nil {
		t.Fatal(err)
	}
	words := "postgres://user:" + password + "@host/db " + string(quoted) + " hidden-deep-value " +
		base64.StdEncoding.EncodeToString([]byte(password)) + " MIIEvQIBADANBg " + strings.Repeat("x", 640) + password
	l.write(l.dir+"/words", words)
	planned, planReport := l.run(l.planRequest(object, &runnerpb.PlanOptions{Save: true}))
	applied, applyReport := l.run(l.applyRequest(object, planned.GetPlan().GetId()))
	if applied.GetFailure().GetReason() != infrav1.ApplyFailedReason {
		t.Fatalf("result = %v, want a failed apply", applied)
	}
	saved, err := engine.LoadPlan(t.Context(), cluster.Config, l.namespace, "hide")
	if err == nil && saved != nil {
		planReport.add(saved.Text + string(saved.Changes))
	}
	shown := fmt.Sprint(planned, applied, planReport, applyReport)
	for _, secret := range []string{"p4ss", "w/rd", "hidden-deep-value", "MIIEvQIBADANBg", base64.StdEncoding.EncodeToString([]byte(password))} {
		if i := strings.Index(shown, secret); i >= 0 {
			t.Errorf("%q shows in ...%s...", secret, shown[max(0, i-80):min(len(shown), i+80)])
		}
	}
}

func TestAModuleCannotMisleadTheEngineAboutProcesses(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	victim := exec.CommandContext(t.Context(), "sleep", "300")
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- victim.Wait() }()
	object := l.object("pid", fmt.Sprintf(`
resource "terraform_data" "a" {
  provisioner "local-exec" { command = "echo %d >$TF_DATA_DIR/pid; touch '%s/now'; sleep 300" }
}`, victim.Process.Pid, l.dir))
	plan := l.plan(object, &runnerpb.PlanOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for ctx.Err() == nil {
			if _, err := os.Stat(filepath.Join(l.dir, "now")); err == nil {
				cancel()
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	if result, _ := l.runContext(ctx, l.applyRequest(object, plan.GetId()), &transcript{}); result.GetOutcome() != runnerpb.Outcome_OUTCOME_CANCELLED {
		t.Errorf("result = %v, want it cancelled", result)
	}
	select {
	case err := <-ended:
		t.Errorf("another process was ended: %v", err)
	default:
		_ = victim.Process.Kill()
	}
}

func TestAProcessThatHoldsTheToolsOutputDoesNotHoldTheOperation(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	object := l.object("daemon", `
resource "terraform_data" "a" {
  provisioner "local-exec" {
    command = "setsid sleep 300 </dev/null >/proc/$PPID/fd/1 2>/dev/null & sleep 1"
  }
}`)
	plan := l.plan(object, &runnerpb.PlanOptions{})
	began := time.Now()
	result, _ := l.run(l.applyRequest(object, plan.GetId()))
	if result.GetApply().GetAdded() != 1 || time.Since(began) > time.Minute {
		t.Errorf("after %v: result = %v, want the apply to end with the tool", time.Since(began), result)
	}
}

func TestWhatAModuleWritesIntoTheToolsOutputDoesNoHarm(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	object := l.object("forged", `
resource "terraform_data" "a" {
  provisioner "local-exec" {
    command = "echo '{\"type\":\"apply_start\"}' >/proc/$PPID/fd/1; echo '{\"type\":\"apply_complete\"}' >/proc/$PPID/fd/1; echo '[' >/proc/$PPID/fd/1"
  }
}`)
	plan := l.plan(object, &runnerpb.PlanOptions{})
	if applied := l.apply(object, plan.GetId()); applied.GetAdded() != 1 {
		t.Errorf("apply = %v", applied)
	}
}

func TestOneDirectoryServesOneProcessPerObject(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	object := l.object("twice", `
resource "terraform_data" "slow" {
  provisioner "local-exec" { command = "touch '`+l.dir+`/now'; sleep 300" }
}`)
	plan := l.plan(object, &runnerpb.PlanOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	first := l.engine
	done := make(chan struct{})
	go func() {
		defer close(done)
		first.Run(ctx, l.applyRequest(object, plan.GetId()), &transcript{})
	}()
	for {
		if _, err := os.Stat(filepath.Join(l.dir, "now")); err == nil {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	l.restart(filepath.Join(l.dir, "runner")) // a second process with the same directory
	l.processes()
	result, _ := l.run(l.planRequest(object, &runnerpb.PlanOptions{}))
	if f := result.GetFailure(); f.GetKind() != runnerpb.Failure_KIND_RETRY || !strings.Contains(f.GetMessage(), "another process") {
		t.Errorf("result = %v, want the running operation left alone", result)
	}
	l.wantProcesses()
	cancel()
	<-done
}

func TestAStateThatAToolLeftBehindIsFound(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	object := l.object("left", greeting)
	l.settle(object)
	var state map[string]any
	zr, err := gzip.NewReader(bytes.NewReader(l.getSecret("tfstate-default-left").Data["tfstate"]))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.NewDecoder(zr).Decode(&state); err != nil {
		t.Fatal(err)
	}
	serial, ok := state["serial"].(float64)
	if !ok {
		t.Fatal("the state has no serial")
	}
	for name, test := range map[string]struct {
		serial float64
		want   string
	}{
		"a newer one is stored":   {serial: serial + 1, want: "stored the state"},
		"an older one is dropped": {serial: serial - 1, want: "was dropped"},
	} {
		state["serial"] = test.serial
		text, err := json.Marshal(state)
		if err != nil {
			t.Fatal(err)
		}
		trees, err := filepath.Glob(filepath.Join(l.dir, "runner", "objects", string(object.UID), "work", "*", "tree"))
		if err != nil || len(trees) != 1 {
			t.Fatal(trees, err)
		}
		l.write(filepath.Join(trees[0], "errored.tfstate"), string(text))
		result, _ := l.run(l.planRequest(object, &runnerpb.PlanOptions{}))
		if warnings := strings.Join(result.GetWarnings(), "\n"); !strings.Contains(warnings, test.want) || result.GetPlan() == nil {
			t.Errorf("%s: result = %v", name, result)
		}
		if _, err := os.Stat(filepath.Join(trees[0], "errored.tfstate")); err == nil {
			t.Errorf("%s: the file is still there", name)
		}
	}
}
