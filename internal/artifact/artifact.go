// Package artifact fetches the archives that source-controller serves and passes
// them on to runners. An archive is a file all the time, never a block of memory.
package artifact

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"github.com/fluxcd/pkg/http/fetch"
	"github.com/opencontainers/go-digest"
)

var (
	// ErrNotFound means: the artifact is gone, usually since a newer one replaced it: wait for the source.
	ErrNotFound = errors.New("artifact not found")
	// ErrDigest means: what was served does not have the expected digest: try again later.
	ErrDigest = errors.New("artifact digest mismatch")
	// ErrTooLarge means: the artifact exceeds the size limit; the same one always will.
	ErrTooLarge = errors.New("artifact too large")
	// ErrInvalidDigest means: the expected digest is malformed; trying again does not help.
	ErrInvalidDigest = errors.New("invalid artifact digest")
)

const (
	// DefaultMaxBytes is the largest artifact that is fetched unless told otherwise: 1 GiB.
	DefaultMaxBytes = 1 << 30

	// hostEnv is how Flux controllers outside a cluster reach source-controller: it
	// replaces the host of every artifact's URL.
	hostEnv = "SOURCE_CONTROLLER_LOCALHOST"
)

// Options set up a Fetcher; the zero value gives the defaults.
type Options struct {
	// Dir is where fetched archives lie; default: the directory for temporary files.
	Dir string
	// MaxBytes is the largest artifact accepted; default DefaultMaxBytes.
	MaxBytes int64
	// Retries is how often a request that failed, or was answered with 5xx, is repeated, with
	// pauses from 5 to 30 s; default 0, since whoever reconciles had better come again later.
	Retries int
	// Logger takes the messages of the HTTP client; a logr.Logger gets its errors only. Nil discards them.
	Logger any
}

// fileName is what the library calls a download, in a directory of its own.
const fileName = "artifact.tar.gz"

// Fetcher fetches artifacts. It is safe for concurrent use and reuses connections.
type Fetcher struct {
	options Options
	archive *fetch.ArchiveFetcher
}

// New returns a fetcher. It reads SOURCE_CONTROLLER_LOCALHOST as Flux does.
func New(options Options) *Fetcher {
	options.Dir = cmp.Or(options.Dir, os.TempDir())
	options.MaxBytes = cmp.Or(options.MaxBytes, DefaultMaxBytes)
	return &Fetcher{options: options, archive: fetch.New(
		fetch.WithFileName(fileName),
		fetch.WithRetries(options.Retries),
		fetch.WithHostnameOverwrite(os.Getenv(hostEnv)),
		fetch.WithLogger(options.Logger),
		// One byte more than allowed, so that the file's size tells "too large" from
		// "exactly as large as allowed".
		fetch.WithMaxDownloadSize(int(options.MaxBytes)+1),
	)}
}

// Fetch downloads an artifact into a file and returns its path; the caller removes
// the file. The digest ("sha256:<hex>") is verified. Nothing is left of a fetch that
// failed. Errors: ErrNotFound, ErrDigest, ErrTooLarge, ErrInvalidDigest, ctx's own,
// or what connection and disk returned, against which trying again may help.
func (f *Fetcher) Fetch(ctx context.Context, url, sum string) (path string, err error) {
	if _, err := digest.Parse(sum); err != nil {
		return "", fmt.Errorf("fetching %s: %w: %q: %w", url, ErrInvalidDigest, sum, err)
	}
	dir, err := os.MkdirTemp(f.options.Dir, "fetch-*")
	if err != nil {
		return "", fmt.Errorf("fetching %s: %w", url, err)
	}
	defer func() {
		if left := os.RemoveAll(dir); left != nil {
			err = errors.Join(err, fmt.Errorf("fetching %s: %w", url, left))
		}
	}()
	download := filepath.Join(dir, fileName)
	err = f.archive.FetchWithContext(ctx, url, sum, dir)
	if err = f.explain(ctx, download, err); err != nil {
		return "", fmt.Errorf("fetching %s: %w", url, err)
	}
	path = filepath.Join(f.options.Dir, "artifact-"+rand.Text()+".tar.gz")
	if err := os.Rename(download, path); err != nil {
		return "", fmt.Errorf("fetching %s: %w", url, err)
	}
	return path, nil
}

// explain finds out what kind of error the library returned, if any. Most of its
// errors have no type, so the file it left behind has to say how far it got.
func (f *Fetcher) explain(ctx context.Context, path string, err error) error {
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, fetch.ErrFileNotFound) {
		return ErrNotFound
	}
	info, statErr := os.Stat(path)
	switch {
	case statErr != nil && err == nil:
		return statErr
	case statErr != nil:
		// The library did not get as far as the file, and said why.
		return err
	case interrupted(err):
		return err
	case info.Size() > f.options.MaxBytes:
		return fmt.Errorf("%w: it has more than %d bytes", ErrTooLarge, f.options.MaxBytes)
	case err != nil:
		return fmt.Errorf("%w: %w", ErrDigest, err)
	default:
		return nil
	}
}

// interrupted says whether a download broke off or could not be written: what is left is comparing the digest.
func interrupted(err error) bool {
	var network net.Error
	var file *fs.PathError
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &network) || errors.As(err, &file)
}
