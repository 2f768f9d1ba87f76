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
	"fmt"
	"math/big"
	"time"

	"k8s.io/utils/clock"
)

const (
	// CALife is how long a certificate authority is valid: 90 days.
	CALife = 90 * 24 * time.Hour
	// LeafLife is how long the certificate of either end is valid unless told otherwise: 24 h.
	LeafLife = 24 * time.Hour
	// backdate allows for the clock of another machine to be slow.
	backdate = 5 * time.Minute
)

// CA is a certificate authority: a key, its certificate, and the certificate
// before it, which stays trusted until it expires. A CA does not change; Rotate makes
// another one.
type CA struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	previous    []*x509.Certificate
	clock       clock.PassiveClock
}

// NewCA returns a new authority that is valid from now (by the clock) for CALife.
func NewCA(clock clock.PassiveClock) (*CA, error) {
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
		NotAfter:              now.Add(CALife),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	certificate, err := sign(template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("creating the certificate authority: %w", err)
	}
	return &CA{certificate: certificate, key: key, clock: clock}, nil
}

// NeedsRotation says whether two thirds of the authority's life are over.
func (c *CA) NeedsRotation(now time.Time) bool {
	return aged(c.certificate, now)
}

// Rotate returns a new authority that also trusts what this one signed, until this
// one expires. What this one trusted besides is dropped if it expired.
func (c *CA) Rotate() (*CA, error) {
	next, err := NewCA(c.clock)
	if err != nil {
		return nil, err
	}
	for _, certificate := range c.trusted() {
		if c.clock.Now().Before(certificate.NotAfter) {
			next.previous = append(next.previous, certificate)
		}
	}
	return next, nil
}

// Pool returns the trusted certificates: the authority's own and those before it.
func (c *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	for _, certificate := range c.trusted() {
		pool.AddCert(certificate)
	}
	return pool
}

func (c *CA) trusted() []*x509.Certificate {
	return append([]*x509.Certificate{c.certificate}, c.previous...)
}

// aged says whether two thirds of a certificate's life are over. Its backdating does not count.
func aged(certificate *x509.Certificate, now time.Time) bool {
	issued := certificate.NotBefore.Add(backdate)
	return !now.Before(issued.Add(certificate.NotAfter.Sub(issued) / 3 * 2))
}

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
