package reloader_test

import (
	"context"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	. "github.com/onsi/gomega"

	"github.com/terrace-dev/terrace/reloader"
	"github.com/terrace-dev/terrace/reloader/internal/atomicwriter"
)

// bell is a notifier that reports what the test wants.
type bell struct {
	events chan fsnotify.Event
	errors chan error
	// These are set before anything is watched. onAdd is what happens before the first watch begins.
	onRemove error
	onAdd    func()
	mu       sync.Mutex
	err      error // why it cannot be opened
	opened   int
	added    int
}

func (*bell) Close() error { return nil }

// Add is called for each directory in each look.
func (b *bell) Add(string) error {
	if b.onAdd != nil {
		b.onAdd()
		b.onAdd = nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.added++
	return nil
}

// looks counts the directories that were added since it was called last: one for each look at a volume.
func (b *bell) looks() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	added := b.added
	b.added = 0
	return added
}

// Remove returns once the error is received that the test wants it to send, as that of fsnotify may.
func (b *bell) Remove(string) error {
	if b.onRemove != nil {
		b.errors <- b.onRemove
	}
	return nil
}

func (b *bell) open() (reloader.Notifier, <-chan fsnotify.Event, <-chan error, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return nil, nil, nil, b.err
	}
	b.opened++
	return b, b.events, b.errors, nil
}

// fail sets why it cannot be opened from now on.
func (b *bell) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
}

// end closes the channel of events.
func (b *bell) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.events)
	b.events = make(chan fsnotify.Event)
}

// call is one call of a callback.
type call struct {
	content string
	after   time.Duration
}

// scene is a volume that is watched.
type scene struct {
	*testing.T
	bell   *bell
	volume *atomicwriter.Volume
	began  time.Time
	mu     sync.Mutex
	made   []call
	told   []error
	// react is what the callback does then.
	react  func(ctx context.Context, content string) error
	inside atomic.Int32
}

// newScene starts nothing yet. The root of the volume is there and has no content.
func newScene(t *testing.T) *scene {
	t.Helper()
	return &scene{
		T:      t,
		bell:   &bell{events: make(chan fsnotify.Event), errors: make(chan error)},
		volume: &atomicwriter.Volume{Root: t.TempDir()},
		react:  func(context.Context, string) error { return nil },
	}
}

// start is how long a scene waits after Watch began.
const start = time.Second

// watch runs Watch until the test ends or stop is called, which returns when Watch has. It returns after a second.
func (s *scene) watch(opts ...reloader.Option) (stop func()) {
	s.Helper()
	ctx, cancel := context.WithCancel(s.Context())
	done := make(chan error, 1)
	opts = append([]reloader.Option{
		reloader.WithNotifier(s.bell.open),
		reloader.WithErrorHandler(s.tell),
	}, opts...)
	s.began = time.Now()
	go func() { done <- reloader.Watch(ctx, []string{s.volume.Root}, s.callback, opts...) }()
	s.pass(start)
	stop = func() {
		cancel()
		if err := <-done; err != nil {
			s.Errorf("Watch returned %v", err)
		}
		done <- nil
	}
	s.Cleanup(stop)
	return stop
}

func (s *scene) callback(ctx context.Context, snapshots []reloader.Snapshot) error {
	if s.inside.Add(1) != 1 {
		s.Error("the callback runs concurrently with itself")
	}
	defer s.inside.Add(-1)
	content := string(snapshots[0].Files["a"])
	s.mu.Lock()
	s.made = append(s.made, call{content, time.Since(s.began)})
	s.mu.Unlock()
	return s.react(ctx, content)
}

func (s *scene) tell(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = append(s.told, err)
}

// calls are those of the callback.
func (s *scene) calls() []call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.made)
}

// errors are what the handler was told.
func (s *scene) errors() []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.told)
}

// write changes the volume without anybody noticing.
func (s *scene) write(content string) {
	s.Helper()
	if err := s.volume.Write(map[string]string{"a": content}); err != nil {
		s.Fatal(err)
	}
}

// ring reports an event of the link to the current version.
func (s *scene) ring() {
	s.bell.events <- fsnotify.Event{Name: filepath.Join(s.volume.Root, "..data"), Op: fsnotify.Create}
	synctest.Wait()
}

// change does both.
func (s *scene) change(content string) {
	s.Helper()
	s.write(content)
	s.ring()
}

// pass lets time pass.
func (s *scene) pass(duration time.Duration) {
	time.Sleep(duration)
	synctest.Wait()
}

func (s *scene) expectCalls(want ...call) {
	s.Helper()
	NewWithT(s).Expect(s.calls()).To(Equal(want))
}

// inBubble runs a table of scenes.
func inBubble(t *testing.T, tests map[string]func(*scene)) {
	t.Helper()
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { test(newScene(t)) })
		})
	}
}

const (
	ms    = time.Millisecond
	quiet = reloader.DefaultQuiet
)
