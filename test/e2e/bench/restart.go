//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/test/bench/measure"
	"github.com/terrace-dev/terrace/test/harness"
)

// takeovers is how often a manager is replaced by another one.
const takeovers = 3

// restarts measures what a request waits that came while no manager was there.
func restarts(ctx context.Context, l *lab, _ *sizes) ([]measure.Figure, error) {
	namespace, err := l.open(ctx, "restart")
	if err != nil {
		return nil, err
	}
	key := client.ObjectKey{Namespace: namespace, Name: "warm"}
	if _, err := l.Create(ctx, measure.Object(key, measure.Module)); err != nil {
		return nil, err
	}
	var all, led []time.Duration
	for range takeovers {
		token := time.Now().Format(time.RFC3339Nano)
		keys := []client.ObjectKey{key}
		if err := errors.Join(l.stop(ctx), l.Annotate(ctx, keys, token)); err != nil {
			return nil, err
		}
		began := time.Now()
		done, err := l.Await(ctx, keys, measure.Handled(token), func() error { return l.start(ctx) })
		if err != nil {
			return nil, err
		}
		since, _, err := harness.Leader(ctx, l.Client)
		if err != nil {
			return nil, err
		}
		all, led = append(all, done.Sub(began)), append(led, done.Sub(since))
	}
	return []measure.Figure{
		{Name: "manager restarted: ordered to first warm cycle handled", Value: measure.Median(all).Seconds(), Unit: "s", Peer: "48", Note: "ms: " + measure.Spread(all)},
		{Name: "  from the moment that it leads", Value: measure.Median(led).Seconds(), Unit: "s", Goal: 2, Note: "ms: " + measure.Spread(led)},
	}, nil
}

// kills measures how an apply survives that the manager, and that its runner, is
// killed without a warning.
func kills(ctx context.Context, l *lab, _ *sizes) ([]measure.Figure, error) {
	namespace, err := l.open(ctx, "kill")
	if err != nil {
		return nil, err
	}
	figures, err := l.killManager(ctx, client.ObjectKey{Namespace: namespace, Name: "manager"})
	if err != nil {
		return nil, err
	}
	more, err := l.killRunner(ctx, client.ObjectKey{Namespace: namespace, Name: "runner"})
	return append(figures, more...), err
}

// killManager kills the manager while an apply runs, which ends as soon as the next
// one leads: when it has waited until the lease of the one before expired.
func (l *lab) killManager(ctx context.Context, key client.ObjectKey) ([]measure.Figure, error) {
	runner, err := l.begin(ctx, key, `touch /tmp/manager.begun; until [ -e /tmp/let ]; do sleep 0.05; done`)
	if err != nil {
		return nil, err
	}
	manager, err := l.manager(ctx)
	if err != nil {
		return nil, err
	}
	_, before, err := harness.Leader(ctx, l.Client)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	var since time.Time
	done, err := l.Await(ctx, []client.ObjectKey{key}, harness.IsReady, func() error {
		if err := manager.kill(); err != nil {
			return err
		}
		err := until(ctx, "another manager to lead", func(ctx context.Context) (bool, error) {
			var holder string
			since, holder, err = harness.Leader(ctx, l.Client)
			return holder != before, err
		})
		if err != nil {
			return err
		}
		_, err = l.exec(ctx, runner, "touch /tmp/let")
		return err
	})
	if err != nil {
		return nil, err
	}
	o := &infrav1.Terraform{}
	if err := l.Client.Get(ctx, key, o); err != nil {
		return nil, err
	}
	return []measure.Figure{
		{Name: "manager killed during an apply: to Ready", Value: done.Sub(began).Seconds(), Unit: "s", Peer: "142", Note: fmt.Sprintf("the lease of the killed one expires first; %s. The peer's apply is interrupted", strings.Join(harness.Results(o), ", "))},
		{Name: "  from the moment that the next one leads", Value: done.Sub(since).Seconds(), Unit: "s", Goal: 5, Note: "the apply went on, and ends as soon as it leads"},
	}, l.start(ctx)
}

// killRunner kills the runner, and with it the tool, while an apply runs.
func (l *lab) killRunner(ctx context.Context, key client.ObjectKey) ([]measure.Figure, error) {
	runner, err := l.begin(ctx, key, `[ -e /tmp/runner.begun ] || { touch /tmp/runner.begun; sleep 600; }`)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	done, err := l.Await(ctx, []client.ObjectKey{key}, harness.IsReady, runner.kill)
	if err != nil {
		return nil, err
	}
	o := &infrav1.Terraform{}
	if err := l.Client.Get(ctx, key, o); err != nil {
		return nil, err
	}
	return []measure.Figure{
		{Name: "runner killed during an apply: to Ready", Value: done.Sub(began).Seconds(), Unit: "s", Peer: "lock stays", Note: strings.Join(harness.Results(o), ", ")},
	}, nil
}

// begin creates an object whose apply runs a command, and returns when that has made
// the file NAME.begun, with the runner that it is in.
func (l *lab) begin(ctx context.Context, key client.ObjectKey, command string) (*container, error) {
	o := measure.Object(key, fmt.Sprintf(`
resource "terraform_data" "a" {
  provisioner "local-exec" { command = %q }
}
`, command))
	if err := l.Client.Create(ctx, o); err != nil {
		return nil, err
	}
	var runner *container
	err := until(ctx, "a runner", func(ctx context.Context) (bool, error) {
		var err error
		runner, err = l.runner(ctx, key.Namespace)
		return err == nil, nil // it does not run yet
	})
	if err != nil {
		return nil, err
	}
	_, err = l.exec(ctx, runner, "until [ -e /tmp/"+key.Name+".begun ]; do sleep 0.05; done")
	return runner, err
}
