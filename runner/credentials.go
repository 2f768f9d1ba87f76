package runner

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
)

// verdictTimeout is how long a failed write waits for the reason.
const verdictTimeout = time.Second

// freshTLS are a client's transport credentials that ask for the TLS configuration
// at each connection: what a tls.Config trusts cannot be changed once it is in use.
type freshTLS struct {
	source TLSSource
	peer   *peer
}

// ClientHandshake implements credentials.TransportCredentials.
func (f *freshTLS) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	config, err := f.source()
	if err != nil {
		return nil, nil, err
	}
	if config.ServerName != "" {
		// gRPC expects the name in the address, which is an IP here; the source knows better.
		authority = config.ServerName
	}
	secured, info, err := credentials.NewTLS(config).ClientHandshake(ctx, authority, conn)
	_, stranger := errors.AsType[*tls.CertificateVerificationError](err)
	f.peer.stranger.Store(stranger)
	if known, ok := info.(credentials.TLSInfo); ok && err == nil && len(known.State.PeerCertificates) > 0 {
		f.peer.certificate.Store(known.State.PeerCertificates[0])
	}
	if err != nil {
		return nil, nil, err
	}
	return &tellingConn{Conn: secured, refused: make(chan struct{})}, info, nil
}

// ServerHandshake implements credentials.TransportCredentials; these are a client's.
func (f *freshTLS) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("client credentials cannot serve")
}

// Info implements credentials.TransportCredentials.
func (f *freshTLS) Info() credentials.ProtocolInfo {
	return credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13}).Info()
}

// Clone implements credentials.TransportCredentials.
func (f *freshTLS) Clone() credentials.TransportCredentials { return f }

// OverrideServerName implements credentials.TransportCredentials; the source alone says which name to expect.
func (f *freshTLS) OverrideServerName(string) error { return nil }

// tellingConn makes known why the runner refused a connection. With TLS 1.3 a server
// judges the client's certificate when the client believes to be done already: its
// verdict is there to be read, but it is often a write that fails first.
type tellingConn struct {
	net.Conn
	once    sync.Once
	verdict error
	refused chan struct{} // closed when there is a verdict
}

// Read implements net.Conn.
func (t *tellingConn) Read(p []byte) (int, error) {
	n, err := t.Conn.Read(p)
	if err != nil {
		t.once.Do(func() {
			t.verdict = err
			close(t.refused)
		})
	}
	return n, err
}

// Write implements net.Conn.
func (t *tellingConn) Write(p []byte) (int, error) {
	n, err := t.Conn.Write(p)
	if err == nil {
		return n, nil
	}
	select {
	case <-t.refused: // whoever reads a broken connection learns it at once
		err = fmt.Errorf("%w (%w)", t.verdict, err)
	case <-time.After(verdictTimeout):
	}
	return n, err
}
