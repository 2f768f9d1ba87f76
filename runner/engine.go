// Package runner is the program in a runner pod, without the tool it drives: the
// server that keeps operations alive and watchable, the client that a manager
// talks to it with, and the store of source archives. It knows no controller.
//
// An operation belongs to the runner, not to the connection that started it: when
// the manager goes away the operation goes on, and the next manager finds it again
// by its id.
package runner

import (
	"context"
	"io"

	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// Engine executes operations; package runner/engine has the one that runs OpenTofu and Terraform.
// Its methods are called from many goroutines.
type Engine interface {
	// Tools names what the runner can execute. It is asked at every handshake, so it has to be cheap.
	Tools() []*runnerpb.Tool

	// HasSource says whether the archive with this digest ("sha256:<hex>") is stored.
	HasSource(digest string) bool

	// StoreSource stores an archive and returns its size in bytes. It verifies the
	// digest, is atomic, and never holds the archive in memory. Errors: ErrDigest,
	// ErrTooLarge, ErrInvalid, or whatever reading the archive returned.
	StoreSource(ctx context.Context, digest string, archive io.Reader) (int64, error)

	// Run executes one operation and returns when it ended, with a result in any case.
	// The end of ctx means: interrupt the tool gracefully, wait until the state is
	// saved, then return. context.Cause(ctx) says why: ErrCancelled, ErrTimedOut or
	// ErrShutdown. A result with OUTCOME_CANCELLED and without a failure gets one
	// that names this cause.
	Run(ctx context.Context, request *runnerpb.StartOperationRequest, report Reporter) *runnerpb.Result
}

// Reporter takes what an operation says while it runs. Its methods never block
// on those who watch, may be called from many goroutines, and do nothing once the
// operation has ended. Text that is not UTF-8 is mended, long text is cut.
type Reporter interface {
	// Phase says what the operation is doing now, e.g. init or plan.
	Phase(name string)
	// Log passes on one line of the tool; level is info, warn or error.
	Log(level, text string)
	// Progress says that an action (create, update, delete, read) on a resource began or is done.
	Progress(address, action string, done bool)
}
