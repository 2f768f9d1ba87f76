package pki

import (
	"crypto/tls"
	"fmt"
	"sync"

	"k8s.io/utils/clock"
)

// Authority is a certificate authority in memory that serves both ends in one
// process. Its leaves and the authority itself are renewed at two thirds of their
// life, at the next handshake; connections that stand are not touched.
type Authority struct {
	clock clock.PassiveClock

	mu      sync.Mutex
	ca      *CA
	clients []tls.Certificate
	servers map[string]tls.Certificate // by the runner's name
}

// NewAuthority returns an authority with a new key that exists nowhere else.
func NewAuthority(clock clock.PassiveClock) (*Authority, error) {
	ca, err := NewCA(clock, Lives{})
	if err != nil {
		return nil, err
	}
	return &Authority{clock: clock, ca: ca, servers: map[string]tls.Certificate{}}, nil
}

// ServerConfig returns the TLS configuration of the runner with this name, see ServerConfig.
func (a *Authority) ServerConfig(name string) *tls.Config {
	return ServerConfig(func() (*Credentials, error) { return a.server(name) })
}

// ClientConfig returns what makes the manager's TLS configuration for a connection
// to the runner with this name, see ClientConfig.
func (a *Authority) ClientConfig(name string) func() (*tls.Config, error) {
	return ClientConfig(a.manager, name)
}

// Forget drops the certificate of a runner that is gone.
func (a *Authority) Forget(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.servers, name)
}

func (a *Authority) server(name string) (*Credentials, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.rotate(); err != nil {
		return nil, err
	}
	if a.expiring(a.servers[name]) {
		leaf, err := a.ca.IssueServer(name, 0)
		if err != nil {
			return nil, err
		}
		a.servers[name] = leaf
	}
	return a.credentials(a.servers[name]), nil
}

func (a *Authority) manager() (*Credentials, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.rotate(); err != nil {
		return nil, err
	}
	if len(a.clients) == 0 || a.expiring(a.clients[0]) {
		clients, err := a.ca.IssueClients(0)
		if err != nil {
			return nil, err
		}
		a.clients = clients
	}
	return a.credentials(a.clients...), nil
}

// rotate renews the authority when it is time; the caller holds the lock.
func (a *Authority) rotate() error {
	if !a.ca.NeedsRotation(a.clock.Now()) {
		return nil
	}
	next, err := a.ca.Rotate()
	if err != nil {
		return fmt.Errorf("rotating: %w", err)
	}
	a.ca, a.clients = next, nil
	return nil
}

func (a *Authority) expiring(leaf tls.Certificate) bool {
	return leaf.Leaf == nil || NeedsRenewal(leaf.Leaf, a.clock.Now())
}

func (a *Authority) credentials(leaves ...tls.Certificate) *Credentials {
	return &Credentials{Certificates: leaves, Roots: a.ca.Pool(), Now: a.clock.Now}
}
