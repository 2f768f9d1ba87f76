package terraform

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"github.com/fluxcd/pkg/runtime/conditions/check"
	"github.com/fluxcd/pkg/runtime/events"
	"github.com/fluxcd/pkg/testserver"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/log"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/artifact"
	"github.com/terrace-dev/terrace/internal/operation"
	"github.com/terrace-dev/terrace/internal/pki"
	"github.com/terrace-dev/terrace/runner"
	"github.com/terrace-dev/terrace/test/controlplane"
)

// patience is how long a test waits for what must happen. It is long because the
// machine may be crowded; nothing waits that long on a quiet one.
const patience = 60 * time.Second

// managerUser is the account that the manager runs as.
const managerUser = "system:serviceaccount:terrace-system:terrace-manager"

var (
	plane     *controlplane.ControlPlane
	artifacts *testserver.ArtifactServer
	scheme    = runtime.NewScheme()
	// quietLog swallows everything; the recorder of events cannot do with logr.Discard.
	quietLog = logr.New(log.NullLogSink{})
)

func TestMain(m *testing.M) {
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(infrav1.AddToScheme(scheme))
	utilruntime.Must(sourcev1.AddToScheme(scheme))
	ctrl.SetLogger(quietLog)
	var err error
	if plane, err = controlplane.Start(controlplane.Options{CRDs: []string{"config/crd/bases"}, FluxCRDs: true}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = plane.Stop() }()
	if err := grantRights(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if artifacts, err = testserver.NewTempArtifactServer(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(artifacts.Root())
	artifacts.Start()
	defer artifacts.Stop()
	return m.Run()
}

// grantRights gives the managers of the tests the rights that the product ships,
// and no others.
func grantRights(ctx context.Context) error {
	c, err := client.New(plane.Config, client.Options{Scheme: scheme})
	if err != nil {
		return err
	}
	for name, object := range map[string]client.Object{"role.yaml": &rbacv1.ClusterRole{}, "role_binding.yaml": &rbacv1.ClusterRoleBinding{}} {
		content, err := os.ReadFile(filepath.Join("..", "..", "..", "config", "rbac", name))
		if err != nil {
			return err
		}
		if err := yaml.UnmarshalStrict(content, object); err != nil {
			return err
		}
		if err := c.Create(ctx, object); err != nil {
			return err
		}
	}
	return nil
}

// world is a namespace with a scripted runner and, most of the time, a manager.
type world struct {
	client.Client
	t         *testing.T
	namespace string
	engine    *scriptedEngine
	writes    *counter
	faults    *faults

	runner  *served
	stop    context.CancelFunc // of the manager
	stopped chan struct{}
}

// served is a runner's server with a client of it.
type served struct {
	client *runner.Client
	stop   func()
}

func newWorld(t *testing.T) *world {
	t.Helper()
	c, err := client.New(plane.Config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{Client: c, t: t, namespace: plane.Namespace(t), engine: newScriptedEngine(), writes: &counter{}, faults: &faults{}}
	w.runner = w.serve()
	t.Cleanup(func() { w.runner.stop() })
	return w
}

// start is newWorld with a running manager.
func start(t *testing.T, change ...func(*Reconciler)) *world {
	t.Helper()
	w := newWorld(t)
	w.manage(change...)
	return w
}

// serve starts a runner with the scripted engine, over TLS as in production.
func (w *world) serve() *served {
	w.t.Helper()
	authority, err := pki.NewAuthority(clock.RealClock{})
	if err != nil {
		w.t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	c, err := runner.Dial(listener.Addr().String(), authority.ClientConfig("runner"))
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = runner.NewServer(w.engine, runner.Options{}).Serve(ctx, listener, authority.ServerConfig("runner"))
	}()
	return &served{client: c, stop: func() {
		stop()
		_ = c.Close()
		<-done
	}}
}

// manage starts a manager of the world's namespace. Its requests are counted.
func (w *world) manage(change ...func(*Reconciler)) {
	w.t.Helper()
	own := rest.CopyConfig(plane.Config)
	own.Wrap(w.writes.wrap)
	own.Wrap(w.faults.wrap)
	own.Impersonate.UserName = managerUser
	yes, no := true, false
	mgr, err := ctrl.NewManager(own, ctrl.Options{
		Scheme:     scheme,
		Controller: config.Controller{RecoverPanic: &no},
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Cache: cache.Options{
			DefaultNamespaces: map[string]cache.Config{w.namespace: {}},
			DefaultTransform:  cache.TransformStripManagedFields(),
		},
		Client: client.Options{Cache: &client.CacheOptions{
			DisableFor:                      []client.Object{&corev1.Secret{}, &corev1.ConfigMap{}},
			EnableReadYourWritesConsistency: &yes,
		}},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	recorder, err := events.NewRecorder(quietLog, "", "terrace", events.WithManager(mgr))
	if err != nil {
		w.t.Fatal(err)
	}
	r := &Reconciler{
		Client:               mgr.GetClient(),
		APIReader:            mgr.GetAPIReader(),
		Recorder:             recorder,
		Runners:              SharedRunner{RunnerName: "runner", Client: w.runner.client},
		Fetcher:              artifact.New(artifact.Options{Dir: w.t.TempDir()}),
		NoCrossNamespaceRefs: true,
		RequeueDependency:    200 * time.Millisecond,
		Times:                operation.Options{RetryDelay: 10 * time.Millisecond, Unreachable: time.Second},
	}
	for _, c := range change {
		c(r)
	}
	ctx, cancel := context.WithCancel(context.Background())
	if err := r.SetupWithManager(ctx, mgr, SetupOptions{Concurrent: 4, SkipNameValidation: true}); err != nil {
		cancel()
		w.t.Fatal(err)
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		if err := mgr.Start(ctx); err != nil {
			w.t.Errorf("the manager ended: %v", err)
		}
	}()
	w.stop, w.stopped = cancel, stopped
	w.t.Cleanup(func() {
		cancel()
		<-stopped
	})
}

// kill stops the manager, as far as one can without ending the process.
func (w *world) kill() {
	w.t.Helper()
	w.stop()
	<-w.stopped
}

// counter counts the requests with which a manager changes something.
type counter struct {
	mu     sync.Mutex
	writes []string
}

func (c *counter) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		if request.Method != http.MethodGet {
			c.mu.Lock()
			c.writes = append(c.writes, request.Method+" "+request.URL.Path)
			c.mu.Unlock()
		}
		return next.RoundTrip(request)
	})
}

func (c *counter) list() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.writes...)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

// maker makes Terraform objects.
type maker struct{ obj *infrav1.Terraform }

// terraform is an inline module with a long interval and quick retries.
func (w *world) terraform(name string) maker {
	obj := &infrav1.Terraform{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
	obj.Spec.Interval = metav1.Duration{Duration: time.Hour}
	obj.Spec.RetryInterval = &metav1.Duration{Duration: 100 * time.Millisecond}
	obj.Spec.MaxRetryInterval = &metav1.Duration{Duration: 400 * time.Millisecond}
	obj.Spec.Inline = map[string]string{"main.tf": `output "a" { value = 1 }`}
	return maker{obj}
}

func (b maker) with(change func(*infrav1.TerraformSpec)) maker {
	change(&b.obj.Spec)
	return b
}

func (b maker) auto() maker {
	return b.with(func(s *infrav1.TerraformSpec) { s.Approval.Mode = infrav1.ApprovalAuto })
}

func (b maker) interval(d time.Duration) maker {
	return b.with(func(s *infrav1.TerraformSpec) { s.Interval.Duration = d })
}

func (b maker) destroy() maker {
	return b.with(func(s *infrav1.TerraformSpec) { s.DeletionPolicy = infrav1.DeletionDestroy })
}

func (b maker) source(kind, name string) maker {
	return b.with(func(s *infrav1.TerraformSpec) {
		s.Inline = nil
		s.SourceRef = &infrav1.SourceReference{Kind: kind, Name: name}
	})
}

// create creates the object, and checks at the end of the test that its status
// keeps the contract.
func (w *world) create(b maker) *infrav1.Terraform {
	w.t.Helper()
	if err := w.Create(w.t.Context(), b.obj); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { w.conform(b.obj) })
	return b.obj
}

// conform checks the status contract of an object that came to rest.
func (w *world) conform(obj *infrav1.Terraform) {
	w.t.Helper()
	current := &infrav1.Terraform{}
	if err := w.Get(context.Background(), client.ObjectKeyFromObject(obj), current); apierrors.IsNotFound(err) {
		return
	} else if err != nil {
		w.t.Error(err)
		return
	}
	checker := check.NewChecker(nil, &check.Conditions{NegativePolarity: []string{meta.StalledCondition, meta.ReconcilingCondition}})
	if conditions.IsUnknown(current, meta.ReadyCondition) {
		checker = check.NewInProgressChecker(nil)
	}
	checker.DisableFetch = true
	if fail, warn := checker.Check(context.Background(), current); fail != nil || warn != nil {
		w.t.Errorf("the status of %s breaks the contract: %v %v\n%s", obj.Name, fail, warn, describe(current))
	}
}

// update changes an object, whatever else happens to it meanwhile.
func (w *world) update(obj *infrav1.Terraform, change func(*infrav1.Terraform)) {
	w.t.Helper()
	if err := w.Get(w.t.Context(), client.ObjectKeyFromObject(obj), obj); err != nil {
		w.t.Fatal(err)
	}
	before := obj.DeepCopy()
	change(obj)
	if err := w.Patch(w.t.Context(), obj, client.MergeFrom(before)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) annotate(obj *infrav1.Terraform, pairs ...string) {
	w.t.Helper()
	w.update(obj, func(o *infrav1.Terraform) {
		if o.Annotations == nil {
			o.Annotations = map[string]string{}
		}
		for i := 0; i < len(pairs); i += 2 {
			o.Annotations[pairs[i]] = pairs[i+1]
		}
	})
}

// until waits until the object is as wanted and returns it.
func (w *world) until(obj *infrav1.Terraform, what string, is func(*infrav1.Terraform) bool) *infrav1.Terraform {
	w.t.Helper()
	current := &infrav1.Terraform{}
	w.eventually(func() bool {
		err := w.Get(w.t.Context(), client.ObjectKeyFromObject(obj), current)
		return err == nil && is(current)
	}, func() string {
		return fmt.Sprintf("%s is not %s:\n%s\n%s", obj.Name, what, describe(current), w.engine.story())
	})
	return current
}

// ready waits until the latest change of the object is dealt with and Ready.
func (w *world) ready(obj *infrav1.Terraform) *infrav1.Terraform {
	w.t.Helper()
	return w.until(obj, "ready", func(o *infrav1.Terraform) bool {
		return o.Status.ObservedGeneration == o.Generation && conditions.IsReady(o)
	})
}

// reason waits until Ready is false with this reason.
func (w *world) reason(obj *infrav1.Terraform, reason string) *infrav1.Terraform {
	w.t.Helper()
	return w.until(obj, "not ready with reason "+reason, func(o *infrav1.Terraform) bool {
		return conditions.IsFalse(o, meta.ReadyCondition) && conditions.GetReason(o, meta.ReadyCondition) == reason
	})
}

// gone waits until the object does not exist any more.
func (w *world) gone(obj *infrav1.Terraform) {
	w.t.Helper()
	current := &infrav1.Terraform{}
	w.eventually(func() bool {
		*current = infrav1.Terraform{}
		return apierrors.IsNotFound(w.Get(w.t.Context(), client.ObjectKeyFromObject(obj), current))
	}, func() string {
		return fmt.Sprintf("%s still exists:\n%s\n%s", obj.Name, describe(current), w.engine.story())
	})
}

func (w *world) delete(obj *infrav1.Terraform) {
	w.t.Helper()
	if err := w.Delete(w.t.Context(), obj); err != nil {
		w.t.Fatal(err)
	}
}

// eventually waits for a condition.
func (w *world) eventually(is func() bool, otherwise func() string) {
	w.t.Helper()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.After(patience)
	for !is() {
		select {
		case <-ticker.C:
		case <-deadline:
			w.t.Fatal(otherwise())
		}
	}
}

// events returns the events of an object, oldest first, as "type reason message".
func (w *world) events(obj *infrav1.Terraform) []corev1.Event {
	w.t.Helper()
	var list corev1.EventList
	if err := w.List(w.t.Context(), &list, client.InNamespace(w.namespace)); err != nil {
		w.t.Fatal(err)
	}
	var own []corev1.Event
	for _, event := range list.Items {
		if event.InvolvedObject.Name == obj.Name {
			own = append(own, event)
		}
	}
	return own
}

// event waits for the event with a reason and returns how often it was sent.
func (w *world) event(obj *infrav1.Terraform, reason string) corev1.Event {
	w.t.Helper()
	var found corev1.Event
	w.eventually(func() bool {
		for _, event := range w.events(obj) {
			if event.Reason == reason {
				found = event
				return true
			}
		}
		return false
	}, func() string {
		return fmt.Sprintf("no event %s: %+v\n%s", reason, w.events(obj), strings.Join(w.writes.list(), "\n"))
	})
	return found
}

// describe shows what matters of an object when a test fails.
func describe(obj *infrav1.Terraform) string {
	var text strings.Builder
	fmt.Fprintf(&text, "generation %d observed %d deleted %v failures %d\n", obj.Generation, obj.Status.ObservedGeneration, !obj.DeletionTimestamp.IsZero(), obj.Status.Failures)
	for _, c := range obj.Status.Conditions {
		fmt.Fprintf(&text, "  %s=%s %s: %s (%d)\n", c.Type, c.Status, c.Reason, c.Message, c.ObservedGeneration)
	}
	fmt.Fprintf(&text, "  operation %+v\n  plan %+v\n  applied %+v\n", obj.Status.Operation, obj.Status.Plan, obj.Status.Applied)
	return text.String()
}

// readAll drains an archive.
func readAll(archive io.Reader) (int64, error) { return io.Copy(io.Discard, archive) }
