package runner

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"k8s.io/utils/clock"

	"github.com/terrace-dev/terrace/runner/runnerpb"
)

func TestStartingAnIDOftenRunsItOnce(t *testing.T) {
	t.Parallel()
	engine := newEngine(t, succeed)
	_, client := start(t, engine, Options{})
	ctx := testContext(t)
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			if _, err := client.Start(ctx, plan("op-1", "u1")); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	first := mustWatch(t, client, "op-1")
	if first.GetOutcome() != runnerpb.Outcome_OUTCOME_SUCCEEDED {
		t.Errorf("outcome %v", first.GetOutcome())
	}
	mustStart(t, client, plan("op-1", "u1"))
	if again := mustWatch(t, client, "op-1"); !proto.Equal(first, again) {
		t.Errorf("a finished operation has the result %v, then %v", first, again)
	}
	if n := engine.ran("op-1"); n != 1 {
		t.Errorf("the engine ran %d times", n)
	}
}

func TestAnIDBelongsToOneOperation(t *testing.T) {
	t.Parallel()
	_, client := start(t, newEngine(t, succeed), Options{})
	mustStart(t, client, plan("op-1", "u1"))
	mustWatch(t, client, "op-1")
	if _, err := client.Start(testContext(t), plan("op-1", "u2")); !errors.Is(err, ErrInvalid) {
		t.Errorf("the same id for another object: %v", err)
	}
}

func TestOneOperationPerObject(t *testing.T) {
	t.Parallel()
	_, client := start(t, newEngine(t, untilInterrupted), Options{})
	ctx := testContext(t)
	mustStart(t, client, plan("op-1", "u1"))
	_, err := client.Start(ctx, plan("op-2", "u1"))
	var call *CallError
	if !errors.Is(err, ErrObjectBusy) || !errors.As(err, &call) || call.Operation != "op-1" {
		t.Fatalf("want ErrObjectBusy naming op-1, got %v", err)
	}
	if code := status.Code(err); code != codes.FailedPrecondition {
		t.Errorf("code %v", code)
	}
	mustStart(t, client, plan("op-3", "u2"))
	if err := client.Cancel(ctx, "op-1"); err != nil {
		t.Fatal(err)
	}
	mustWatch(t, client, "op-1")
	// Whoever has the result can go on at once.
	mustStart(t, client, plan("op-2", "u1"))
}

func TestRequestsAreValidated(t *testing.T) {
	t.Parallel()
	_, client := start(t, newEngine(t, succeed), Options{})
	digest := "sha256:" + strings.Repeat("a", 64)
	for name, change := range map[string]func(*runnerpb.StartOperationRequest){
		"without an id":             func(r *runnerpb.StartOperationRequest) { r.Id = "" },
		"an id that is a path":      func(r *runnerpb.StartOperationRequest) { r.Id = "../etc" },
		"a long id":                 func(r *runnerpb.StartOperationRequest) { r.Id = strings.Repeat("x", 129) },
		"without a type":            func(r *runnerpb.StartOperationRequest) { r.Type = 0 },
		"an unknown type":           func(r *runnerpb.StartOperationRequest) { r.Type = 99 },
		"without an object":         func(r *runnerpb.StartOperationRequest) { r.Object = nil },
		"an object that is no JSON": func(r *runnerpb.StartOperationRequest) { r.Object = []byte("{") },
		"an object without a uid": func(r *runnerpb.StartOperationRequest) {
			r.Object = []byte(`{"metadata":{"name":"a","namespace":"b"}}`)
		},
		"a negative timeout":          func(r *runnerpb.StartOperationRequest) { r.TimeoutSeconds = -1 },
		"a timeout beyond all bounds": func(r *runnerpb.StartOperationRequest) { r.TimeoutSeconds = 1 << 62 },
		"a source without a digest":   func(r *runnerpb.StartOperationRequest) { r.Source = &runnerpb.Source{Revision: "main"} },
		"a digest that is a path":     func(r *runnerpb.StartOperationRequest) { r.Source = &runnerpb.Source{Digest: "sha256:../../x"} },
		"options of another type": func(r *runnerpb.StartOperationRequest) {
			r.Options = &runnerpb.StartOperationRequest_ForceUnlock{ForceUnlock: &runnerpb.ForceUnlockOptions{LockId: "l"}}
		},
		"an apply without a plan": func(r *runnerpb.StartOperationRequest) {
			r.Type = runnerpb.OperationType_OPERATION_TYPE_APPLY
			r.Options = &runnerpb.StartOperationRequest_Apply{Apply: &runnerpb.ApplyOptions{}}
		},
		"an apply without options": func(r *runnerpb.StartOperationRequest) { r.Type = runnerpb.OperationType_OPERATION_TYPE_APPLY },
		"an unlock without a lock": func(r *runnerpb.StartOperationRequest) { r.Type = runnerpb.OperationType_OPERATION_TYPE_FORCE_UNLOCK },
		"a secret in a broken object": func(r *runnerpb.StartOperationRequest) {
			r.Object = []byte(`{"metadata":{"name":{"s3cret":1}}}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			request := plan("op-1", "u1")
			request.Source = &runnerpb.Source{Digest: digest}
			change(request)
			_, err := client.Start(testContext(t), request)
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("want ErrInvalid, got %v", err)
			}
			if err != nil && (strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "rpc error")) {
				t.Errorf("message %q", err)
			}
		})
	}
}

func TestCapacityIsBoundedAndOthersQueue(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	engine := newEngine(t, func(ctx context.Context, _ *runnerpb.StartOperationRequest, report Reporter) *runnerpb.Result {
		report.Phase("plan")
		<-release
		return succeeded()
	})
	_, client := start(t, engine, Options{Capacity: 1, MaxQueued: 2})
	ctx := testContext(t)
	mustStart(t, client, plan("op-1", "u1"))
	awaitPhase(t, client, "op-1", "plan")
	mustStart(t, client, plan("op-2", "u2"))
	awaitPhase(t, client, "op-2", PhaseQueued)
	mustStart(t, client, plan("op-3", "u3"))
	awaitPhase(t, client, "op-3", PhaseQueued)
	if _, err := client.Start(ctx, plan("op-4", "u4")); !errors.Is(err, ErrOverloaded) {
		t.Errorf("one more than may wait: %v", err)
	}
	// One that waits can be cancelled without ever having run.
	if err := client.Cancel(ctx, "op-3"); err != nil {
		t.Fatal(err)
	}
	result := mustWatch(t, client, "op-3")
	if result.GetOutcome() != runnerpb.Outcome_OUTCOME_CANCELLED || result.GetFailure().GetReason() != ReasonCancelled {
		t.Errorf("cancelled while it waited: %v", result)
	}
	close(release)
	for _, id := range []string{"op-1", "op-2"} {
		if result := mustWatch(t, client, id); result.GetOutcome() != runnerpb.Outcome_OUTCOME_SUCCEEDED {
			t.Errorf("%s: %v", id, result)
		}
	}
	if n := engine.ran("op-3"); n != 0 {
		t.Errorf("the engine ran the cancelled operation %d times", n)
	}
}

func TestCancelIsGracefulAndIdempotent(t *testing.T) {
	t.Parallel()
	_, client := start(t, newEngine(t, untilInterrupted), Options{})
	ctx := testContext(t)
	if err := client.Cancel(ctx, "op-1"); !errors.Is(err, ErrUnknownOperation) {
		t.Errorf("cancelling what nobody started: %v", err)
	}
	mustStart(t, client, plan("op-1", "u1"))
	awaitPhase(t, client, "op-1", "apply")
	for range 3 {
		if err := client.Cancel(ctx, "op-1"); err != nil {
			t.Fatal(err)
		}
	}
	var logs []string
	result, err := client.Watch(ctx, "op-1", 0, func(event *runnerpb.OperationEvent) {
		if text := event.GetLog().GetText(); text != "" {
			logs = append(logs, text)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(logs, []string{"state saved"}) {
		t.Errorf("the engine was not left to finish: %q", logs)
	}
	if result.GetOutcome() != runnerpb.Outcome_OUTCOME_CANCELLED || result.GetFailure().GetMessage() != ErrCancelled.Error() {
		t.Errorf("result %v", result)
	}
	if err := client.Cancel(ctx, "op-1"); err != nil {
		t.Errorf("cancelling what ended: %v", err)
	}
}

func TestAnEngineThatBreaksFailsItsOperationOnly(t *testing.T) {
	t.Parallel()
	engine := newEngine(t, func(_ context.Context, request *runnerpb.StartOperationRequest, _ Reporter) *runnerpb.Result {
		switch request.GetId() {
		case "panics":
			panic("s3cret")
		case "exits":
			runtime.Goexit()
		case "says-nothing":
			return nil
		case "says-little":
			return &runnerpb.Result{}
		}
		return succeeded()
	})
	_, client := start(t, engine, Options{Capacity: 1})
	for _, id := range []string{"panics", "exits", "says-nothing", "says-little"} {
		mustStart(t, client, plan(id, id))
		result := mustWatch(t, client, id)
		if result.GetOutcome() != runnerpb.Outcome_OUTCOME_FAILED || result.GetFailure().GetReason() != ReasonInternal {
			t.Errorf("%s: %v", id, result)
		}
		if strings.Contains(result.String(), "s3cret") {
			t.Errorf("%s tells what the panic said: %v", id, result)
		}
	}
	mustStart(t, client, plan("fine", "fine"))
	if result := mustWatch(t, client, "fine"); result.GetOutcome() != runnerpb.Outcome_OUTCOME_SUCCEEDED {
		t.Errorf("the next operation: %v", result)
	}
}

func TestShutdownInterruptsAndWaits(t *testing.T) {
	t.Parallel()
	saved := make(chan struct{})
	engine := newEngine(t, func(ctx context.Context, _ *runnerpb.StartOperationRequest, report Reporter) *runnerpb.Result {
		report.Phase("apply")
		<-ctx.Done()
		<-saved
		return &runnerpb.Result{Outcome: runnerpb.Outcome_OUTCOME_CANCELLED}
	})
	server, client := start(t, engine, Options{})
	ctx := testContext(t)
	mustStart(t, client, plan("op-1", "u1"))
	awaitPhase(t, client, "op-1", "apply")

	impatient, cancel := context.WithCancel(ctx)
	cancel()
	if err := server.Shutdown(impatient); !errors.Is(err, context.Canceled) {
		t.Errorf("an operation that does not end in time: %v", err)
	}
	if _, err := client.Start(ctx, plan("op-2", "u2")); !errors.Is(err, ErrUnavailable) {
		t.Errorf("starting during shutdown: %v", err)
	}
	if _, err := client.Upload(ctx, "sha256:"+strings.Repeat("a", 64), strings.NewReader("x")); !errors.Is(err, ErrUnavailable) {
		t.Errorf("uploading during shutdown: %v", err)
	}
	mustStart(t, client, plan("op-1", "u1")) // known, so there is nothing to refuse
	down := make(chan error, 1)
	go func() { down <- server.Shutdown(ctx) }()
	close(saved)
	if err := await(t, "shutdown", down); err != nil {
		t.Error(err)
	}
	result := mustWatch(t, client, "op-1")
	if result.GetOutcome() != runnerpb.Outcome_OUTCOME_CANCELLED || result.GetFailure().GetReason() != ReasonShutdown {
		t.Errorf("result %v", result)
	}
}

func TestServeEndsWithItsContext(t *testing.T) {
	t.Parallel()
	authority := newAuthority(t, clock.RealClock{})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := NewServer(newEngine(t, untilInterrupted), Options{})
	ctx, stop := context.WithCancel(testContext(t))
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, lis, authority.ServerConfig(runnerName)) }()
	client := dial(t, lis.Addr().String(), authority.ClientConfig(runnerName))
	mustStart(t, client, plan("op-1", "u1"))
	standing, results := make(chan struct{}), make(chan *runnerpb.Result, 1)
	go func() {
		result, err := client.Watch(testContext(t), "op-1", 0, func(event *runnerpb.OperationEvent) {
			if event.GetPhase().GetName() == "apply" {
				close(standing)
			}
		})
		if err != nil {
			t.Error(err)
		}
		results <- result
	}()
	await(t, "the watch", standing)
	stop()
	if err := await(t, "the server's end", ended); err != nil {
		t.Errorf("serving ended with %v", err)
	}
	if result := await(t, "the result", results); result.GetFailure().GetReason() != ReasonShutdown {
		t.Errorf("the watcher got %v", result)
	}
}

// rawConn is a connection for what the client never does.
func rawConn(t *testing.T, addr string, source TLSSource) *grpc.ClientConn {
	t.Helper()
	config, err := source()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestHandshake(t *testing.T) {
	t.Parallel()
	authority := newAuthority(t, clock.RealClock{})
	server := serve(t, newEngine(t, untilInterrupted), Options{Identity: "pod-1", Capacity: 3}, authority.ServerConfig(runnerName))
	client := dial(t, server.addr, authority.ClientConfig(runnerName))
	mustStart(t, client, plan("op-1", "u1"))
	ctx := testContext(t)
	hello, err := client.Handshake(ctx)
	if err != nil {
		t.Fatal(err)
	}
	want := &runnerpb.HandshakeResponse{
		Version: 1, Runner: "pod-1", Capacity: 3,
		Tools: []*runnerpb.Tool{{Name: "OpenTofu", Version: "1.2.3"}},
		Operations: []*runnerpb.OperationRef{{
			Id: "op-1", Type: runnerpb.OperationType_OPERATION_TYPE_PLAN,
			Object: &runnerpb.ObjectRef{Namespace: "apps", Name: "net-u1", Uid: "u1"},
		}},
	}
	if !proto.Equal(hello, want) {
		t.Errorf("got %v, want %v", hello, want)
	}
	raw := runnerpb.NewRunnerClient(rawConn(t, server.addr, authority.ClientConfig(runnerName)))
	_, err = raw.Handshake(ctx, &runnerpb.HandshakeRequest{Versions: []int32{7, 8}})
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "[7 8]") || !strings.Contains(err.Error(), "[1]") {
		t.Errorf("no common version: %v", err)
	}
	if err := callError(callHandshake, err); !errors.Is(err, ErrIncompatible) {
		t.Errorf("no common version: %v", err)
	}
}

func TestHealthFollowsShutdown(t *testing.T) {
	t.Parallel()
	authority := newAuthority(t, clock.RealClock{})
	server := serve(t, newEngine(t, succeed), Options{}, authority.ServerConfig(runnerName))
	health := healthpb.NewHealthClient(rawConn(t, server.addr, authority.ClientConfig(runnerName)))
	ctx := testContext(t)
	check := func(want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		response, err := health.Check(ctx, &healthpb.HealthCheckRequest{})
		if err != nil || response.GetStatus() != want {
			t.Errorf("health %v, %v, want %v", response.GetStatus(), err, want)
		}
	}
	check(healthpb.HealthCheckResponse_SERVING)
	if err := server.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	check(healthpb.HealthCheckResponse_NOT_SERVING)
}

func TestOnlyTheManagerMayCall(t *testing.T) {
	t.Parallel()
	authority := newAuthority(t, clock.RealClock{})
	server := serve(t, newEngine(t, succeed), Options{}, authority.ServerConfig(runnerName))
	for name, source := range map[string]TLSSource{
		"another authority":   newAuthority(t, clock.RealClock{}).ClientConfig(runnerName),
		"another runner name": authority.ClientConfig("terrace-runner-xyz.apps"),
		"no certificate": func() (*tls.Config, error) {
			config, err := authority.ClientConfig(runnerName)()
			config.GetClientCertificate = nil
			return config, err
		},
		"a source that fails": func() (*tls.Config, error) { return nil, errors.New("no secret") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := dial(t, server.addr, source).Handshake(testContext(t)); !errors.Is(err, ErrUnavailable) {
				t.Errorf("want ErrUnavailable, got %v", err)
			}
		})
	}
	if _, err := Dial(server.addr, nil); err == nil {
		t.Error("dialled without TLS")
	}
}
