package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// secretSize is what the Secrets that are not ours hold, in bytes.
	secretSize = 6 << 10
	// others is how many namespaces what is not ours is in.
	others = 50
)

// emptyCluster measures a manager that has nothing to do.
func emptyCluster(ctx context.Context, l *lab, _ *sizes) ([]figure, error) {
	if err := l.start(ctx, realImage); err != nil {
		return nil, err
	}
	m, err := settled(ctx, l.manager.PID())
	if err != nil {
		return nil, err
	}
	return []figure{
		{Name: "memory of the manager, empty cluster", Value: m.resident, Unit: "MiB", Goal: 50, Note: m.note()},
	}, l.stop()
}

// fullCluster measures a manager that was restarted in a cluster with many objects,
// its own and others'.
func fullCluster(ctx context.Context, l *lab, n *sizes) ([]figure, error) {
	after, err := memoryOf(l.manager.PID())
	if err != nil {
		return nil, err
	}
	if err := errors.Join(l.stop(), l.fill(ctx, n), l.start(ctx, stubImage)); err != nil {
		return nil, err
	}
	m, err := settled(ctx, l.manager.PID())
	if err != nil {
		return nil, err
	}
	return []figure{
		{Name: "memory of the manager after the sweep", Value: after.resident, Unit: "MiB", Note: after.note()},
		{
			Name: "memory of the manager after a restart, full cluster", Value: m.resident, Unit: "MiB", Goal: 60,
			Note: fmt.Sprintf("%d objects of ours, %d other Secrets of %d KiB, %d other Pods; %s", n.objects, n.secrets, secretSize>>10, n.pods, m.note()),
		},
	}, nil
}

// fill makes the Secrets and Pods that are none of ours.
func (l *lab) fill(ctx context.Context, n *sizes) error {
	namespace := func(i int) string { return fmt.Sprintf("bench-other-%d", i%others) }
	err := parallel(ctx, others, func(ctx context.Context, i int) error {
		if err := l.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace(i)}}); err != nil {
			return err
		}
		return l.client.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace(i), Name: "default"}})
	})
	if err != nil {
		return err
	}
	content := make([]byte, secretSize)
	if _, err := rand.Read(content); err != nil {
		return err
	}
	err = parallel(ctx, n.secrets, func(ctx context.Context, i int) error {
		return l.client.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace(i), Name: fmt.Sprintf("other-%d", i)},
			Data:       map[string][]byte{"content": bytes.Clone(content)},
		})
	})
	if err != nil {
		return err
	}
	return parallel(ctx, n.pods, func(ctx context.Context, i int) error {
		return l.client.Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace(i), Name: fmt.Sprintf("other-%d", i), Labels: map[string]string{"app": "other"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app:1"}}},
		})
	})
}
