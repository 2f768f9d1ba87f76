package integration_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/runner"
	"github.com/terrace-dev/terrace/runner/runnerpb"
	"github.com/terrace-dev/terrace/test/harness"
)

// asks makes a request as the manager does, about the object as edit changes it.
func (l *lab) asks(id string, kind runnerpb.OperationType, edit func(*infrav1.Terraform)) *runnerpb.StartOperationRequest {
	l.t.Helper()
	o := l.get()
	o.SetGroupVersionKind(infrav1.GroupVersion.WithKind(infrav1.TerraformKind))
	if edit != nil {
		edit(o)
	}
	text, err := json.Marshal(o)
	if err != nil {
		l.t.Fatal(err)
	}
	request := &runnerpb.StartOperationRequest{Id: id, Type: kind, Object: text}
	if kind == apply {
		request.Options = &runnerpb.StartOperationRequest_Apply{Apply: &runnerpb.ApplyOptions{PlanId: o.Status.Applied.PlanID}}
	}
	return request
}

const (
	plan  = runnerpb.OperationType_OPERATION_TYPE_PLAN
	apply = runnerpb.OperationType_OPERATION_TYPE_APPLY
)

// known finds the latest operation of that type that the runner remembers.
func (l *lab) known(c *runner.Client, kind runnerpb.OperationType) string {
	l.t.Helper()
	said, err := c.Handshake(l.ctx)
	if err != nil {
		l.t.Fatal(err)
	}
	id := ""
	for _, op := range said.GetOperations() {
		if op.GetType() == kind && op.GetObject().GetUid() == string(l.object.UID) {
			id = op.GetId()
		}
	}
	return id
}

func TestAnOperationThatIsReplayedDoesNothingTwice(t *testing.T) {
	t.Parallel()
	l, pod := warm(t)
	secret := authoritySecret(t, harness.ManagerNamespace)
	c := asManager(t, parseAuthority(t, secret.Data["ca.crt"], secret.Data["ca.key"]), pod)
	planned, applied := l.known(c, plan), l.known(c, apply)
	if planned == "" || applied == "" {
		t.Fatalf("the runner remembers %q and %q", planned, applied)
	}
	l.processes()
	for name, test := range map[string]struct {
		request *runnerpb.StartOperationRequest
		refusal string // of the request
		failure string // of the operation
	}{
		"the plan once more":     {request: l.asks(planned, plan, nil)},
		"the apply once more":    {request: l.asks(applied, apply, nil)},
		"the apply's id to plan": {request: l.asks(applied, plan, nil), refusal: "belongs to another operation"},
		"the plan's id to apply": {request: l.asks(planned, apply, nil), refusal: "belongs to another operation"},
		"the id for another object": {
			request: l.asks(applied, apply, func(o *infrav1.Terraform) { o.UID = "another" }), refusal: "belongs to another operation",
		},
		"the id for the object of that name elsewhere": {
			request: l.asks(applied, apply, func(o *infrav1.Terraform) { o.Namespace = "elsewhere" }), refusal: "works for namespace " + l.namespace + " only",
		},
		"a new id for an object elsewhere": {
			request: l.asks("new-1", plan, func(o *infrav1.Terraform) { o.Namespace = "elsewhere" }), refusal: "works for namespace " + l.namespace + " only",
		},
		"a new id with another account": {
			request: l.asks("new-2", plan, func(o *infrav1.Terraform) { o.Spec.Runner.ServiceAccountName = "default" }), failure: "not as default",
		},
		"a new id for the plan that was applied": {request: l.asks("new-3", apply, nil), failure: "plan"},
	} {
		_, err := c.Start(t.Context(), test.request)
		if test.refusal != "" {
			if !errors.Is(err, runner.ErrInvalid) || !strings.Contains(err.Error(), test.refusal) {
				t.Errorf("%s: error = %v, want a refusal that says %q", name, err, test.refusal)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		result, err := c.Watch(t.Context(), test.request.GetId(), 0, nil)
		if err != nil || !strings.Contains(result.GetFailure().GetMessage(), test.failure) || (result.GetFailure() != nil) != (test.failure != "") {
			t.Errorf("%s: result = %v, %v, want a failure that says %q", name, result, err, test.failure)
		}
	}
	if got := l.processes(); count(got, "plan")+count(got, "apply") > 0 {
		t.Errorf("the replays ran %q", got)
	}
	l.replayAfterRestart(c, pod.Name, applied)
	l.request()
	l.awaitReady()
}

// replayAfterRestart replays an apply when the runner does not remember it any more.
func (l *lab) replayAfterRestart(c *runner.Client, pod, applied string) {
	l.t.Helper()
	if err := suite.kubelet.Kill(l.namespace, pod); err != nil {
		l.t.Fatal(err)
	}
	if _, err := c.Connect(l.ctx); err != nil {
		l.t.Fatal(err)
	}
	if id := l.known(c, apply); id != "" {
		l.t.Fatalf("the runner still remembers %s", id)
	}
	if _, err := c.Start(l.ctx, l.asks(applied, apply, nil)); err != nil {
		l.t.Fatal(err)
	}
	result, err := c.Watch(l.ctx, applied, 0, nil)
	if err != nil || result.GetFailure() == nil {
		l.t.Errorf("after a restart: result = %v, %v, want a failure", result, err)
	}
	if got := l.processes(); count(got, "apply") > 0 {
		l.t.Errorf("the replay after a restart ran %q", got)
	}
}

func TestALockInTheNameOfAnotherTenantsRunnerIsNotReleased(t *testing.T) {
	t.Parallel()
	_, there := warm(t)
	other, gonePod := warm(t)
	other.deletePod(gonePod.Name)
	other.awaitPodGone(gonePod.Name)
	for name, who := range map[string]string{
		"of a runner that works":                "terrace@" + there.Name,
		"of a runner that is gone":              "terrace@" + gonePod.Name,
		"and with its namespace":                "terrace@" + gonePod.Name + "." + gonePod.Namespace,
		"and with a path that leads elsewhere":  "terrace@../" + gonePod.Namespace + "/" + gonePod.Name,
		"of a runner whose proof is not proved": "terrace@" + gonePod.Name[:len(gonePod.Name)-10] + "aaaaaaaaaa",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, _ := warm(t)
			l.processes()
			id := l.hold(who)
			for _, token := range []string{"once", "twice"} {
				l.annotate(meta.ReconcileRequestAnnotation, token)
				o := l.await("the lock to stand in the way", func(o *infrav1.Terraform) bool {
					return o.Status.LastHandledReconcileAt == token && readyReason(o) == infrav1.StateLockedReason
				})
				l.wantMessage(conditions.GetMessage(o, meta.ReadyCondition), id)
			}
			if got := l.lockHolder(); got != id || count(l.processes(), "force-unlock") > 0 {
				t.Errorf("the lock of somebody else was released; %q holds it now", got)
			}
		})
	}
}

func TestATemplateThatAsksForTooMuchStallsAndHeals(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ spec, want string }{
		"privileges":            {`{"containers":[{"name":"runner","securityContext":{"privileged":true}}]}`, "privileged"},
		"the node's network":    {`{"hostNetwork":true}`, "spec.hostNetwork"},
		"the node's files":      {`{"volumes":[{"name":"etc","hostPath":{"path":"/etc"}}]}`, "hostPath"},
		"another account":       {`{"serviceAccountName":"default"}`, "spec.serviceAccountName"},
		"another address":       {`{"containers":[{"name":"runner","args":["--listen=127.0.0.1"]}]}`, "args"},
		"another host's name":   {`{"hostname":"terrace-runner-aaaaaaaaaa-bbbbbbbbbb"}`, "spec.hostname"},
		"what is no pod at all": {`{"containers":[{"name":"runner","imag":"x"}]}`, "imag"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			l.create(greeting, func(o *infrav1.Terraform) { o.Spec.Runner.Template = podSpec(test.spec) })
			o, message := l.awaitReason(infrav1.PodTemplateInvalidReason)
			l.wantMessage(message, "spec.runner.template", test.want)
			if !conditions.IsStalled(o) || len(l.pods()) > 0 {
				t.Errorf("stalled = %v, %d pods, want it to stall without a pod", conditions.IsStalled(o), len(l.pods()))
			}
			l.change(func(o *infrav1.Terraform) { o.Spec.Runner.Template = nil })
			l.awaitReady()
		})
	}
}
