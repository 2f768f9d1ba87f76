package engine_test

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

func clientKey(l *lab, name string) client.ObjectKey {
	return client.ObjectKey{Namespace: l.namespace, Name: name}
}

func inNamespace(l *lab) client.ListOption { return client.InNamespace(l.namespace) }

func (l *lab) write(path, text string) {
	l.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) readFile(path string) string {
	l.t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		l.t.Fatal(err)
	}
	return string(text)
}

// noise is text that does not compress.
func noise(t *testing.T, size int) string {
	t.Helper()
	b := make([]byte, size)
	if _, err := rand.Read(b); err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(b)
}

// hold takes the state lock as the kubernetes backend does.
func (l *lab) hold(object *infrav1.Terraform, who string, created time.Time) string {
	l.t.Helper()
	lease := &coordinationv1.Lease{}
	if err := l.client.Get(l.t.Context(), clientKey(l, "lock-tfstate-default-"+object.Name), lease); err != nil {
		l.t.Fatal(err)
	}
	id := "11111111-2222-3333-4444-555555555555"
	info, err := json.Marshal(map[string]any{"ID": id, "Operation": "OperationTypeApply", "Who": who, "Version": "1.12.6", "Created": created.UTC()})
	if err != nil {
		l.t.Fatal(err)
	}
	lease.Spec.HolderIdentity = &id
	lease.Annotations = map[string]string{"app.terraform.io/lock-info": string(info)}
	if err := l.client.Update(l.t.Context(), lease); err != nil {
		l.t.Fatal(err)
	}
	return id
}

// interrupt leaves the journal of an operation that was killed.
func (l *lab) interrupt(object *infrav1.Terraform, runner string, started time.Time) {
	l.t.Helper()
	text, err := json.Marshal(map[string]any{"id": "killed", "hostname": hostname(l.t), "startedAt": started})
	if err != nil {
		l.t.Fatal(err)
	}
	l.write(filepath.Join(runner, "objects", string(object.UID), "operation.json"), string(text))
}

func TestAnOperationThatWasBegunIsNotBegunAgain(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	object := l.object("begun", greeting)
	l.settle(object)
	runner := filepath.Join(l.dir, "runner")
	l.interrupt(object, runner, time.Now().Add(-time.Minute))
	l.restart(runner)
	request := l.planRequest(object, &runnerpb.PlanOptions{})
	request.Id = "killed"
	result, _ := l.run(request)
	if result.GetFailure().GetKind() != runnerpb.Failure_KIND_LOST {
		t.Errorf("result = %v, want a lost operation", result)
	}
	l.wantProcesses()
	if result, _ := l.run(l.planRequest(object, &runnerpb.PlanOptions{})); result.GetPlan() == nil {
		t.Errorf("result = %v, want the next operation to plan", result)
	}
}

func TestOnlyOurOwnStaleLockIsReleased(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		who      func(host string) string
		age      time.Duration // of the lock; the killed operation started a minute ago
		spec     func(*infrav1.Terraform, string)
		killed   bool
		released bool
	}{
		"a killed operation of ours": {killed: true, age: 30 * time.Second, released: true},
		"the object says Never": {killed: true, age: 30 * time.Second, spec: func(o *infrav1.Terraform, _ string) {
			o.Spec.StateLock.ForceUnlock = infrav1.ForceUnlockNever
		}},
		"somebody else's": {killed: true, age: 30 * time.Second, who: func(string) string { return "alice@laptop" }},
		"taken on this machine before our operation began": {killed: true, age: time.Hour},
		"taken on this machine while nothing was killed":   {age: 30 * time.Second},
		"somebody else's that the object names": {
			who: func(string) string { return "alice@laptop" }, age: time.Hour, released: true,
			spec: func(o *infrav1.Terraform, id string) { o.Spec.StateLock.ID = id },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			object := l.object("locked", greeting)
			l.settle(object)
			who := "root@" + hostname(t)
			if test.who != nil {
				who = test.who(hostname(t))
			}
			id := l.hold(object, who, time.Now().Add(-test.age))
			if test.spec != nil {
				test.spec(object, id)
			}
			runner := filepath.Join(l.dir, "runner")
			if test.killed {
				l.interrupt(object, runner, time.Now().Add(-time.Minute))
			}
			l.restart(runner)
			result, _ := l.run(l.planRequest(object, &runnerpb.PlanOptions{}))
			if test.released {
				if result.GetPlan() == nil {
					t.Fatalf("result = %v, want the lock released", result)
				}
				l.wantProcesses("plan", "force-unlock", "plan")
				if len(result.GetWarnings()) != 1 || !strings.Contains(result.GetWarnings()[0], id) {
					t.Errorf("warnings = %q, want the released lock named", result.GetWarnings())
				}
				return
			}
			f := result.GetFailure()
			if f.GetKind() != runnerpb.Failure_KIND_LOCKED || f.GetLock().GetId() != id || f.GetLock().GetWho() != who {
				t.Errorf("failure = %v, want the lock of %s reported", f, who)
			}
			if age := time.Since(time.Unix(f.GetLock().GetCreatedUnix(), 0)); (age - test.age).Abs() > time.Minute {
				t.Errorf("age of the lock = %v, want %v", age, test.age)
			}
			l.wantProcesses("plan")
		})
	}
}

// stateServer is an http backend whose writes can be made to fail.
type stateServer struct {
	mu     sync.Mutex
	state  []byte
	broken bool
}

func (s *stateServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case r.Method == http.MethodGet && s.state == nil:
		w.WriteHeader(http.StatusNotFound)
	case r.Method == http.MethodGet:
		_, _ = w.Write(s.state)
	case s.broken:
		w.WriteHeader(http.StatusForbidden)
	default:
		s.state, _ = io.ReadAll(r.Body)
	}
}

func (s *stateServer) breakWrites(broken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = broken
}

func TestAStateThatCouldNotBeStoredIsPushedFirst(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	backend := &stateServer{}
	server := httptest.NewServer(backend)
	t.Cleanup(server.Close)
	object := l.object("errored", `resource "terraform_data" "a" {}`)
	object.Spec.Backend = &infrav1.Backend{Custom: `backend "http" { address = "` + server.URL + `" }`}
	plan := l.plan(object, &runnerpb.PlanOptions{})
	backend.breakWrites(true)
	result, report := l.run(l.applyRequest(object, plan.GetId()))
	if f := result.GetFailure(); f.GetReason() != infrav1.ApplyFailedReason || !strings.Contains(f.GetMessage(), "Failed to save state") {
		t.Fatalf("apply = %v, want it to fail on its state\n%s", result, report)
	}
	backend.breakWrites(false)
	l.restart(l.dir + "/another") // so the state has to be in the record
	l.processes()
	again, _ := l.run(l.planRequest(object, &runnerpb.PlanOptions{}))
	if again.GetPlan() == nil || again.GetPlan().GetChanges() {
		t.Errorf("plan = %v, want nothing to do: the state was recovered", again)
	}
	l.wantProcesses("init", "state", "plan", "output")
	l.plan(object, &runnerpb.PlanOptions{})
	l.wantProcesses("plan")
}

// toolPID waits for the process id of the object's running tool.
func (l *lab) toolPID(object *infrav1.Terraform) int {
	l.t.Helper()
	pattern := filepath.Join(l.dir, "runner", "objects", string(object.UID), "work", "*", "data", "pid")
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		found, err := filepath.Glob(pattern)
		if err != nil {
			l.t.Fatal(err)
		}
		for _, name := range found {
			if pid, err := strconv.Atoi(strings.TrimSpace(l.readFile(name))); err == nil {
				return pid
			}
		}
	}
	l.t.Fatal("no tool runs")
	return 0
}

func TestAKilledToolsLockIsReleasedByTheNextOperation(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	object := l.object("oom", `
resource "terraform_data" "slow" {
  provisioner "local-exec" { command = "[ -e '`+l.dir+`/again' ] || sleep 300" }
}`)
	plan := l.plan(object, &runnerpb.PlanOptions{})
	report := &transcript{}
	report.onLine = func(line string) {
		if strings.Contains(line, "Executing") {
			_ = syscall.Kill(l.toolPID(object), syscall.SIGKILL) // as the kernel does when memory runs out
			l.starved.Add(1)
		}
	}
	result, _ := l.runContext(t.Context(), l.applyRequest(object, plan.GetId()), report)
	if result.GetFailure().GetReason() != infrav1.ApplyFailedReason {
		t.Fatalf("result = %v, want a failed apply", result)
	}
	if message := result.GetFailure().GetMessage(); !strings.Contains(message, "memory limit was reached") {
		t.Errorf("the message does not say that memory ran out: %s", message)
	}
	l.write(l.dir+"/again", "")
	again, _ := l.run(l.planRequest(object, &runnerpb.PlanOptions{}))
	if again.GetPlan() == nil || len(again.GetWarnings()) != 1 {
		t.Fatalf("result = %v, want a plan after releasing the lock", again)
	}
	if applied := l.apply(object, again.GetPlan().GetId()); applied.GetResourceCount() != 1 {
		t.Errorf("apply = %v", applied)
	}
	object.Spec.Inline["main.tf"] = `data "terraform_remote_state" "none" {
  backend = "local"
}`
	again, _ = l.run(l.planRequest(object, &runnerpb.PlanOptions{}))
	if message := again.GetFailure().GetMessage(); message == "" || strings.Contains(message, "memory") {
		t.Errorf("what failed with memory enough says %q", message)
	}
}

func TestAToolThatIgnoresTheInterruptIsKilledWithItsChildren(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	// The child holds the tool's stdout, so that nothing but its end closes it.
	tool := filepath.Join(l.dir, "stubborn")
	script := strings.Join([]string{
		"#!/bin/sh",
		`case "$1" in version) echo '{"terraform_version":"1.12.6"}'; exit;; esac`,
		"trap '' INT",
		"sleep 300 &",
		`cd "` + l.dir + `" && echo "$!" >child.new && mv child.new child`,
		"wait; wait",
	}, "\n")
	if err := os.WriteFile(tool, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	l.restartWith(filepath.Join(l.dir, "runner"), tool, 200*time.Millisecond)
	object := l.object("stubborn", greeting)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for ctx.Err() == nil {
			if _, err := os.Stat(l.dir + "/child"); err == nil {
				cancel()
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	began := time.Now()
	result, _ := l.runContext(ctx, l.planRequest(object, &runnerpb.PlanOptions{}), &transcript{})
	if result.GetOutcome() != runnerpb.Outcome_OUTCOME_CANCELLED {
		t.Errorf("result = %v, want it cancelled", result)
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("the cancellation took %v: it waited for the grandchild", took)
	}
	child, err := strconv.Atoi(strings.TrimSpace(l.readFile(l.dir + "/child")))
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); syscall.Kill(child, 0) == nil && !isZombie(child); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the grandchild still runs")
		}
	}
}

// isZombie says whether a process ended and nobody collected it: in a container nobody may.
func isZombie(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || strings.Contains(string(stat), ") Z ")
}

func TestCancellingAtAnyTimeNeverPanicsAndLeavesNoProcess(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	object := l.object("racy", greeting)
	l.settle(object)
	for i := range 40 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*4*time.Millisecond)
		result, _ := l.runContext(ctx, l.planRequest(object, &runnerpb.PlanOptions{}), &transcript{})
		cancel()
		if o := result.GetOutcome(); o != runnerpb.Outcome_OUTCOME_SUCCEEDED && o != runnerpb.Outcome_OUTCOME_CANCELLED {
			t.Errorf("cancelled after %d ms: %v", i*4, result)
		}
	}
	if plan := l.plan(object, &runnerpb.PlanOptions{}); plan.GetChanges() {
		t.Errorf("plan = %v, want no changes", plan)
	}
}

func TestALockIsReleasedByItsIDOnRequest(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	object := l.object("unlock", greeting)
	l.settle(object)
	id := l.hold(object, "alice@laptop", time.Now().Add(-time.Hour))
	l.restart(filepath.Join(l.dir, "another")) // without a workspace
	for _, test := range []struct {
		id   string
		want runnerpb.Outcome
		held string // the lock that is reported
	}{
		{id: "00000000-0000-0000-0000-000000000000", want: runnerpb.Outcome_OUTCOME_FAILED, held: id},
		{id: id, want: runnerpb.Outcome_OUTCOME_SUCCEEDED},
		{id: id, want: runnerpb.Outcome_OUTCOME_SUCCEEDED}, // it is free already
	} {
		request := l.request(object)
		request.Type = runnerpb.OperationType_OPERATION_TYPE_FORCE_UNLOCK
		request.Options = &runnerpb.StartOperationRequest_ForceUnlock{ForceUnlock: &runnerpb.ForceUnlockOptions{LockId: test.id}}
		if result, _ := l.run(request); result.GetOutcome() != test.want || result.GetFailure().GetLock().GetId() != test.held {
			t.Errorf("unlocking %s = %v, want %v", test.id, result, test.want)
		}
	}
	if result, _ := l.run(l.planRequest(object, &runnerpb.PlanOptions{})); result.GetPlan() == nil {
		t.Errorf("result = %v, want the state unlocked", result)
	}
}

func TestASavedPlanIsShownAndAnObjectForgotten(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	object := l.object("shown", greeting)
	show := l.request(object)
	show.Type = runnerpb.OperationType_OPERATION_TYPE_SHOW_PLAN
	if result, _ := l.run(show); result.GetFailure().GetKind() != runnerpb.Failure_KIND_STALE_PLAN {
		t.Errorf("result = %v, want that there is no plan", result)
	}
	plan := l.plan(object, &runnerpb.PlanOptions{Save: true})
	result, _ := l.run(show)
	if shown := result.GetShown(); shown.GetId() != plan.GetId() || !strings.Contains(shown.GetText(), "will be created") || !json.Valid([]byte(shown.GetJson())) {
		t.Errorf("shown = %v, want the saved plan", shown)
	}
	forget := l.request(object)
	forget.Type = runnerpb.OperationType_OPERATION_TYPE_FORGET
	if result, _ := l.run(forget); result.GetOutcome() != runnerpb.Outcome_OUTCOME_SUCCEEDED {
		t.Errorf("forget = %v", result)
	}
	if _, err := os.Stat(filepath.Join(l.dir, "runner", "objects", string(object.UID))); err == nil {
		t.Error("the runner still keeps files of the object")
	}
}
