package reconcile

import (
	"bytes"
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Patcher writes an object's changes since it was last read or written, and
// nothing when nothing changed.
//
// A status is one request: an operation and the conditions that announce it
// appear together or not at all. (The patch helper of fluxcd/pkg/runtime sends
// conditions and the rest of the status as two.) Each write carries the resource
// version it is based on, so that a decision on a stale view cannot be recorded,
// and hence not be acted upon.
type Patcher struct {
	client client.Client
	owner  client.FieldOwner
	before client.Object
}

// NewPatcher returns a patcher for an object just read. The owner is the field
// manager of the writes.
func NewPatcher(c client.Client, owner string, obj client.Object) *Patcher {
	return &Patcher{client: c, owner: client.FieldOwner(owner), before: clone(obj)}
}

// Status writes the changes of the status.
func (p *Patcher) Status(ctx context.Context, obj client.Object) error {
	changed, err := p.changed(obj)
	if err != nil || !changed {
		return err
	}
	if err := p.client.Status().Patch(ctx, obj, p.patch(), p.owner); err != nil {
		return fmt.Errorf("writing status: %w", err)
	}
	p.before = clone(obj)
	return nil
}

// Metadata writes the changes of the metadata, finalizers for example. Changes
// of the status that were not written yet survive it.
func (p *Patcher) Metadata(ctx context.Context, obj client.Object) error {
	changed, err := p.changed(obj)
	if err != nil || !changed {
		return err
	}
	written := clone(obj)
	if err := p.client.Patch(ctx, written, p.patch(), p.owner); err != nil {
		return fmt.Errorf("writing metadata: %w", err)
	}
	obj.SetResourceVersion(written.GetResourceVersion())
	obj.SetFinalizers(written.GetFinalizers())
	p.before.SetResourceVersion(written.GetResourceVersion())
	p.before.SetFinalizers(written.GetFinalizers())
	return nil
}

func (p *Patcher) changed(obj client.Object) (bool, error) {
	data, err := client.MergeFrom(p.before).Data(obj)
	if err != nil {
		return false, fmt.Errorf("comparing with what was read: %w", err)
	}
	return !bytes.Equal(data, []byte("{}")), nil
}

func (p *Patcher) patch() client.Patch {
	return client.MergeFromWithOptions(p.before, client.MergeFromWithOptimisticLock{})
}

func clone(obj client.Object) client.Object {
	return obj.DeepCopyObject().(client.Object) //nolint:errcheck // a copy has the type of what was copied
}
