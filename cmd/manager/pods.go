package main

import (
	"fmt"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/authority"
	"github.com/terrace-dev/terrace/internal/controller/terraform"
	"github.com/terrace-dev/terrace/internal/runners"
)

var _ terraform.Runners = (*runners.Pool)(nil)

// addPods adds the pool of runner pods, and the certificate authority behind it.
func addPods(mgr ctrl.Manager, opts *options) (*runners.Pool, error) {
	// Not the manager's own client: that one would watch what it writes, and nobody
	// here may watch Secrets.
	direct, err := client.NewWithWatch(mgr.GetConfig(), client.Options{HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return nil, err
	}
	store, err := authority.New(authority.Options{Client: direct, Namespace: opts.namespace, Lives: opts.lives})
	if err != nil {
		return nil, err
	}
	pool := runners.New(runners.Options{
		Client: direct, Reader: direct, Cache: mgr.GetCache(), Authority: store,
		Manager: opts.leaderID(), Image: opts.runnerImage, StartTimeout: opts.runnerStartTimeout, AllowUnrestricted: opts.allowUnrestricted,
		ServiceAccount: func(obj *infrav1.Terraform) string { return terraform.ServiceAccount(obj, opts.defaultServiceAccount) },
	})
	if err := mgr.Add(store); err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	if err := mgr.Add(pool); err != nil {
		return nil, fmt.Errorf("runner pods: %w", err)
	}
	return pool, nil
}
