package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/runner/engine"
	"github.com/terrace-dev/terrace/test/harness"
)

const (
	namespace = "quickstart"
	name      = "hello"
)

// publish opens a namespace for runners and serves the module as a Flux artifact.
func (s *stage) publish(ctx context.Context) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if err := s.client.Create(ctx, ns); err != nil {
		return err
	}
	n, err := harness.OpenNamespace(ctx, s.client, namespace)
	if err != nil {
		return err
	}
	s.say("%d objects of config/runner-namespace: what a runner may do in a namespace", n)
	revision, err := s.commit(ctx, "the first commit")
	if err != nil {
		return err
	}
	s.say("ExternalArtifact quickstart/%s at %s (a GitRepository works alike)", name, revision)
	return nil
}

// commit publishes a repository that holds the module under modules/hello, and returns its revision.
func (s *stage) commit(ctx context.Context, readme string) (string, error) {
	tree, err := os.MkdirTemp(s.dir, "tree-")
	if err != nil {
		return "", err
	}
	err = errors.Join(
		os.CopyFS(filepath.Join(tree, "modules", "hello"), os.DirFS(filepath.Join(s.root, "test", "quickstart", "module"))),
		os.WriteFile(filepath.Join(tree, "README.md"), []byte(readme), 0o600))
	if err != nil {
		return "", err
	}
	artifact, err := s.server.Store(tree)
	if err != nil {
		return "", err
	}
	return artifact.Revision, harness.Publish(ctx, s.client, client.ObjectKey{Namespace: namespace, Name: name}, artifact)
}

func (s *stage) welcome() string { return filepath.Join(s.dir, "world", "welcome.txt") }

// declare creates the object and shows the plan that waits.
func (s *stage) declare(ctx context.Context) error {
	directory, err := json.Marshal(filepath.Dir(s.welcome()))
	if err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Dir(s.welcome()), 0o700); err != nil {
		return err
	}
	text := fmt.Sprintf(manifest, namespace, name, directory)
	s.quote(text)
	object := &infrav1.Terraform{}
	if err := yaml.UnmarshalStrict([]byte(text), object); err != nil {
		return err
	}
	if err := s.client.Create(ctx, object); err != nil {
		return err
	}
	if _, err := s.await(ctx, "a plan that waits for its approval", func(o *infrav1.Terraform) bool {
		return o.Status.Plan != nil && readyReason(o) == infrav1.ApprovalRequiredReason
	}); err != nil {
		return err
	}
	plan, err := engine.LoadPlan(ctx, s.plane.Config, namespace, name)
	if err != nil || plan == nil {
		return errors.Join(errors.New("the plan cannot be read"), err)
	}
	s.quote(plan.Text)
	return nil
}

const manifest = `apiVersion: infra.terrace.dev/v1alpha1
kind: Terraform
metadata:
  namespace: %s
  name: %s
spec:
  interval: 10m
  sourceRef:
    kind: ExternalArtifact
    name: hello
  path: ./modules/hello
  variables:
    - name: directory
      value: %s
  approval:
    mode: Manual
  drift:
    mode: Correct
  outputs:
    - kind: Secret
      name: hello-outputs
  publishOutputs: [message, nodes]
  deletionPolicy: Destroy
`

// approve approves the plan that was shown.
func (s *stage) approve(ctx context.Context) error {
	object, err := s.get(ctx)
	if err != nil {
		return err
	}
	if err := s.confirm("Approve " + object.Status.Plan.ID + "?"); err != nil {
		return err
	}
	return s.approvePlan(ctx, object.Status.Plan.ID)
}

func (s *stage) approvePlan(ctx context.Context, id string) error {
	s.say("$ kubectl -n %s patch terraform %s --type=merge -p '{\"spec\":{\"approval\":{\"plan\":\"%s\"}}}'", namespace, name, id)
	patch := fmt.Sprintf(`{"spec":{"approval":{"plan":%q}}}`, id)
	if err := s.client.Patch(ctx, s.object(), client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
		return err
	}
	_, err := s.await(ctx, "the approved plan to be applied", func(o *infrav1.Terraform) bool {
		return isReady(o) && o.Status.Applied != nil && o.Status.Applied.PlanID == id
	})
	return err
}

// outputs shows what others may use.
func (s *stage) outputs(ctx context.Context) error {
	object, err := s.get(ctx)
	if err != nil {
		return err
	}
	for _, o := range object.Status.Outputs {
		switch {
		case o.Sensitive:
			s.say("%-9s (sensitive; only in Secret hello-outputs)", o.Name)
		case o.Value != nil:
			s.say("%-9s %s", o.Name, o.Value.Raw)
		}
	}
	secret := &corev1.Secret{}
	if err := s.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "hello-outputs"}, secret); err != nil {
		return err
	}
	if len(secret.Data["password"]) == 0 {
		return errors.New("the Secret hello-outputs holds no password")
	}
	s.say("Secret hello-outputs holds %d keys", len(secret.Data))
	return nil
}

// unrelated publishes a commit that leaves the module alone.
func (s *stage) unrelated(ctx context.Context) error {
	before, err := s.get(ctx)
	if err != nil {
		return err
	}
	revision, err := s.commit(ctx, "a commit elsewhere in the repository")
	if err != nil {
		return err
	}
	after, err := s.await(ctx, "the new revision to be looked at", func(o *infrav1.Terraform) bool {
		return isReady(o) && o.Status.Source != nil && o.Status.Source.Revision == revision
	})
	if err != nil {
		return err
	}
	if after.Status.Applied.PlanID != before.Status.Applied.PlanID {
		return errors.New("something was applied, although the module did not change")
	}
	s.say("revision %s was looked at; OpenTofu did not run and nothing was applied", revision)
	return nil
}

// drift changes the file behind the object's back.
func (s *stage) drift(ctx context.Context) error {
	if err := os.WriteFile(s.welcome(), []byte("changed by hand\n"), 0o600); err != nil {
		return err
	}
	s.say("$ echo changed by hand > welcome.txt")
	s.say("$ kubectl -n %s annotate terraform %s reconcile.fluxcd.io/requestedAt=now    # instead of waiting for the interval", namespace, name)
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, meta.ReconcileRequestAnnotation, time.Now().Format(time.RFC3339Nano))
	if err := s.client.Patch(ctx, s.object(), client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
		return err
	}
	object, err := s.await(ctx, "the drift to be found", func(o *infrav1.Terraform) bool {
		return o.Status.Plan != nil && o.Status.Plan.Drift && readyReason(o) == infrav1.ApprovalRequiredReason
	})
	if err != nil {
		return err
	}
	s.say("a drift plan is a plan like any other: it has an id and is approved by it")
	if err := s.approvePlan(ctx, object.Status.Plan.ID); err != nil {
		return err
	}
	text, err := os.ReadFile(s.welcome())
	if err != nil {
		return err
	}
	if !strings.HasPrefix(string(text), "Hello") {
		return fmt.Errorf("the file still reads %q", text)
	}
	s.say("welcome.txt reads %q again", strings.TrimSpace(string(text)))
	return nil
}

func (s *stage) keep(ctx context.Context) error {
	s.say("export KUBECONFIG=%s", s.plane.Kubeconfig)
	s.say("kubectl -n %s get terraform", namespace)
	s.say("kubectl -n %s describe terraform %s", namespace, name)
	s.say("Ctrl-C ends it all and removes everything.")
	<-ctx.Done()
	return nil
}

// destroy deletes the object and waits until its world is gone.
func (s *stage) destroy(ctx context.Context) error {
	if err := s.confirm("Delete the object and destroy what it made?"); err != nil {
		return err
	}
	s.say("$ kubectl -n %s delete terraform %s", namespace, name)
	if err := s.client.Delete(ctx, s.object()); err != nil {
		return err
	}
	if _, err := s.await(ctx, "the object to go", func(o *infrav1.Terraform) bool { return o == nil }); err != nil {
		return err
	}
	if _, err := os.Stat(s.welcome()); !errors.Is(err, os.ErrNotExist) {
		return errors.Join(errors.New("welcome.txt is still there"), err)
	}
	s.say("the object is gone, and so is welcome.txt")
	return nil
}

func (s *stage) object() *infrav1.Terraform {
	return &infrav1.Terraform{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

func (s *stage) get(ctx context.Context) (*infrav1.Terraform, error) {
	object := s.object()
	return object, s.client.Get(ctx, client.ObjectKeyFromObject(object), object)
}

// await watches the object, shows its status line whenever it changes, and
// returns when done says so; done sees nil when the object is gone.
func (s *stage) await(ctx context.Context, what string, done func(*infrav1.Terraform) bool) (*infrav1.Terraform, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, fmt.Errorf("waited two minutes for %s; the manager's log ends:\n%s", what, s.manager.LastLog()))
	defer cancel()
	object, err := s.get(ctx)
	if apierrors.IsNotFound(err) && done(nil) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	w, err := s.client.Watch(ctx, &infrav1.TerraformList{}, client.InNamespace(namespace), client.MatchingFields{"metadata.name": name})
	if err != nil {
		return nil, err
	}
	defer w.Stop()
	for {
		s.show(object)
		if done(object) {
			return object, nil
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-s.manager.Ended():
			return nil, fmt.Errorf("the manager ended:\n%s", s.manager.LastLog())
		case event := <-w.ResultChan():
			if event.Type == watch.Deleted && done(nil) {
				return nil, nil
			}
			next, ok := event.Object.(*infrav1.Terraform)
			if !ok {
				return nil, fmt.Errorf("watching the object: %v", event.Object)
			}
			object = next
		}
	}
}

// show prints the status as kubectl get does.
func (s *stage) show(object *infrav1.Terraform) {
	ready := apimeta.FindStatusCondition(object.Status.Conditions, meta.ReadyCondition)
	if ready == nil {
		return
	}
	message := ready.Message
	if r := apimeta.FindStatusCondition(object.Status.Conditions, meta.ReconcilingCondition); r != nil {
		message = r.Message
	}
	line := fmt.Sprintf("terraform/%s   READY=%-7s %s", object.Name, ready.Status, message)
	if line != s.shown {
		s.shown = line
		s.say("%s", line)
	}
}

func readyReason(o *infrav1.Terraform) string {
	if o == nil {
		return ""
	}
	if c := apimeta.FindStatusCondition(o.Status.Conditions, meta.ReadyCondition); c != nil {
		return c.Reason
	}
	return ""
}

func isReady(o *infrav1.Terraform) bool {
	return o != nil && harness.IsReady(o)
}
