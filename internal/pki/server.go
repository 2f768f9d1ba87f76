package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

// ParseServer reads what a runner serves with from PEM: its certificate, the key
// of it, and the authorities that it trusts. The result has one certificate with
// its Leaf set, and no clock. It refuses what no client would accept at that time: a key of another
// certificate, a certificate that is not for serving, that has any name besides
// this one ("": the one that it has), that none of the authorities signed, or that
// expired. Errors hold nothing of the key.
func ParseServer(certificate, key, authorities []byte, name string, now time.Time) (*Credentials, error) {
	leaf, err := parseLeaf(certificate)
	if err != nil {
		return nil, fmt.Errorf("reading the runner's certificate: %w", err)
	}
	keys, err := parseKeys(key)
	if err != nil {
		return nil, fmt.Errorf("reading the runner's certificate: %w", err)
	}
	if len(keys) != 1 || !keys[0].PublicKey.Equal(leaf.PublicKey) {
		return nil, errors.New("reading the runner's certificate: the key belongs to another certificate")
	}
	trusted, err := ParseBundle(authorities)
	if err != nil {
		return nil, fmt.Errorf("reading the runner's authorities: %w", err)
	}
	if err := checkName(leaf, name); err != nil {
		return nil, fmt.Errorf("reading the runner's certificate: %w", err)
	}
	roots := x509.NewCertPool()
	for _, authority := range trusted {
		roots.AddCert(authority)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{
		Roots:       roots,
		DNSName:     leaf.DNSNames[0],
		CurrentTime: now,
		KeyUsages:   []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}); err != nil {
		return nil, fmt.Errorf("reading the runner's certificate: %w", err)
	}
	pair := tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: keys[0], Leaf: leaf}
	return &Credentials{Certificates: []tls.Certificate{pair}, Roots: roots}, nil
}

// checkName says whether the certificate is for serving only and has this name ("": any) and no other.
func checkName(leaf *x509.Certificate, name string) error {
	if leaf.IsCA || len(leaf.ExtKeyUsage) != 1 || leaf.ExtKeyUsage[0] != x509.ExtKeyUsageServerAuth || len(leaf.UnknownExtKeyUsage) > 0 {
		return errors.New("it is not for serving only")
	}
	others := len(leaf.URIs) + len(leaf.IPAddresses) + len(leaf.EmailAddresses)
	if len(leaf.DNSNames) != 1 || others > 0 {
		return fmt.Errorf("it has %d names instead of one", len(leaf.DNSNames)+others)
	}
	if name != "" && leaf.DNSNames[0] != name {
		return fmt.Errorf("its name is %q instead of %q", leaf.DNSNames[0], name)
	}
	return nil
}

// parseLeaf reads PEM of exactly one certificate.
func parseLeaf(certificate []byte) (*x509.Certificate, error) {
	blocks, err := decode(certificate, pemCertificate)
	if err != nil {
		return nil, err
	}
	if len(blocks) != 1 {
		return nil, fmt.Errorf("there are %d certificates instead of one", len(blocks))
	}
	return x509.ParseCertificate(blocks[0])
}
