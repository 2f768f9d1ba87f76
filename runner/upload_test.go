package runner

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/utils/clock"

	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// archive is size bytes that are the same for the same seed, and never in memory.
func archive(seed byte, size int64) io.Reader {
	return io.LimitReader(rand.NewChaCha8([32]byte{seed}), size)
}

func digestOf(t *testing.T, content io.Reader) string {
	t.Helper()
	hash := sha256.New()
	if _, err := io.Copy(hash, content); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("sha256:%x", hash.Sum(nil))
}

// countingReader calls back after each read.
type countingReader struct {
	io.Reader
	read int64
	each func(read int64)
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.read += int64(n)
	if c.each != nil {
		c.each(c.read)
	}
	return n, err
}

// TestAnUploadNeedsLittleMemory is not parallel: it measures the whole process.
func TestAnUploadNeedsLittleMemory(t *testing.T) {
	const size, allowed = 60 << 20, 30 << 20
	engine := newEngine(t, succeed)
	_, client := start(t, engine, Options{})
	digest := digestOf(t, archive(1, size))
	runtime.GC()
	var before, now runtime.MemStats
	runtime.ReadMemStats(&before)
	peak, next := uint64(0), int64(0)
	sample := func(read int64) {
		if read < next {
			return
		}
		next = read + 1<<20
		runtime.ReadMemStats(&now)
		peak = max(peak, now.HeapAlloc)
	}
	got, err := client.Upload(testContext(t), digest, &countingReader{Reader: archive(1, size), each: sample})
	if err != nil {
		t.Fatal(err)
	}
	if got != size {
		t.Errorf("%d bytes were stored", got)
	}
	if peak > before.HeapAlloc+allowed {
		t.Errorf("the heap grew from %d to %d bytes", before.HeapAlloc, peak)
	}
	t.Logf("uploaded %d MiB; the heap grew by %.1f MiB at most", size>>20, float64(peak-min(peak, before.HeapAlloc))/(1<<20))
}

func TestUpload(t *testing.T) {
	t.Parallel()
	engine := newEngine(t, succeed)
	_, client := start(t, engine, Options{})
	ctx := testContext(t)
	const size = 3<<20 + 17
	digest := digestOf(t, archive(2, size))
	request := plan("op-1", "u1")
	request.Source = &runnerpb.Source{Digest: digest, Revision: "main@sha1:abc"}
	if needSource, err := client.Start(ctx, request); err != nil || !needSource {
		t.Fatalf("starting without the source: %v, %v", needSource, err)
	}
	if n := engine.ran("op-1"); n != 0 {
		t.Error("it ran without its source")
	}
	if got, err := client.Upload(ctx, digest, archive(2, size)); err != nil || got != size {
		t.Fatalf("%d bytes, %v", got, err)
	}
	file, err := engine.Open(digest)
	if err != nil {
		t.Fatal(err)
	}
	if stored := digestOf(t, file); stored != digest {
		t.Errorf("stored as %s", stored)
	}
	if err := file.Close(); err != nil {
		t.Error(err)
	}
	mustStart(t, client, request)
	mustWatch(t, client, "op-1")
	// The second time nothing but the first message is looked at.
	again := &countingReader{Reader: archive(3, 64<<20)}
	if got, err := client.Upload(ctx, digest, again); err != nil || got != 0 {
		t.Errorf("uploading what is there already: %d, %v", got, err)
	}
	if again.read == 64<<20 {
		t.Error("the whole archive was sent although the runner has it")
	}
}

func TestUploadsThatFailLeaveNothing(t *testing.T) {
	t.Parallel()
	store, err := NewSourceStore(t.TempDir(), SourceOptions{MaxBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	engine := newEngine(t, succeed)
	engine.SourceStore = store
	_, client := start(t, engine, Options{})
	broken := errors.New("disk on fire")
	good := digestOf(t, archive(4, 1000))
	endless := &countingReader{Reader: archive(4, 1<<40)}
	for _, test := range []struct {
		name    string
		digest  string
		archive io.Reader
		want    error
	}{
		{"another content", good, archive(5, 1000), ErrDigest},
		{"less content", good, archive(4, 999), ErrDigest},
		{"no content", good, archive(4, 0), ErrDigest},
		{"too much content", good, endless, ErrTooLarge},
		{"a malformed digest", "sha256:xyz", archive(4, 1000), ErrInvalid},
		{"an unknown algorithm", "md5:" + strings.Repeat("a", 32), archive(4, 1000), ErrInvalid},
		{"an archive that cannot be read", good, io.MultiReader(archive(4, 500), &failingReader{broken}), broken},
	} {
		if _, err := client.Upload(testContext(t), test.digest, test.archive); !errors.Is(err, test.want) {
			t.Errorf("%s: want %v, got %v", test.name, test.want, err)
		}
	}
	if endless.read > 64<<20 {
		t.Errorf("%d bytes were sent before the runner's objection counted", endless.read)
	}
	awaitEmpty(t, store.dir)
	if store.Has(good) {
		t.Error("a failed upload is visible")
	}
	if got, err := client.Upload(testContext(t), good, archive(4, 1000)); err != nil || got != 1000 {
		t.Errorf("after the failures: %d, %v", got, err)
	}
}

type failingReader struct{ err error }

func (f *failingReader) Read([]byte) (int, error) { return 0, f.err }

// awaitEmpty waits until what a broken upload left is gone; the server may notice a little later than the client.
func awaitEmpty(t *testing.T, dir string) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; <-tick.C {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		if len(entries) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("left behind: %v", entries)
		}
	}
}

func TestABrokenUploadCanBeRepeated(t *testing.T) {
	t.Parallel()
	const size = 8 << 20
	authority := newAuthority(t, clock.RealClock{})
	engine := newEngine(t, succeed)
	server := serve(t, engine, Options{}, authority.ServerConfig(runnerName))
	proxy := newCutter(t, server.addr)
	client := dial(t, proxy.addr, authority.ClientConfig(runnerName))
	digest := digestOf(t, archive(6, size))
	cut := &countingReader{Reader: archive(6, size), each: func(read int64) {
		if read == size/2 {
			proxy.cut()
		}
	}}
	if _, err := client.Upload(testContext(t), digest, cut); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("want ErrUnavailable, got %v", err)
	}
	awaitEmpty(t, engine.dir)
	var got int64
	for err := ErrUnavailable; errors.Is(err, ErrUnavailable) && testContext(t).Err() == nil; {
		got, err = client.Upload(testContext(t), digest, archive(6, size))
	}
	if got != size || !engine.Has(digest) {
		t.Errorf("%d bytes, stored: %v", got, engine.Has(digest))
	}
}

func TestUploadsThatBreakTheProtocol(t *testing.T) {
	t.Parallel()
	authority := newAuthority(t, clock.RealClock{})
	server := serve(t, newEngine(t, succeed), Options{}, authority.ServerConfig(runnerName))
	raw := runnerpb.NewRunnerClient(rawConn(t, server.addr, authority.ClientConfig(runnerName)))
	one, other := digestOf(t, archive(1, 9)), digestOf(t, archive(2, 9))
	for name, test := range map[string]struct {
		messages []*runnerpb.UploadSourceRequest
		want     codes.Code
	}{
		"nothing at all":         {nil, codes.InvalidArgument},
		"no digest":              {[]*runnerpb.UploadSourceRequest{{Chunk: []byte("x")}}, codes.InvalidArgument},
		"a digest that changes":  {[]*runnerpb.UploadSourceRequest{{Digest: one}, {Digest: other}}, codes.InvalidArgument},
		"a chunk that is large":  {[]*runnerpb.UploadSourceRequest{{Digest: one, Chunk: make([]byte, MaxChunkBytes+1)}}, codes.InvalidArgument},
		"a message that is huge": {[]*runnerpb.UploadSourceRequest{{Digest: one, Chunk: make([]byte, MaxMessageBytes+1)}}, codes.ResourceExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stream, err := raw.UploadSource(testContext(t))
			if err != nil {
				t.Fatal(err)
			}
			for _, message := range test.messages {
				if err := stream.Send(message); err != nil && !errors.Is(err, io.EOF) {
					t.Fatal(err)
				}
			}
			if _, err := stream.CloseAndRecv(); status.Code(err) != test.want {
				t.Errorf("want %v, got %v", test.want, err)
			}
		})
	}
}

// smallStore is a store for three archives of 100 bytes, and a clock that goes on with each look.
type smallStore struct {
	*SourceStore
	options SourceOptions
	digests []string // of the archives 0 to 5
}

func newSmallStore(t *testing.T) *smallStore {
	t.Helper()
	now := time.Now()
	s := &smallStore{options: SourceOptions{Keep: 3, Now: func() time.Time { now = now.Add(time.Second); return now }}}
	for i := range 6 {
		s.digests = append(s.digests, digestOf(t, archive(byte(i), 100)))
	}
	s.open(t, t.TempDir())
	return s
}

func (s *smallStore) open(t *testing.T, dir string) {
	t.Helper()
	store, err := NewSourceStore(dir, s.options)
	if err != nil {
		t.Fatal(err)
	}
	s.SourceStore = store
}

func (s *smallStore) put(t *testing.T, i int) {
	t.Helper()
	if _, err := s.Store(t.Context(), s.digests[i], archive(byte(i), 100)); err != nil {
		t.Fatal(err)
	}
}

// expect checks which archives lie there, and that nothing else does.
func (s *smallStore) expect(t *testing.T, want ...int) {
	t.Helper()
	var got []int
	for i, digest := range s.digests {
		if _, err := os.Stat(filepath.Join(s.dir, strings.TrimPrefix(digest, "sha256:")+".tar.gz")); err == nil {
			got = append(got, i)
		}
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil || !slices.Equal(got, want) || len(entries) != len(want) {
		t.Errorf("stored are %v in %d files, want %v, %v", got, len(entries), want, err)
	}
}

func TestTheStoreKeepsWhatIsUsed(t *testing.T) {
	t.Parallel()
	store := newSmallStore(t)
	store.put(t, 0)
	inUse, err := store.Open(store.digests[0])
	if err != nil {
		t.Fatal(err)
	}
	store.put(t, 1)
	store.put(t, 2)
	store.expect(t, 0, 1, 2)
	if !store.Has(store.digests[1]) { // and so it is used later than 2
		t.Error("what was stored is gone")
	}
	store.put(t, 3)
	store.expect(t, 0, 1, 3) // 0 is the oldest, but in use
	if err := inUse.Close(); err != nil {
		t.Error(err)
	}
	_ = inUse.Close() // twice is once
	store.put(t, 4)
	store.expect(t, 1, 3, 4)
	if _, err := store.Open(store.digests[0]); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("opening what is gone: %v", err)
	}
	if _, err := store.Open("../x"); !errors.Is(err, ErrInvalid) {
		t.Errorf("opening a path: %v", err)
	}
}

func TestARestartedStoreKnowsWhatWasUsed(t *testing.T) {
	t.Parallel()
	store := newSmallStore(t)
	for i := range 3 {
		store.put(t, i)
	}
	if !store.Has(store.digests[0]) {
		t.Error("what was stored is gone")
	}
	if err := os.WriteFile(filepath.Join(store.dir, ".upload-1"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	store.open(t, store.dir)
	store.expect(t, 0, 1, 2) // and not what was not finished
	store.put(t, 3)
	store.expect(t, 0, 2, 3)
}

func TestTheStoreKnowsTheDigestsOfFlux(t *testing.T) {
	t.Parallel()
	store, err := NewSourceStore(t.TempDir(), SourceOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, algorithm := range []digest.Algorithm{digest.SHA256, digest.SHA384, digest.SHA512, digest.BLAKE3} {
		sum := algorithm.FromString("archive").String()
		if _, err := store.Store(t.Context(), sum, strings.NewReader("another")); !errors.Is(err, ErrDigest) {
			t.Errorf("%v: want ErrDigest, got %v", algorithm, err)
		}
		if _, err := store.Store(t.Context(), sum, strings.NewReader("archive")); err != nil || !store.Has(sum) {
			t.Errorf("%v: %v", algorithm, err)
		}
	}
	if entries, _ := os.ReadDir(store.dir); len(entries) != 4 {
		t.Errorf("files: %v", entries)
	}
}

func TestTheStoreHeedsItsContext(t *testing.T) {
	t.Parallel()
	store, err := NewSourceStore(t.TempDir(), SourceOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	content := &countingReader{Reader: archive(1, 1<<40), each: func(read int64) {
		if read > 1<<20 {
			cancel()
		}
	}}
	if _, err := store.Store(ctx, digestOf(t, bytes.NewReader(nil)), content); !errors.Is(err, context.Canceled) {
		t.Errorf("want context.Canceled, got %v", err)
	}
	awaitEmpty(t, store.dir)
}
