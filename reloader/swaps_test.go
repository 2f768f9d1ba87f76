package reloader_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	. "github.com/onsi/gomega"
	"go.uber.org/goleak"

	"github.com/terrace-dev/terrace/reloader"
	"github.com/terrace-dev/terrace/reloader/internal/atomicwriter"
)

// deadline is for what should take milliseconds.
const deadline = 20 * time.Second

// inMemory is a directory on a tmpfs, where the kubelet has volumes of Secrets, if there is one.
func inMemory(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "reloader") //nolint:usetesting // TempDir is on a disk
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// newVolume is a volume that has files.
func newVolume(t testing.TB, root string, files map[string]string) *atomicwriter.Volume {
	t.Helper()
	if err := os.MkdirAll(root, 0o755); err != nil {
		t.Fatal(err)
	}
	volume := &atomicwriter.Volume{Root: root}
	if err := volume.Write(files); err != nil {
		t.Fatal(err)
	}
	return volume
}

// text is content as one comparable text.
func text(files map[string]string) string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(files)) {
		lines = append(lines, name+"="+files[name])
	}
	return strings.Join(lines, "\n")
}

func TestReadIsWholeAtEveryStepOfAWrite(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	before := map[string]string{"a": "1", "gone": "1", "dir/x": "1"}
	after := map[string]string{"a": "2", "new": "2", "dir/y": "2"}
	volume := newVolume(t, t.TempDir(), before)

	var steps []atomicwriter.Step
	volume.At = func(step atomicwriter.Step) {
		steps = append(steps, step)
		want := after
		if step == atomicwriter.Written || step == atomicwriter.Linked {
			want = before
		}
		snapshot, err := reloader.Read(volume.Root)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(contents(snapshot)).To(Equal(want), string(step))
	}
	g.Expect(volume.Write(after)).To(Succeed())
	g.Expect(steps).To(HaveLen(6))
}

func TestReadIsWholeWhileVersionsAreSwapped(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	files := func(version int) map[string]string {
		files := map[string]string{"version": fmt.Sprint(version)}
		for i := range 5 + version%10 {
			files[fmt.Sprintf("file%d", i)] = fmt.Sprint(version)
		}
		return files
	}
	root := inMemory(t)
	volume := newVolume(t, filepath.Join(root, "volume"), files(0))
	// The links of two keys, in a directory that is no volume.
	plain := tree(t, map[string]string{"crt": "-> " + root + "/volume/version", "key": "-> " + root + "/volume/file0"})

	var readers sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	for range 2 {
		readers.Go(func() {
			for ctx.Err() == nil {
				snapshot, err := reloader.Read(volume.Root)
				if err != nil {
					t.Error(err)
					return
				}
				var version int
				fmt.Sscan(string(snapshot.Files["version"]), &version)
				if got := contents(snapshot); !maps.Equal(got, files(version)) {
					t.Errorf("torn: %v", got)
				}
				links, err := reloader.Read(plain)
				if err != nil {
					t.Error(err)
					return
				}
				if got := contents(links); got["crt"] != got["key"] || len(got) != 2 {
					t.Errorf("torn: %v", got)
				}
			}
		})
	}
	for version := range 500 {
		g.Expect(volume.Write(files(version + 1))).To(Succeed())
	}
	stop()
	readers.Wait()
}

// flaky is a notifier at the limits of the system: it cannot always be opened, does not always add, and loses events, which it says.
type flaky struct {
	*fsnotify.Watcher
	closed chan struct{}
	mu     *sync.Mutex
	random *rand.Rand
}

func (f flaky) Close() error {
	close(f.closed)
	return f.Watcher.Close()
}

func (f flaky) chance(percent int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.random.IntN(100) < percent
}

func (f flaky) Add(dir string) error {
	if f.chance(10) {
		return syscall.ENOSPC
	}
	return f.Watcher.Add(dir)
}

func (f flaky) open() (reloader.Notifier, <-chan fsnotify.Event, <-chan error, error) {
	if f.chance(30) {
		return nil, nil, nil, syscall.EMFILE
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, nil, nil, err
	}
	f.Watcher, f.closed = watcher, make(chan struct{})
	events, failures := make(chan fsnotify.Event), make(chan error, 1)
	go func() {
		for err := range watcher.Errors {
			select {
			case failures <- err:
			default:
			}
		}
	}()
	go func() {
		defer close(events)
		for event := range watcher.Events {
			if f.chance(90) {
				select {
				case events <- event:
				case <-f.closed:
				}
				continue
			}
			select {
			case failures <- fsnotify.ErrEventOverflow:
			default:
			}
		}
	}()
	return f, events, failures, nil
}

// The following are not parallel: they count what the process holds.

func TestTheSystemWatchesOneDirectoryForAVolumeHoweverOftenItChanges(t *testing.T) {
	before := inotifyWatches(t)
	volume := newVolume(t, inMemory(t), map[string]string{"a": "0", "dir/b": "0"})
	app := watching(t, volume.Root, reloader.WithoutPolling())
	app.expect("a=0\ndir/b=0")
	for version := range 10 {
		write(t, volume.Root, map[string]string{"a": fmt.Sprint(version + 1)})
		app.expect(fmt.Sprintf("a=%d", version+1))
		NewWithT(t).Expect(inotifyWatches(t)-before).To(Equal(1), "the root of the volume")
	}
}

func TestTheSystemWatchesNothingThatIsNoLongerRead(t *testing.T) {
	before := inotifyWatches(t)
	root := inMemory(t)
	for version := range 10 {
		mkdir(t, root, fmt.Sprint(version))
		put(t, root, fmt.Sprint(version, "/a"), fmt.Sprint(version))
	}
	if err := os.Symlink("0", filepath.Join(root, "current")); err != nil {
		t.Fatal(err)
	}
	app := watching(t, filepath.Join(root, "current"), reloader.WithoutPolling())
	app.expect("a=0")
	for version := 1; version < 10; version++ {
		if err := os.Symlink(fmt.Sprint(version), filepath.Join(root, "next")); err != nil {
			t.Fatal(err)
		}
		rename(t, root, "next", "current")
		app.expect(fmt.Sprintf("a=%d", version))
		NewWithT(t).Expect(inotifyWatches(t)-before).To(Equal(2), "that of the link and that which it leads to")
	}
}

// The system reports nothing when a parent of what is watched is replaced, and the old directory is still there.
func TestTheSystemWatchesNothingThatWasReplaced(t *testing.T) {
	before := inotifyWatches(t)
	root := inMemory(t)
	var app *application
	for version := range 5 {
		mkdir(t, root, "new")
		mkdir(t, root, "new/dir")
		put(t, root, "new/dir/a", fmt.Sprint(version))
		if version > 0 {
			rename(t, root, "parent", fmt.Sprint("old", version))
		}
		rename(t, root, "new", "parent")
		if app == nil {
			app = watching(t, filepath.Join(root, "parent/dir"), reloader.WithPoll(10*time.Millisecond))
		}
		app.expect(fmt.Sprintf("a=%d", version))
		NewWithT(t).Eventually(func() int { return inotifyWatches(t) - before }, deadline, time.Millisecond).Should(Equal(2))
	}
}

func TestAThousandSwapsAreNeitherMissedNorTorn(t *testing.T) {
	expectNoLeak(t)
	newWorld(t).run(1000, reloader.WithoutPolling())
}

func TestSwapsAtTheLimitsOfTheSystemAreNeitherMissedNorTorn(t *testing.T) {
	expectNoLeak(t)
	w := newWorld(t)
	events := flaky{mu: &sync.Mutex{}, random: rand.New(rand.NewPCG(w.random.Uint64(), 3))}
	w.run(300, reloader.WithNotifier(events.open), reloader.WithPoll(10*time.Millisecond))
}

// expectNoLeak compares what the process holds now and at the end of the test.
func expectNoLeak(t *testing.T) {
	t.Helper()
	if watcher, err := fsnotify.NewWatcher(); err == nil {
		watcher.Close() // the runtime keeps two files from the first time on
	}
	files, watches, others := openFiles(t), inotifyWatches(t), goleak.IgnoreCurrent()
	t.Cleanup(func() {
		if err := goleak.Find(others); err != nil {
			t.Errorf("goroutines leak: %v", err)
		}
		if after := openFiles(t); after != files {
			t.Errorf("%d files were open before, %d after", files, after)
		}
		if after := inotifyWatches(t); after != watches {
			t.Errorf("%d directories were watched before, %d after", watches, after)
		}
	})
}

func openFiles(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("counts open files in /proc")
	}
	return len(entries)
}

// inotifyWatches counts the kernel's watches of this process.
func inotifyWatches(t testing.TB) int {
	t.Helper()
	infos, err := filepath.Glob("/proc/self/fdinfo/*")
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, name := range infos {
		info, _ := os.ReadFile(name) // one of them is that of the directory, closed by now
		count += strings.Count(string(info), "inotify wd:")
	}
	return count
}
