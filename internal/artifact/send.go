package artifact

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

// Uploader takes an archive; a runner's client is one.
type Uploader interface {
	Upload(ctx context.Context, digest string, archive io.Reader) (int64, error)
}

// Send fetches an artifact and uploads it, and returns the size in bytes that the
// uploader reports. Its file is gone afterwards. Errors: those of Fetch and of the uploader.
func Send(ctx context.Context, fetcher *Fetcher, to Uploader, url, digest string) (size int64, err error) {
	path, err := fetcher.Fetch(ctx, url, digest)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.Remove(path)) }()
	file, err := os.Open(path)
	if err != nil {
		return 0, fmt.Errorf("uploading the artifact: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return to.Upload(ctx, digest, file)
}
