// Package pki issues and checks the certificates between the manager and its
// runners. The manager is the only client there is, and each runner is a server
// with a name of its own; neither can stand in for the other.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"

	"k8s.io/utils/clock"
)

const (
	// backdate allows for the clock of another machine to be slow.
	backdate = 5 * time.Minute
	// maxAuthorities bounds the bundle. A rotation at two thirds of the life needs two;
	// the rest is for rotations out of turn.
	maxAuthorities = 16
)

// CA is a certificate authority: the newest one, and those before it, which stay
// trusted until they expire. A CA does not change; Rotate and Merge make another one.
type CA struct {
	authorities []authority // the newest first, at least one
	clock       clock.PassiveClock
	lives       Lives
}

// authority is one certificate of a CA. The key is nil if it is not known.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// NewCA returns a new authority that is valid from now (by the clock).
func NewCA(clock clock.PassiveClock, lives Lives) (*CA, error) {
	if err := lives.Validate(); err != nil {
		return nil, fmt.Errorf("creating the certificate authority: %w", err)
	}
	lives = lives.orDefault()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("creating the certificate authority: %w", err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, fmt.Errorf("creating the certificate authority: %w", err)
	}
	now := clock.Now()
	template := &x509.Certificate{
		SerialNumber: serial,
		// The name differs from authority to authority: a server names those it
		// accepts, and by that a client knows which of its certificates to present.
		Subject:               pkix.Name{Organization: []string{"Terrace"}, CommonName: "Terrace CA " + hex.EncodeToString(serial.Bytes())},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(lives.CA),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	certificate, err := sign(template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("creating the certificate authority: %w", err)
	}
	return &CA{authorities: []authority{{certificate: certificate, key: key}}, clock: clock, lives: lives}, nil
}

// NeedsRotation says whether there is no authority to sign with for long: of all
// those with a key, two thirds of the life are over, or it did not begin.
func (c *CA) NeedsRotation(now time.Time) bool {
	return !slices.ContainsFunc(c.authorities, func(own authority) bool { return own.fresh(now) })
}

// RotateAt returns when to ask NeedsRotation again if it says no now: it does until then.
func (c *CA) RotateAt(now time.Time) time.Time {
	var at time.Time
	for _, own := range c.authorities {
		if due := RenewAt(own.certificate); own.fresh(now) && due.After(at) {
			at = due
		}
	}
	return at
}

// Usable says whether the authority can sign now.
func (c *CA) Usable(now time.Time) bool {
	return c.signer(now) != nil
}

// Rotate returns a new authority that also trusts what this one does, without what
// expired, and at most 16 in all: the oldest are dropped first. It keeps the keys.
func (c *CA) Rotate() (*CA, error) {
	next, err := NewCA(c.clock, c.lives)
	if err != nil {
		return nil, err
	}
	return next.Merge(c), nil
}

// Merge returns this authority with those of another one that it lacks and that did
// not expire, as far as a bundle of 16 has room. It returns this one itself if
// there is nothing to add.
func (c *CA) Merge(other *CA) *CA {
	now := c.clock.Now()
	merged := slices.Clone(c.authorities)
	for _, theirs := range other.authorities {
		i := slices.IndexFunc(merged, func(own authority) bool { return own.certificate.Equal(theirs.certificate) })
		switch {
		case i < 0 && len(merged) < maxAuthorities && now.Before(theirs.certificate.NotAfter):
			merged = append(merged, theirs)
		case i >= 0 && merged[i].key == nil:
			merged[i].key = theirs.key
		}
	}
	if slices.EqualFunc(merged, c.authorities, authority.equal) {
		return c
	}
	return &CA{authorities: merged, clock: c.clock, lives: c.lives}
}

// Equal says whether both know the same authorities in the same order, and the same keys.
func (c *CA) Equal(other *CA) bool {
	return slices.EqualFunc(c.authorities, other.authorities, authority.equal)
}

// Pool returns the trusted certificates: the newest authority's and those before it.
func (c *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	for _, own := range c.authorities {
		pool.AddCert(own.certificate)
	}
	return pool
}

// signers returns the authorities that can sign now, the one that new leaves come
// from first: the newest in the first two thirds of its life, else the newest.
func (c *CA) signers(now time.Time) []authority {
	var all []authority
	for _, own := range c.authorities {
		if own.usable(now) {
			all = append(all, own)
		}
	}
	slices.SortStableFunc(all, func(a, b authority) int {
		switch {
		case a.fresh(now) == b.fresh(now):
			return 0
		case a.fresh(now):
			return -1
		default:
			return 1
		}
	})
	return all
}

// signer returns the first of signers, nil if there is none.
func (c *CA) signer(now time.Time) *authority {
	if all := c.signers(now); len(all) > 0 {
		return &all[0]
	}
	return nil
}

// usable says whether it can sign now what others accept.
func (a authority) usable(now time.Time) bool {
	return a.key != nil && !now.Before(a.certificate.NotBefore) && now.Before(a.certificate.NotAfter)
}

// fresh says whether it is usable and need not be rotated yet.
func (a authority) fresh(now time.Time) bool {
	return a.usable(now) && !NeedsRenewal(a.certificate, now)
}

func (a authority) equal(other authority) bool {
	return a.certificate.Equal(other.certificate) && (a.key == nil) == (other.key == nil)
}

// RenewAt returns when two thirds of a certificate's life are over, which is when
// it is to be renewed. That it was backdated does not count.
func RenewAt(certificate *x509.Certificate) time.Time {
	issued := certificate.NotBefore.Add(backdate)
	return issued.Add(certificate.NotAfter.Sub(issued) / 3 * 2)
}

// NeedsRenewal says whether a certificate is to be renewed now: two thirds of its
// life are over, or it is not valid yet.
func NeedsRenewal(certificate *x509.Certificate, now time.Time) bool {
	return now.Before(certificate.NotBefore) || !now.Before(RenewAt(certificate))
}

// errNoSigner says why nothing can be issued.
var errNoSigner = errors.New("the certificate authority expired or is not valid yet")

// sign returns the parsed certificate.
func sign(template, parent *x509.Certificate, public any, key *ecdsa.PrivateKey) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// newSerial returns a random serial number of 128 bits that is not zero.
func newSerial() (*big.Int, error) {
	for {
		serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 128))
		if err != nil {
			return nil, err
		}
		if serial.Sign() > 0 {
			return serial, nil
		}
	}
}
