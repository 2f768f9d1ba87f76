package runner

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/terrace-dev/terrace/runner/runnerpb"
)

const (
	// clientPing and serverPing are after how much silence each end asks whether the
	// other is still there, pingTimeout how long it waits for the answer.
	clientPing  = 20 * time.Second
	serverPing  = 30 * time.Second
	pingTimeout = 10 * time.Second
	// minPing is how often a client may ask; with less it is cut off.
	minPing = 10 * time.Second
	// handshakeTimeout bounds TLS and HTTP/2 handshakes of those who connect.
	handshakeTimeout = 20 * time.Second
	// farewell is how long watchers get to fetch results after the last operation ended.
	farewell = 5 * time.Second
)

// NewGRPCServer returns a gRPC server with the runner and the standard health service.
// Without a certificate in tlsConfig nobody can connect: there is no plain-text mode.
// Further options, such as interceptors, come last.
func NewGRPCServer(tlsConfig *tls.Config, server *Server, more ...grpc.ServerOption) *grpc.Server {
	g := grpc.NewServer(append([]grpc.ServerOption{
		grpc.Creds(credentials.NewTLS(tlsConfig)),
		grpc.MaxRecvMsgSize(MaxMessageBytes),
		grpc.MaxSendMsgSize(MaxMessageBytes),
		grpc.MaxConcurrentStreams(1000),
		grpc.StatsHandler(server.presence),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: serverPing, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
	}, more...)...)
	runnerpb.RegisterRunnerServer(g, server)
	healthpb.RegisterHealthServer(g, server.health)
	return g
}

// Serve serves on lis until ctx ends, or until nobody has needed it for
// Options.IdleTimeout; then it shuts down as Shutdown does, within
// Options.ShutdownGrace, lets watchers fetch the results, and closes lis. It
// returns nil if every operation ended. Further options are NewGRPCServer's.
func (s *Server) Serve(ctx context.Context, lis net.Listener, tlsConfig *tls.Config, more ...grpc.ServerOption) error {
	g := NewGRPCServer(tlsConfig, s, more...)
	serving, cancel := context.WithCancel(ctx)
	defer cancel()
	idle := s.presence.idle(serving, s.options.IdleTimeout)
	served := make(chan error, 1)
	go func() { served <- g.Serve(lis) }()
	select {
	case err := <-served:
		// Nobody can reach the operations any more; they end gracefully all the same.
		return errors.Join(err, s.stop(ctx, g))
	case <-idle:
		s.options.Logger.Info("nobody needs this runner any more; it ends", "idleTimeout", s.options.IdleTimeout.String())
	case <-ctx.Done():
	}
	err := s.stop(ctx, g)
	return errors.Join(err, <-served)
}

// stop ends operations first and connections last. Of ctx only the values count.
func (s *Server) stop(ctx context.Context, g *grpc.Server) error {
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.options.ShutdownGrace)
	defer cancel()
	err := s.Shutdown(grace)
	cut := time.AfterFunc(farewell, g.Stop)
	defer cut.Stop()
	g.GracefulStop()
	return err
}
