package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// ErrorKind decides what happens to an object after an error.
type ErrorKind int

const (
	// KindBug is every error that no constructor of this package made. It goes to
	// controller-runtime, which logs it and tries again.
	KindBug ErrorKind = iota
	// KindTerminal errors need a human: the object is Stalled until its generation,
	// its source or a request changes.
	KindTerminal
	// KindWaiting errors end when something else in the cluster gets ready. The
	// time between looks does not grow.
	KindWaiting
	// KindRetry errors may go away by themselves. The time between attempts doubles.
	KindRetry
)

// Error is an error whose kind, reason and message end up in conditions.
type Error struct {
	// Kind decides what happens next.
	Kind ErrorKind
	// Reason is one of the constants of the API.
	Reason string
	// Message is for people: what failed, on what, why, what to do.
	Message string
	// After is the time until a waiting object looks again.
	After time.Duration

	cause error
}

// Error implements error.
func (e *Error) Error() string { return e.Message }

// Unwrap returns what caused the error, nil if nothing did.
func (e *Error) Unwrap() error { return e.cause }

// Terminal is for what only a human can mend.
func Terminal(reason, message string) error {
	return &Error{Kind: KindTerminal, Reason: reason, Message: message}
}

// Terminalf is Terminal with a format.
func Terminalf(reason, format string, args ...any) error {
	return Terminal(reason, fmt.Sprintf(format, args...))
}

// Waiting is for what something else in the cluster has to bring about; the
// object looks again after the given time.
func Waiting(after time.Duration, reason, message string) error {
	return &Error{Kind: KindWaiting, Reason: reason, Message: message, After: after}
}

// Waitingf is Waiting with a format.
func Waitingf(after time.Duration, reason, format string, args ...any) error {
	return Waiting(after, reason, fmt.Sprintf(format, args...))
}

// Retry is for what may go away by itself.
func Retry(reason string, cause error) error {
	return &Error{Kind: KindRetry, Reason: reason, Message: cause.Error(), cause: cause}
}

// KindOf returns the kind of an error, KindBug for those that this package did not make.
func KindOf(err error) ErrorKind {
	if e := asError(err); e != nil {
		return e.Kind
	}
	return KindBug
}

// ReasonOf returns the reason of an error, or the empty string for bugs.
func ReasonOf(err error) string {
	if e := asError(err); e != nil {
		return e.Reason
	}
	return ""
}

func asError(err error) *Error {
	e, _ := errors.AsType[*Error](err)
	return e
}

// IsTransient tells errors of the API machinery that say nothing about the
// object: a conflict with another writer, an overloaded or restarting API server,
// a lost connection to it, a cancelled context. They are tried again and not shown in
// conditions.
func IsTransient(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err) ||
		utilnet.IsConnectionRefused(err) || utilnet.IsConnectionReset(err) || utilnet.IsProbableEOF(err) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
