package main

import (
	"context"
	"fmt"
	"os"
	"time"

	runtimectrl "github.com/fluxcd/pkg/runtime/controller"
	"github.com/fluxcd/pkg/runtime/events"
	"github.com/fluxcd/pkg/runtime/leaderelection"
	"github.com/fluxcd/pkg/runtime/metrics"
	"github.com/fluxcd/pkg/runtime/pprof"
	"github.com/fluxcd/pkg/runtime/probes"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/artifact"
	"github.com/terrace-dev/terrace/internal/controller/terraform"
	"github.com/terrace-dev/terrace/internal/footprint"
	"github.com/terrace-dev/terrace/internal/runners"
)

// controllerName is what events are reported as and what the leader election is
// named after. Changing it makes two versions of the manager lead at the same time.
const controllerName = "terrace"

// startTime is about how long a manager is busy with starting.
const startTime = 10 * time.Second

// setup runs the manager until the context ends.
func setup(ctx context.Context, opts *options) error {
	footprint.CollectEarly()
	config, err := opts.access.config(ctx)
	if err != nil {
		return err
	}
	mgr, err := newManager(config, opts)
	if err != nil {
		return err
	}
	if opts.runnerMode == runnerModeEmbedded {
		return runEmbedded(ctx, mgr, opts)
	}
	pods, err := addPods(mgr, opts)
	if err != nil {
		return err
	}
	if err := addTerraform(ctx, mgr, pods, opts); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// runEmbedded runs the manager with its own runner, which ends first: its tools are
// interrupted gracefully, and meanwhile the manager keeps the leadership and
// records what they report.
func runEmbedded(ctx context.Context, mgr ctrl.Manager, opts *options) error {
	managing, stopManaging := context.WithCancel(context.WithoutCancel(ctx))
	defer stopManaging()
	serving, stopServing := context.WithCancel(ctx)
	defer stopServing()

	embedded, err := newEmbeddedRunner(ctx, mgr.GetConfig(), opts)
	if err != nil {
		return fmt.Errorf("embedded runner: %w", err)
	}
	if err := addTerraform(managing, mgr, embedded.runners(), opts); err != nil {
		return err
	}
	var group errgroup.Group
	group.Go(func() error {
		defer stopManaging()
		return embedded.serve(serving)
	})
	group.Go(func() error {
		defer stopServing()
		return mgr.Start(managing)
	})
	return group.Wait()
}

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(corev1.AddToScheme(scheme)) // not all of Kubernetes: memory
	utilruntime.Must(infrav1.AddToScheme(scheme))
	utilruntime.Must(sourcev1.AddToScheme(scheme))
	return scheme
}

func newManager(config *rest.Config, opts *options) (ctrl.Manager, error) {
	selector, err := runtimectrl.GetWatchSelector(opts.watch)
	if err != nil {
		return nil, fmt.Errorf("--watch-label-selector: %w", err)
	}
	leaderID := opts.leaderID()
	cacheOptions := cache.Options{
		ByObject: map[client.Object]cache.ByObject{
			&infrav1.Terraform{}: {Label: selector},
			&corev1.Pod{}:        {Label: labels.SelectorFromSet(runners.Labels(leaderID)), Transform: runners.Strip},
		},
		DefaultTransform: cache.TransformStripManagedFields(),
	}
	if !opts.watch.AllNamespaces {
		cacheOptions.DefaultNamespaces = map[string]cache.Config{opts.namespace: {}}
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: newScheme(),
		Logger: ctrl.Log,
		Cache:  cacheOptions,
		Client: client.Options{Cache: &client.CacheOptions{
			// Nothing of a tenant's Secrets and ConfigMaps is ever kept here.
			DisableFor:                      []client.Object{&corev1.Secret{}, &corev1.ConfigMap{}},
			EnableReadYourWritesConsistency: &opts.readYourWrites,
		}},
		Metrics:                       metricsserver.Options{BindAddress: opts.metricsAddr, ExtraHandlers: pprof.GetHandlers()},
		HealthProbeBindAddress:        opts.healthAddr,
		LeaderElection:                opts.leaderElection.Enable,
		LeaderElectionID:              leaderID,
		LeaderElectionNamespace:       opts.namespace,
		LeaderElectionReleaseOnCancel: opts.leaderElection.ReleaseOnCancel,
		LeaseDuration:                 &opts.leaderElection.LeaseDuration,
		RenewDeadline:                 &opts.leaderElection.RenewDeadline,
		RetryPeriod:                   &opts.leaderElection.RetryPeriod,
	})
	if err != nil {
		return nil, fmt.Errorf("manager: %w", err)
	}
	probes.SetupChecks(mgr, ctrl.Log.WithName("setup"))
	return mgr, mgr.Add(manager.RunnableFunc(shrink))
}

// shrink gives back the memory that starting took, once the objects have been looked at.
func shrink(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-time.After(startTime):
		footprint.Shrink()
	}
	return nil
}

// leaderID names the managers of which one works at a time: those with the same selector.
func (o *options) leaderID() string {
	if o.watch.LabelSelector == "" {
		return controllerName
	}
	return leaderelection.GenerateID(controllerName, o.watch.LabelSelector)
}

func addTerraform(ctx context.Context, mgr ctrl.Manager, pool terraform.Runners, opts *options) error {
	recorder, err := events.NewRecorder(ctrl.Log, opts.eventsAddr, controllerName, events.WithManager(mgr))
	if err != nil {
		return fmt.Errorf("--events-addr: %w", err)
	}
	if err := os.MkdirAll(opts.storagePath, 0o700); err != nil {
		return fmt.Errorf("--storage-path: %w", err)
	}
	gotk := metrics.NewRecorder()
	ctrlmetrics.Registry.MustRegister(gotk.Collectors()...)
	return (&terraform.Reconciler{
		Client:                mgr.GetClient(),
		Metrics:               runtimectrl.NewMetrics(mgr, gotk, infrav1.Finalizer),
		APIReader:             mgr.GetAPIReader(),
		Recorder:              recorder,
		Runners:               pool,
		Fetcher:               artifact.New(artifact.Options{Dir: opts.storagePath, Retries: opts.httpRetry}),
		NoCrossNamespaceRefs:  opts.acl.NoCrossNamespaceRefs,
		DefaultServiceAccount: opts.defaultServiceAccount,
		RequeueDependency:     opts.requeueDependency,
	}).SetupWithManager(ctx, mgr, terraform.SetupOptions{
		Concurrent:  opts.concurrent,
		RateLimiter: runtimectrl.GetRateLimiter(opts.rateLimiter),
	})
}
