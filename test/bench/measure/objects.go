package measure

import (
	"context"
	"fmt"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/test/harness"
)

// Module has 20 resources of the built-in provider.
const Module = `
resource "terraform_data" "a" {
  count = 20
  input = "value ${count.index}"
}
output "first" { value = terraform_data.a[0].output }
`

// Objects makes objects, and tells when a watch saw them as they are waited for.
type Objects struct {
	Client client.WithWatch
	// Manager ends a wait when it ends; nil if it is not ours to know.
	Manager *harness.Manager
}

// Open makes a namespace in which runners may work.
func (s *Objects) Open(ctx context.Context, namespace string, labels map[string]string) error {
	if err := s.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: labels}}); err != nil {
		return err
	}
	_, err := harness.OpenNamespace(ctx, s.Client, namespace)
	return err
}

// Object returns one that is applied without an approval.
func Object(key client.ObjectKey, module string) *infrav1.Terraform {
	o := &infrav1.Terraform{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	o.Spec.Interval = metav1.Duration{Duration: time.Hour}
	o.Spec.Approval.Mode = infrav1.ApprovalAuto
	o.Spec.Inline = map[string]string{"main.tf": module}
	return o
}

// Create creates an object and waits until it is ready.
func (s *Objects) Create(ctx context.Context, o *infrav1.Terraform) (time.Duration, error) {
	began := time.Now()
	done, err := s.Await(ctx, []client.ObjectKey{client.ObjectKeyFromObject(o)}, harness.IsReady, func() error { return s.Client.Create(ctx, o) })
	return done.Sub(began), err
}

// Await starts something and returns when the last of the objects was seen as wanted.
func (s *Objects) Await(ctx context.Context, keys []client.ObjectKey, wanted func(*infrav1.Terraform) bool, start func() error) (done time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	w, err := s.Client.Watch(ctx, &infrav1.TerraformList{})
	if err != nil {
		return done, err
	}
	defer func() { w.Stop() }()
	left := map[client.ObjectKey]bool{}
	for _, key := range keys {
		left[key] = true
	}
	started := make(chan error, 1) // it runs meanwhile: who does not read a watch loses it
	go func() { started <- start() }()
	var begun bool
	var ended <-chan struct{} // of the manager, which it may have started
	for len(left) > 0 || !begun {
		select {
		case err := <-started:
			if err != nil {
				return done, err
			}
			begun = true
			if s.Manager != nil {
				ended = s.Manager.Ended()
			}
		case <-ctx.Done():
			return done, fmt.Errorf("%d objects are not done: %w", len(left), ctx.Err())
		case <-ended:
			return done, fmt.Errorf("the manager ended\n%s", s.Manager.LastLog())
		case event, open := <-w.ResultChan():
			if !open { // we were too slow for it; a new one begins with what is there
				if w, err = s.Client.Watch(ctx, &infrav1.TerraformList{}); err != nil {
					return done, err
				}
			}
			o, ok := event.Object.(*infrav1.Terraform)
			if !ok || !left[client.ObjectKeyFromObject(o)] {
				continue
			}
			if stalled := apimeta.FindStatusCondition(o.Status.Conditions, meta.StalledCondition); stalled != nil {
				return done, fmt.Errorf("object %s is stalled: %s", o.Name, stalled.Message)
			}
			if wanted(o) {
				delete(left, client.ObjectKeyFromObject(o))
				done = time.Now()
			}
		}
	}
	return done, nil
}

// Handled says whether a request was, and the object is ready again.
func Handled(token string) func(*infrav1.Terraform) bool {
	return func(o *infrav1.Terraform) bool { return o.Status.LastHandledReconcileAt == token && harness.IsReady(o) }
}

// Annotate asks for a reconciliation of each object.
func (s *Objects) Annotate(ctx context.Context, keys []client.ObjectKey, token string) error {
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, meta.ReconcileRequestAnnotation, token))
	for _, key := range keys {
		o := &infrav1.Terraform{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
		if err := s.Client.Patch(ctx, o, patch); err != nil {
			return err
		}
	}
	return nil
}

// Request asks for a reconciliation of each object and waits until all are handled.
func (s *Objects) Request(ctx context.Context, keys ...client.ObjectKey) (time.Duration, error) {
	token := time.Now().Format(time.RFC3339Nano)
	began := time.Now()
	done, err := s.Await(ctx, keys, Handled(token), func() error { return s.Annotate(ctx, keys, token) })
	return done.Sub(began), err
}
