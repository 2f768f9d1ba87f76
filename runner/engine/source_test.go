package engine_test

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
			if object.Spec.Backend != nil && object.Spec.Backend.Custom != "" {
				return
			}
			// A new beginning is possible if it is asked for: planned, planned once more, applied.
			plan := l.plan(object, &runnerpb.PlanOptions{Force: true, Save: true})
			if again := l.plan(object, &runnerpb.PlanOptions{Save: true}); again.GetId() != plan.GetId() {
				t.Errorf("plan = %v, want the forced plan again", again)
			}
			if applied := l.apply(object, plan.GetId()); applied.GetAdded() != 1 {
				t.Errorf("apply = %v, want a new beginning", applied)
			}
		})
	}
}

func TestAStateMovedThroughBackendSettingsIsNoticed(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	settings := l.secret("backend", map[string]string{"path": l.dir + "/one.tfstate"})
	object := l.object("moved", greeting)
	object.Spec.Backend = &infrav1.Backend{
		Custom:     `backend "local" {}`,
		ConfigFrom: []infrav1.BackendConfigFrom{{Kind: infrav1.SecretKind, Name: "backend"}},
	}
	l.settle(object)
	settings.Data = map[string][]byte{"path": []byte(l.dir + "/two.tfstate")}
	if err := l.client.Update(t.Context(), settings); err != nil {
		t.Fatal(err)
	}
	result, _ := l.run(l.planRequest(object, &runnerpb.PlanOptions{}))
	if f := result.GetFailure(); f.GetReason() != infrav1.BackendChangedReason {
		t.Errorf("result = %v, want the change refused", result)
	}
}

func TestOutputsOfAnotherObjectAreInputs(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	c, err := client.New(cluster.Config, client.Options{Scheme: scheme(t)})
	if err != nil {
		t.Fatal(err)
	}
	producer := &infrav1.Terraform{ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: "producer"}}
	producer.Spec.Interval.Duration = time.Hour
	producer.Spec.Inline = map[string]string{"main.tf": ""}
	producer.Spec.Outputs = []infrav1.OutputTarget{{Kind: infrav1.SecretKind, Name: "produced"}}
	if err := c.Create(t.Context(), producer); err != nil {
		t.Fatal(err)
	}
	producer.Status.Outputs = []infrav1.OutputStatus{
		{Name: "nodes", Type: "map(string)", Value: value(map[string]string{"a": "192.0.2.1"})},
		{Name: "token", Type: "string", Sensitive: true},
		{Name: "ports", Type: "list(number)", Sensitive: true},
	}
	if err := c.Status().Update(t.Context(), producer); err != nil {
		t.Fatal(err)
	}
	l.secret("produced", map[string]string{"token": "123", "ports": "[80,443]"})
	object := l.object("consumer", `
variable "nodes" { type = map(string) }
variable "token" { type = string }
variable "ports" { type = list(number) }
output "all" { value = "${var.nodes["a"]} ${var.token} ${var.ports[1]}" }`)
	for _, name := range []string{"nodes", "token", "ports"} {
		object.Spec.Variables = append(object.Spec.Variables, infrav1.Variable{Name: name, ValueFrom: &infrav1.VariableSource{
			TerraformOutput: &infrav1.TerraformOutputReference{Name: "producer", Output: name},
		}})
	}
	object.Spec.PublishOutputs = []string{"all"}
	if plan := l.plan(object, &runnerpb.PlanOptions{}); plan.GetPlannedOutputs()["all"] != `"192.0.2.1 123 443"` {
		t.Errorf("planned outputs = %v", plan.GetPlannedOutputs())
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

func scheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	if err := infrav1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	return s
}
