package runner

import (
	"context"
	"crypto/tls"
	"errors"
	"net"

	"google.golang.org/grpc/credentials"
)

// freshTLS are a client's transport credentials that ask for the TLS configuration
// at each connection: what a tls.Config trusts cannot be changed once it is in use.
type freshTLS struct {
	source TLSSource
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
	return credentials.NewTLS(config).ClientHandshake(ctx, authority, conn)
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
