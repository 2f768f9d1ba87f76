package engine

import (
	"context"
	"encoding/json"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// lockInfoAnnotation is where the kubernetes backend of both tools notes who holds
// the lock; its id is the Lease's holder.
const lockInfoAnnotation = "app.terraform.io/lock-info"

// lease is the name of the Lease with which the kubernetes backend locks the state.
func (op *operation) lease() types.NamespacedName {
	return types.NamespacedName{Namespace: op.object.Namespace, Name: "lock-" + op.stateSecret()}
}

// leaseLock reads the kubernetes backend's lock itself: a tool tells nothing of
// one whose note is missing or damaged. It is nil when there is no lock.
func (op *operation) leaseLock(ctx context.Context) *runnerpb.Lock {
	lease := &coordinationv1.Lease{}
	if !op.object.UsesKubernetesBackend() || op.client.Get(ctx, op.lease(), lease) != nil || !isHeld(lease) {
		return nil
	}
	lock := &runnerpb.Lock{Id: *lease.Spec.HolderIdentity, CreatedUnix: writtenAt(lease).Unix()}
	var info struct {
		Who, Operation string
		Created        time.Time
	}
	if json.Unmarshal([]byte(lease.Annotations[lockInfoAnnotation]), &info) == nil {
		lock.Who, lock.Operation, lock.CreatedUnix = info.Who, info.Operation, info.Created.Unix()
	}
	return lock
}

func isHeld(lease *coordinationv1.Lease) bool {
	return lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != ""
}

// writtenAt is when the Lease was changed last, as far as the API server noted it.
func writtenAt(lease *coordinationv1.Lease) time.Time {
	at := lease.CreationTimestamp.Time
	for _, entry := range lease.ManagedFields {
		if entry.Time != nil && entry.Time.After(at) {
			at = entry.Time.Time
		}
	}
	return at
}

// releaseLease releases the kubernetes backend's lock as the tools do, and says
// whether it was there to release. The tools themselves cannot when there is no
// state yet, since they lock it to begin one, nor when the note is damaged.
func (op *operation) releaseLease(ctx context.Context, id string) (bool, error) {
	lease := &coordinationv1.Lease{}
	if err := op.client.Get(ctx, op.lease(), lease); err != nil {
		return false, ignoreNotFound(err)
	}
	if !isHeld(lease) || *lease.Spec.HolderIdentity != id {
		return false, nil
	}
	lease.Spec.HolderIdentity = nil
	delete(lease.Annotations, lockInfoAnnotation)
	err := op.client.Update(ctx, lease)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return false, nil // somebody else released it
	}
	if err != nil {
		return false, retry(infrav1.StateLockedReason, err, "releasing the state lock %s", id)
	}
	return true, nil
}
