package runner

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// ClientOptions set up a Client; the zero value gives the defaults.
type ClientOptions struct {
	// CallTimeout bounds each unary call; default 15 s. A shorter deadline of the caller's context wins.
	CallTimeout time.Duration
	// UploadTimeout bounds an upload; default 15 min.
	UploadTimeout time.Duration
	// ConnectMin and ConnectMax bound the pause between two attempts of Connect; default 20 ms and 250 ms.
	ConnectMin, ConnectMax time.Duration
	// RetryMin and RetryMax bound the pause before a broken watch is resumed; default 200 ms and 10 s.
	RetryMin, RetryMax time.Duration
	// RetryAttempts is how many times in a row a watch may break, or fail to be
	// resumed, before Watch gives up; default 8, which takes about half a minute.
	RetryAttempts int
}

func (o ClientOptions) withDefaults() ClientOptions {
	set := func(value *time.Duration, standard time.Duration) {
		if *value == 0 {
			*value = standard
		}
	}
	set(&o.CallTimeout, 15*time.Second)
	set(&o.UploadTimeout, 15*time.Minute)
	set(&o.ConnectMin, 20*time.Millisecond)
	set(&o.ConnectMax, 250*time.Millisecond)
	set(&o.RetryMin, 200*time.Millisecond)
	set(&o.RetryMax, 10*time.Second)
	if o.RetryAttempts == 0 {
		o.RetryAttempts = 8
	}
	return o
}

// Client talks to one runner. It is safe for concurrent use. All errors of its
// methods are *CallError, except those of the archive that Upload reads.
type Client struct {
	runner  runnerpb.RunnerClient
	conn    *grpc.ClientConn // that Dial made
	peer    *peer
	options ClientOptions
}

// TLSSource returns the configuration for one new connection. It is asked each
// time, so that a long-lived client presents and trusts what is current then.
type TLSSource func() (*tls.Config, error)

// Dial returns a client of the runner at target, an address and port. It does not
// connect yet: the first call does, or Connect. Proxies in the environment are not used.
// Options beyond the first are ignored.
func Dial(target string, source TLSSource, options ...ClientOptions) (*Client, error) {
	if source == nil {
		return nil, errors.New("dialling a runner needs TLS")
	}
	peer := &peer{}
	conn, err := grpc.NewClient(target,
		grpc.WithTransportCredentials(&freshTLS{source: source, peer: peer}),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: clientPing, Timeout: pingTimeout, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{
			// A runner that comes back is found again within seconds.
			Backoff:           backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessageBytes), grpc.MaxCallSendMsgSize(MaxMessageBytes)),
		// A manager holds a connection to each of its runners, and most of them are idle.
		grpc.WithReadBufferSize(8<<10),
	)
	if err != nil {
		return nil, fmt.Errorf("dialling the runner at %s: %w", target, err)
	}
	client := NewClient(conn, options...)
	client.conn, client.peer = conn, peer
	return client, nil
}

// NewClient returns a client over an existing connection, which Close leaves alone.
func NewClient(conn grpc.ClientConnInterface, options ...ClientOptions) *Client {
	var chosen ClientOptions
	if len(options) > 0 {
		chosen = options[0]
	}
	return &Client{runner: runnerpb.NewRunnerClient(conn), peer: &peer{}, options: chosen.withDefaults()}
}

// Close closes the connection that Dial made. Operations go on; watches end.
func (c *Client) Close() error {
	if c.conn == nil {
		return nil
	}
	return c.conn.Close()
}

// Handshake asks what the runner is and knows. Errors: ErrIncompatible, ErrUnavailable.
func (c *Client) Handshake(ctx context.Context) (*runnerpb.HandshakeResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, c.options.CallTimeout)
	defer cancel()
	response, err := c.runner.Handshake(ctx, &runnerpb.HandshakeRequest{Versions: ProtocolVersions()})
	if err == nil && !slices.Contains(ProtocolVersions(), response.GetVersion()) {
		err = status.Errorf(codes.FailedPrecondition, "the runner chose protocol version %d, offered were %v",
			response.GetVersion(), ProtocolVersions())
	}
	if err != nil {
		return nil, callError(callHandshake, err)
	}
	return response, nil
}

// Start starts an operation, or finds that it has been started already. needSource
// means that nothing was started: upload the source and start again.
// Errors: ErrInvalid, ErrObjectBusy, ErrOverloaded, ErrUnavailable.
func (c *Client) Start(ctx context.Context, request *runnerpb.StartOperationRequest) (needSource bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.options.CallTimeout)
	defer cancel()
	response, err := c.runner.StartOperation(ctx, request)
	return response.GetNeedSource(), callError(callStart, err)
}

// Cancel interrupts an operation gracefully; Watch has its result. Cancelling twice,
// or after the end, is no error. Errors: ErrUnknownOperation, ErrUnavailable.
func (c *Client) Cancel(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, c.options.CallTimeout)
	defer cancel()
	_, err := c.runner.CancelOperation(ctx, &runnerpb.CancelOperationRequest{Id: id})
	return callError(callCancel, err)
}

// Upload sends an archive in small chunks and returns the size that the runner
// stored, or 0 if it had the archive already. It stops as soon as the runner
// objects. Errors: ErrInvalid, ErrDigest, ErrTooLarge, ErrUnavailable, or the one
// that reading the archive returned.
func (c *Client) Upload(ctx context.Context, digest string, archive io.Reader) (int64, error) {
	// Cancelling, if reading the archive failed, makes the runner drop what it has.
	ctx, cancel := context.WithTimeout(ctx, c.options.UploadTimeout)
	defer cancel()
	stream, err := c.runner.UploadSource(ctx)
	if err != nil {
		return 0, callError(callUpload, err)
	}
	if err := send(stream, digest, archive); err != nil {
		return 0, err
	}
	response, err := stream.CloseAndRecv()
	if err != nil {
		return 0, callError(callUpload, err)
	}
	return response.GetSize(), nil
}

// send sends until the archive ends or the runner answered.
func send(stream grpc.ClientStreamingClient[runnerpb.UploadSourceRequest, runnerpb.UploadSourceResponse], digest string, archive io.Reader) error {
	for first := true; ; first = false {
		// gRPC may look at a message after Send returned, so each has its own memory.
		chunk := make([]byte, MaxChunkBytes)
		n, err := io.ReadFull(archive, chunk)
		end := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !end {
			return fmt.Errorf("reading the source: %w", err)
		}
		if n > 0 || first {
			message := &runnerpb.UploadSourceRequest{Chunk: chunk[:n]}
			if first {
				message.Digest = digest
			}
			// EOF says that the runner answered early; the caller receives what.
			if err := stream.Send(message); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return callError(callUpload, err)
			}
		}
		if end {
			return nil
		}
	}
}

// Watch passes on the operation's events with a sequence number greater than after,
// each once and in order, until the operation ended, and returns its result. The
// last event carries the same result. A broken stream is resumed, until that
// failed too often in a row. It returns when ctx ends; the operation goes on then.
// Errors: ErrUnknownOperation, ErrUnavailable, context.Canceled, context.DeadlineExceeded.
func (c *Client) Watch(ctx context.Context, id string, after int64, handle func(*runnerpb.OperationEvent)) (*runnerpb.Result, error) {
	pause, failures := c.options.RetryMin, 0
	for {
		begun, seen := time.Now(), after
		result, err := c.watch(ctx, id, &after, handle)
		if err == nil {
			return result, nil
		}
		if ctx.Err() != nil {
			return nil, callError(callWatch, ctx.Err())
		}
		// A stream that said something, or stood for long, is a fresh start.
		if after > seen || time.Since(begun) > c.options.RetryMax {
			pause, failures = c.options.RetryMin, 0
		}
		if failures++; !resumable(err) || failures > c.options.RetryAttempts {
			return nil, callError(callWatch, err)
		}
		if err := wait(ctx, pause); err != nil {
			return nil, callError(callWatch, err)
		}
		pause = min(2*pause, c.options.RetryMax)
	}
}

// watch is one stream: it advances after, and returns the result or why the stream broke.
func (c *Client) watch(ctx context.Context, id string, after *int64, handle func(*runnerpb.OperationEvent)) (*runnerpb.Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.runner.WatchOperation(ctx, &runnerpb.WatchOperationRequest{Id: id, After: *after})
	if err != nil {
		return nil, err
	}
	for {
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil, status.Error(codes.Unavailable, "the runner ended the watch before the operation ended")
		}
		if err != nil {
			return nil, err
		}
		if event.GetSequence() > *after {
			*after = event.GetSequence()
			if handle != nil {
				handle(event)
			}
		}
		if result := event.GetResult(); result != nil {
			return result, nil
		}
	}
}

// resumable says whether watching again may help.
func resumable(err error) bool {
	switch status.Code(err) {
	case codes.NotFound, codes.InvalidArgument, codes.FailedPrecondition, codes.Unimplemented,
		codes.Unauthenticated, codes.PermissionDenied, codes.ResourceExhausted:
		return false
	case codes.Canceled:
		// The caller's context was looked at before, so it is the client that was closed.
		return false
	default:
		return true
	}
}

// wait pauses for d, give or take a fifth so that many watches do not return at once.
func wait(ctx context.Context, d time.Duration) error {
	spread := 0.8 + 0.4*rand.Float64() //nolint:gosec // this spreads load and guards nothing
	timer := time.NewTimer(time.Duration(float64(d) * spread))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
