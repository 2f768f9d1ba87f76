package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fluxcd/pkg/runtime/acl"
	runtimeclient "github.com/fluxcd/pkg/runtime/client"
	runtimectrl "github.com/fluxcd/pkg/runtime/controller"
	"github.com/fluxcd/pkg/runtime/features"
	"github.com/fluxcd/pkg/runtime/jitter"
	"github.com/fluxcd/pkg/runtime/leaderelection"
	"github.com/fluxcd/pkg/runtime/logger"
	flag "github.com/spf13/pflag"
	ctrl "sigs.k8s.io/controller-runtime"
)

// runnerModeEmbedded serves the runner inside the manager, for development.
const runnerModeEmbedded = "embedded"

// featureReadYourWrites lets reads from the cache wait for the manager's own writes.
const featureReadYourWrites = "ReadYourWrites"

// supportedFeatures are the gates and their defaults.
var supportedFeatures = map[string]bool{featureReadYourWrites: true}

// options are what the flags set.
type options struct {
	// Where the manager listens and reports.
	eventsAddr, metricsAddr, healthAddr string

	// How the controllers work.
	concurrent            int
	requeueDependency     time.Duration
	httpRetry             int
	defaultServiceAccount string
	readYourWrites        bool

	// The embedded runner.
	runnerMode, storagePath, tofuPath, terraformPath, toolCLIConfig string
	runnerCapacity                                                  int32

	acl            acl.Options
	client         runtimeclient.Options
	features       features.FeatureGates
	interval       jitter.IntervalOptions
	leaderElection leaderelection.Options
	log            logger.Options
	rateLimiter    runtimectrl.RateLimiterOptions
	watch          runtimectrl.WatchOptions

	// namespace is the manager's own, from RUNTIME_NAMESPACE.
	namespace string
}

func (o *options) bind(flags *flag.FlagSet) {
	flags.StringVar(&o.eventsAddr, "events-addr", "", "The address of the events receiver, e.g. notification-controller.")
	flags.StringVar(&o.metricsAddr, "metrics-addr", ":8080", "The address the metric endpoint binds to.")
	flags.StringVar(&o.healthAddr, "health-addr", ":9440", "The address the health endpoint binds to.")
	flags.IntVar(&o.concurrent, "concurrent", 10, "The number of objects that are reconciled at the same time. Running operations do not count.")
	flags.DurationVar(&o.requeueDependency, "requeue-dependency", 30*time.Second, "The time between two looks at a dependency or source that is not ready.")
	flags.IntVar(&o.httpRetry, "http-retry", 9, "The number of times a failed download of an artifact is repeated.")
	flags.StringVar(&o.defaultServiceAccount, "default-service-account", "",
		"The ServiceAccount of runners whose object names none, or the default terrace-runner.")
	flags.StringVar(&o.runnerMode, "runner-mode", "", "Where runners live; required. embedded serves them inside the manager, for development and a single trust domain: it does not isolate tenants.")
	flags.StringVar(&o.storagePath, "storage-path", filepath.Join(os.TempDir(), "terrace"),
		"The directory of the embedded runner. It should outlive the process, so that interrupted operations are recognised.")
	flags.StringVar(&o.tofuPath, "tofu-path", "", "The OpenTofu program of the embedded runner; looked up on the PATH if empty.")
	flags.StringVar(&o.terraformPath, "terraform-path", "", "The Terraform program of the embedded runner; looked up on the PATH if empty.")
	flags.StringVar(&o.toolCLIConfig, "tool-cli-config", "", "The CLI configuration file of the embedded runner's tools, for objects that name none; e.g. for a provider mirror.")
	flags.Int32Var(&o.runnerCapacity, "runner-capacity", 4, "The number of operations that the embedded runner runs at the same time.")

	o.acl.BindFlags(flags)
	// Unlike Flux, references across namespaces are denied unless somebody allows them.
	o.acl.NoCrossNamespaceRefs = true
	flags.Lookup("no-cross-namespace-refs").DefValue = "true"
	o.client.BindFlags(flags)
	o.features.BindFlags(flags)
	o.interval.BindFlags(flags)
	o.leaderElection.BindFlags(flags)
	o.log.BindFlags(flags)
	o.rateLimiter.BindFlags(flags)
	// No ConfigMaps and Secrets are watched, so there is no selector for them.
	watch := flag.NewFlagSet("watch", flag.ContinueOnError)
	o.watch.BindFlags(watch)
	flags.AddFlag(watch.Lookup("watch-all-namespaces"))
	flags.AddFlag(watch.Lookup("watch-label-selector"))
}

// complete checks the flags and derives what follows from them.
func (o *options) complete() error {
	if o.runnerMode == "" {
		return fmt.Errorf("--runner-mode is required; --runner-mode=%s serves runners inside the manager, for development and a single trust domain: it does not isolate tenants from each other", runnerModeEmbedded)
	}
	if o.runnerMode != runnerModeEmbedded {
		return fmt.Errorf("--runner-mode=%s: the modes are: %s", o.runnerMode, runnerModeEmbedded)
	}
	if o.concurrent < 1 || o.runnerCapacity < 1 {
		return fmt.Errorf("--concurrent and --runner-capacity must be at least 1")
	}
	if err := o.features.WithLogger(ctrl.Log.WithName("features")).SupportedFeatures(supportedFeatures); err != nil {
		return fmt.Errorf("--feature-gates: %w", err)
	}
	var err error
	if o.readYourWrites, err = features.Enabled(featureReadYourWrites); err != nil {
		return fmt.Errorf("--feature-gates: %w", err)
	}
	if err := o.interval.SetGlobalJitter(nil); err != nil {
		return fmt.Errorf("--interval-jitter-percentage: %w", err)
	}
	o.namespace = os.Getenv(runtimectrl.EnvRuntimeNamespace)
	if o.namespace == "" && !o.watch.AllNamespaces {
		return fmt.Errorf("--watch-all-namespaces=false needs the environment variable %s", runtimectrl.EnvRuntimeNamespace)
	}
	return nil
}
