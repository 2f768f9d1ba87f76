package authority

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

var (
	_ manager.Runnable               = (*Store)(nil)
	_ manager.LeaderElectionRunnable = (*Store)(nil)
)

// NeedLeaderElection says that only the leader keeps the Secret in order. Others read it when they need it.
func (s *Store) NeedLeaderElection() bool { return true }

// Start keeps the Secret in order until the context ends: it takes in what others
// write, writes the Secret again if it was deleted or damaged, and rotates the authority
// when two thirds of its life are over. While nothing happens there is one watch
// and no other request. What fails is logged and tried again.
func (s *Store) Start(ctx context.Context) error {
	secrets, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: s.listWatch(),
		ObjectType:    &corev1.Secret{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { s.poke() },
			UpdateFunc: func(any, any) { s.poke() },
			DeleteFunc: func(any) { s.poke() },
		},
	})
	synced := informer.HasSyncedChecker().Done()
	var watching sync.WaitGroup
	watching.Go(func() { informer.RunWithContext(ctx) })
	defer watching.Wait()

	due, pause := s.clock.NewTimer(time.Hour), time.NewTimer(time.Hour)
	defer due.Stop()
	defer pause.Stop()
	pause.Stop()
	retry := backoff()
	for look, paused := true, false; ; {
		if look && !paused {
			var again bool
			if look, again = s.keep(ctx, secrets); again {
				paused = true
				pause.Reset(retry.Step())
			}
			due.Reset(s.untilRotation())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
			look = true
		case <-synced: // if there is no Secret now, nothing else says so
			look, synced = true, nil
		case <-due.C():
			look = true
		case <-pause.C:
			if paused = false; !look {
				retry = backoff()
			}
		}
	}
}

// backoff is how long to pause after a failure, and after a write so that two who
// disagree about the Secret do not write it all the time. A pause in which nothing
// happens is the last.
func backoff() *wait.Backoff {
	return &wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.5, Steps: 10, Cap: 5 * time.Minute}
}

// keep does what is to be done. It says whether that failed, so that it has to be done again, and
// whether to pause before doing anything else.
func (s *Store) keep(ctx context.Context, secrets cache.Store) (failed, pause bool) {
	if s.settled(secrets) {
		return false, false
	}
	release, err := s.lock(ctx)
	if err != nil {
		return false, false // the context ended
	}
	defer release()
	wrote, err := s.sync(ctx)
	if err != nil && ctx.Err() == nil {
		log.FromContext(ctx).Error(err, "The certificate authority is not in order; it is tried again, and goes on from memory until then", "loaded", s.loaded() != nil)
	}
	return err != nil, err != nil || wrote
}

// settled says whether what the watch shows is what is in memory, and good.
func (s *Store) settled(secrets cache.Store) bool {
	known := s.loaded()
	if known == nil || known.ca.NeedsRotation(s.clock.Now()) {
		return false
	}
	object, exists, err := secrets.GetByKey(s.namespace + "/" + SecretName)
	secret, ok := object.(*corev1.Secret)
	return err == nil && exists && ok && secret.ResourceVersion == known.version
}

// untilRotation returns how long it is until the authority in memory is to be
// rotated; nothing if it is already, or is not there.
func (s *Store) untilRotation() time.Duration {
	known, now := s.loaded(), s.clock.Now()
	if known == nil {
		return 0
	}
	return max(0, known.ca.RotateAt(now).Sub(now))
}

// listWatch sees this Secret alone, which is all that the manager may see.
func (s *Store) listWatch() cache.ListerWatcher {
	options := func(raw metav1.ListOptions) *client.ListOptions {
		return &client.ListOptions{Namespace: s.namespace, FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, SecretName), Raw: &raw}
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, raw metav1.ListOptions) (runtime.Object, error) {
			list := &corev1.SecretList{}
			return list, s.client.List(ctx, list, options(raw))
		},
		WatchFuncWithContext: func(ctx context.Context, raw metav1.ListOptions) (watch.Interface, error) {
			return s.client.Watch(ctx, &corev1.SecretList{}, options(raw))
		},
	}
}
