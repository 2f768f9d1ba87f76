package terraform

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/fluxcd/pkg/runtime/conditions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// recordLock notes who holds the lock that stands in the way, and says whether it is
// to be released by the next attempt. That is tried once for each lock.
func (r *Reconciler) recordLock(ctx context.Context, s *scope, lock *runnerpb.Lock) (release bool) {
	status := &infrav1.LockStatus{ID: lock.GetId(), Who: lock.GetWho(), Operation: lock.GetOperation()}
	held := ""
	if lock.GetCreatedUnix() > 0 {
		created := time.Unix(lock.GetCreatedUnix(), 0).UTC()
		status.CreatedAt = new(metav1.NewTime(created))
		held = " since " + created.Format(time.RFC3339)
	}
	s.obj.Status.Lock = status
	gone := r.holderGone(ctx, s, lock.GetWho())
	release = gone && s.obj.Spec.StateLock.GetForceUnlock() == infrav1.ForceUnlockStale && s.memory.released != lock.GetId()
	if release {
		s.memory.released = lock.GetId()
	}
	conditions.MarkTrue(s.obj, infrav1.StateLockedCondition, infrav1.StateLockedReason, "%s",
		fmt.Sprintf("%s holds the lock %s of the state%s (%s). ", lock.GetWho(), lock.GetId(), held, lock.GetOperation())+
			lockAdvice(lock.GetId(), gone, release))
	return release
}

// lockAdvice says what happens to a lock, or what to do about it.
func lockAdvice(id string, gone, release bool) string {
	switch {
	case release:
		return "Its runner is gone, so it is released now"
	case gone:
		return "Its runner is gone; set spec.stateLock.id to " + id + ", or spec.stateLock.forceUnlock to Stale, to release it"
	default:
		return "If nothing works on the state any more, set spec.stateLock.id to " + id + " to release it"
	}
}

// releasable says whether a lock may be released because its holder is gone.
func (r *Reconciler) releasable(ctx context.Context, s *scope, who string) bool {
	return s.obj.Spec.StateLock.GetForceUnlock() == infrav1.ForceUnlockStale && r.holderGone(ctx, s, who)
}

// holderGone says whether the holder of a lock, user@host, was a runner that is gone.
func (r *Reconciler) holderGone(ctx context.Context, s *scope, who string) bool {
	_, host, found := strings.Cut(who, "@")
	if !found {
		return false
	}
	gone, err := r.Runners.Abandoned(ctx, s.obj.Namespace, host)
	if err != nil {
		log.FromContext(ctx).Error(err, "it is not known whether the holder of a lock is gone; the lock stays", "who", who)
	}
	return gone && err == nil
}
