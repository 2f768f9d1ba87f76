package engine_test

import (
	"strings"
	"testing"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

func TestAMonorepoCommitThatDoesNotTouchTheModuleCostsNothing(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	object := l.object("mono", "")
	object.Spec.Inline, object.Spec.Path = nil, "apps/one"
	object.Spec.SourceRef = &infrav1.SourceReference{Kind: "GitRepository", Name: "repo"}
	files := map[string]string{
		"apps/one/main.tf":       "module \"shared\" { source = \"../../modules/shared\" }\n",
		"modules/shared/main.tf": "resource \"terraform_data\" \"a\" {}\n",
		"apps/two/main.tf":       "resource \"terraform_data\" \"two\" {}\n",
	}
	plan := func(revision string, options *runnerpb.PlanOptions) *runnerpb.PlanResult {
		t.Helper()
		request := l.planRequest(object, options)
		request.Source = l.upload(revision, files)
		result, _ := l.run(request)
		if result.GetPlan() == nil {
			t.Fatalf("plan failed: %v", result.GetFailure())
		}
		return result.GetPlan()
	}
	first := plan("main@sha1:1", &runnerpb.PlanOptions{})
	l.apply(object, first.GetId())
	l.processes()

	files["apps/two/main.tf"] += "# unrelated\n"
	if got := plan("main@sha1:2", &runnerpb.PlanOptions{IfChanged: true}); !got.GetSkipped() {
		t.Errorf("plan = %v, want it skipped", got)
	}
	l.wantProcesses()
	files["modules/shared/main.tf"] += "resource \"terraform_data\" \"b\" {}\n"
	if got := plan("main@sha1:3", &runnerpb.PlanOptions{IfChanged: true}); !got.GetChanges() || got.GetDrift() {
		t.Errorf("plan = %v, want the change of the local module", got)
	}
	l.wantProcesses("init", "plan", "show")
}

func TestAStateIsNotLeftBehindByAccident(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*infrav1.Terraform){
		"another Secret": func(o *infrav1.Terraform) {
			o.Spec.Backend = &infrav1.Backend{Kubernetes: &infrav1.KubernetesBackend{SecretSuffix: "elsewhere"}}
		},
		"another workspace": func(o *infrav1.Terraform) { o.Spec.Workspace = "blue" },
		"another backend": func(o *infrav1.Terraform) {
			o.Spec.Backend = &infrav1.Backend{Custom: `backend "local" { path = "/nonexistent/tfstate" }`}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			object := l.object("moved", greeting)
			l.settle(object)
			before := object.DeepCopy()
			change(object)
			result, _ := l.run(l.planRequest(object, &runnerpb.PlanOptions{}))
			if f := result.GetFailure(); f.GetReason() != infrav1.BackendChangedReason || !strings.Contains(f.GetMessage(), "tfstate-default-moved") {
				t.Errorf("result = %v, want the change refused", result)
			}
			if destroyed := l.destroy(object.DeepCopy()); destroyed.GetFailure().GetReason() != infrav1.BackendChangedReason {
				t.Errorf("destroy = %v, want it refused, since the resources would stay behind", destroyed)
			}
			if plan := l.plan(before, &runnerpb.PlanOptions{IfChanged: true}); !plan.GetSkipped() {
				t.Errorf("plan = %v, want nothing to do after the change was taken back", plan)
			}
			if name != "another workspace" {
				return
			}
			if plan := l.plan(object, &runnerpb.PlanOptions{Force: true}); plan.GetSummary().GetAdd() != 1 {
				t.Errorf("plan = %v, want a new beginning, since it was asked for", plan)
			}
		})
	}
}

func TestHostileArchivesAreRefused(t *testing.T) {
	t.Parallel()
	for name, files := range map[string]map[string]string{
		"a path that leaves the archive": {"main.tf": greeting, "../../evil": "x"},
		"an absolute path":               {"main.tf": greeting, "/tmp/evil": "x"},
		"a symbolic link":                {"main.tf": greeting, "link": "symlink:/etc/passwd"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			object := l.object("hostile", "")
			object.Spec.Inline = nil
			object.Spec.SourceRef = &infrav1.SourceReference{Kind: "Bucket", Name: "b"}
			request := l.planRequest(object, &runnerpb.PlanOptions{})
			request.Source = l.upload("1", files)
			result, _ := l.run(request)
			if f := result.GetFailure(); f.GetKind() != runnerpb.Failure_KIND_TERMINAL || !strings.Contains(f.GetMessage(), "cannot be extracted") {
				t.Errorf("result = %v, want the archive refused", result)
			}
			l.wantProcesses()
		})
	}
}
