package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terrace-dev/terrace/test/bench/measure"
	"github.com/terrace-dev/terrace/test/harness"
)

// stubTool measures everything but the tool, with many objects in some namespaces.
func stubTool(ctx context.Context, l *lab, n *sizes) ([]measure.Figure, error) {
	if err := errors.Join(l.stop(), l.start(ctx, stubImage)); err != nil {
		return nil, err
	}
	var namespaces []string
	for i := range n.namespaces {
		namespaces = append(namespaces, fmt.Sprintf("bench-stub-%d", i))
		if err := l.Open(ctx, namespaces[i], nil); err != nil {
			return nil, err
		}
	}
	var keys []client.ObjectKey
	for i := range n.objects {
		keys = append(keys, client.ObjectKey{Namespace: namespaces[i%n.namespaces], Name: fmt.Sprintf("o%d", i)})
	}
	if _, err := l.counted(ctx); err != nil {
		return nil, err
	}
	began := time.Now()
	done, err := l.Await(ctx, keys, harness.IsReady, func() error {
		return measure.Parallel(ctx, n.objects, func(ctx context.Context, i int) error {
			return l.Client.Create(ctx, measure.Object(keys[i], measure.Module))
		})
	})
	if err != nil {
		return nil, err
	}
	first := done.Sub(began)
	ofFirst, err := l.counted(ctx)
	if err != nil {
		return nil, err
	}
	before, err := l.usage(ctx, namespaces)
	if err != nil {
		return nil, err
	}
	sweep, err := l.Request(ctx, keys...)
	if err != nil {
		return nil, err
	}
	after, err := l.usage(ctx, namespaces)
	if err != nil {
		return nil, err
	}
	ofSweep, err := l.counted(ctx)
	if err != nil {
		return nil, err
	}
	each := func(d time.Duration) float64 { return measure.MS(d) / float64(n.objects) }
	per := func(count int) float64 { return float64(count) / float64(n.objects) }
	note := fmt.Sprintf("%d objects in %d namespaces, stub tool", n.objects, n.namespaces)
	return []measure.Figure{
		{Name: "stub: first applies, wall time per object", Value: each(first), Unit: "ms", Note: note},
		{Name: "stub: unchanged sweep, wall time per object", Value: each(sweep), Unit: "ms", Note: note},
		{Name: "stub: unchanged sweep, CPU of the manager per object", Value: each(after.manager - before.manager), Unit: "ms"},
		{Name: "stub: unchanged sweep, CPU of the runner per object", Value: each(after.runners - before.runners), Unit: "ms", Note: "without its tool"},
		{Name: "stub: tool processes per first apply", Value: per(ofFirst.processes), Goal: 4, Note: "the stub's outputs are read at once"},
		{Name: "stub: tool processes per unchanged cycle", Value: per(ofSweep.processes), Goal: 1},
		{Name: "stub: writes of the manager per first apply", Value: per(ofFirst.manager), Goal: 8},
		{Name: "stub: writes of the manager per requested cycle", Value: per(ofSweep.manager), Goal: 2},
	}, nil
}

// usage is the processor time that manager and runners have used.
type usage struct{ manager, runners time.Duration }

func (l *lab) usage(ctx context.Context, namespaces []string) (u usage, err error) {
	if u.manager, err = cpu(l.Manager.PID()); err != nil {
		return u, err
	}
	for _, namespace := range namespaces {
		pids, err := l.runners(ctx, namespace)
		if err != nil {
			return u, err
		}
		for _, pid := range pids {
			used, err := cpu(pid)
			if err != nil {
				return u, err
			}
			u.runners += used
		}
	}
	return u, nil
}
