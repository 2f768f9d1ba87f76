package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fluxcd/pkg/runtime/acl"
	runtimectrl "github.com/fluxcd/pkg/runtime/controller"
	"github.com/fluxcd/pkg/runtime/features"
	"github.com/fluxcd/pkg/runtime/jitter"
	"github.com/fluxcd/pkg/runtime/leaderelection"
	"github.com/fluxcd/pkg/runtime/logger"
	flag "github.com/spf13/pflag"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/terrace-dev/terrace/internal/pki"
	"github.com/terrace-dev/terrace/internal/runners"
)

// Where runners live.
const (
	// runnerModePod gives each namespace pods of its own.
	runnerModePod = "pod"
	// runnerModeEmbedded serves the runner inside the manager, for development.
	runnerModeEmbedded = "embedded"
)

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

	// Where runners live, and those in pods.
	runnerMode, runnerImage string
	runnerStartTimeout      time.Duration
	allowUnrestricted       bool
	lives                   pki.Lives

	// The embedded runner.
	storagePath, tofuPath, terraformPath, toolCLIConfig string
	runnerCapacity                                      int32

	access         accessOptions
	acl            acl.Options
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
	flags.StringVar(&o.runnerMode, "runner-mode", runnerModePod,
		"Where runners live: pod, or embedded, which serves them inside the manager, for development and a single trust domain: it does not isolate tenants.")
	flags.StringVar(&o.runnerImage, "runner-image", "", "The image of runner pods; required with --runner-mode=pod.")
	flags.DurationVar(&o.runnerStartTimeout, "runner-start-timeout", runners.DefaultStartTimeout, "The time that a runner pod may take to start.")
	flags.BoolVar(&o.allowUnrestricted, "allow-unrestricted-runners", false,
		"Allow templates of runner pods that the Pod Security Standard restricted forbids.")
	flags.DurationVar(&o.lives.Leaf, "certificate-lifetime", pki.LeafLife, "The lifetime of the certificates of runners and of the manager. They are renewed at two thirds of it.")
	flags.DurationVar(&o.lives.CA, "ca-lifetime", pki.CALife, "The lifetime of the certificate authority. It is renewed at two thirds of it.")
	flags.StringVar(&o.storagePath, "storage-path", filepath.Join(os.TempDir(), "terrace"),
		"The directory for artifacts on their way to runners, and of the embedded runner, for which it should outlive the process, so that interrupted operations are recognised.")
	flags.StringVar(&o.tofuPath, "tofu-path", "", "The OpenTofu program of the embedded runner; looked up on the PATH if empty.")
	flags.StringVar(&o.terraformPath, "terraform-path", "", "The Terraform program of the embedded runner; looked up on the PATH if empty.")
	flags.StringVar(&o.toolCLIConfig, "tool-cli-config", "", "The CLI configuration file of the embedded runner's tools, for objects that name none; e.g. for a provider mirror.")
	flags.Int32Var(&o.runnerCapacity, "runner-capacity", 4, "The number of operations that the embedded runner runs at the same time.")

	o.acl.BindFlags(flags)
	// Unlike Flux, references across namespaces are denied unless somebody allows them.
	o.acl.NoCrossNamespaceRefs = true
	flags.Lookup("no-cross-namespace-refs").DefValue = "true"
	o.access.bind(flags)
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
	if err := o.completeRunners(); err != nil {
		return err
	}
	if o.namespace == "" && !o.watch.AllNamespaces {
		return fmt.Errorf("--watch-all-namespaces=false needs the environment variable %s", runtimectrl.EnvRuntimeNamespace)
	}
	return nil
}

// completeRunners checks the flags about runners.
func (o *options) completeRunners() error {
	switch o.runnerMode {
	case runnerModeEmbedded:
		return nil
	case runnerModePod:
	default:
		return fmt.Errorf("--runner-mode=%s: the modes are %s and %s", o.runnerMode, runnerModePod, runnerModeEmbedded)
	}
	if o.runnerImage == "" {
		return fmt.Errorf("--runner-mode=%s needs --runner-image", runnerModePod)
	}
	if o.namespace == "" {
		return fmt.Errorf("--runner-mode=%s needs the environment variable %s, the manager's own namespace", runnerModePod, runtimectrl.EnvRuntimeNamespace)
	}
	if err := o.lives.Validate(); err != nil {
		return fmt.Errorf("--certificate-lifetime and --ca-lifetime: %w", err)
	}
	if o.runnerStartTimeout <= 0 {
		return fmt.Errorf("--runner-start-timeout must be positive")
	}
	return nil
}
