package reloader

import (
	"maps"
	"sync"

	"github.com/fsnotify/fsnotify"
)

// maxHappened bounds the names that an inbox keeps. More are an overflow.
const maxHappened = 10_000

// inbox takes whatever a notifier sends, at once. It is needed because fsnotify locks itself while it sends some of its errors: who calls Add or Remove
// and receives the errors in the same goroutine hangs for ever when a directory is moved and removed quickly.
type inbox struct {
	// news has something when take has.
	news chan struct{}

	mu       sync.Mutex
	happened map[string]fsnotify.Op
	err      error

	stop, stopped chan struct{}
}

func newInbox(events <-chan fsnotify.Event, failures <-chan error) *inbox {
	box := &inbox{
		news:     make(chan struct{}, 1),
		happened: map[string]fsnotify.Op{},
		stop:     make(chan struct{}),
		stopped:  make(chan struct{}),
	}
	go box.fill(events, failures)
	return box
}

func (b *inbox) fill(events <-chan fsnotify.Event, failures <-chan error) {
	defer close(b.stopped)
	for {
		select {
		case <-b.stop:
			return
		case event, open := <-events:
			if !open {
				b.fail(fsnotify.ErrClosed)
				return
			}
			b.put(event)
		case err, open := <-failures:
			if !open {
				b.fail(fsnotify.ErrClosed)
				return
			}
			b.fail(err)
		}
	}
}

func (b *inbox) put(event fsnotify.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.happened[event.Name] |= event.Op
	if len(b.happened) > maxHappened {
		b.err = fsnotify.ErrEventOverflow
		clear(b.happened)
	}
	b.ring()
}

func (b *inbox) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
	b.ring()
}

func (b *inbox) ring() {
	select {
	case b.news <- struct{}{}:
	default:
	}
}

// take empties the inbox.
func (b *inbox) take() (map[string]fsnotify.Op, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	happened, err := maps.Clone(b.happened), b.err
	clear(b.happened)
	b.err = nil
	return happened, err
}

// close returns when nothing is taken from the notifier any more, which is closed.
func (b *inbox) close() {
	close(b.stop)
	<-b.stopped
}
