// Package authority keeps the certificate authority of an installation in one
// Secret, which the managers of a namespace share: those that work at the same time
// and those that come after them. It issues the certificates of runner pods and the
// manager's own, and names that prove which pods an installation made.
package authority

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terrace-dev/terrace/internal/pki"
)

// SecretName is the name of the Secret, in the manager's namespace.
const SecretName = "terrace-ca"

// requestTimeout bounds what a caller waits for the API server.
const requestTimeout = 30 * time.Second

// Options are what a Store needs.
type Options struct {
	// Client reads and writes the Secret; it must not be one with a cache.
	Client client.WithWatch
	// Namespace is the manager's.
	Namespace string
	// Lives are those of authorities and certificates that are made from now on.
	Lives pki.Lives
	// Clock is what certificates are judged by; nil is the machine's.
	Clock clock.Clock
}

// Store is the authority. It reads the Secret, or creates it, when it is first
// needed, and works from memory then; what others change and what time changes it
// takes in while Start runs. It may be used from many goroutines.
//
// A Secret that was deleted or damaged is written again from memory. Two authorities
// that know nothing of each other (one was restored from a backup, say) are merged,
// and both stay trusted. To distrust an authority, stop all managers and delete the Secret.
type Store struct {
	client    client.WithWatch
	namespace string
	lives     pki.Lives
	clock     clock.Clock

	writing chan struct{} // holds an element while the Secret is read and written
	wake    chan struct{} // tells Start to look

	mu      sync.Mutex
	state   *state            // nil until loaded; not changed but replaced
	clients []tls.Certificate // the manager's, of this state
	changed chan struct{}
}

// state is what is known of the Secret.
type state struct {
	material
	bundle     []byte
	generation string
	version    string // the Secret's resource version
}

// +kubebuilder:rbac:groups="",namespace=terrace-system,resources=secrets,verbs=create
// +kubebuilder:rbac:groups="",namespace=terrace-system,resources=secrets,resourceNames=terrace-ca,verbs=get;list;watch;update

// New returns a store that has not read anything yet.
func New(options Options) (*Store, error) {
	if options.Client == nil || options.Namespace == "" {
		return nil, errors.New("the certificate authority needs a client and a namespace")
	}
	if err := options.Lives.Validate(); err != nil {
		return nil, err
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	return &Store{
		client:    options.Client,
		namespace: options.Namespace,
		lives:     options.Lives,
		clock:     options.Clock,
		writing:   make(chan struct{}, 1),
		wake:      make(chan struct{}, 1),
		changed:   make(chan struct{}),
	}, nil
}

// Changed returns a channel that is closed when the bundle of authorities changes
// next; the first load is such a change. Take it before asking for Generation.
func (s *Store) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// Generation names the bundle of authorities: it is a digest, the same in each
// manager, and fits in a label. It is empty before the first load.
func (s *Store) Generation() string {
	if now := s.loaded(); now != nil {
		return now.generation
	}
	return ""
}

func (s *Store) loaded() *state {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// current returns what is in memory, and asks the API server only if that is nothing that can sign.
func (s *Store) current(ctx context.Context) (*state, error) {
	if known := s.good(); known != nil {
		return known, nil
	}
	release, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	if known := s.good(); known != nil {
		return known, nil // another caller was first
	}
	if _, err := s.sync(ctx); err != nil {
		return nil, err
	}
	return s.loaded(), nil
}

// good returns what is in memory if it can sign, and wakes Start if it is to be rotated.
func (s *Store) good() *state {
	known, now := s.loaded(), s.clock.Now()
	if known == nil || !known.ca.Usable(now) {
		return nil
	}
	if known.ca.NeedsRotation(now) {
		s.poke()
	}
	return known
}

func (s *Store) poke() {
	select {
	case s.wake <- struct{}{}:
	default: // it is going to look anyway
	}
}

// lock waits for its turn to read and write the Secret.
func (s *Store) lock(ctx context.Context) (release func(), err error) {
	select {
	case s.writing <- struct{}{}:
		return func() { <-s.writing }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting for the certificate authority: %w", ctx.Err())
	}
}

// adopt takes over what the Secret holds.
func (s *Store) adopt(held material, version string) *state {
	next := &state{material: held, bundle: held.ca.Bundle(), version: version}
	digest := sha256.Sum256(next.bundle)
	next.generation = hex.EncodeToString(digest[:16])

	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.state
	s.state = next
	if last == nil || !last.ca.Equal(next.ca) {
		s.clients = nil
	}
	if last == nil || last.generation != next.generation {
		close(s.changed)
		s.changed = make(chan struct{})
	}
	return next
}
