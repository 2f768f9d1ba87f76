package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/terrace-dev/terrace/runner/runnerpb"
)

const (
	// MaxMessageBytes is the largest message that either side accepts: 4 MiB.
	MaxMessageBytes = 4 << 20
	// MaxChunkBytes is how much of an archive one message of an upload carries at most: 256 KiB.
	MaxChunkBytes = 256 << 10
	// Port is the TCP port that runner pods listen on.
	Port = 9444
	// PhaseQueued is the phase of an operation that waits for capacity or memory.
	PhaseQueued = "queued"
)

// ProtocolVersions are the protocol versions that this package speaks, on both ends.
func ProtocolVersions() []int32 { return []int32{1} }

// Options set up a Server; the zero value gives the defaults.
type Options struct {
	// Identity is the host name that the tools write into state locks; default: this host's.
	Identity string
	// Namespace is the only one whose objects the server works for; operations of
	// others are invalid. Empty means all.
	Namespace string
	// Capacity is how many operations run at the same time; default 4. Others wait in phase "queued".
	Capacity int32
	// Room says whether one more operation fits beside those that run, e.g. into the
	// memory; nil means yes. It is asked before each, again every second until it
	// agrees, and not at all while nothing runs: one operation always may.
	Room func() bool
	// Rotate takes a new certificate with its key and the authorities to trust, all
	// PEM, for connections to come. An error refuses them, and its text reaches the
	// manager. nil means that the server cannot do that.
	Rotate func(certificate, key, authorities []byte) error
	// MaxQueued is how many operations may wait before further ones are refused; default 256.
	MaxQueued int
	// MaxEvents is how many events of one operation are kept; default 1000.
	MaxEvents int
	// RetainPerObject is how many finished operations of each object are kept at any age; default 8.
	RetainPerObject int
	// RetainFor is how long a finished operation is kept at least; default 1 h.
	RetainFor time.Duration
	// RetainTotal and RetainBytes bound all finished operations, before the two
	// above: default 512 operations and 64 MiB of events and results.
	RetainTotal int
	RetainBytes int
	// DefaultTimeout applies to operations that name no timeout; default 1 h.
	DefaultTimeout time.Duration
	// ShutdownGrace is how long Serve waits for interrupted operations; default 9 min 30 s,
	// a little less than a runner pod's termination grace period.
	ShutdownGrace time.Duration
	// IdleTimeout is after how long without any connection or running operation Serve
	// shuts down by itself; 0 means never.
	IdleTimeout time.Duration
	// Now is the clock for events and retention; nil means time.Now.
	Now func() time.Time
	// Logger takes the server's own messages; nil discards them.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.Identity == "" {
		// Without a host name the locks still name the tool's own idea of it.
		o.Identity, _ = os.Hostname()
	}
	if o.Capacity <= 0 {
		o.Capacity = 4
	}
	o.MaxQueued = cmp.Or(o.MaxQueued, 256)
	o.MaxEvents = cmp.Or(o.MaxEvents, 1000)
	o.RetainPerObject = cmp.Or(o.RetainPerObject, 8)
	o.RetainFor = cmp.Or(o.RetainFor, time.Hour)
	o.RetainTotal = cmp.Or(o.RetainTotal, 512)
	o.RetainBytes = cmp.Or(o.RetainBytes, 64<<20)
	o.DefaultTimeout = cmp.Or(o.DefaultTimeout, time.Hour)
	o.ShutdownGrace = cmp.Or(o.ShutdownGrace, 9*time.Minute+30*time.Second)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Server keeps operations over an Engine. It implements runnerpb.RunnerServer.
type Server struct {
	runnerpb.UnimplementedRunnerServer

	engine     Engine
	options    Options
	operations *registry
	admission  *admission
	presence   *presence
	health     *health.Server
}

// NewServer returns a server without operations; NewGRPCServer or Serve make it reachable.
func NewServer(engine Engine, options Options) *Server {
	options = options.withDefaults()
	return &Server{
		engine:     engine,
		options:    options,
		operations: newRegistry(options),
		admission:  newAdmission(int(options.Capacity), options.Room),
		presence:   newPresence(),
		health:     health.NewServer(),
	}
}

// Shutdown interrupts all operations gracefully, refuses new ones, and waits until
// they ended or ctx ends, then with its error. Watches go on meanwhile. It may be called twice.
func (s *Server) Shutdown(ctx context.Context) error {
	s.health.Shutdown()
	if err := s.operations.shutdown(ctx); err != nil {
		return fmt.Errorf("operations were still running when the runner had to stop: %w", err)
	}
	return nil
}

// Handshake implements runnerpb.RunnerServer.
func (s *Server) Handshake(_ context.Context, request *runnerpb.HandshakeRequest) (response *runnerpb.HandshakeResponse, err error) {
	defer s.recovered(&err)
	version, err := negotiate(request.GetVersions(), ProtocolVersions())
	if err != nil {
		return nil, err
	}
	return &runnerpb.HandshakeResponse{
		Version:    version,
		Runner:     s.options.Identity,
		Tools:      s.engine.Tools(),
		Capacity:   s.options.Capacity,
		Operations: s.operations.list(),
	}, nil
}

// negotiate picks the highest version that both sides speak.
func negotiate(manager, own []int32) (int32, error) {
	var common []int32
	for _, version := range manager {
		if slices.Contains(own, version) {
			common = append(common, version)
		}
	}
	if len(common) == 0 {
		return 0, status.Errorf(codes.FailedPrecondition,
			"no common protocol version: the manager speaks %v, the runner %v", manager, own)
	}
	return slices.Max(common), nil
}

// UploadSource implements runnerpb.RunnerServer.
func (s *Server) UploadSource(stream grpc.ClientStreamingServer[runnerpb.UploadSourceRequest, runnerpb.UploadSourceResponse]) (err error) {
	defer s.recovered(&err)
	if s.operations.isClosing() {
		return status.Error(codes.Unavailable, ErrShutdown.Error())
	}
	first, err := stream.Recv()
	if errors.Is(err, io.EOF) {
		return status.Error(codes.InvalidArgument, "an upload without any message")
	}
	if err != nil {
		return answer(err)
	}
	sum := first.GetDigest()
	if _, err := parseDigest(sum); err != nil {
		return answer(err)
	}
	if s.engine.HasSource(sum) {
		// Answering now ends the upload: the client need not send the rest.
		return stream.SendAndClose(&runnerpb.UploadSourceResponse{})
	}
	size, err := s.engine.StoreSource(stream.Context(), sum, &chunkReader{stream: stream, message: first, digest: sum})
	if err != nil {
		return answer(err)
	}
	return stream.SendAndClose(&runnerpb.UploadSourceResponse{Size: size})
}

// StartOperation implements runnerpb.RunnerServer.
func (s *Server) StartOperation(_ context.Context, request *runnerpb.StartOperationRequest) (response *runnerpb.StartOperationResponse, err error) {
	defer s.recovered(&err)
	object, err := validate(request)
	if err == nil && s.options.Namespace != "" && object.GetNamespace() != s.options.Namespace {
		err = invalid("object %s: this runner works for namespace %s only", clip(describe(object)), s.options.Namespace)
	}
	if err != nil {
		return nil, answer(err)
	}
	op := s.newOperation(request, object)
	// Asked before the source is, so that nobody uploads one in vain.
	known, err := s.operations.admit(op, false)
	if err != nil || known {
		return &runnerpb.StartOperationResponse{}, err
	}
	if source := request.GetSource().GetDigest(); source != "" && !s.engine.HasSource(source) {
		return &runnerpb.StartOperationResponse{NeedSource: true}, nil
	}
	known, err = s.operations.admit(op, true)
	if err != nil || known {
		return &runnerpb.StartOperationResponse{}, err
	}
	s.presence.enter()
	go s.run(op, request)
	return &runnerpb.StartOperationResponse{}, nil
}

func (s *Server) newOperation(request *runnerpb.StartOperationRequest, object *runnerpb.ObjectRef) *operation {
	op := &operation{
		id:      request.GetId(),
		kind:    request.GetType(),
		object:  object,
		timeout: time.Duration(request.GetTimeoutSeconds()) * time.Second,
		events:  newEventLog(s.options.MaxEvents, s.options.Now),
	}
	op.timeout = cmp.Or(op.timeout, s.options.DefaultTimeout)
	op.ctx, op.cancel = context.WithCancelCause(context.Background())
	return op
}

// run takes an operation from its start to its result, whatever the engine does.
func (s *Server) run(op *operation, request *runnerpb.StartOperationRequest) {
	result := failed(ReasonInternal, "the runner's engine gave up without a result")
	defer func() {
		if crash := recover(); crash != nil {
			s.options.Logger.Error("the engine panicked", "operation", op.id, "object", describe(op.object),
				"panic", crash, "stack", string(debug.Stack()))
			result = failed(ReasonInternal,
				"the runner's engine crashed; its log has the details")
		}
		op.cancel(context.Canceled)
		s.operations.finish(op, result)
		s.presence.leave()
	}()
	if err := s.admission.enter(op.ctx, func() { op.events.Phase(PhaseQueued) }); err != nil {
		result = complete(op.ctx, &runnerpb.Result{Outcome: runnerpb.Outcome_OUTCOME_CANCELLED}, op.timeout)
		return
	}
	defer s.admission.leave()
	ctx, cancel := context.WithTimeoutCause(op.ctx, op.timeout, ErrTimedOut)
	defer cancel()
	result = complete(ctx, s.engine.Run(ctx, request, op.events), op.timeout)
}

// WatchOperation implements runnerpb.RunnerServer.
func (s *Server) WatchOperation(request *runnerpb.WatchOperationRequest, stream grpc.ServerStreamingServer[runnerpb.OperationEvent]) error {
	op, ok := s.operations.get(request.GetId())
	if !ok {
		return unknown(request.GetId())
	}
	// The header tells the client that the watch stands, although nothing may happen for a long time.
	if err := stream.SendHeader(metadata.MD{}); err != nil {
		return err
	}
	for sent := request.GetAfter(); ; {
		events, done, changed := op.events.after(sent)
		for _, event := range events {
			if err := stream.Send(event); err != nil {
				return err
			}
			sent = event.GetSequence()
		}
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		}
	}
}

// CancelOperation implements runnerpb.RunnerServer. Cancelling twice, or after the end, changes nothing.
func (s *Server) CancelOperation(_ context.Context, request *runnerpb.CancelOperationRequest) (*runnerpb.CancelOperationResponse, error) {
	op, ok := s.operations.get(request.GetId())
	if !ok {
		return nil, unknown(request.GetId())
	}
	op.cancel(ErrCancelled)
	return &runnerpb.CancelOperationResponse{}, nil
}

// Rotate implements runnerpb.RunnerServer.
func (s *Server) Rotate(_ context.Context, request *runnerpb.RotateRequest) (response *runnerpb.RotateResponse, err error) {
	defer s.recovered(&err)
	if s.options.Rotate == nil {
		return nil, status.Error(codes.Unimplemented, "this runner takes no certificates; it renews its own or has to be replaced")
	}
	if err := s.options.Rotate(request.GetCertificate(), request.GetKey(), request.GetAuthorities()); err != nil {
		return nil, answer(invalid("new credentials were refused: %v", err))
	}
	return &runnerpb.RotateResponse{}, nil
}

func unknown(id string) error {
	return status.Errorf(codes.NotFound, "operation %q is not known here", clip(id))
}

// recovered turns a panic of the engine in a call into an error: the other operations must go on.
func (s *Server) recovered(err *error) {
	if crash := recover(); crash != nil {
		s.options.Logger.Error("a call panicked", "panic", crash, "stack", string(debug.Stack()))
		*err = status.Error(codes.Internal, "the runner's engine crashed; its log has the details")
	}
}

// chunkReader reads an archive from the messages of an upload.
type chunkReader struct {
	stream  grpc.ClientStreamingServer[runnerpb.UploadSourceRequest, runnerpb.UploadSourceResponse]
	message *runnerpb.UploadSourceRequest // received but not yet looked at
	digest  string
	rest    []byte
}

// Read implements io.Reader.
func (c *chunkReader) Read(p []byte) (int, error) {
	for len(c.rest) == 0 {
		if err := c.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

func (c *chunkReader) next() error {
	message := c.message
	c.message = nil
	if message == nil {
		var err error
		if message, err = c.stream.Recv(); err != nil {
			return err
		}
	}
	if other := message.GetDigest(); other != "" && other != c.digest {
		return invalid("the digest changed within the upload")
	}
	if len(message.GetChunk()) > MaxChunkBytes {
		return invalid("a chunk of %d bytes, more than %d", len(message.GetChunk()), MaxChunkBytes)
	}
	c.rest = message.GetChunk()
	return nil
}
