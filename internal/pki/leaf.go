package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// ManagerID is the identity of the manager, the only client that a runner accepts.
const ManagerID = "spiffe://terrace.dev/manager"

// IssueServer issues a certificate for the runner with this name, a DNS name that
// no other runner has, for at most ttl (0: LeafLife). It is good for serving only.
func (c *CA) IssueServer(name string, ttl time.Duration) (tls.Certificate, error) {
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return tls.Certificate{}, fmt.Errorf("issuing a certificate for runner %q: %s", name, strings.Join(problems, ", "))
	}
	leaf, err := c.issue(&x509.Certificate{
		Subject:     pkix.Name{Organization: []string{"Terrace"}, OrganizationalUnit: []string{"runner"}},
		DNSNames:    []string{name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, ttl)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("issuing a certificate for runner %q: %w", name, err)
	}
	return leaf, nil
}

// IssueClient issues the manager's certificate for at most ttl (0: LeafLife). It is good for calling only.
func (c *CA) IssueClient(ttl time.Duration) (tls.Certificate, error) {
	id, err := url.Parse(ManagerID)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("issuing the manager's certificate: %w", err)
	}
	leaf, err := c.issue(&x509.Certificate{
		Subject:     pkix.Name{Organization: []string{"Terrace"}, OrganizationalUnit: []string{"manager"}},
		URIs:        []*url.URL{id},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, ttl)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("issuing the manager's certificate: %w", err)
	}
	return leaf, nil
}

// issue completes the template and signs it with a new key. A leaf never outlives its authority.
func (c *CA) issue(template *x509.Certificate, ttl time.Duration) (tls.Certificate, error) {
	if ttl == 0 {
		ttl = LeafLife
	}
	if ttl < 0 {
		return tls.Certificate{}, errors.New("its lifetime is negative")
	}
	now := c.clock.Now()
	if !now.Before(c.certificate.NotAfter) {
		return tls.Certificate{}, fmt.Errorf("the certificate authority expired at %v", c.certificate.NotAfter)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	if template.SerialNumber, err = newSerial(); err != nil {
		return tls.Certificate{}, err
	}
	template.NotBefore = now.Add(-backdate)
	template.NotAfter = now.Add(ttl)
	if template.NotAfter.After(c.certificate.NotAfter) {
		template.NotAfter = c.certificate.NotAfter
	}
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageDigitalSignature
	leaf, err := sign(template, c.certificate, key.Public(), c.key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}, nil
}
