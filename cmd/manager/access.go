package main

import (
	"context"
	"fmt"

	"github.com/fluxcd/cli-utils/pkg/flowcontrol"
	flag "github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
)

// accessOptions limit the manager's requests where the API server has no limits of
// its own. Flux's package for it would link kubectl, which takes 2 MB of memory.
type accessOptions struct {
	qps   float32
	burst int
}

func (o *accessOptions) bind(flags *flag.FlagSet) {
	flags.Float32Var(&o.qps, "kube-api-qps", 50, "The maximum queries-per-second of requests sent to the Kubernetes API.")
	flags.IntVar(&o.burst, "kube-api-burst", 300, "The maximum burst queries-per-second of requests sent to the Kubernetes API.")
}

// config is the API access of $KUBECONFIG, or else of the pod's ServiceAccount.
func (o *accessOptions) config(ctx context.Context) (*rest.Config, error) {
	config, err := ctrl.GetConfig()
	if err != nil {
		return nil, fmt.Errorf("API access: %w", err)
	}
	config.QPS, config.Burst = o.qps, o.burst
	if limited, err := flowcontrol.IsEnabled(ctx, config); err == nil && limited {
		config.QPS, config.Burst = -1, -1
	}
	return config, nil
}
