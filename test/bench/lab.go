package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/test/controlplane"
	"github.com/terrace-dev/terrace/test/harness"
	"github.com/terrace-dev/terrace/test/kubelet"
)

// The tools of runners, and the images that have them.
const (
	realImage = "terrace-runner:real"
	stubImage = "terrace-runner:stub"
)

// lab is the cluster that all measurements share. One manager at a time works in
// it, with the shipped rights; its runners are processes in pods.
type lab struct {
	dir        string
	audit      string
	tofu       string
	kubeconfig string // with the manager's rights
	plane      *controlplane.ControlPlane
	kubelet    *kubelet.Kubelet
	client     client.WithWatch
	manager    *harness.Manager

	image string         // of the runners of the manager
	seen  int            // audit events that were counted
	calls map[string]int // tool processes that were counted, by image
}

func newLab(ctx context.Context) (l *lab, err error) {
	l = &lab{calls: map[string]int{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	if l.dir, err = os.MkdirTemp("", "terrace-bench-"); err != nil {
		return l, err
	}
	l.audit = filepath.Join(l.dir, "audit.log")
	l.plane, err = controlplane.Start(controlplane.Options{
		CRDs: []string{"config/crd/bases"}, FluxCRDs: true, ServiceAccountAdmission: true, AuditLog: l.audit,
	})
	if err != nil {
		return l, err
	}
	if l.client, err = harness.NewClient(l.plane.Config); err != nil {
		return l, err
	}
	if l.kubeconfig, err = harness.InstallManager(ctx, l.plane); err != nil {
		return l, err
	}
	return l, l.startKubelet(ctx)
}

// startKubelet has an image for each tool, whose processes are counted.
func (l *lab) startKubelet(ctx context.Context) (err error) {
	if l.tofu, err = harness.Bin("tofu"); err != nil {
		return err
	}
	stub := filepath.Join(l.dir, "stub")
	build := exec.CommandContext(ctx, "go", "build", "-o", stub, "github.com/terrace-dev/terrace/test/bench/stub")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("building the stub tool: %w\n%s", err, out)
	}
	images := map[string][]string{}
	for image, tool := range map[string]string{realImage: l.tofu, stubImage: stub} {
		counted := filepath.Join(l.dir, image+".tool")
		if err := harness.CountTool(counted, tool, l.callsOf(image)); err != nil {
			return err
		}
		if images[image], err = harness.RunnerProgram("", counted); err != nil {
			return err
		}
	}
	l.kubelet, err = harness.StartKubelet(ctx, l.plane, filepath.Join(l.dir, "pods"), "", "", func(o *kubelet.Options) { o.Programs = images })
	return err
}

func (l *lab) callsOf(image string) string { return filepath.Join(l.dir, image+".calls") }

// close ends everything that a measurement started, also one that failed.
func (l *lab) close() error {
	errs := []error{l.stop()}
	if l.kubelet != nil {
		l.kubelet.Stop()
	}
	if l.plane != nil {
		errs = append(errs, l.plane.Stop())
	}
	return errors.Join(append(errs, os.RemoveAll(l.dir))...)
}

// start starts the manager, with runners of that image. Managers follow one
// another as leaders.
func (l *lab) start(ctx context.Context, image string, args ...string) (err error) {
	dir := filepath.Join(l.dir, "manager")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	l.image = image
	l.manager, err = harness.StartManager(ctx, harness.ManagerOptions{
		Kubeconfig: l.kubeconfig, Dir: dir, Image: image, Args: append([]string{"--log-level=debug", "--enable-leader-election=true"}, args...),
	})
	return err
}

// stop ends the manager, if one runs.
func (l *lab) stop() error {
	if l.manager == nil {
		return nil
	}
	err := l.manager.Stop()
	l.manager = nil
	return err
}

// open makes a namespace in which runners may work.
func (l *lab) open(ctx context.Context, namespace string) error {
	if err := l.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		return err
	}
	_, err := harness.OpenNamespace(ctx, l.client, namespace)
	return err
}

// object makes an object that is applied without an approval.
func object(key client.ObjectKey, module string) *infrav1.Terraform {
	o := &infrav1.Terraform{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	o.Spec.Interval = metav1.Duration{Duration: time.Hour}
	o.Spec.Approval.Mode = infrav1.ApprovalAuto
	o.Spec.Inline = map[string]string{"main.tf": module}
	return o
}

// create creates an object and waits until it is ready.
func (l *lab) create(ctx context.Context, o *infrav1.Terraform) (time.Duration, error) {
	began := time.Now()
	done, err := l.await(ctx, []client.ObjectKey{client.ObjectKeyFromObject(o)}, isReady, func() error { return l.client.Create(ctx, o) })
	return done.Sub(began), err
}

// await starts something and returns when the last of the objects was seen as wanted.
func (l *lab) await(ctx context.Context, keys []client.ObjectKey, wanted func(*infrav1.Terraform) bool, start func() error) (done time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	w, err := l.client.Watch(ctx, &infrav1.TerraformList{})
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
	var ended <-chan struct{} // of the manager, which it may have started
	for len(left) > 0 || ended == nil {
		select {
		case err := <-started:
			if err != nil {
				return done, err
			}
			ended = l.manager.Ended()
		case <-ctx.Done():
			return done, fmt.Errorf("%d objects are not done: %w", len(left), ctx.Err())
		case <-ended:
			return done, fmt.Errorf("the manager ended\n%s", l.manager.LastLog())
		case event, open := <-w.ResultChan():
			if !open { // we were too slow for it; a new one begins with what is there
				if w, err = l.client.Watch(ctx, &infrav1.TerraformList{}); err != nil {
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

func isReady(o *infrav1.Terraform) bool {
	return o.Status.ObservedGeneration == o.Generation && apimeta.IsStatusConditionTrue(o.Status.Conditions, meta.ReadyCondition)
}

// handled says whether a request was, and the object is ready again.
func handled(token string) func(*infrav1.Terraform) bool {
	return func(o *infrav1.Terraform) bool { return o.Status.LastHandledReconcileAt == token && isReady(o) }
}

// annotate asks for a reconciliation of each object.
func (l *lab) annotate(ctx context.Context, keys []client.ObjectKey, token string) error {
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, meta.ReconcileRequestAnnotation, token))
	for _, key := range keys {
		o := &infrav1.Terraform{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
		if err := l.client.Patch(ctx, o, patch); err != nil {
			return err
		}
	}
	return nil
}

// request asks for a reconciliation of each object and waits until all are handled.
func (l *lab) request(ctx context.Context, keys ...client.ObjectKey) (time.Duration, error) {
	token := time.Now().Format(time.RFC3339Nano)
	began := time.Now()
	done, err := l.await(ctx, keys, handled(token), func() error { return l.annotate(ctx, keys, token) })
	return done.Sub(began), err
}
