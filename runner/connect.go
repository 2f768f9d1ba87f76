package runner

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/connectivity"

	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// peer is what is known about the other end.
type peer struct {
	certificate atomic.Pointer[x509.Certificate]
	stranger    atomic.Bool
}

// PeerCertificate returns the runner's certificate as far as this client knows: the
// one that was presented when the last connection was made, or the one that Rotate
// has sent since; nil before the first connection. It must not be changed.
func (c *Client) PeerCertificate() *x509.Certificate { return c.peer.certificate.Load() }

// Stranger says whether the latest attempt to connect met somebody else: whose
// certificate is of none of the authorities, has another name, or expired. Nothing was sent to them.
func (c *Client) Stranger() bool { return c.peer.stranger.Load() }

// Connect shakes hands with a runner that may not listen yet: it tries again, in
// short intervals, until the runner answers or ctx ends. The error is then the last
// one that kept it from connecting, which says more than that time is up.
// An answer that will not change is returned at once.
// Errors: ErrIncompatible, ErrUnavailable, context.Canceled, context.DeadlineExceeded.
func (c *Client) Connect(ctx context.Context) (*runnerpb.HandshakeResponse, error) {
	var last error
	for pause := c.options.ConnectMin; ; pause = min(2*pause, c.options.ConnectMax) {
		response, err := c.Handshake(ctx)
		if err == nil {
			return response, nil
		}
		if ctx.Err() != nil {
			if last == nil {
				last = err
			}
			return nil, last
		}
		if !errors.Is(err, ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) || c.Stranger() {
			return nil, err
		}
		last = err
		c.retryConnecting(ctx, pause)
	}
}

// retryConnecting makes gRPC try again now instead of after its own pause, which
// grows to seconds, and returns when that succeeded, or after pause.
func (c *Client) retryConnecting(ctx context.Context, pause time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, pause)
	defer cancel()
	if c.conn == nil || c.conn.GetState() == connectivity.Ready {
		<-ctx.Done() // it is connected, and still there was no good answer
		return
	}
	c.conn.ResetConnectBackoff()
	c.conn.Connect()
	// While attempts fail the state stays TransientFailure.
	for state := c.conn.GetState(); state != connectivity.Ready && c.conn.WaitForStateChange(ctx, state); {
		state = c.conn.GetState()
	}
}

// Rotate gives the runner a new certificate with its key, and the authorities to
// trust from now on, all PEM. They count for connections to come; this one goes on.
// Errors: ErrInvalid (the runner refused them), ErrIncompatible (it cannot do that), ErrUnavailable.
func (c *Client) Rotate(ctx context.Context, certificate, key, authorities []byte) error {
	ctx, cancel := context.WithTimeout(ctx, c.options.CallTimeout)
	defer cancel()
	_, err := c.runner.Rotate(ctx, &runnerpb.RotateRequest{Certificate: certificate, Key: key, Authorities: authorities})
	if err != nil {
		return callError(callRotate, err)
	}
	if block, _ := pem.Decode(certificate); block != nil {
		if leaf, err := x509.ParseCertificate(block.Bytes); err == nil {
			c.peer.certificate.Store(leaf)
		}
	}
	return nil
}
