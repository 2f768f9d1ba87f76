package runner

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"k8s.io/utils/clock"

	"github.com/terrace-dev/terrace/internal/pki"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// freeAddress is where nobody listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	return lis.Addr().String()
}

func TestConnectDoesNotWaitForAStranger(t *testing.T) {
	t.Parallel()
	server, trusting := start(t, newEngine(t, succeed), Options{})
	if _, err := trusting.Connect(testContext(t)); err != nil || trusting.Stranger() {
		t.Fatalf("the runner itself: %v", err)
	}
	stranger := dial(t, server.addr, newAuthority(t, clock.RealClock{}).ClientConfig(runnerName))
	if _, err := stranger.Connect(testContext(t)); !errors.Is(err, ErrUnavailable) || !stranger.Stranger() || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("error = %v", err)
	}
	nobody := dial(t, freeAddress(t), newAuthority(t, clock.RealClock{}).ClientConfig(runnerName))
	if _, err := nobody.Handshake(testContext(t)); err == nil || nobody.Stranger() {
		t.Errorf("where nobody listens is a stranger: %v", err)
	}
}

// serveOn serves until the test ends.
func serveOn(t *testing.T, lis net.Listener, server *Server, config *tls.Config) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, lis, config) }()
	t.Cleanup(func() {
		stop()
		if err := await(t, "the server's end", ended); err != nil {
			t.Error(err)
		}
	})
}

func TestConnectWaitsForARunnerThatIsLate(t *testing.T) {
	t.Parallel()
	authority := newAuthority(t, clock.RealClock{})
	addr := freeAddress(t)
	client := dial(t, addr, authority.ClientConfig(runnerName))
	if client.PeerCertificate() != nil {
		t.Error("a certificate before the first connection")
	}
	var listening atomic.Bool
	connected := make(chan error, 1)
	go func() {
		hello, err := client.Connect(testContext(t))
		if err == nil && (!listening.Load() || hello.GetVersion() != 1) {
			err = errors.New("connected to nobody")
		}
		connected <- err
	}()
	// Long enough for gRPC's own pauses to have grown.
	select {
	case err := <-connected:
		t.Fatalf("before anybody listens: %v", err)
	case <-time.After(1500 * time.Millisecond):
	}
	lis, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	listening.Store(true)
	serveOn(t, lis, NewServer(newEngine(t, succeed), Options{}), authority.ServerConfig(runnerName))
	if err := await(t, "the connection", connected); err != nil {
		t.Fatal(err)
	}
	if leaf := client.PeerCertificate(); leaf == nil || leaf.DNSNames[0] != runnerName {
		t.Errorf("the runner's certificate is %v", leaf)
	}
}

// fickle closes connections at once until it has closed so many.
type fickle struct {
	net.Listener
	left atomic.Int64
}

func (f *fickle) Accept() (net.Conn, error) {
	for {
		conn, err := f.Listener.Accept()
		if err != nil || f.left.Add(-1) < 0 {
			return conn, err
		}
		_ = conn.Close()
	}
}

func TestConnectTriesOften(t *testing.T) {
	t.Parallel()
	authority := newAuthority(t, clock.RealClock{})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	// With gRPC's own pauses so many attempts would take a minute.
	flaky := &fickle{Listener: lis}
	flaky.left.Store(16)
	serveOn(t, flaky, NewServer(newEngine(t, succeed), Options{}), authority.ServerConfig(runnerName))
	client := dial(t, lis.Addr().String(), authority.ClientConfig(runnerName))
	if _, err := client.Connect(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if left := flaky.left.Load(); left != -1 {
		t.Errorf("%d connections after the one that stands", -1-left)
	}
}

func TestConnectSaysWhatKeptIt(t *testing.T) {
	t.Parallel()
	authority := newAuthority(t, clock.RealClock{})
	server := serve(t, newEngine(t, succeed), Options{}, authority.ServerConfig(runnerName))
	other := newAuthority(t, clock.RealClock{})
	for name, test := range map[string]struct {
		addr   string
		source TLSSource
		want   string
	}{
		"nobody listens": {freeAddress(t), authority.ClientConfig(runnerName), "connection refused"},
		"a runner of another authority": {server.addr, func() (*tls.Config, error) {
			return other.ClientConfig(runnerName)()
		}, "certificate signed by unknown authority"},
		"a runner with another name": {server.addr, authority.ClientConfig("terrace-runner-xyz.apps"), "not terrace-runner-xyz.apps"},
		"a runner that refuses the client": {server.addr, func() (*tls.Config, error) {
			config, err := authority.ClientConfig(runnerName)()
			config.GetClientCertificate = nil
			return config, err
		}, "certificate required"},
		"a source that fails": {server.addr, func() (*tls.Config, error) { return nil, errors.New("no secret") }, "no secret"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
			defer cancel()
			_, err := dial(t, test.addr, test.source).Connect(ctx)
			if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %v about %q", err, ErrUnavailable, test.want)
			}
		})
	}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := dial(t, server.addr, authority.ClientConfig(runnerName)).Connect(done); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that ended: %v", err)
	}
}

// ancient is a runner of the time before there were handshakes.
type ancient struct {
	runnerpb.UnimplementedRunnerServer
	calls atomic.Int64
}

func (a *ancient) Handshake(ctx context.Context, request *runnerpb.HandshakeRequest) (*runnerpb.HandshakeResponse, error) {
	a.calls.Add(1)
	return a.UnimplementedRunnerServer.Handshake(ctx, request)
}

func TestConnectDoesNotInsistOnWhatCannotBe(t *testing.T) {
	t.Parallel()
	authority := newAuthority(t, clock.RealClock{})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	old, g := &ancient{}, grpc.NewServer(grpc.Creds(credentials.NewTLS(authority.ServerConfig(runnerName))))
	runnerpb.RegisterRunnerServer(g, old)
	var serving sync.WaitGroup
	serving.Go(func() { _ = g.Serve(lis) })
	t.Cleanup(func() { g.Stop(); serving.Wait() })
	_, err = dial(t, lis.Addr().String(), authority.ClientConfig(runnerName)).Connect(testContext(t))
	if !errors.Is(err, ErrIncompatible) || old.calls.Load() != 1 {
		t.Errorf("%v after %d calls", err, old.calls.Load())
	}
}

// issue returns a new certificate of the runner, as PEM.
func issue(t *testing.T, ca *pki.CA) (certificate, key []byte) {
	t.Helper()
	leaf, err := ca.IssueServer(runnerName, 0)
	if err != nil {
		t.Fatal(err)
	}
	if certificate, key, err = pki.MarshalLeaf(leaf); err != nil {
		t.Fatal(err)
	}
	return certificate, key
}

func TestRotate(t *testing.T) {
	t.Parallel()
	ca, err := pki.NewCA(clock.RealClock{}, pki.Lives{})
	if err != nil {
		t.Fatal(err)
	}
	certificate, key := issue(t, ca)
	var got [][]byte
	_, client := start(t, newEngine(t, succeed), Options{Rotate: func(certificate, key, authorities []byte) error {
		if bytes.Equal(certificate, []byte("nonsense")) {
			return errors.New("that is no certificate")
		}
		got = [][]byte{certificate, key, authorities}
		return nil
	}})
	ctx := testContext(t)
	if _, err := client.Connect(ctx); err != nil {
		t.Fatal(err)
	}
	before := client.PeerCertificate()
	err = client.Rotate(ctx, []byte("nonsense"), key, ca.Bundle())
	if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "that is no certificate") {
		t.Errorf("refused credentials: %v", err)
	}
	if client.PeerCertificate() != before || got != nil {
		t.Error("refused credentials had an effect")
	}
	if err := client.Rotate(ctx, certificate, key, ca.Bundle()); err != nil {
		t.Fatal(err)
	}
	for i, want := range [][]byte{certificate, key, ca.Bundle()} {
		if !bytes.Equal(got[i], want) {
			t.Errorf("part %d did not arrive", i)
		}
	}
	if client.PeerCertificate().SerialNumber.Cmp(before.SerialNumber) == 0 {
		t.Error("the client does not know what it sent")
	}
}

func TestARunnerThatCannotRotateSaysSo(t *testing.T) {
	t.Parallel()
	_, client := start(t, newEngine(t, succeed), Options{})
	err := client.Rotate(testContext(t), nil, nil, nil)
	if !errors.Is(err, ErrIncompatible) || !strings.Contains(err.Error(), "takes no certificates") {
		t.Errorf("got %v", err)
	}
}

func TestARunnerWorksForItsNamespaceOnly(t *testing.T) {
	t.Parallel()
	engine := newEngine(t, succeed)
	_, client := start(t, engine, Options{Namespace: "apps"})
	mustStart(t, client, plan("op-1", "u1"))
	foreign := plan("op-2", "u2")
	foreign.Object = bytes.ReplaceAll(foreign.GetObject(), []byte(`"apps"`), []byte(`"kube-system"`))
	_, err := client.Start(testContext(t), foreign)
	if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "kube-system/net-u2") || !strings.Contains(err.Error(), "namespace apps only") {
		t.Errorf("an object of another namespace: %v", err)
	}
	if n := engine.ran("op-2"); n != 0 {
		t.Errorf("it ran %d times", n)
	}
}

func TestServeEndsWhenNobodyNeedsIt(t *testing.T) {
	t.Parallel()
	authority := newAuthority(t, clock.RealClock{})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	release := make(chan struct{})
	server := NewServer(newEngine(t, func(context.Context, *runnerpb.StartOperationRequest, Reporter) *runnerpb.Result {
		<-release
		return succeeded()
	}), Options{IdleTimeout: 300 * time.Millisecond})
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(t.Context(), lis, authority.ServerConfig(runnerName)) }()
	stays := func(why string) {
		t.Helper()
		select {
		case err := <-ended:
			t.Fatalf("it ended although %s: %v", why, err)
		case <-time.After(time.Second):
		}
	}
	client, err := Dial(lis.Addr().String(), authority.ClientConfig(runnerName))
	if err != nil {
		t.Fatal(err)
	}
	mustStart(t, client, plan("op-1", "u1"))
	stays("somebody is connected")
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	stays("an operation runs")
	close(release)
	// Those who cannot authenticate do not keep it.
	strangers, stop := context.WithCancel(t.Context())
	var knocking sync.WaitGroup
	stranger := dial(t, lis.Addr().String(), newAuthority(t, clock.RealClock{}).ClientConfig(runnerName))
	knocking.Go(func() { _, _ = stranger.Connect(strangers) })
	defer knocking.Wait()
	defer stop()
	if err := await(t, "the end of an idle runner", ended); err != nil {
		t.Error(err)
	}
}
