//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/terrace-dev/terrace/test/bench/measure"
)

// emptyCluster measures a manager that has had nothing to do.
func emptyCluster(ctx context.Context, l *lab, _ *sizes) ([]measure.Figure, error) {
	m, err := l.settled(ctx)
	return []measure.Figure{
		{Name: "memory of the manager, small cluster", Value: m.Resident, Unit: "MiB", Peer: "59", Goal: 50, Note: m.Note()},
	}, err
}

// fullCluster measures a manager that was started in a cluster with many objects of
// others.
func fullCluster(ctx context.Context, l *lab, n *sizes) ([]measure.Figure, error) {
	if n.secrets+n.pods == 0 {
		return nil, nil
	}
	if err := errors.Join(l.stop(ctx), l.Fill(ctx, l.id, n.secrets, n.pods), l.start(ctx)); err != nil {
		return nil, err
	}
	m, err := l.settled(ctx)
	return []measure.Figure{{
		Name: "memory of the manager, full cluster", Value: m.Resident, Unit: "MiB", Peer: "169", Goal: 60,
		Note: fmt.Sprintf("%d other Secrets of %d KiB, %d other Pods; %s", n.secrets, measure.SecretSize>>10, n.pods, m.Note()),
	}}, err
}

func (l *lab) settled(ctx context.Context) (m measure.Memory, err error) {
	manager, err := l.manager(ctx)
	if err != nil {
		return m, err
	}
	return measure.Settled(ctx, manager.pid)
}
