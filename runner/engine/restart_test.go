package engine_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/runner/engine"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// jobVariable names the file with what this program is to do as another process.
const jobVariable = "TERRACE_ENGINE_JOB"

// job is one operation for a process that is going to be killed.
type job struct {
	Directory, Tool, CLIConfig, Server, Home string
	Request                                  json.RawMessage
}

func runJob(path string) int {
	if err := job.run(job{}, path); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (j job) run(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	request := &runnerpb.StartOperationRequest{}
	if err := json.Unmarshal(text, &j); err != nil {
		return err
	}
	if err := protojson.Unmarshal(j.Request, request); err != nil {
		return err
	}
	e, err := engine.New(context.Background(), engine.Options{
		Directory: j.Directory, Tools: map[string]string{"OpenTofu": j.Tool}, CLIConfig: j.CLIConfig,
		Config: func(context.Context, string, string) (*rest.Config, error) { return &rest.Config{Host: j.Server}, nil },
		Env:    map[string]string{"PATH": os.Getenv("PATH"), "HOME": j.Home},
	})
	if err != nil {
		return err
	}
	return fmt.Errorf("it ended unharmed: %v", e.Run(context.Background(), request, &transcript{}))
}

// moment is a request to the API server at which a process is killed.
type moment struct {
	method, path, body string // parts of it; "" is any
	before             bool   // it never reaches the server
}

func (m moment) is(r *http.Request, body []byte) bool {
	return strings.Contains(m.method, r.Method) && strings.Contains(r.URL.Path, m.path) && bytes.Contains(body, []byte(m.body))
}

// watchpoint is a proxy of the API server that holds the request of the moment.
func watchpoint(t *testing.T, m moment) (server string, reached <-chan struct{}) {
	t.Helper()
	target, err := url.Parse(cluster.Config.Host)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	if proxy.Transport, err = rest.TransportFor(cluster.Config); err != nil {
		t.Fatal(err)
	}
	arrived := make(chan struct{})
	var once sync.Once
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		if m.method == "" || !m.is(r, body) {
			proxy.ServeHTTP(w, r)
			return
		}
		if !m.before {
			proxy.ServeHTTP(httptest.NewRecorder(), r)
		}
		once.Do(func() { close(arrived) })
		<-r.Context().Done() // nobody is answered any more
	}))
	t.Cleanup(s.Close)
	return s.URL, arrived
}

// killAt runs the operation in a process of its own and kills that at the moment,
// or when the flag appears.
func (l *lab) killAt(request *runnerpb.StartOperationRequest, m moment, flag string) {
	l.t.Helper()
	server, reached := watchpoint(l.t, m)
	text, err := protojson.Marshal(request)
	if err != nil {
		l.t.Fatal(err)
	}
	if text, err = json.Marshal(job{
		Directory: filepath.Join(l.dir, "runner"), Tool: binary(l.t, "tofu"), CLIConfig: binary(l.t, "providers/cli.tfrc"),
		Server: server, Home: l.dir, Request: text,
	}); err != nil {
		l.t.Fatal(err)
	}
	l.write(l.dir+"/job", string(text))
	cmd := exec.CommandContext(l.t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), jobVariable+"="+l.dir+"/job")
	var output bytes.Buffer
	cmd.Stderr = &output
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	deadline, tick := time.After(2*time.Minute), time.NewTicker(10*time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-reached:
		case <-tick.C:
			if _, err := os.Stat(flag); err != nil {
				continue
			}
		case <-ended:
			l.t.Fatalf("the process ended before its time: %s", &output)
		case <-deadline:
			l.t.Error("the moment never came")
		}
		break
	}
	if err := cmd.Process.Kill(); err != nil {
		l.t.Error(err)
	}
	<-ended
	_ = os.Remove(flag) // ends the provisioner
}

// lockHolder is the id of the lock that stands; "" for none.
func (l *lab) lockHolder(object *infrav1.Terraform) string {
	l.t.Helper()
	lease := &coordinationv1.Lease{}
	if err := l.client.Get(l.t.Context(), clientKey(l, "lock-tfstate-default-"+object.Name), lease); err != nil {
		l.t.Fatal(err)
	}
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// halting is a module with a resource that takes as long as the file "now" exists,
// which it makes once: when it is created, or when it is destroyed.
func halting(dir string, when string) string {
	return `
resource "terraform_data" "quick" {}
resource "terraform_data" "slow" {
  depends_on = [terraform_data.quick]
  provisioner "local-exec" {
    when    = ` + when + `
    command = "[ -e '` + dir + `/again' ] || { touch '` + dir + `/again' '` + dir + `/now'; while [ -e '` + dir + `/now' ]; do sleep 0.05; done; }"
  }
}`
}

var (
	inPlan       = moment{method: "POST PUT", path: "/leases", body: "OperationTypePlan"}
	inApply      = moment{method: "POST PUT", path: "/leases", body: "OperationTypeApply"}
	inInit       = moment{method: "POST PUT", path: "/leases", body: "init"}
	atStateWrite = moment{method: "PUT", path: "/secrets/tfstate-", before: true}
)

func (l *lab) destroyRequest(object *infrav1.Terraform) *runnerpb.StartOperationRequest {
	now := metav1.Now()
	object.DeletionTimestamp = &now
	request := l.request(object)
	request.Type = runnerpb.OperationType_OPERATION_TYPE_DESTROY
	return request
}

func TestAKilledRunnerFindsItsOwnLockAgain(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		operation string
		at        moment
		flag      bool // in the middle of a resource
	}{
		"in the init of a first plan":            {operation: "plan", at: inInit},
		"in a plan":                              {operation: "plan", at: inPlan},
		"in an apply before anything is changed": {operation: "apply", at: inApply},
		"in an apply, within a resource":         {operation: "apply", flag: true},
		"in an apply, at the write of the state": {operation: "apply", at: atStateWrite},
		"in the plan of a destruction":           {operation: "destroy", at: inPlan},
		"in a destruction, within a resource":    {operation: "destroy", flag: true},
		"in a destruction, at the state's write": {operation: "destroy", at: atStateWrite},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			flag := l.dir + "/now"
			object := l.object("killed", halting(l.dir, map[bool]string{true: "destroy", false: "create"}[test.operation == "destroy"]))
			object.Spec.DeletionPolicy = infrav1.DeletionDestroy
			if !test.flag {
				l.write(l.dir+"/again", "")
			}
			var request *runnerpb.StartOperationRequest
			switch test.operation {
			case "plan":
				request = l.planRequest(object, &runnerpb.PlanOptions{})
			case "apply":
				request = l.applyRequest(object, l.plan(object, &runnerpb.PlanOptions{}).GetId())
			case "destroy":
				l.settle(object)
				request = l.destroyRequest(object)
			}
			l.killAt(request, test.at, flag)
			id := l.lockHolder(object)
			if id == "" {
				t.Fatal("no lock was left behind")
			}

			l.restart(filepath.Join(l.dir, "runner")) // the container, not the pod
			if request = l.planRequest(object, &runnerpb.PlanOptions{}); test.operation == "destroy" {
				request = l.destroyRequest(object)
			}
			result, _ := l.run(request)
			if warnings := strings.Join(result.GetWarnings(), "\n"); result.GetOutcome() != runnerpb.Outcome_OUTCOME_SUCCEEDED || !strings.Contains(warnings, "released the state lock "+id) {
				t.Fatalf("result = %v, want its own lock %s released", result, id)
			}
			if test.operation == "destroy" {
				l.wantNoSecrets()
				return
			}
			if plan := result.GetPlan(); plan.GetChanges() {
				l.apply(object, plan.GetId())
			}
			if again := l.plan(object, &runnerpb.PlanOptions{}); again.GetChanges() {
				t.Errorf("plan = %v, want nothing left to do", again)
			}
		})
	}
}

func TestAReplacedRunnerReleasesOnlyTheLockItIsToldOf(t *testing.T) {
	t.Parallel()
	const other = "99999999-0000-0000-0000-000000000000"
	for name, test := range map[string]struct {
		stale    func(id string) string // what the manager says
		spec     infrav1.StateLock
		released bool
	}{
		"told nothing":                    {stale: func(string) string { return "" }},
		"told of another lock":            {stale: func(string) string { return other }},
		"told of this lock":               {stale: func(id string) string { return id }, released: true},
		"told, but the object says Never": {stale: func(id string) string { return id }, spec: infrav1.StateLock{ForceUnlock: infrav1.ForceUnlockNever}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			object := l.object("replaced", halting(l.dir, "create"))
			object.Spec.StateLock = test.spec
			plan := l.plan(object, &runnerpb.PlanOptions{})
			l.killAt(l.applyRequest(object, plan.GetId()), moment{}, l.dir+"/now")
			id := l.lockHolder(object)

			l.hostname = "terrace-runner-another"
			l.restart(filepath.Join(l.dir, "another"))
			request := l.planRequest(object, &runnerpb.PlanOptions{})
			request.StaleLock = test.stale(id)
			result, _ := l.run(request)
			if test.released {
				if result.GetPlan() == nil || len(result.GetWarnings()) != 1 || !strings.Contains(result.GetWarnings()[0], id) {
					t.Fatalf("result = %v, want the lock %s released", result, id)
				}
				l.apply(object, result.GetPlan().GetId())
				return
			}
			lock := result.GetFailure().GetLock()
			if result.GetFailure().GetKind() != runnerpb.Failure_KIND_LOCKED || lock.GetId() != id || lock.GetOperation() != "OperationTypeApply" ||
				!strings.HasSuffix(lock.GetWho(), "@"+hostname(t)) || time.Since(time.Unix(lock.GetCreatedUnix(), 0)).Abs() > 5*time.Minute {
				t.Errorf("failure = %v, want the whole lock %s", result.GetFailure(), id)
			}
			if l.lockHolder(object) != id {
				t.Error("the lock was released")
			}
		})
	}
}

func TestAStaleLockStaysKnownUntilItIsReleased(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	object := l.object("patient", greeting)
	l.settle(object)
	runner := filepath.Join(l.dir, "runner")
	l.hold(object, "root@"+hostname(t), time.Now().Add(-30*time.Second))
	l.interrupt(object, runner, time.Now().Add(-time.Minute))
	l.restart(runner)
	// Neither a module that cannot be read nor an init comes to the lock.
	object.Spec.Inline["main.tf"] = "this is not HCL"
	if result, _ := l.run(l.planRequest(object, &runnerpb.PlanOptions{})); result.GetFailure().GetReason() != infrav1.InitFailedReason {
		t.Fatalf("result = %v, want a failed init", result)
	}
	object.Spec.Inline["main.tf"] = greeting + "\n# mended\n"
	result, _ := l.run(l.planRequest(object, &runnerpb.PlanOptions{}))
	if result.GetPlan() == nil || len(result.GetWarnings()) != 1 {
		t.Errorf("result = %v, want the lock released", result)
	}
	l.wantProcesses("init", "validate", "init", "plan", "force-unlock", "plan")
}
