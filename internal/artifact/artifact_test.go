package artifact

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fluxcd/pkg/testserver"
)

const patience = 20 * time.Second

// content is size bytes that are the same for the same seed, and never in memory.
func content(seed byte, size int64) io.Reader {
	return io.LimitReader(rand.NewChaCha8([32]byte{seed}), size)
}

func digestOf(t *testing.T, from io.Reader) string {
	t.Helper()
	hash := sha256.New()
	if _, err := io.Copy(hash, from); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("sha256:%x", hash.Sum(nil))
}

func serve(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL + "/artifact.tar.gz"
}

func send(t *testing.T, seed byte, size int64) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if _, err := io.Copy(w, content(seed, size)); err != nil && !errors.Is(err, context.Canceled) {
			t.Logf("serving: %v", err)
		}
	}
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func expectEmpty(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) > 0 {
		t.Errorf("left behind: %v", entries)
	}
}

// TestFetchNeedsLittleMemory is not parallel: it measures the whole process.
func TestFetchNeedsLittleMemory(t *testing.T) {
	const size, allowed = 60 << 20, 8 << 20
	archive := filepath.Join(t.TempDir(), "large")
	file, err := os.Create(archive)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(file, content(1, size)); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	url := serve(t, func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, archive) })
	digest := digestOf(t, content(1, size))
	dir := t.TempDir()
	fetcher := New(Options{Dir: dir})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	uploader := &recorder{}
	got, err := Send(testContext(t), fetcher, uploader, url, digest)
	runtime.ReadMemStats(&after)
	if err != nil {
		t.Fatal(err)
	}
	if got != size || uploader.digest != digest || uploader.content != digest {
		t.Errorf("uploaded %d bytes as %s with the content %s", got, uploader.digest, uploader.content)
	}
	if total := after.TotalAlloc - before.TotalAlloc; total > allowed {
		t.Errorf("%d bytes were allocated", total)
	} else {
		t.Logf("fetched and sent %d MiB; %.2f MiB were allocated in total", size>>20, float64(total)/(1<<20))
	}
	expectEmpty(t, dir)
}

// recorder is an uploader that remembers what it got.
type recorder struct {
	digest, content string
	err             error
}

func (r *recorder) Upload(_ context.Context, digest string, archive io.Reader) (int64, error) {
	if r.err != nil {
		return 0, r.err
	}
	hash := sha256.New()
	size, err := io.Copy(hash, archive)
	r.digest, r.content = digest, fmt.Sprintf("sha256:%x", hash.Sum(nil))
	return size, err
}

func TestFetch(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	good := func(size int64) string { return digestOf(t, content(2, size)) }
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		digest  string
		want    error // nil: success
	}{
		"what was expected":      {handler: send(t, 2, 5000), digest: good(5000)},
		"nothing, as expected":   {handler: send(t, 2, 0), digest: good(0)},
		"exactly the limit":      {handler: send(t, 2, limit), digest: good(limit)},
		"one byte too much":      {handler: send(t, 2, limit+1), digest: good(limit + 1), want: ErrTooLarge},
		"far too much":           {handler: send(t, 2, 9*limit), digest: good(9 * limit), want: ErrTooLarge},
		"another content":        {handler: send(t, 3, 5000), digest: good(5000), want: ErrDigest},
		"the limit of another":   {handler: send(t, 3, limit), digest: good(limit), want: ErrDigest},
		"gone":                   {handler: http.NotFound, digest: good(1), want: ErrNotFound},
		"no digest":              {handler: send(t, 2, 1), want: ErrInvalidDigest},
		"a digest without bytes": {handler: send(t, 2, 1), digest: "sha256:", want: ErrInvalidDigest},
		"forbidden":              {handler: status(http.StatusForbidden), digest: good(1), want: errOther},
		"a broken server":        {handler: status(http.StatusInternalServerError), digest: good(1), want: errOther},
		"a download that breaks off": {digest: good(5000), want: errOther, handler: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "5000")
			send(t, 2, 100)(w, r)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path, err := New(Options{Dir: dir, MaxBytes: limit}).Fetch(testContext(t), serve(t, test.handler), test.digest)
			if test.want != nil {
				expectError(t, err, test.want)
				expectEmpty(t, dir)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if got := digestOf(t, bytes.NewReader(data)); got != test.digest {
				t.Errorf("fetched %s", got)
			}
			if err := os.Remove(path); err != nil {
				t.Error(err)
			}
			expectEmpty(t, dir)
		})
	}
}

// errOther stands for an error that is none of the typed ones.
var errOther = errors.New("other")

func expectError(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(want, errOther) {
		if !errors.Is(err, want) {
			t.Errorf("want %v, got %v", want, err)
		}
		return
	}
	for _, typed := range []error{ErrNotFound, ErrDigest, ErrTooLarge, ErrInvalidDigest, context.Canceled} {
		if errors.Is(err, typed) {
			t.Errorf("want a plain error, got %v", err)
		}
	}
	if err == nil {
		t.Error("want an error")
	}
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

func TestFetchOfNobody(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	_, err := New(Options{Dir: dir}).Fetch(testContext(t), server.URL, digestOf(t, content(1, 1)))
	expectError(t, err, errOther)
	expectEmpty(t, dir)
	if _, err := New(Options{Dir: filepath.Join(dir, "missing")}).Fetch(testContext(t), server.URL, digestOf(t, content(1, 1))); err == nil {
		t.Error("fetched into a directory that does not exist")
	}
}

func TestFetchEndsWithItsContext(t *testing.T) {
	t.Parallel()
	begun, ended := make(chan struct{}), make(chan struct{})
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		_, _ = w.Write(make([]byte, 1<<16))
		_ = http.NewResponseController(w).Flush()
		close(begun)
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancel(testContext(t))
	go func() {
		<-begun
		cancel()
	}()
	dir := t.TempDir()
	_, err := New(Options{Dir: dir, Retries: 3}).Fetch(ctx, url, digestOf(t, content(1, 1)))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("want context.Canceled, got %v", err)
	}
	expectEmpty(t, dir)
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("the server was not told")
	}
}

func TestFetchReusesConnections(t *testing.T) {
	t.Parallel()
	var connections atomic.Int32
	server := httptest.NewUnstartedServer(send(t, 2, 5000))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	fetcher := New(Options{Dir: t.TempDir()})
	for range 5 {
		if _, err := fetcher.Fetch(testContext(t), server.URL, digestOf(t, content(2, 5000))); err != nil {
			t.Fatal(err)
		}
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

func TestFetchFromAnArtifactServer(t *testing.T) {
	// Not parallel: it sets the environment.
	server, err := testserver.NewTempArtifactServer()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(server.Root()) })
	server.Start()
	t.Cleanup(server.Stop)
	source := t.TempDir()
	if err := os.WriteFile(filepath.Join(source, "main.tf"), []byte("# nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	sum, err := server.ArtifactFromDir(source, "module.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	// Outside a cluster the host in an artifact's URL means nothing.
	t.Setenv(hostEnv, strings.TrimPrefix(server.URL(), "http://"))
	path, err := New(Options{Dir: t.TempDir()}).Fetch(testContext(t), "http://source-controller.flux-system.svc/module.tar.gz", "sha256:"+sum)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

func TestSendPassesErrorsOnAndLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fetcher := New(Options{Dir: dir})
	broken := errors.New("the runner is gone")
	url, sum := serve(t, send(t, 2, 5000)), digestOf(t, content(2, 5000))
	if _, err := Send(testContext(t), fetcher, &recorder{err: broken}, url, sum); !errors.Is(err, broken) {
		t.Errorf("want the uploader's error, got %v", err)
	}
	if _, err := Send(testContext(t), fetcher, &recorder{}, serve(t, http.NotFound), sum); !errors.Is(err, ErrNotFound) {
		t.Errorf("want ErrNotFound, got %v", err)
	}
	expectEmpty(t, dir)
}
