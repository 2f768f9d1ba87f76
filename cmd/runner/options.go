package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"

	flag "github.com/spf13/pflag"
)

// The environment of a runner pod, as the manager sets it.
const (
	envPodName        = "POD_NAME"
	envPodNamespace   = "POD_NAMESPACE"
	envServiceAccount = "POD_SERVICE_ACCOUNT"
	envMemoryLimit    = "MEMORY_LIMIT"
	envKubeconfig     = "KUBECONFIG"
)

// defaultIdleTimeout is after how long without a manager an idle runner ends itself,
// so that a pod that everybody forgot does not stay.
const defaultIdleTimeout = time.Hour

// options are what flags and environment set.
type options struct {
	listen                  string
	tlsDir, dataDir         string
	tofuPath, terraformPath string
	toolCLIConfig           string
	logLevel                string
	capacity                int32

	// podName and namespace are the pod's own; serviceAccount and memoryLimit (bytes) may be unknown.
	podName, namespace, serviceAccount string
	memoryLimit                        int64
	kubeconfig, home                   string

	level       slog.Level
	idleTimeout time.Duration
}

func (o *options) bind(flags *flag.FlagSet) {
	flags.StringVar(&o.listen, "listen", "", "The IP address to listen on, the pod's; required.")
	flags.StringVar(&o.tlsDir, "tls-dir", "/etc/terrace/tls", "The directory with the files tls.crt, tls.key and ca.crt that the manager issued.")
	flags.StringVar(&o.dataDir, "data-dir", "/var/lib/terrace", "The directory for sources, workspaces and renewed certificates. It should outlive the process, so that interrupted operations are recognised.")
	flags.StringVar(&o.tofuPath, "tofu-path", "", "The OpenTofu program; looked up on the PATH if empty.")
	flags.StringVar(&o.terraformPath, "terraform-path", "", "The Terraform program; looked up on the PATH if empty.")
	flags.StringVar(&o.toolCLIConfig, "tool-cli-config", "", "The CLI configuration file of the tools, for objects that name none; e.g. for a provider mirror.")
	flags.Int32Var(&o.capacity, "capacity", 0, "The number of operations that run at the same time; 0 derives it from the memory limit: one per 512 MiB.")
	flags.StringVar(&o.logLevel, "log-level", "info", "The verbosity of logs: trace, debug, info or error.")
}

// levels are the names that the manager's --log-level has, too.
var levels = map[string]slog.Level{"trace": slog.LevelDebug - 4, "debug": slog.LevelDebug, "info": slog.LevelInfo, "error": slog.LevelError}

// complete checks the flags and reads the environment.
func (o *options) complete(rest []string, getenv func(string) string) error {
	if len(rest) > 0 {
		return fmt.Errorf("unexpected argument %q: there are only flags", rest[0])
	}
	if o.listen == "" {
		return errors.New("--listen is required: the pod's IP address")
	}
	if net.ParseIP(o.listen) == nil {
		return fmt.Errorf("--listen=%s: this is no IP address", o.listen)
	}
	if o.capacity < 0 {
		return fmt.Errorf("--capacity=%d: it cannot be negative", o.capacity)
	}
	var known bool
	if o.level, known = levels[o.logLevel]; !known {
		return fmt.Errorf("--log-level=%s: the levels are trace, debug, info and error", o.logLevel)
	}
	o.podName, o.namespace = getenv(envPodName), getenv(envPodNamespace)
	if o.podName == "" || o.namespace == "" {
		return fmt.Errorf("the environment variables %s and %s are required: the runner's certificate is issued for them", envPodName, envPodNamespace)
	}
	o.serviceAccount, o.kubeconfig, o.home = getenv(envServiceAccount), getenv(envKubeconfig), getenv("HOME")
	if limit := getenv(envMemoryLimit); limit != "" {
		var err error
		if o.memoryLimit, err = strconv.ParseInt(limit, 10, 64); err != nil || o.memoryLimit < 0 {
			return fmt.Errorf("the environment variable %s is %q: want a number of bytes", envMemoryLimit, limit)
		}
	}
	return nil
}

// name is the runner's, which no other certificate than its own has.
func (o *options) name() string { return o.podName + "." + o.namespace }
