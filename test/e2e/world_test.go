//go:build linux

package e2e_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/test/harness"
)

func auto(o *infrav1.Terraform) { o.Spec.Approval.Mode = infrav1.ApprovalAuto }

// podSpec is a template that changes a pod's spec.
func podSpec(spec string) *infrav1.PodTemplate {
	return &infrav1.PodTemplate{Spec: &apiextensionsv1.JSON{Raw: []byte(spec)}}
}

// eventually waits for something else than the status of an object.
func (e *tenant) eventually(what string, done func(context.Context) (bool, error)) {
	e.t.Helper()
	if err := wait.PollUntilContextTimeout(e.ctx, 50*time.Millisecond, patience, true, done); err != nil {
		e.t.Fatalf("waiting for %s: %v", what, err)
	}
}

// change edits an object as a user does.
func (e *tenant) change(o *infrav1.Terraform, edit func(*infrav1.Terraform)) {
	e.t.Helper()
	if err := suite.client.Get(e.ctx, client.ObjectKeyFromObject(o), o); err != nil {
		e.t.Fatal(err)
	}
	before := o.DeepCopy()
	edit(o)
	if err := suite.client.Patch(e.ctx, o, client.MergeFrom(before)); err != nil {
		e.t.Fatal(err)
	}
}

// request asks for a reconciliation and waits until it was handled.
func (e *tenant) request(o *infrav1.Terraform) {
	e.t.Helper()
	token := time.Now().Format(time.RFC3339Nano)
	e.kubectl("annotate", "--overwrite", "terraform", o.Name, meta.ReconcileRequestAnnotation+"="+token)
	e.await(o, "the request to be handled", func(o *infrav1.Terraform) bool {
		return o.Status.LastHandledReconcileAt == token && !conditions.Has(o, meta.ReconcilingCondition)
	})
}

// approve approves the plan that waits.
func (e *tenant) approve(o *infrav1.Terraform) {
	e.t.Helper()
	e.kubectl("annotate", "--overwrite", "terraform", o.Name, infrav1.ApproveAnnotation+"="+o.Status.Plan.ID)
}

// awaitPlan waits for a plan that nobody approved yet.
func (e *tenant) awaitPlan(o *infrav1.Terraform) {
	e.t.Helper()
	e.await(o, "a plan to approve", func(o *infrav1.Terraform) bool {
		return conditions.GetReason(o, meta.ReadyCondition) == infrav1.ApprovalRequiredReason && o.Status.Plan.HasChanges
	})
}

// awaitRunner waits until an operation of that type runs, and returns its runner pod.
func (e *tenant) awaitRunner(o *infrav1.Terraform, kind infrav1.OperationType) *corev1.Pod {
	e.t.Helper()
	e.await(o, "an operation "+string(kind), func(o *infrav1.Terraform) bool {
		return o.Status.Operation != nil && o.Status.Operation.Type == kind && o.Status.Operation.Runner != ""
	})
	pod := &corev1.Pod{}
	if err := suite.client.Get(e.ctx, client.ObjectKey{Namespace: e.namespace, Name: o.Status.Operation.Runner}, pod); err != nil {
		e.t.Fatal(err)
	}
	return pod
}

// onlyRunner returns the tenant's only runner pod.
func (e *tenant) onlyRunner() *corev1.Pod {
	e.t.Helper()
	pods := slices.DeleteFunc(e.runners(), func(pod corev1.Pod) bool { return pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodFailed })
	if len(pods) != 1 {
		e.t.Fatalf("there are %d runner pods, want 1", len(pods))
	}
	return &pods[0]
}

// terminating is the phase of a pod that is being deleted, as kubectl shows it.
const terminating = corev1.PodPhase("Terminating")

// phaseOf returns the phase of a pod; empty if it is gone.
func phaseOf(ctx context.Context, pod *corev1.Pod) (corev1.PodPhase, error) {
	now := &corev1.Pod{}
	err := suite.client.Get(ctx, client.ObjectKeyFromObject(pod), now)
	switch {
	case apierrors.IsNotFound(err) || err == nil && now.UID != pod.UID:
		return "", nil
	case now.DeletionTimestamp != nil:
		return terminating, nil
	default:
		return now.Status.Phase, err
	}
}

// awaitSuccessor is awaitRunner, for one that is not the pod of before.
func (e *tenant) awaitSuccessor(o *infrav1.Terraform, kind infrav1.OperationType, before *corev1.Pod) *corev1.Pod {
	e.t.Helper()
	e.await(o, "another runner pod", func(o *infrav1.Terraform) bool {
		return o.Status.Operation != nil && o.Status.Operation.Runner != "" && o.Status.Operation.Runner != before.Name
	})
	return e.awaitRunner(o, kind)
}

// inside runs a script in a runner's container and returns what it prints.
func (e *tenant) inside(pod *corev1.Pod, script string) string {
	e.t.Helper()
	return e.kubectl("exec", pod.Name, "--", "sh", "-c", script)
}

// awaitInside waits until a script succeeds in a runner's container.
func (e *tenant) awaitInside(pod *corev1.Pod, script string) {
	e.t.Helper()
	e.eventually("in the runner: "+script, func(ctx context.Context) (bool, error) {
		_, err := kubectl(ctx, "-n", e.namespace, "exec", pod.Name, "--", "sh", "-c", script)
		return err == nil, nil
	})
}

// lockHolder is the id in the lock of an object's state; empty if nobody holds it.
func (e *tenant) lockHolder(ctx context.Context, o *infrav1.Terraform) (string, error) {
	lease := &coordinationv1.Lease{}
	err := suite.client.Get(ctx, client.ObjectKey{Namespace: e.namespace, Name: "lock-tfstate-default-" + o.Name}, lease)
	if err != nil || lease.Spec.HolderIdentity == nil {
		return "", client.IgnoreNotFound(err)
	}
	return *lease.Spec.HolderIdentity, nil
}

func (e *tenant) awaitLock(o *infrav1.Terraform) {
	e.t.Helper()
	e.eventually("the state to be locked", func(ctx context.Context) (bool, error) {
		holder, err := e.lockHolder(ctx, o)
		return holder != "", err
	})
}

func (e *tenant) wantUnlocked(o *infrav1.Terraform) {
	e.t.Helper()
	holder, err := e.lockHolder(e.ctx, o)
	if err != nil {
		e.t.Fatal(err)
	}
	if holder != "" || o.Status.Lock != nil {
		e.t.Errorf("the state is locked by %q, the status says %+v", holder, o.Status.Lock)
	}
}

// state is what matters of an object's state, as the tool stored it.
type state struct {
	Serial    int64
	Resources []struct{ Type, Name string }
}

func (e *tenant) state(o *infrav1.Terraform) (s state) {
	e.t.Helper()
	secret := &corev1.Secret{}
	if err := suite.client.Get(e.ctx, client.ObjectKey{Namespace: e.namespace, Name: "tfstate-default-" + o.Name}, secret); err != nil {
		e.t.Fatal(err)
	}
	reader, err := gzip.NewReader(bytes.NewReader(secret.Data["tfstate"]))
	if err != nil {
		e.t.Fatal(err)
	}
	if err := json.NewDecoder(reader).Decode(&s); err != nil {
		e.t.Fatal(err)
	}
	return s
}

func (e *tenant) wantResults(o *infrav1.Terraform, want ...string) {
	e.t.Helper()
	if got := harness.Results(o); !slices.Equal(got, want) {
		e.t.Errorf("history = %q, want %q", got, want)
	}
}

// said is everything that the object says about itself now.
func said(o *infrav1.Terraform) string {
	var words []string
	for _, c := range o.Status.Conditions {
		words = append(words, fmt.Sprintf("%s: %s", c.Type, c.Message))
	}
	if o.Status.Operation != nil {
		words = append(words, o.Status.Operation.Message)
	}
	return strings.Join(words, "\n")
}

// subject is whom a token of a ServiceAccount names.
func subject(token string) (string, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return "", fmt.Errorf("a token has 3 parts, this one %d", len(parts))
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return "", err
	}
	var claims struct {
		Subject string `json:"sub"`
	}
	err = json.Unmarshal(text, &claims)
	return claims.Subject, err
}
