package runner

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// What can be wrong with a call to a runner. The client's errors match these with
// errors.Is; they are made of gRPC codes alone, never of message texts.
var (
	// ErrInvalid means: the request itself is malformed; the same request never succeeds.
	ErrInvalid = errors.New("invalid request")
	// ErrUnknownOperation means: the runner knows no such operation, e.g. because it was restarted.
	ErrUnknownOperation = errors.New("unknown operation")
	// ErrObjectBusy means: another operation of the same object has not ended; CallError.Operation has its id.
	ErrObjectBusy = errors.New("another operation of the object is running")
	// ErrIncompatible means: client and runner have no protocol version or no method in common.
	ErrIncompatible = errors.New("incompatible runner")
	// ErrDigest means: an archive's content is not what its digest says.
	ErrDigest = errors.New("digest mismatch")
	// ErrTooLarge means: an archive is larger than the runner accepts.
	ErrTooLarge = errors.New("too large")
	// ErrOverloaded means: the runner has too many operations waiting already, or no room; try again later.
	ErrOverloaded = errors.New("runner overloaded")
	// ErrUnavailable means: the runner cannot be reached, or it is shutting down; try again later.
	ErrUnavailable = errors.New("runner unavailable")
	// ErrInternal means: something in the runner is broken.
	ErrInternal = errors.New("internal error in the runner")
)

// Why an operation's context ended: the values of context.Cause in Engine.Run.
var (
	// ErrCancelled means: somebody called CancelOperation.
	ErrCancelled = errors.New("the operation was cancelled")
	// ErrTimedOut means: the operation ran longer than its timeout.
	ErrTimedOut = errors.New("the operation exceeded its timeout")
	// ErrShutdown means: the runner is being stopped.
	ErrShutdown = errors.New("the runner is shutting down")
)

// Reasons that the server itself puts into a Failure; all others are the engine's.
const (
	// ReasonCancelled means: the operation was cancelled on request.
	ReasonCancelled = "OperationCancelled"
	// ReasonTimedOut means: the operation was interrupted at its timeout.
	ReasonTimedOut = "OperationTimedOut"
	// ReasonShutdown means: the operation was interrupted because its runner was stopped.
	ReasonShutdown = "RunnerShutdown"
	// ReasonInternal means: the engine crashed or returned no result.
	ReasonInternal = "RunnerInternalError"
)

// CallError is what every method of Client returns when a call fails.
type CallError struct {
	// Call says in words which call failed, e.g. "starting the operation".
	Call string
	// Kind is one of this package's errors, context.Canceled or context.DeadlineExceeded.
	Kind error
	// Message is the runner's own text, or the connection's.
	Message string
	// Operation is the id of the operation in the way, with ErrObjectBusy.
	Operation string

	status *status.Status
}

// Error gives the call and the message, without gRPC's prefix.
func (e *CallError) Error() string {
	if e.Message == "" {
		return fmt.Sprintf("%s: %v", e.Call, e.Kind)
	}
	return fmt.Sprintf("%s: %s", e.Call, e.Message)
}

// Unwrap lets errors.Is find the kind.
func (e *CallError) Unwrap() error { return e.Kind }

// GRPCStatus lets status.FromError and status.Code find the answer's code.
func (e *CallError) GRPCStatus() *status.Status { return e.status }

// The calls, as error messages name them.
const (
	callHandshake = "shaking hands with the runner"
	callUpload    = "uploading the source"
	callStart     = "starting the operation"
	callWatch     = "watching the operation"
	callCancel    = "cancelling the operation"
	callRotate    = "renewing the runner's certificate"
)

// callError wraps what gRPC returned; nil stays nil.
func callError(call string, err error) error {
	if err == nil {
		return nil
	}
	if known, ok := errors.AsType[*CallError](err); ok {
		return known
	}
	answer, ok := status.FromError(err)
	if !ok {
		answer = status.FromContextError(err)
	}
	return &CallError{
		Call:      call,
		Kind:      kindOf(call, answer.Code()),
		Message:   answer.Message(),
		Operation: detail(answer, detailOperation),
		status:    answer,
	}
}

// kindOf maps codes one to one; only two of them mean different things to different calls.
func kindOf(call string, code codes.Code) error {
	switch code {
	case codes.InvalidArgument:
		return ErrInvalid
	case codes.NotFound:
		return ErrUnknownOperation
	case codes.FailedPrecondition:
		if call == callHandshake {
			return ErrIncompatible
		}
		return ErrObjectBusy
	case codes.Unimplemented:
		return ErrIncompatible
	case codes.DataLoss:
		return ErrDigest
	case codes.ResourceExhausted:
		if call == callUpload {
			return ErrTooLarge
		}
		return ErrOverloaded
	case codes.Unavailable, codes.Aborted, codes.Unauthenticated, codes.PermissionDenied:
		return ErrUnavailable
	case codes.DeadlineExceeded:
		return context.DeadlineExceeded
	case codes.Canceled:
		return context.Canceled
	default:
		return ErrInternal
	}
}

// answer turns an error of the server's own into a status; a status stays as it is.
func answer(err error) error {
	for _, known := range []struct {
		err  error
		code codes.Code
	}{
		{ErrInvalid, codes.InvalidArgument},
		{ErrDigest, codes.DataLoss},
		{ErrTooLarge, codes.ResourceExhausted},
		{context.Canceled, codes.Canceled},
		{context.DeadlineExceeded, codes.DeadlineExceeded},
	} {
		if errors.Is(err, known.err) {
			return status.Error(known.code, err.Error())
		}
	}
	if own, ok := status.FromError(err); ok {
		return own.Err()
	}
	return status.Error(codes.Internal, err.Error())
}

const (
	errorDomain     = "runner.terrace.dev"
	detailOperation = "operation"
)

// busy is the answer when another operation of the object has not ended.
func busy(object, running string) error {
	plain := status.Newf(codes.FailedPrecondition, "operation %q of %s is still running", running, object)
	detailed, err := plain.WithDetails(&errdetails.ErrorInfo{
		Reason:   "OBJECT_BUSY",
		Domain:   errorDomain,
		Metadata: map[string]string{detailOperation: running},
	})
	if err != nil {
		return plain.Err()
	}
	return detailed.Err()
}

func detail(from *status.Status, key string) string {
	for _, d := range from.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == errorDomain {
			return info.GetMetadata()[key]
		}
	}
	return ""
}
