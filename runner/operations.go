package runner

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// operation is one operation, from its start until it is forgotten.
type operation struct {
	id      string
	kind    runnerpb.OperationType
	object  *runnerpb.ObjectRef
	timeout time.Duration
	events  *eventLog
	ctx     context.Context // ends when somebody cancels the operation
	cancel  context.CancelCauseFunc

	// The registry's lock guards what follows.
	finishedAt time.Time // zero while the operation has not ended
	bytes      int       // what a finished operation holds
}

// registry knows which operations run and keeps those that ended for a while.
type registry struct {
	options Options

	mu       sync.Mutex
	closing  bool
	byID     map[string]*operation
	active   map[string]*operation // by the object's uid: those that have not ended
	finished []*operation          // oldest first
	bytes    int                   // what the finished ones hold
	drained  chan struct{}         // closed when closing and nothing is active
}

func newRegistry(options Options) *registry {
	return &registry{
		options: options,
		byID:    map[string]*operation{},
		active:  map[string]*operation{},
		drained: make(chan struct{}),
	}
}

func (r *registry) get(id string) (*operation, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	op, ok := r.byID[id]
	return op, ok
}

// admit says whether op may start: known means that it did already. The error is a gRPC status.
// Only if insert is set, and neither is the case, the operation counts as started.
func (r *registry) admit(op *operation, insert bool) (known bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if same, ok := r.byID[op.id]; ok {
		if same.kind != op.kind || same.object.GetUid() != op.object.GetUid() {
			return false, status.Errorf(codes.InvalidArgument, "id %q belongs to another operation: %v of %s",
				op.id, same.kind, describe(same.object))
		}
		return true, nil
	}
	if r.closing {
		return false, status.Error(codes.Unavailable, ErrShutdown.Error())
	}
	if running, ok := r.active[op.object.GetUid()]; ok {
		return false, busy(describe(op.object), running.id)
	}
	if waiting := len(r.active) - int(r.options.Capacity); waiting >= r.options.MaxQueued {
		return false, status.Errorf(codes.ResourceExhausted, "%d operations run and %d wait already", r.options.Capacity, waiting)
	}
	if insert {
		r.byID[op.id] = op
		r.active[op.object.GetUid()] = op
	}
	return false, nil
}

// finish records the result. Whoever sees it can start the object's next operation at once.
func (r *registry) finish(op *operation, result *runnerpb.Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.active, op.object.GetUid())
	op.events.finish(result)
	op.finishedAt = r.options.Now()
	op.bytes = op.events.size()
	r.bytes += op.bytes
	r.finished = append(r.finished, op)
	r.forget()
	r.drain()
}

// forget drops finished operations: those that are neither young nor among the last
// of their object, and beyond that the oldest ones while there are too many in
// total. The very last stays in any case. The caller holds the lock.
func (r *registry) forget() {
	old := r.options.Now().Add(-r.options.RetainFor)
	newer := map[string]int{} // finished operations of each object, counted from the newest
	total, bytes := 0, 0
	keep := make([]*operation, 0, len(r.finished))
	for _, op := range slices.Backward(r.finished) {
		newer[op.object.GetUid()]++
		total, bytes = total+1, bytes+op.bytes
		wanted := newer[op.object.GetUid()] <= r.options.RetainPerObject || op.finishedAt.After(old)
		fits := total <= r.options.RetainTotal && bytes <= r.options.RetainBytes
		if wanted && fits || len(keep) == 0 {
			keep = append(keep, op)
			continue
		}
		total, bytes = total-1, bytes-op.bytes
		delete(r.byID, op.id)
	}
	slices.Reverse(keep)
	r.finished, r.bytes = keep, bytes
}

// drain tells shutdown that the last operation ended; the caller holds the lock.
func (r *registry) drain() {
	if !r.closing || len(r.active) > 0 {
		return
	}
	select {
	case <-r.drained:
	default:
		close(r.drained)
	}
}

// shutdown refuses new operations, interrupts those that have not ended, and
// waits for them until ctx ends.
func (r *registry) shutdown(ctx context.Context) error {
	r.mu.Lock()
	r.closing = true
	for _, op := range r.active {
		op.cancel(ErrShutdown)
	}
	r.drain()
	r.mu.Unlock()
	select {
	case <-r.drained:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *registry) isClosing() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closing
}

// list describes every known operation: those that run, then the finished ones, oldest first.
func (r *registry) list() []*runnerpb.OperationRef {
	r.mu.Lock()
	defer r.mu.Unlock()
	refs := make([]*runnerpb.OperationRef, 0, len(r.byID))
	for _, op := range r.active {
		refs = append(refs, op.ref(false))
	}
	for _, op := range r.finished {
		refs = append(refs, op.ref(true))
	}
	return refs
}

func (op *operation) ref(done bool) *runnerpb.OperationRef {
	return &runnerpb.OperationRef{Id: op.id, Type: op.kind, Object: op.object, Done: done}
}

func describe(object *runnerpb.ObjectRef) string {
	return object.GetNamespace() + "/" + object.GetName()
}
