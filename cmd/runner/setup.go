package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/terrace-dev/terrace/internal/footprint"
	"github.com/terrace-dev/terrace/internal/pki"
	"github.com/terrace-dev/terrace/runner"
	"github.com/terrace-dev/terrace/runner/engine"
)

// setup serves until the context ends, or nobody needs the runner any more.
func setup(ctx context.Context, opts *options) error {
	footprint.CollectEarly()
	log := newLogger(os.Stderr, opts.level)
	adoptLogger(log)

	if err := os.MkdirAll(opts.dataDir, 0o700); err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	if err := opts.makeHome(); err != nil {
		return fmt.Errorf("home directory: %w", err)
	}
	keys, err := openKeychain(opts.tlsDir, opts.dataDir, opts.name(), time.Now, log)
	if err != nil {
		return err
	}
	// Whoever connects from now on is served as soon as the tools have been asked for their versions.
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(opts.listen, strconv.Itoa(runner.Port)))
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	defer listener.Close()
	memory := cgroup{root: "/sys/fs/cgroup"}
	executor, err := newEngine(ctx, opts, memory, log)
	if err != nil {
		return err
	}
	server := runner.NewServer(executor, serverOptions(opts, memory, keys, log))
	log.Info("serving", "name", opts.name(), "address", listener.Addr().String(), "tools", len(executor.Tools()))
	footprint.Shrink()
	if err := server.Serve(ctx, listener, pki.ServerConfig(keys.source), interceptors()...); err != nil {
		return err
	}
	log.Info("the runner ends")
	return nil
}

func newEngine(ctx context.Context, opts *options, memory cgroup, log *slog.Logger) (*engine.Engine, error) {
	if _, err := opts.apiConfig(); err != nil {
		return nil, err
	}
	tools := engine.FindTools(opts.tofuPath, opts.terraformPath)
	if len(tools) == 0 {
		log.Error("neither tofu nor terraform was found; see --tofu-path and --terraform-path")
	}
	return engine.New(ctx, engine.Options{
		Directory:   opts.dataDir,
		Tools:       tools,
		Config:      opts.ownAccess,
		Env:         engine.OwnEnv(),
		CLIConfig:   opts.toolCLIConfig,
		MemoryKills: memory.kills,
	})
}

func serverOptions(opts *options, memory cgroup, keys *keychain, log *slog.Logger) runner.Options {
	enforced := memory.enforced(opts.memoryLimit)
	options := runner.Options{
		Namespace:   opts.namespace,
		Capacity:    capacity(opts.capacity, opts.memoryLimit, enforced),
		Rotate:      keys.rotate,
		IdleTimeout: opts.idleTimeout,
		Logger:      log,
	}
	if enforced {
		options.Room = memory.room
	}
	log.Info("operations at the same time", "capacity", options.Capacity, "memoryLimit", opts.memoryLimit, "memoryIsWatched", enforced)
	return options
}
