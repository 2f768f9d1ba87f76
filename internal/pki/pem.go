package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"

	"k8s.io/utils/clock"
)

const (
	pemCertificate = "CERTIFICATE"
	pemKey         = "PRIVATE KEY"
)

// Bundle returns the trusted certificates as PEM, the newest first. It is no secret.
func (c *CA) Bundle() []byte {
	var out bytes.Buffer
	for _, own := range c.authorities {
		out.Write(encode(pemCertificate, own.certificate.Raw))
	}
	return out.Bytes()
}

// Marshal returns all there is to know about the authority: its Bundle, and the
// keys that it has in the same order, as PEM.
func (c *CA) Marshal() (bundle, keys []byte, err error) {
	var out bytes.Buffer
	for _, own := range c.authorities {
		if own.key == nil {
			continue
		}
		key, err := marshalKey(own.key)
		if err != nil {
			return nil, nil, fmt.Errorf("writing the certificate authority: %w", err)
		}
		out.Write(key)
	}
	return c.Bundle(), out.Bytes(), nil
}

// ParseCA reads what Marshal wrote. It refuses anything but authorities, a key that
// belongs to none of them, and a newest authority without a key; those before it
// may lack theirs. The lives are those of what it issues from now on. Errors hold
// nothing of the keys.
func ParseCA(bundle, keys []byte, clock clock.PassiveClock, lives Lives) (*CA, error) {
	if err := lives.Validate(); err != nil {
		return nil, err
	}
	certificates, err := ParseBundle(bundle)
	if err != nil {
		return nil, fmt.Errorf("reading the certificate authority: %w", err)
	}
	private, err := parseKeys(keys)
	if err != nil {
		return nil, fmt.Errorf("reading the certificate authority: %w", err)
	}
	ca := &CA{clock: clock, lives: lives.orDefault()}
	for _, certificate := range certificates {
		ca.authorities = append(ca.authorities, authority{certificate: certificate})
	}
	for _, key := range private {
		i := slices.IndexFunc(ca.authorities, func(own authority) bool { return key.PublicKey.Equal(own.certificate.PublicKey) })
		if i < 0 {
			return nil, errors.New("reading the certificate authority: a key belongs to none of its certificates")
		}
		ca.authorities[i].key = key
	}
	if ca.authorities[0].key == nil {
		return nil, errors.New("reading the certificate authority: the newest certificate has no key")
	}
	return ca, nil
}

// ParseBundle reads PEM of at least one authority's certificate, and of nothing else.
func ParseBundle(bundle []byte) ([]*x509.Certificate, error) {
	blocks, err := decode(bundle, pemCertificate)
	if err != nil {
		return nil, err
	}
	var certificates []*x509.Certificate
	for _, block := range blocks {
		certificate, err := x509.ParseCertificate(block)
		if err != nil {
			return nil, err
		}
		if !certificate.IsCA {
			return nil, fmt.Errorf("certificate %x is not of an authority", certificate.SerialNumber)
		}
		certificates = append(certificates, certificate)
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

// parseKeys reads PEM of at least one PKCS #8 key. Its errors hold nothing of the decoder's, which saw the key.
func parseKeys(keys []byte) ([]*ecdsa.PrivateKey, error) {
	blocks, err := decode(keys, pemKey)
	if err != nil {
		return nil, err
	}
	var all []*ecdsa.PrivateKey
	for _, block := range blocks {
		parsed, err := x509.ParsePKCS8PrivateKey(block)
		if err != nil {
			return nil, errors.New("a key cannot be parsed")
		}
		key, ok := parsed.(*ecdsa.PrivateKey)
		if !ok {
			return nil, errors.New("a key is not of the kind that this package makes")
		}
		all = append(all, key)
	}
	return all, nil
}

// decode splits PEM of at least one block, all of this kind. It refuses what it
// would not have written itself, since what the standard decoder skips may be the
// half of a block.
func decode(input []byte, kind string) ([][]byte, error) {
	var blocks [][]byte
	var again bytes.Buffer
	for block, rest := pem.Decode(input); block != nil; block, rest = pem.Decode(rest) {
		blocks = append(blocks, block.Bytes)
		again.Write(encode(kind, block.Bytes))
	}
	if len(blocks) == 0 {
		return nil, fmt.Errorf("no %s found", kind)
	}
	if !bytes.Equal(bytes.TrimSpace(again.Bytes()), bytes.TrimSpace(input)) {
		return nil, fmt.Errorf("there is more than PEM of the kind %s", kind)
	}
	return blocks, nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
