package reloader_test

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/terrace-dev/terrace/reloader"
	"github.com/terrace-dev/terrace/reloader/internal/atomicwriter"
)

// application is one that watches real files and tells what it gets.
type application struct {
	testing.TB
	got    chan string
	errors chan error
}

func watching(t testing.TB, dir string, opts ...reloader.Option) *application {
	t.Helper()
	app := &application{TB: t, got: make(chan string, 100), errors: make(chan error, 100)}
	opts = append([]reloader.Option{
		reloader.WithQuiet(10*time.Millisecond, time.Second),
		reloader.WithErrorHandler(func(err error) { app.errors <- err }),
	}, opts...)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := reloader.Watch(ctx, []string{dir}, func(_ context.Context, snapshots []reloader.Snapshot) error {
			app.got <- text(contents(snapshots[0]))
			return nil
		}, opts...); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return app
}

// expect waits for content. There may be other content before.
func (a *application) expect(want string) {
	a.Helper()
	late := time.NewTimer(deadline)
	defer late.Stop()
	for {
		select {
		case got := <-a.got:
			if got == want {
				return
			}
		case <-late.C:
			a.Fatalf("never got %q", want)
		}
	}
}

func TestEventsTellOf(t *testing.T) {
	t.Parallel()
	inVolume := map[string]string{"v/..1/a": "1", "v/..data": "-> ..1", "v/a": "-> ..data/a"}
	swap := func(t *testing.T, root string) {
		write(t, filepath.Join(root, "v"), map[string]string{"a": "2"})
	}
	for name, tt := range map[string]struct {
		files         map[string]string
		dir           string
		before, after string
		change        func(t *testing.T, root string)
	}{
		"a new version of a volume": {inVolume, "v", "a=1", "a=2", swap},
		"a new version of a volume behind links": {
			map[string]string{"v/..1/a": "1", "v/..data": "-> ..1", "x/link": "-> ../y", "y": "-> v"}, "x/link", "a=1", "a=2", swap,
		},
		"a new version of the volume of a file":            {inVolume, "v/a", "a=1", "a=2", swap},
		"a new version of the volume that a link leads to": {with(inVolume, "d/cert", "-> ../v/a"), "d", "cert=1", "cert=2", swap},
		"a new version of the volume that a file leads to": {with(inVolume, "cert", "-> v/a"), "cert", "cert=1", "cert=2", swap},
		"a volume in the place of another": {inVolume, "v", "a=1", "a=2", func(t *testing.T, root string) {
			rename(t, root, "v", "old")
			mkdir(t, root, "v")
			swap(t, root)
		}},
		"a volume that was removed and comes back": {inVolume, "v", "a=1", "a=2", func(t *testing.T, root string) {
			if err := os.RemoveAll(filepath.Join(root, "v")); err != nil {
				t.Fatal(err)
			}
			mkdir(t, root, "v")
			swap(t, root)
		}},
		"another target of a link": {
			map[string]string{"1/a": "1", "2/a": "2", "current": "-> 1", "next": "-> 2"}, "current", "a=1", "a=2",
			func(t *testing.T, root string) { rename(t, root, "next", "current") },
		},
		"a file that is written": {map[string]string{"f": "1"}, "f", "f=1", "f=2", func(t *testing.T, root string) {
			put(t, root, "f", "2")
		}},
		"a file that is replaced": {map[string]string{"f": "1"}, "f", "f=1", "f=2", func(t *testing.T, root string) {
			put(t, root, "g", "2")
			rename(t, root, "g", "f")
		}},
		"a file that was removed and comes back": {map[string]string{"f": "1"}, "f", "f=1", "f=2", func(t *testing.T, root string) {
			rename(t, root, "f", "g")
			put(t, root, "f", "2")
		}},
		"a file that a link leads to": {map[string]string{"d/f": "-> ../x/f", "x/f": "1"}, "d", "f=1", "f=2", func(t *testing.T, root string) {
			put(t, root, "x/f", "2")
		}},
		"a file in a directory": {map[string]string{"d/f": "1"}, "d", "f=1", "f=1\ng=2", func(t *testing.T, root string) {
			put(t, root, "d/g", "2")
		}},
		"a file in a directory below": {map[string]string{"d/e/f": "1"}, "d", "e/f=1", "e/f=2", func(t *testing.T, root string) {
			put(t, root, "d/e/f", "2")
		}},
		"a file in a directory that is new": {map[string]string{"d/f": "1"}, "d", "f=1", "e/g=2\nf=1", func(t *testing.T, root string) {
			mkdir(t, root, "d/e")
			put(t, root, "d/e/g", "2")
		}},
		"a link that had led to nothing": {map[string]string{"d/f": "1", "d/l": "-> ../x/y/z"}, "d", "f=1", "f=1\nl=2", func(t *testing.T, root string) {
			mkdir(t, root, "x")
			mkdir(t, root, "x/y")
			put(t, root, "x/y/z", "2")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := tree(t, tt.files)
			app := watching(t, filepath.Join(root, tt.dir), reloader.WithoutPolling())
			app.expect(tt.before)
			tt.change(t, root)
			app.expect(tt.after)
		})
	}
}

func TestADirectoryWhoseParentsAppearLaterIsFound(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	app := watching(t, filepath.Join(root, "a/b/c"), reloader.WithoutPolling())
	<-app.errors // it is missing, so Watch is waiting for it
	mkdir(t, root, "a")
	mkdir(t, root, "a/b")
	mkdir(t, root, "a/b/c")
	write(t, filepath.Join(root, "a/b/c"), map[string]string{"f": "1"})
	app.expect("f=1")
}

func with(files map[string]string, name, content string) map[string]string {
	more := map[string]string{name: content}
	maps.Copy(more, files)
	return more
}

func write(t testing.TB, root string, files map[string]string) {
	t.Helper()
	if err := (&atomicwriter.Volume{Root: root}).Write(files); err != nil {
		t.Fatal(err)
	}
}

func put(t testing.TB, root, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(root, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func rename(t testing.TB, root, from, to string) {
	t.Helper()
	if err := os.Rename(filepath.Join(root, from), filepath.Join(root, to)); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t testing.TB, root, name string) {
	t.Helper()
	if err := os.Mkdir(filepath.Join(root, name), 0o755); err != nil {
		t.Fatal(err)
	}
}
