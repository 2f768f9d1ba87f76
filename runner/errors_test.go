package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/utils/clock"

	"github.com/terrace-dev/terrace/runner/runnerpb"
)

func TestEveryCodeHasItsError(t *testing.T) {
	t.Parallel()
	kinds := map[codes.Code]error{
		codes.Canceled:           context.Canceled,
		codes.Unknown:            ErrInternal,
		codes.InvalidArgument:    ErrInvalid,
		codes.DeadlineExceeded:   context.DeadlineExceeded,
		codes.NotFound:           ErrUnknownOperation,
		codes.AlreadyExists:      ErrInternal,
		codes.PermissionDenied:   ErrUnavailable,
		codes.ResourceExhausted:  ErrOverloaded,
		codes.FailedPrecondition: ErrObjectBusy,
		codes.Aborted:            ErrUnavailable,
		codes.OutOfRange:         ErrInternal,
		codes.Unimplemented:      ErrIncompatible,
		codes.Internal:           ErrInternal,
		codes.Unavailable:        ErrUnavailable,
		codes.DataLoss:           ErrDigest,
		codes.Unauthenticated:    ErrUnavailable,
	}
	for code, kind := range kinds {
		err := callError(callStart, fmt.Errorf("wrapped: %w", status.Error(code, "the reason")))
		if !errors.Is(err, kind) || status.Code(err) != code {
			t.Errorf("%v became %v with code %v", code, err, status.Code(err))
		}
		if strings.Contains(err.Error(), "code =") && !strings.Contains(err.Error(), "the reason") {
			t.Errorf("message %q", err)
		}
	}
	if err := callError(callUpload, status.Error(codes.ResourceExhausted, "")); !errors.Is(err, ErrTooLarge) {
		t.Errorf("an upload that is too large: %v", err)
	}
	if err := callError(callHandshake, status.Error(codes.FailedPrecondition, "")); !errors.Is(err, ErrIncompatible) {
		t.Errorf("no common version: %v", err)
	}
	if callError(callStart, nil) != nil {
		t.Error("no error became one")
	}
}

// brokenEngine panics wherever the server asks it something.
type brokenEngine struct{}

func (brokenEngine) Tools() []*runnerpb.Tool { panic("tools") }
func (brokenEngine) HasSource(string) bool   { panic("has") }
func (brokenEngine) StoreSource(context.Context, string, io.Reader) (int64, error) {
	panic("store")
}
func (brokenEngine) Run(context.Context, *runnerpb.StartOperationRequest, Reporter) *runnerpb.Result {
	panic("run")
}

func TestAnEngineThatPanicsInACallFailsThatCallOnly(t *testing.T) {
	t.Parallel()
	_, client := start(t, brokenEngine{}, Options{})
	ctx := testContext(t)
	if _, err := client.Handshake(ctx); !errors.Is(err, ErrInternal) {
		t.Errorf("handshake: %v", err)
	}
	digest := "sha256:" + strings.Repeat("a", 64)
	if _, err := client.Upload(ctx, digest, strings.NewReader("x")); !errors.Is(err, ErrInternal) {
		t.Errorf("upload: %v", err)
	}
	request := plan("op-1", "u1")
	request.Source = &runnerpb.Source{Digest: digest}
	if _, err := client.Start(ctx, request); !errors.Is(err, ErrInternal) {
		t.Errorf("start: %v", err)
	}
	request.Source = nil
	mustStart(t, client, request)
	if result := mustWatch(t, client, "op-1"); result.GetFailure().GetReason() != ReasonInternal {
		t.Errorf("result %v", result)
	}
}

func TestCallsOfAClosedClientFail(t *testing.T) {
	t.Parallel()
	authority := newAuthority(t, clock.RealClock{})
	server := serve(t, newEngine(t, untilInterrupted), Options{}, authority.ServerConfig(runnerName))
	client, err := Dial(server.addr, authority.ClientConfig(runnerName))
	if err != nil {
		t.Fatal(err)
	}
	mustStart(t, client, plan("op-1", "u1"))
	_, err = client.Watch(testContext(t), "op-1", 0, func(*runnerpb.OperationEvent) {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the watch of a client that was closed: %v", err)
	}
	if _, err := client.Handshake(testContext(t)); err == nil {
		t.Error("a closed client shook hands")
	}
}

func FuzzValidate(f *testing.F) {
	f.Add("op-1", int32(1), []byte(`{"metadata":{"namespace":"a","name":"b","uid":"c"}}`), "sha256:"+strings.Repeat("a", 64), int64(5))
	f.Add("", int32(0), []byte(nil), "", int64(-1))
	f.Fuzz(func(t *testing.T, id string, kind int32, object []byte, digest string, timeout int64) {
		request := &runnerpb.StartOperationRequest{
			Id: id, Type: runnerpb.OperationType(kind), Object: object,
			Source: &runnerpb.Source{Digest: digest}, TimeoutSeconds: timeout,
		}
		ref, err := validate(request)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("not ErrInvalid: %v", err)
			}
			return
		}
		if ref.GetUid() == "" || ref.GetName() == "" || ref.GetNamespace() == "" || strings.ContainsAny(id, "/\\") {
			t.Errorf("accepted %v", request)
		}
		if parsed, err := parseDigest(digest); err != nil || strings.ContainsAny(fileName(parsed), "/\\") {
			t.Errorf("accepted the digest %q", digest)
		}
	})
}
