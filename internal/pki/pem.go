package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"

	"k8s.io/utils/clock"
)

const (
	pemCertificate = "CERTIFICATE"
	pemKey         = "PRIVATE KEY"
)

// Bundle returns the trusted certificates as PEM, the authority's own first. It is no secret.
func (c *CA) Bundle() []byte {
	var out bytes.Buffer
	for _, certificate := range c.trusted() {
		out.Write(encode(pemCertificate, certificate.Raw))
	}
	return out.Bytes()
}

// Marshal returns all there is to know about the authority: its Bundle and its key, as PEM.
func (c *CA) Marshal() (bundle, key []byte, err error) {
	key, err = marshalKey(c.key)
	if err != nil {
		return nil, nil, fmt.Errorf("writing the certificate authority: %w", err)
	}
	return c.Bundle(), key, nil
}

// ParseCA reads what Marshal wrote. It refuses anything but authorities, and a key
// that does not belong to the first of them.
func ParseCA(bundle, key []byte, clock clock.PassiveClock) (*CA, error) {
	certificates, err := ParseBundle(bundle)
	if err != nil {
		return nil, fmt.Errorf("reading the certificate authority: %w", err)
	}
	block, _ := pem.Decode(key)
	if block == nil || block.Type != pemKey {
		return nil, errors.New("reading the certificate authority: its key is not PEM of a PKCS #8 private key")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		// The decoder's error says nothing that helps, and it saw the key.
		return nil, errors.New("reading the certificate authority: its key cannot be parsed")
	}
	private, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || !private.PublicKey.Equal(certificates[0].PublicKey) {
		return nil, errors.New("reading the certificate authority: its key belongs to another certificate")
	}
	return &CA{certificate: certificates[0], key: private, previous: certificates[1:], clock: clock}, nil
}

// ParseBundle reads PEM of at least one authority's certificate.
func ParseBundle(bundle []byte) ([]*x509.Certificate, error) {
	var certificates []*x509.Certificate
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != pemCertificate {
			return nil, fmt.Errorf("a %s among the certificates", block.Type)
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		if !certificate.IsCA {
			return nil, fmt.Errorf("certificate %x is not of an authority", certificate.SerialNumber)
		}
		certificates = append(certificates, certificate)
	}
	if len(certificates) == 0 {
		return nil, errors.New("no certificate found")
	}
	return certificates, nil
}

// MarshalLeaf returns a leaf and its key as PEM, as tls.X509KeyPair reads them.
func MarshalLeaf(leaf tls.Certificate) (certificate, key []byte, err error) {
	private, ok := leaf.PrivateKey.(*ecdsa.PrivateKey)
	if !ok || len(leaf.Certificate) == 0 {
		return nil, nil, errors.New("writing a certificate: it is not one of this package's")
	}
	if key, err = marshalKey(private); err != nil {
		return nil, nil, fmt.Errorf("writing a certificate: %w", err)
	}
	return encode(pemCertificate, leaf.Certificate[0]), key, nil
}

func marshalKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return encode(pemKey, der), nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
