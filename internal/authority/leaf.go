package authority

import (
	"context"
	"crypto/tls"
	"time"

	"github.com/terrace-dev/terrace/internal/pki"
)

// Leaf is what a runner needs to serve: see pki.ParseServer.
type Leaf struct {
	// Certificate, Key and Authorities are PEM. The key is a secret.
	Certificate, Key, Authorities []byte
	// Generation names the Authorities, see Store.Generation.
	Generation string
	// RenewAt is when two thirds of the certificate's life are over.
	RenewAt time.Time
	// NotAfter is when the certificate expires.
	NotAfter time.Time
}

// Issue issues a certificate for the runner with this name, a DNS name that no
// other runner has.
func (s *Store) Issue(ctx context.Context, serverName string) (*Leaf, error) {
	current, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	leaf, err := current.ca.IssueServer(serverName, 0)
	if err != nil {
		return nil, err
	}
	certificate, key, err := pki.MarshalLeaf(leaf)
	if err != nil {
		return nil, err
	}
	return &Leaf{
		Certificate: certificate,
		Key:         key,
		Authorities: current.bundle,
		Generation:  current.generation,
		RenewAt:     pki.RenewAt(leaf.Leaf),
		NotAfter:    leaf.Leaf.NotAfter,
	}, nil
}

// ClientConfig returns what makes the manager's TLS configuration for a connection
// to the runner with this name. Each call of that uses current credentials, and asks the
// API server only if nothing was loaded yet.
func (s *Store) ClientConfig(serverName string) func() (*tls.Config, error) {
	return pki.ClientConfig(s.credentials, serverName)
}

// credentials are the manager's.
func (s *Store) credentials() (*pki.Credentials, error) {
	// Whoever makes a connection has no context to give; there is a request only before the first load.
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	if _, err := s.current(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.clients) == 0 || pki.NeedsRenewal(s.clients[0].Leaf, s.clock.Now()) {
		clients, err := s.state.ca.IssueClients(0)
		if err != nil {
			return nil, err
		}
		s.clients = clients
	}
	return &pki.Credentials{Certificates: s.clients, Roots: s.state.ca.Pool(), Now: s.clock.Now}, nil
}
