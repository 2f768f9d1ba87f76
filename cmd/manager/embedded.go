package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/terrace-dev/terrace/internal/controller/terraform"
	"github.com/terrace-dev/terrace/internal/pki"
	"github.com/terrace-dev/terrace/runner"
	"github.com/terrace-dev/terrace/runner/engine"
)

// embeddedName is the name in the embedded runner's certificate and in status.
const embeddedName = "embedded"

// embeddedRunner is a runner inside the manager. It speaks the same protocol over
// the same TLS as one in a pod, on the loopback interface.
type embeddedRunner struct {
	server    *runner.Server
	client    *runner.Client
	listener  net.Listener
	authority *pki.Authority
}

func newEmbeddedRunner(ctx context.Context, config *rest.Config, opts *options) (*embeddedRunner, error) {
	tools := engine.FindTools(opts.tofuPath, opts.terraformPath)
	executor, err := engine.New(ctx, engine.Options{
		Directory: opts.storagePath,
		Tools:     tools,
		Config:    impersonating(config),
		Env:       engine.InheritedEnv(),
		CLIConfig: opts.toolCLIConfig,
	})
	if err != nil {
		return nil, err
	}
	if len(tools) == 0 {
		ctrl.Log.Info("neither tofu nor terraform was found; see --tofu-path and --terraform-path")
	}
	authority, err := pki.NewAuthority(clock.RealClock{})
	if err != nil {
		return nil, err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	client, err := runner.Dial(listener.Addr().String(), authority.ClientConfig(embeddedName))
	if err != nil {
		return nil, err
	}
	return &embeddedRunner{
		server: runner.NewServer(executor, runner.Options{
			Capacity: opts.runnerCapacity,
			Logger:   slog.New(logr.ToSlogHandler(ctrl.Log.WithName("runner"))),
		}),
		client: client, listener: listener, authority: authority,
	}, nil
}

func (e *embeddedRunner) runners() terraform.Runners {
	return terraform.SharedRunner{Client: e.client, RunnerName: embeddedName}
}

// serve returns after the context ended and all tools have saved their state.
func (e *embeddedRunner) serve(ctx context.Context) error {
	defer e.client.Close()
	if err := e.server.Serve(ctx, e.listener, e.authority.ServerConfig(embeddedName)); err != nil {
		return fmt.Errorf("embedded runner: %w", err)
	}
	return nil
}

// impersonating gives the embedded runner no more rights than a tenant's
// ServiceAccount has: what a module may read and write, RBAC decides.
func impersonating(config *rest.Config) func(ctx context.Context, namespace, serviceAccount string) (*rest.Config, error) {
	return func(_ context.Context, namespace, serviceAccount string) (*rest.Config, error) {
		own := rest.CopyConfig(config)
		own.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + namespace + ":" + serviceAccount}
		return own, nil
	}
}
