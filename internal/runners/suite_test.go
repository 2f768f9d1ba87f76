package runners

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/authority"
	"github.com/terrace-dev/terrace/internal/operation"
	"github.com/terrace-dev/terrace/test/controlplane"
	"github.com/terrace-dev/terrace/test/harness"
	"github.com/terrace-dev/terrace/test/kubelet"
)

const (
	image     = "terrace-runner:test"
	crashing  = "crashing:1" // ends at once
	patience  = time.Minute
	namespace = "terrace-system" // of the managers
)

// suite is what all tests share: an API server, and real runners as processes.
var suite struct {
	plane   *controlplane.ControlPlane
	client  client.WithWatch
	kubelet *kubelet.Kubelet
}

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	code, err := runSuite(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runSuite(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "terrace-runners-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	program, err := harness.Build(filepath.Join(dir, "runner"), "./cmd/runner", "-race")
	if err != nil {
		return 1, err
	}
	if suite.plane, err = controlplane.Start(controlplane.Options{ServiceAccountAdmission: true}); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, suite.plane.Stop()) }()
	if suite.client, err = harness.NewClient(suite.plane.Config); err != nil {
		return 1, err
	}
	if err := suite.client.Create(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		return 1, err
	}
	suite.kubelet, err = kubelet.Start(context.Background(), kubelet.Options{
		Config: suite.plane.Config, Dir: filepath.Join(dir, "kubelet"),
		Programs: map[string][]string{image: {program}, crashing: {"/bin/false"}}, Env: map[string]string{"PATH": "/usr/bin:/bin"},
	})
	if err != nil {
		return 1, err
	}
	defer suite.kubelet.Stop()
	return m.Run(), nil
}

// lab is a namespace that is open for runners, and a pool of its own.
type lab struct {
	t         *testing.T
	ctx       context.Context
	namespace string
	options   Options
	pool      *Pool
	stop      func() // ends the pool as its manager would
}

func newLab(t *testing.T, edit func(*Options)) *lab {
	t.Helper()
	l := &lab{t: t, ctx: t.Context(), namespace: suite.plane.Namespace(t)}
	if _, err := harness.OpenNamespace(l.ctx, suite.client, l.namespace); err != nil {
		t.Fatal(err)
	}
	store, err := authority.New(authority.Options{Client: suite.client, Namespace: namespace})
	if err != nil {
		t.Fatal(err)
	}
	l.options = Options{
		Client: suite.client, Reader: suite.client, Authority: store, Manager: l.namespace, Image: image,
		ServiceAccount: func(obj *infrav1.Terraform) string { return obj.Spec.Runner.GetServiceAccountName() },
	}
	if edit != nil {
		edit(&l.options)
	}
	l.start()
	t.Cleanup(func() { l.stop() })
	return l
}

// start starts a pool, as a manager does that knows nothing of an earlier one.
func (l *lab) start() {
	l.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var err error
	l.options.Cache, err = cache.New(suite.plane.Config, cache.Options{
		Scheme: suite.client.Scheme(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}: {Label: labels.SelectorFromSet(Labels(l.options.Manager)), Transform: Strip},
		},
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.pool = New(l.options)
	ended := make(chan error, 3)
	for _, part := range []func(context.Context) error{l.options.Cache.Start, l.options.Authority.Start, l.pool.Start} {
		go func() { ended <- part(ctx) }()
	}
	l.stop = func() {
		cancel()
		for range 3 {
			if err := <-ended; err != nil {
				l.t.Error(err)
			}
		}
		l.stop = func() {}
	}
}

// object is one that asks for a runner.
func (l *lab) object(edit func(*infrav1.Runner)) *infrav1.Terraform {
	obj := &infrav1.Terraform{ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: "tf", UID: "uid"}}
	if edit != nil {
		edit(&obj.Spec.Runner)
	}
	return obj
}

// lease leases a runner for an object.
func (l *lab) lease(edit func(*infrav1.Runner)) operation.Runner {
	l.t.Helper()
	leased, err := l.pool.Runner(l.ctx, l.object(edit))
	if err != nil {
		l.t.Fatal(err)
	}
	return leased
}

// ready leases a runner and waits until it can be called.
func (l *lab) ready(edit func(*infrav1.Runner)) operation.Runner {
	l.t.Helper()
	leased := l.lease(edit)
	if err := l.await(leased); err != nil {
		l.t.Fatal(err)
	}
	return leased
}

func (l *lab) await(leased operation.Runner) error {
	ctx, cancel := context.WithTimeout(l.ctx, patience)
	defer cancel()
	return leased.Await(ctx, func(string) {})
}

// pods of the namespace, by name.
func (l *lab) pods() map[string]corev1.Pod {
	l.t.Helper()
	list := &corev1.PodList{}
	if err := suite.client.List(context.Background(), list, client.InNamespace(l.namespace)); err != nil {
		l.t.Fatal(err)
	}
	found := map[string]corev1.Pod{}
	for _, pod := range list.Items {
		found[pod.Name] = pod
	}
	return found
}

// eventually waits for something.
func (l *lab) eventually(what string, is func() bool) {
	l.t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			l.t.Fatalf("waited %v for %s; the pods are %v", patience, what, l.pods())
		}
	}
}

func (l *lab) eventuallyGone(name string) {
	l.t.Helper()
	l.eventually("pod "+name+" to go", func() bool {
		_, there := l.pods()[name]
		return !there
	})
}

func (l *lab) remove(object client.Object, name string) {
	l.t.Helper()
	object.SetNamespace(l.namespace)
	object.SetName(name)
	if err := suite.client.Delete(l.ctx, object); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: l.namespace, Name: name}
}

// idle sets an idle timeout.
func idle(d time.Duration) func(*infrav1.Runner) {
	return func(r *infrav1.Runner) { r.IdleTimeout = &metav1.Duration{Duration: d} }
}
