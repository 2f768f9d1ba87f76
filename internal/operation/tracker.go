package operation

import (
	"cmp"
	"context"
	"io"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// Visibility says how much of a running operation should show in status. Each
// notice is one reconciliation and usually one write.
type Visibility int

const (
	// Silent operations wake the object up only when they end: an unchanged
	// interval cycle writes nothing.
	Silent Visibility = iota
	// Quiet operations wake the object up once if they take long.
	Quiet
	// Full operations wake the object up at growing distances while they run.
	Full
)

// Runner is a lease of a runner for one operation. Except for the first and the
// last of its methods they are those of a runner.Client.
type Runner interface {
	// Name of the runner, by which another manager finds it.
	Name() string
	// Await returns when the runner can be called, and says meanwhile what it waits
	// for. It is called before anything else and again after calls that did not
	// reach the runner. Errors: ErrNotStarted, ErrLost, runner.ErrUnavailable if
	// waiting on may help, any other if it does not.
	Await(ctx context.Context, report func(waitsFor string)) error
	// Upload sends an archive whose content has the digest ("sha256:<hex>").
	Upload(ctx context.Context, digest string, archive io.Reader) (size int64, err error)
	// Start starts an operation unless one with its id is known; needSource means
	// that the runner has to get the source first and started nothing.
	Start(ctx context.Context, request *runnerpb.StartOperationRequest) (needSource bool, err error)
	// Watch calls handle for each event after a sequence number and returns the result.
	Watch(ctx context.Context, id string, after int64, handle func(*runnerpb.OperationEvent)) (*runnerpb.Result, error)
	// Cancel interrupts the operation gracefully.
	Cancel(ctx context.Context, id string) error
	// Release says that the operation needs the runner no longer. It may be called twice.
	Release()
}

// SourceFunc fetches the archive that an operation works on and uploads it to the
// runner. It runs outside of any reconciliation and may take its time.
type SourceFunc func(ctx context.Context, to Runner) error

// Spec describes an operation. M is what the controller wants to remember about it.
type Spec[M any] struct {
	// UID and Name are the object's.
	UID  types.UID
	Name types.NamespacedName
	// Request is what the runner gets. To follow an operation that an earlier
	// manager started, its id and type are enough.
	Request *runnerpb.StartOperationRequest
	// Attach follows a running operation instead of starting one.
	Attach bool
	// Runner executes the operation.
	Runner Runner
	// Source brings the archive to the runner if the runner asks for it.
	Source SourceFunc
	// SourceOptional starts the operation without a source if Source fails.
	SourceOptional bool
	// Visibility says how often the object is woken up meanwhile.
	Visibility Visibility
	// Patience is how long the runner may be out of reach before it is given up. An
	// operation with effects goes on meanwhile, and must not be taken for ended.
	// Default: Options.Unreachable.
	Patience time.Duration
	// Meta is handed back with each snapshot.
	Meta M
}

// Snapshot is what is known about an operation at one moment.
type Snapshot[M any] struct {
	// ID and Type are the request's.
	ID   string
	Type runnerpb.OperationType
	// Meta is the controller's own.
	Meta M
	// Visibility is the spec's.
	Visibility Visibility
	// Runner is the name of the runner.
	Runner string
	// StartedAt is when this manager began to follow the operation.
	StartedAt time.Time
	// WaitsFor is what keeps the runner from being called; empty while nothing does.
	WaitsFor string
	// SilentSince is when the runner stopped answering, PatientUntil when it is given
	// up. Both are zero while it answers.
	SilentSince, PatientUntil time.Time
	// Phase is what the runner does now; empty before it said anything.
	Phase string
	// ResourcesDone counts finished actions on resources, Resource names the latest.
	ResourcesDone int
	Resource      string
	// Done says that the operation ended: Result or Err is set.
	Done bool
	// Result is the runner's.
	Result *runnerpb.Result
	// Err says why there is no result: ErrLost, ErrNotStarted, a *SourceError, or an
	// error of the lease or of the runner's client.
	Err error
}

// Options are the tracker's times. The zero value means the defaults.
type Options struct {
	// FirstNotice is how long an operation may take before it shows in status (5s).
	FirstNotice time.Duration
	// MaxNotice bounds the distance between notices, which doubles (30s).
	MaxNotice time.Duration
	// Unreachable is how long a runner may be unreachable before the tracker gives up (2m).
	Unreachable time.Duration
	// RetryDelay is the first delay between attempts to reach a runner; it doubles up to 15s (250ms).
	RetryDelay time.Duration
}

func (o Options) withDefaults() Options {
	defaults := func(d *time.Duration, value time.Duration) {
		if *d == 0 {
			*d = value
		}
	}
	defaults(&o.FirstNotice, 5*time.Second)
	defaults(&o.MaxNotice, 30*time.Second)
	defaults(&o.Unreachable, 2*time.Minute)
	defaults(&o.RetryDelay, 250*time.Millisecond)
	return o
}

// Tracker follows at most one operation per object.
type Tracker[M any] struct {
	options Options
	events  chan event.GenericEvent
	context context.Context
	running sync.WaitGroup

	mu         sync.Mutex
	operations map[types.UID]*tracked[M]
}

// New returns a tracker whose operations are followed until the context ends. The
// operations themselves go on at their runners.
func New[M any](ctx context.Context, options Options) *Tracker[M] {
	return &Tracker[M]{
		options:    options.withDefaults(),
		events:     make(chan event.GenericEvent),
		context:    ctx,
		operations: map[types.UID]*tracked[M]{},
	}
}

// Events delivers an object whenever something worth a reconciliation happened to
// its operation. Exactly one controller must read from it.
func (t *Tracker[M]) Events() <-chan event.GenericEvent { return t.events }

// Wait returns when nothing is followed any more; call it after the end of the context.
func (t *Tracker[M]) Wait() { t.running.Wait() }

// Follow starts or attaches to an operation and returns at once; the lease of its
// runner is released at the end. It says false and does nothing if another
// operation of the object is tracked, finished or not.
func (t *Tracker[M]) Follow(spec Spec[M]) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.operations[spec.UID]; ok || t.context.Err() != nil {
		return false
	}
	spec.Patience = cmp.Or(spec.Patience, t.options.Unreachable)
	op := &tracked[M]{spec: spec, snapshot: Snapshot[M]{
		ID: spec.Request.GetId(), Type: spec.Request.GetType(),
		Meta: spec.Meta, Visibility: spec.Visibility, Runner: spec.Runner.Name(), StartedAt: time.Now(),
	}}
	t.operations[spec.UID] = op
	t.running.Go(func() { t.follow(op) })
	return true
}

// Get returns what is known about the object's operation, if there is one.
func (t *Tracker[M]) Get(uid types.UID) (Snapshot[M], bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	op, ok := t.operations[uid]
	if !ok {
		return Snapshot[M]{}, false
	}
	return op.snapshot, true
}

// Forget drops a finished operation, after its result was recorded. Operations
// that run, or have another id, stay.
func (t *Tracker[M]) Forget(uid types.UID, id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if op, ok := t.operations[uid]; ok && op.snapshot.ID == id && op.snapshot.Done {
		delete(t.operations, uid)
	}
}

// Drop drops an operation in whatever state it is, after its object is gone. What
// runs goes on; nobody hears of its end.
func (t *Tracker[M]) Drop(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.operations, uid)
}

// Cancel asks the runner to interrupt the object's operation gracefully; the
// operation then ends like any other. Nothing happens if none is running.
func (t *Tracker[M]) Cancel(ctx context.Context, uid types.UID) error {
	t.mu.Lock()
	op, ok := t.operations[uid]
	if !ok || op.snapshot.Done {
		t.mu.Unlock()
		return nil
	}
	runner, id := op.spec.Runner, op.snapshot.ID
	t.mu.Unlock()
	return runner.Cancel(ctx, id)
}

func (t *Tracker[M]) notify(spec Spec[M]) {
	object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: spec.Name.Namespace, Name: spec.Name.Name}}
	select {
	case t.events <- event.GenericEvent{Object: object}:
	case <-t.context.Done():
	}
}
