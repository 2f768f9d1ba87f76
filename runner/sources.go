package runner

import (
	"cmp"
	"context"
	_ "crypto/sha256" // the digests that artifacts have
	_ "crypto/sha512"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	_ "github.com/opencontainers/go-digest/blake3"
)

const (
	// DefaultMaxSourceBytes is the largest archive a SourceStore accepts unless told otherwise: 1 GiB.
	DefaultMaxSourceBytes = 1 << 30
	// DefaultKeepSources is how many archives a SourceStore keeps unless told otherwise.
	DefaultKeepSources = 32

	sourceSuffix = ".tar.gz"
	tempPattern  = ".upload-*"
)

// SourceOptions bound a SourceStore; the zero value gives the defaults.
type SourceOptions struct {
	// MaxBytes is the largest archive accepted.
	MaxBytes int64
	// Keep is how many archives stay, those used last; an archive in use always stays.
	Keep int
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// SourceStore keeps source archives in a directory, one file per digest. What is
// visible there has been verified. When an archive was used last stands in its
// file's modification time, so that a restarted runner still knows it.
type SourceStore struct {
	dir     string
	options SourceOptions

	mu   sync.Mutex
	uses map[string]int // open readers by file name
}

// NewSourceStore opens the store in dir, creates the directory if need be, and
// removes uploads that an earlier process did not finish.
func NewSourceStore(dir string, options SourceOptions) (*SourceStore, error) {
	options.MaxBytes = cmp.Or(options.MaxBytes, DefaultMaxSourceBytes)
	options.Keep = cmp.Or(options.Keep, DefaultKeepSources)
	if options.Now == nil {
		options.Now = time.Now
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("opening the source store: %w", err)
	}
	unfinished, err := filepath.Glob(filepath.Join(dir, tempPattern))
	if err != nil {
		return nil, fmt.Errorf("opening the source store: %w", err)
	}
	for _, path := range unfinished {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("opening the source store: %w", err)
		}
	}
	return &SourceStore{dir: dir, options: options, uses: map[string]int{}}, nil
}

// Has says whether an archive is stored, and counts as use of it. A malformed digest is never stored.
func (s *SourceStore) Has(sum string) bool {
	parsed, err := parseDigest(sum)
	if err != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.touch(fileName(parsed)) == nil
}

// Open opens a stored archive for reading; the archive stays until it is closed.
// Errors: ErrInvalid for a malformed digest, fs.ErrNotExist when the archive is not stored.
func (s *SourceStore) Open(sum string) (io.ReadCloser, error) {
	parsed, err := parseDigest(sum)
	if err != nil {
		return nil, err
	}
	name := fileName(parsed)
	s.mu.Lock()
	defer s.mu.Unlock()
	file, err := os.Open(filepath.Join(s.dir, name))
	if err != nil {
		return nil, fmt.Errorf("opening source %s: %w", sum, err)
	}
	if err := s.touch(name); err != nil {
		return nil, errors.Join(fmt.Errorf("opening source %s: %w", sum, err), file.Close())
	}
	s.uses[name]++
	return &openSource{File: file, release: sync.OnceFunc(func() { s.release(name) })}, nil
}

// openSource is an archive in use.
type openSource struct {
	*os.File
	release func()
}

// Close ends the use; closing twice is harmless.
func (o *openSource) Close() error {
	o.release()
	return o.File.Close()
}

func (s *SourceStore) release(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.uses[name]--; s.uses[name] <= 0 {
		delete(s.uses, name)
	}
}

// Store writes an archive and returns its size in bytes. Nothing of it is visible
// before its content proved to be what the digest says, and nothing is left if it
// does not. Errors: ErrInvalid for a malformed digest, ErrDigest, ErrTooLarge, the
// end of ctx (noticed between two reads), or what reading and writing returned.
func (s *SourceStore) Store(ctx context.Context, sum string, archive io.Reader) (size int64, err error) {
	parsed, err := parseDigest(sum)
	if err != nil {
		return 0, err
	}
	temp, err := os.CreateTemp(s.dir, tempPattern)
	if err != nil {
		return 0, fmt.Errorf("storing source %s: %w", sum, err)
	}
	defer func() {
		if err != nil {
			// Both may fail because all went well up to the rename; what counts is that nothing is left.
			_ = temp.Close()
			_ = os.Remove(temp.Name())
		}
	}()
	if size, err = s.fill(ctx, temp, parsed, archive); err != nil {
		return 0, fmt.Errorf("storing source %s: %w", sum, err)
	}
	if err = s.publish(temp, fileName(parsed)); err != nil {
		return 0, fmt.Errorf("storing source %s: %w", sum, err)
	}
	return size, nil
}

// fill copies the archive to disk and checks size and digest on the way.
func (s *SourceStore) fill(ctx context.Context, file *os.File, sum digest.Digest, archive io.Reader) (int64, error) {
	verifier := sum.Verifier()
	// One byte more than allowed is enough to know that there is too much.
	limited := io.LimitReader(&contextReader{ctx: ctx, reader: archive}, s.options.MaxBytes+1)
	size, err := io.Copy(io.MultiWriter(file, verifier), limited)
	switch {
	case err != nil:
		return 0, err
	case size > s.options.MaxBytes:
		return 0, fmt.Errorf("%w: the archive has more than %d bytes", ErrTooLarge, s.options.MaxBytes)
	case !verifier.Verified():
		return 0, fmt.Errorf("%w: %d bytes arrived that do not have this digest", ErrDigest, size)
	}
	return size, nil
}

// publish makes a complete file visible, durably, and prunes the others.
func (s *SourceStore) publish(temp *os.File, name string) error {
	if err := temp.Sync(); err != nil {
		return err
	}
	if err := temp.Close(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := os.Rename(temp.Name(), filepath.Join(s.dir, name)); err != nil {
		return err
	}
	if err := s.touch(name); err != nil {
		return err
	}
	if err := syncDir(s.dir); err != nil {
		return err
	}
	s.prune(name)
	return nil
}

// touch notes that the file is used now; the caller holds the lock.
func (s *SourceStore) touch(name string) error {
	now := s.options.Now()
	return os.Chtimes(filepath.Join(s.dir, name), now, now)
}

// prune removes the archives used least recently, but neither one in use nor the
// one just stored; the caller holds the lock. A file that cannot be removed is
// tried again at the next archive.
func (s *SourceStore) prune(stored string) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return
	}
	var archives []fs.FileInfo
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil && strings.HasSuffix(info.Name(), sourceSuffix) {
			archives = append(archives, info)
		}
	}
	slices.SortFunc(archives, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	surplus := len(archives) - s.options.Keep
	for _, archive := range archives {
		if surplus <= 0 {
			return
		}
		if s.uses[archive.Name()] > 0 || archive.Name() == stored {
			continue
		}
		if os.Remove(filepath.Join(s.dir, archive.Name())) == nil {
			surplus--
		}
	}
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// fileName is where an archive lies. A parsed digest is an algorithm's name and hexadecimal digits.
func fileName(sum digest.Digest) string {
	if sum.Algorithm() == digest.SHA256 {
		return sum.Encoded() + sourceSuffix
	}
	return sum.Algorithm().String() + "-" + sum.Encoded() + sourceSuffix
}

// parseDigest checks a digest, so that it may become a file's name. Its errors are ErrInvalid.
func parseDigest(sum string) (digest.Digest, error) {
	parsed, err := digest.Parse(sum)
	if err != nil {
		return "", invalid("digest %q: %v", clip(sum), err)
	}
	return parsed, nil
}

// contextReader ends with its context.
type contextReader struct {
	ctx    context.Context
	reader io.Reader
}

func (r *contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.reader.Read(p)
}
