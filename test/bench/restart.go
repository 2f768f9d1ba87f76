package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terrace-dev/terrace/test/bench/measure"
	"github.com/terrace-dev/terrace/test/harness"
)

// takeovers is how often a manager is replaced by another one, in each way.
const takeovers = 3

// shortLease are flags of managers that are killed: the next one leads when the
// lease has expired, which is no part of what is measured.
var shortLease = []string{"--leader-election-lease-duration=4s", "--leader-election-renew-deadline=3s", "--leader-election-retry-period=1s"}

// restarts measures what a new manager takes from the moment that it leads: to the
// first cycle, and to an apply that the manager before it started.
func restarts(ctx context.Context, l *lab, _ *sizes) ([]measure.Figure, error) {
	const namespace = "bench-restart"
	if err := errors.Join(l.stop(), l.start(ctx, realImage, shortLease...), l.Open(ctx, namespace, nil)); err != nil {
		return nil, err
	}
	warm := client.ObjectKey{Namespace: namespace, Name: "warm"}
	if _, err := l.Create(ctx, measure.Object(warm, measure.Module)); err != nil {
		return nil, err
	}
	var first, follow, ready []time.Duration
	var ofApplies counts
	for i := range takeovers {
		took, err := l.restart(ctx, warm)
		if err != nil {
			return nil, err
		}
		first = append(first, took)
		followed, ended, err := l.killInApply(ctx, client.ObjectKey{Namespace: namespace, Name: fmt.Sprintf("killed-%d", i)}, &ofApplies)
		if err != nil {
			return nil, err
		}
		follow, ready = append(follow, followed), append(ready, ended)
	}
	seconds := func(d time.Duration) float64 { return d.Seconds() }
	return []measure.Figure{
		{Name: "manager restarted: it leads to the first warm cycle handled", Value: seconds(measure.Median(first)), Unit: "s", Goal: 2, Note: "ms: " + measure.Spread(first)},
		{Name: "manager killed during an apply: the next leads to it follows", Value: seconds(measure.Median(follow)), Unit: "s", Goal: 5, Note: "ms: " + measure.Spread(follow)},
		{Name: "  to Ready, of an apply that ends as soon as it leads", Value: seconds(measure.Median(ready)), Unit: "s", Goal: 5, Note: "ms: " + measure.Spread(ready)},
		{Name: "  tool processes of the whole", Value: float64(ofApplies.processes) / takeovers, Goal: 4, Note: "init, plan, show, apply: nothing is done twice"},
	}, nil
}

// restart replaces the manager as a rolling update does, and returns the time from
// the new one's leadership until it has handled a request that waited for it.
func (l *lab) restart(ctx context.Context, key client.ObjectKey) (time.Duration, error) {
	token := time.Now().Format(time.RFC3339Nano)
	keys := []client.ObjectKey{key}
	if err := errors.Join(l.stop(), l.Annotate(ctx, keys, token)); err != nil {
		return 0, err
	}
	done, err := l.Await(ctx, keys, measure.Handled(token), func() error { return l.start(ctx, realImage, shortLease...) })
	if err != nil {
		return 0, err
	}
	since, _, err := harness.Leader(ctx, l.Client)
	return done.Sub(since), err
}

// killInApply kills the manager while an apply runs, which ends as soon as another
// one leads, and returns the times until that one follows it and has it Ready.
func (l *lab) killInApply(ctx context.Context, key client.ObjectKey, of *counts) (followed, ready time.Duration, err error) {
	begun, let := filepath.Join(l.dir, key.Name+".begun"), filepath.Join(l.dir, key.Name+".let")
	o := measure.Object(key, fmt.Sprintf(`
resource "terraform_data" "a" {
  provisioner "local-exec" { command = "touch '%s'; until [ -e '%s' ]; do sleep 0.05; done" }
}
`, begun, let))
	if _, err := l.count(); err != nil {
		return 0, 0, err
	}
	if err := errors.Join(l.Client.Create(ctx, o), awaitFile(ctx, begun)); err != nil {
		return 0, 0, err
	}
	_, before, err := harness.Leader(ctx, l.Client)
	if err != nil {
		return 0, 0, err
	}
	l.Manager.Kill()
	var since time.Time
	done, err := l.Await(ctx, []client.ObjectKey{key}, harness.IsReady, func() error {
		if err := l.start(ctx, realImage, shortLease...); err != nil {
			return err
		}
		for holder := before; holder == before; {
			if since, holder, err = harness.Leader(ctx, l.Client); err != nil {
				return err
			}
		}
		return os.WriteFile(let, nil, 0o600)
	})
	if err != nil {
		return 0, 0, err
	}
	c, err := l.count()
	if err != nil {
		return 0, 0, err
	}
	of.add(c)
	entries, err := l.log()
	if err != nil {
		return 0, 0, err
	}
	for e := range entries {
		if e.Msg == "following an operation that was started before" && e.Name == key.Name {
			return e.Time.Sub(since), done.Sub(since), nil
		}
	}
	return 0, 0, errors.New("the new manager's log tells of no operation that it follows")
}

// awaitFile returns when a file is there.
func awaitFile(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", path, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}
