package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/terrace-dev/terrace/test/bench/measure"
)

// emptyCluster measures a manager that has nothing to do.
func emptyCluster(ctx context.Context, l *lab, _ *sizes) ([]measure.Figure, error) {
	if err := l.start(ctx, realImage); err != nil {
		return nil, err
	}
	m, err := measure.Settled(ctx, l.Manager.PID())
	if err != nil {
		return nil, err
	}
	return []measure.Figure{
		{Name: "memory of the manager, empty cluster", Value: m.Resident, Unit: "MiB", Goal: 50, Note: m.Note()},
	}, l.stop()
}

// fullCluster measures a manager that was restarted in a cluster with many objects,
// its own and others'.
func fullCluster(ctx context.Context, l *lab, n *sizes) ([]measure.Figure, error) {
	after, err := measure.MemoryOf(l.Manager.PID())
	if err != nil {
		return nil, err
	}
	if err := errors.Join(l.stop(), l.Fill(ctx, "bench-other", n.secrets, n.pods), l.start(ctx, stubImage)); err != nil {
		return nil, err
	}
	m, err := measure.Settled(ctx, l.Manager.PID())
	if err != nil {
		return nil, err
	}
	return []measure.Figure{
		{Name: "memory of the manager after the sweep", Value: after.Resident, Unit: "MiB", Note: after.Note()},
		{
			Name: "memory of the manager after a restart, full cluster", Value: m.Resident, Unit: "MiB", Goal: 60,
			Note: fmt.Sprintf("%d objects of ours, %d other Secrets of %d KiB, %d other Pods; %s", n.objects, n.secrets, measure.SecretSize>>10, n.pods, m.Note()),
		},
	}, nil
}
