package runner

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"k8s.io/utils/clock"

	"github.com/terrace-dev/terrace/internal/pki"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// patience is how long a test waits for something that should happen at once.
const patience = 20 * time.Second

// TestMain proves that nothing outlives the tests: no watcher, no operation, no connection.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scriptedEngine does what the test says and counts.
type scriptedEngine struct {
	*SourceStore
	run func(context.Context, *runnerpb.StartOperationRequest, Reporter) *runnerpb.Result

	mu   sync.Mutex
	runs map[string]int // by operation id
}

func newEngine(t *testing.T, run func(context.Context, *runnerpb.StartOperationRequest, Reporter) *runnerpb.Result) *scriptedEngine {
	t.Helper()
	store, err := NewSourceStore(t.TempDir(), SourceOptions{MaxBytes: 128 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return &scriptedEngine{SourceStore: store, run: run, runs: map[string]int{}}
}

func (e *scriptedEngine) Tools() []*runnerpb.Tool {
	return []*runnerpb.Tool{{Name: "OpenTofu", Version: "1.2.3"}}
}

func (e *scriptedEngine) HasSource(digest string) bool { return e.Has(digest) }

func (e *scriptedEngine) StoreSource(ctx context.Context, digest string, archive io.Reader) (int64, error) {
	return e.Store(ctx, digest, archive)
}

func (e *scriptedEngine) Run(ctx context.Context, request *runnerpb.StartOperationRequest, report Reporter) *runnerpb.Result {
	e.mu.Lock()
	e.runs[request.GetId()]++
	e.mu.Unlock()
	return e.run(ctx, request, report)
}

func (e *scriptedEngine) ran(id string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.runs[id]
}

// succeed is a script.
func succeed(context.Context, *runnerpb.StartOperationRequest, Reporter) *runnerpb.Result {
	return succeeded()
}

// untilInterrupted is a script that behaves as a tool does: it ends when it is told to.
func untilInterrupted(ctx context.Context, _ *runnerpb.StartOperationRequest, report Reporter) *runnerpb.Result {
	report.Phase("apply")
	<-ctx.Done()
	report.Log("info", "state saved")
	return &runnerpb.Result{Outcome: runnerpb.Outcome_OUTCOME_CANCELLED}
}

func succeeded() *runnerpb.Result {
	return &runnerpb.Result{Outcome: runnerpb.Outcome_OUTCOME_SUCCEEDED}
}

// served is a server behind real TLS on loopback.
type served struct {
	*Server
	grpc *grpc.Server
	addr string
}

const runnerName = "terrace-runner-abc.apps"

func newAuthority(t *testing.T, clock clock.PassiveClock) *pki.Authority {
	t.Helper()
	authority, err := pki.NewAuthority(clock)
	if err != nil {
		t.Fatal(err)
	}
	return authority
}

// serve starts a server; at the end of the test everything in it has to end.
func serve(t *testing.T, engine Engine, options Options, config *tls.Config) *served {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := NewServer(engine, options)
	s := &served{Server: server, grpc: NewGRPCServer(config, server), addr: lis.Addr().String()}
	ended := make(chan error, 1)
	go func() { ended <- s.grpc.Serve(lis) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("shutting down: %v", err)
		}
		// Hangs if a watcher that hung up is still being served.
		s.grpc.GracefulStop()
		if err := <-ended; err != nil {
			t.Errorf("serving: %v", err)
		}
	})
	return s
}

func dial(t *testing.T, addr string, source TLSSource) *Client {
	t.Helper()
	client, err := Dial(addr, source, ClientOptions{RetryMin: 2 * time.Millisecond, RetryMax: 50 * time.Millisecond, RetryAttempts: 200})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	return client
}

// start gives a server and a client of it.
func start(t *testing.T, engine Engine, options Options) (*served, *Client) {
	t.Helper()
	authority := newAuthority(t, clock.RealClock{})
	s := serve(t, engine, options, authority.ServerConfig(runnerName))
	return s, dial(t, s.addr, authority.ClientConfig(runnerName))
}

// testContext ends before the test's patience does.
func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// plan is a request to plan for the object with this uid.
func plan(id, uid string) *runnerpb.StartOperationRequest {
	return &runnerpb.StartOperationRequest{
		Id:     id,
		Type:   runnerpb.OperationType_OPERATION_TYPE_PLAN,
		Object: fmt.Appendf(nil, `{"kind":"Terraform","metadata":{"namespace":"apps","name":"net-%s","uid":%q}}`, uid, uid),
	}
}

func mustStart(t *testing.T, client *Client, request *runnerpb.StartOperationRequest) {
	t.Helper()
	needSource, err := client.Start(testContext(t), request)
	if err != nil {
		t.Fatal(err)
	}
	if needSource {
		t.Fatalf("operation %s needs a source", request.GetId())
	}
}

func mustWatch(t *testing.T, client *Client, id string) *runnerpb.Result {
	t.Helper()
	result, err := client.Watch(testContext(t), id, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// await takes what a channel delivers, within the test's patience.
func await[T any](t *testing.T, what string, from <-chan T) T {
	t.Helper()
	select {
	case value := <-from:
		return value
	case <-time.After(patience):
		t.Fatalf("waited in vain for %s", what)
		panic("unreachable")
	}
}

// awaitPhase watches until the operation is in this phase.
func awaitPhase(t *testing.T, client *Client, id, phase string) {
	t.Helper()
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	seen := false
	_, err := client.Watch(ctx, id, 0, func(event *runnerpb.OperationEvent) {
		if event.GetPhase().GetName() == phase {
			seen = true
			cancel()
		}
	})
	if !seen {
		t.Fatalf("operation %s never was in phase %s: %v", id, phase, err)
	}
}

// cutter is a TCP proxy whose connections can be cut, and whose target can move.
type cutter struct {
	addr string

	mu     sync.Mutex
	target string
	conns  map[net.Conn]bool
	cuts   int
}

func newCutter(t *testing.T, target string) *cutter {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{addr: lis.Addr().String(), target: target, conns: map[net.Conn]bool{}}
	var pipes sync.WaitGroup
	pipes.Go(func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			pipes.Go(func() { c.forward(conn) })
		}
	})
	t.Cleanup(func() {
		_ = lis.Close()
		c.cut()
		pipes.Wait()
	})
	return c
}

func (c *cutter) forward(conn net.Conn) {
	c.mu.Lock()
	target := c.target
	c.mu.Unlock()
	upstream, err := net.Dial("tcp", target)
	if err != nil {
		_ = conn.Close()
		return
	}
	c.mu.Lock()
	c.conns[conn], c.conns[upstream] = true, true
	c.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { pipe(upstream, conn) })
	both.Go(func() { pipe(conn, upstream) })
	both.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.conns, conn)
	delete(c.conns, upstream)
}

// pipe copies until either end is closed, and then closes both.
func pipe(to, from net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if _, failed := to.Write(buffer[:n]); failed != nil {
				err = failed
			}
		}
		if err != nil {
			_ = to.Close()
			_ = from.Close()
			return
		}
	}
}

// cut closes all connections.
func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cuts++
	for conn := range c.conns {
		_ = conn.Close()
	}
}

func (c *cutter) move(target string) {
	c.mu.Lock()
	c.target = target
	c.mu.Unlock()
	c.cut()
}
