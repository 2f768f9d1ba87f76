package reloader_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/terrace-dev/terrace/reloader"
	"github.com/terrace-dev/terrace/reloader/internal/atomicwriter"
)

// world is some volumes that change at random, and an application that watches them.
type world struct {
	*testing.T
	random  *rand.Rand // what changes
	root    string
	dirs    []string
	version int

	mu sync.Mutex
	// is has the present content of each of dirs, was all that it ever had.
	is  []string
	was []map[string]bool
	// applied is what the last call that succeeded had; news has something when that changed.
	applied []string
	news    chan struct{}
	inside  bool
	calls   int
	whims   *rand.Rand // of the application
}

// Of the paths that are watched the first is a volume, the second a link to one of two volumes, the third and fourth are files in one volume, the last
// is a plain file.
const (
	aVolume = iota
	aLink
	aCert
	aKey
	aFile
	howMany
)

func newWorld(t *testing.T) *world {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	w := &world{
		T: t, random: rand.New(rand.NewPCG(seed, 1)), whims: rand.New(rand.NewPCG(seed, 2)),
		root: inMemory(t), is: make([]string, howMany), news: make(chan struct{}, 1),
	}
	for _, name := range []string{"volume", "link", "pair/tls.crt", "pair/tls.key", "file"} {
		w.dirs = append(w.dirs, filepath.Join(w.root, name))
		w.was = append(w.was, map[string]bool{})
	}
	for _, name := range []string{"left", "right", "pair", "volume"} {
		os.Mkdir(filepath.Join(w.root, name), 0o755)
	}
	os.Symlink("left", w.dirs[aLink])
	w.writeVolume()
	w.writeTarget()
	w.writePair()
	w.writeFile()
	return w
}

// will notes what a path has from now on, before it has.
func (w *world) will(have string, paths ...int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, path := range paths {
		w.is[path] = have
		w.was[path][have] = true
	}
}

// files are some keys out of eight, all of a new version.
func (w *world) files() map[string]string {
	w.version++
	files := map[string]string{}
	for _, key := range []string{"a", "b", "c", "d", "dir/a", "dir/b", "other/a", "z"} {
		if w.random.IntN(2) == 0 {
			files[key] = fmt.Sprint(w.version)
		}
	}
	files["always"] = fmt.Sprint(w.version)
	return files
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) write(name string, files map[string]string) {
	w.Helper()
	volume := &atomicwriter.Volume{Root: filepath.Join(w.root, name)}
	w.must(volume.Write(files))
}

func (w *world) writeVolume() {
	files := w.files()
	w.will(text(files), aVolume)
	w.write("volume", files)
}

// writeTarget changes what the link points to.
func (w *world) writeTarget() {
	target, err := os.Readlink(w.dirs[aLink])
	w.must(err)
	files := w.files()
	w.will(text(files), aLink)
	w.write(target, files)
}

// turnLink makes the link point to the other volume, as git-sync does.
func (w *world) turnLink() {
	target, err := os.Readlink(w.dirs[aLink])
	w.must(err)
	other := map[string]string{"left": "right", "right": "left"}[target]
	files := w.files()
	w.write(other, files)
	w.will(text(files), aLink)
	w.must(os.Symlink(other, filepath.Join(w.root, "new")))
	w.must(os.Rename(filepath.Join(w.root, "new"), w.dirs[aLink]))
}

func (w *world) writePair() {
	w.version++
	version := fmt.Sprint(w.version)
	w.will("tls.crt="+version, aCert)
	w.will("tls.key="+version, aKey)
	w.write("pair", map[string]string{"tls.crt": version, "tls.key": version})
}

func (w *world) writeFile() {
	w.version++
	version := fmt.Sprint(w.version)
	w.will("file="+version, aFile)
	w.must(os.WriteFile(filepath.Join(w.root, "new"), []byte(version), 0o600))
	w.must(os.Rename(filepath.Join(w.root, "new"), w.dirs[aFile]))
}

// recreate replaces the volume by another, with a moment in which there is none.
func (w *world) recreate() {
	old := filepath.Join(w.root, "old")
	w.must(os.Rename(w.dirs[aVolume], old))
	w.must(os.Mkdir(w.dirs[aVolume], 0o755))
	w.writeVolume()
	w.must(os.RemoveAll(old))
}

// step changes something.
func (w *world) step() {
	switch dice := w.random.IntN(100); {
	case dice < 40:
		w.writeVolume()
	case dice < 55:
		w.writeTarget()
	case dice < 65:
		w.turnLink()
	case dice < 80:
		w.writePair()
	case dice < 90:
		w.writeFile()
	default:
		w.recreate()
	}
}

// callback is that of the application. It fails now and then, and is slow now and then.
func (w *world) callback(ctx context.Context, snapshots []reloader.Snapshot) error {
	w.mu.Lock()
	if w.inside {
		w.Error("the callback runs concurrently with itself")
	}
	w.inside = true
	w.calls++
	got := make([]string, howMany)
	for i, snapshot := range snapshots {
		got[i] = text(contents(snapshot))
		if !w.was[i][got[i]] {
			w.Errorf("torn: %s never had\n%s", snapshot.Dir, got[i])
		}
	}
	if cert, key := got[aCert], got[aKey]; cert[len("tls.crt="):] != key[len("tls.key="):] {
		w.Errorf("torn: %s with %s", cert, key)
	}
	dice := w.whims.IntN(10)
	w.mu.Unlock()

	if dice == 0 {
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inside = false
	if dice < 3 {
		return errors.New("not now")
	}
	w.applied = got
	select {
	case w.news <- struct{}{}:
	default:
	}
	return nil
}

// expectApplied waits until the application has what is there.
func (w *world) expectApplied() {
	w.Helper()
	late := time.NewTimer(deadline)
	defer late.Stop()
	for {
		w.mu.Lock()
		same := slices.Equal(w.applied, w.is)
		w.mu.Unlock()
		if same {
			return
		}
		select {
		case <-w.news:
		case <-late.C:
			w.mu.Lock()
			defer w.mu.Unlock()
			w.Fatalf("missed: version %d is\n%q\nbut the application has\n%q", w.version, w.is, w.applied)
		}
	}
}

// run changes the world so many times while it is watched.
func (w *world) run(steps int, opts ...reloader.Option) {
	w.Helper()
	ctx, cancel := context.WithCancel(w.Context())
	done := make(chan error, 1)
	opts = append([]reloader.Option{
		reloader.WithQuiet(time.Millisecond, 5*time.Millisecond),
		reloader.WithBackoff(time.Millisecond, 2*time.Millisecond),
	}, opts...)
	go func() { done <- reloader.Watch(ctx, w.dirs, w.callback, opts...) }()
	w.expectApplied()
	for steps > 0 {
		for range min(steps, 1+w.random.IntN(6)) {
			w.step()
			steps--
		}
		w.expectApplied()
		if watches := inotifyWatches(w.T); watches > 20 {
			w.Fatalf("%d directories are watched", watches)
		}
	}
	cancel()
	w.must(<-done)
	w.Logf("%d versions, %d calls", w.version, w.calls)
}
