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
// no other runner has, for at most ttl (0: the leaf's life). It is good for serving only.
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

// IssueClients issues the manager's certificates for at most ttl (0: the leaf's
// life), at least one: by each authority that is valid and has its key, the one that
// signs runners' certificates first. Together they open any runner that trusts one
// of the authorities. They are good for calling only. The first is the one to renew
// by; one of an earlier authority ends with it.
func (c *CA) IssueClients(ttl time.Duration) ([]tls.Certificate, error) {
	signers := c.signers(c.clock.Now())
	if len(signers) == 0 {
		return nil, fmt.Errorf("issuing the manager's certificate: %w", errNoSigner)
	}
	var leaves []tls.Certificate
	for _, signer := range signers {
		leaf, err := c.issueClient(signer, ttl)
		if err != nil {
			return nil, fmt.Errorf("issuing the manager's certificate: %w", err)
		}
		leaves = append(leaves, leaf)
	}
	return leaves, nil
}

func (c *CA) issueClient(signer authority, ttl time.Duration) (tls.Certificate, error) {
	id, err := url.Parse(ManagerID)
	if err != nil {
		return tls.Certificate{}, err
	}
	return c.issueBy(signer, &x509.Certificate{
		Subject:     pkix.Name{Organization: []string{"Terrace"}, OrganizationalUnit: []string{"manager"}},
		URIs:        []*url.URL{id},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, ttl)
}

func (c *CA) issue(template *x509.Certificate, ttl time.Duration) (tls.Certificate, error) {
	signer := c.signer(c.clock.Now())
	if signer == nil {
		return tls.Certificate{}, errNoSigner
	}
	return c.issueBy(*signer, template, ttl)
}

// issueBy completes the template and signs it with a new key. A leaf never outlives its authority.
func (c *CA) issueBy(signer authority, template *x509.Certificate, ttl time.Duration) (tls.Certificate, error) {
	if ttl == 0 {
		ttl = c.lives.Leaf
	}
	if ttl < 0 {
		return tls.Certificate{}, errors.New("its lifetime is negative")
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	if template.SerialNumber, err = newSerial(); err != nil {
		return tls.Certificate{}, err
	}
	now := c.clock.Now()
	template.NotBefore = now.Add(-backdate)
	template.NotAfter = now.Add(ttl)
	if template.NotAfter.After(signer.certificate.NotAfter) {
		template.NotAfter = signer.certificate.NotAfter
	}
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageDigitalSignature
	leaf, err := sign(template, signer.certificate, key.Public(), signer.key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}, nil
}
