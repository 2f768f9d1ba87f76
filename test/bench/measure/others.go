package measure

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// SecretSize is what each Secret of Fill holds, in bytes.
	SecretSize = 6 << 10
	// others is how many namespaces Fill makes.
	others = 20
	// clients is how many requests Parallel makes at the same time.
	clients = 16
)

// Parallel does something for each number below n, a few at a time.
func Parallel(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(clients)
	for i := range n {
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}

// Fill makes Secrets and Pods that are none of ours, in namespaces prefix-0 and so on
// with the label prefix. The Pods are never scheduled.
func (s *Objects) Fill(ctx context.Context, prefix string, secrets, pods int) error {
	namespace := func(i int) string { return fmt.Sprintf("%s-%d", prefix, i%others) }
	err := Parallel(ctx, others, func(ctx context.Context, i int) error {
		labels := map[string]string{prefix: ""}
		if err := s.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace(i), Labels: labels}}); err != nil {
			return err
		}
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace(i), Name: "default"}}
		return client.IgnoreAlreadyExists(s.Client.Create(ctx, account)) // a controller may have been first
	})
	if err != nil {
		return err
	}
	content := make([]byte, SecretSize)
	if _, err := rand.Read(content); err != nil {
		return err
	}
	err = Parallel(ctx, secrets, func(ctx context.Context, i int) error {
		return s.Client.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace(i), Name: fmt.Sprintf("other-%d", i)},
			Data:       map[string][]byte{"content": bytes.Clone(content)},
		})
	})
	if err != nil {
		return err
	}
	return Parallel(ctx, pods, func(ctx context.Context, i int) error {
		return s.Client.Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace(i), Name: fmt.Sprintf("other-%d", i), Labels: map[string]string{"app": "other"}},
			Spec: corev1.PodSpec{
				SchedulingGates: []corev1.PodSchedulingGate{{Name: "terrace.dev/never"}},
				Containers:      []corev1.Container{{Name: "app", Image: "app:1"}},
			},
		})
	})
}
