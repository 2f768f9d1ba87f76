package runner

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// roomCheck is how often it is asked whether there is room again.
const roomCheck = time.Second

// admission lets operations run in the order of their arrival.
type admission struct {
	capacity int
	room     func() bool
	door     *semaphore.Weighted // whoever is next holds it

	mu      sync.Mutex
	running int
	left    chan struct{} // closed when one of them ends
}

func newAdmission(capacity int, room func() bool) *admission {
	if room == nil {
		room = func() bool { return true }
	}
	return &admission{capacity: capacity, room: room, door: semaphore.NewWeighted(1), left: make(chan struct{})}
}

// enter returns when the operation may run, or with the error of ctx. If that is
// not at once it calls queued before it waits. Who entered has to leave.
func (a *admission) enter(ctx context.Context, queued func()) error {
	queued = sync.OnceFunc(queued)
	if !a.door.TryAcquire(1) {
		queued()
		if err := a.door.Acquire(ctx, 1); err != nil {
			return err
		}
	}
	defer a.door.Release(1)
	for {
		running, left := a.look()
		// Only who holds the door adds to those that run.
		if running == 0 || running < a.capacity && a.room() {
			a.mu.Lock()
			a.running++
			a.mu.Unlock()
			return nil
		}
		queued()
		var again <-chan time.Time
		if running < a.capacity {
			again = time.After(roomCheck)
		}
		select {
		case <-left:
		case <-again:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (a *admission) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running--
	close(a.left)
	a.left = make(chan struct{})
}

// look returns how many run, and a channel that is closed when that gets less.
func (a *admission) look() (running int, left <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.running, a.left
}
