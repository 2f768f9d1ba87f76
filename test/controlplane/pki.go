package controlplane

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

const (
	caFile          = "ca.crt"
	servingCertFile = "apiserver.crt"
	servingKeyFile  = "apiserver.key"
	accountKeyFile  = "service-account.key"
)

// keyPair is a certificate and its private key, PEM encoded.
type keyPair struct{ cert, key []byte }

// pki holds everything secret of one control plane.
type pki struct {
	ca         []byte
	serving    keyPair
	admin      keyPair
	accountKey []byte
}

func newPKI() (*pki, error) {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	ca, err := cert.NewSelfSignedCACert(cert.Config{CommonName: "terrace-controlplane"}, caKey)
	if err != nil {
		return nil, err
	}
	keys := &pki{}
	if keys.ca, err = cert.EncodeCertificates(ca); err != nil {
		return nil, err
	}
	keys.serving, err = issue(ca, caKey, x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		DNSNames:    []string{"localhost", "kubernetes.default.svc"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return nil, err
	}
	keys.admin, err = issue(ca, caKey, x509.Certificate{
		Subject:     pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return nil, err
	}
	keys.accountKey, err = keyutil.MakeEllipticPrivateKeyPEM()
	return keys, err
}

// issue signs a leaf made from template.
func issue(ca *x509.Certificate, caKey *ecdsa.PrivateKey, template x509.Certificate) (keyPair, error) {
	keyPEM, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return keyPair{}, err
	}
	parsed, err := keyutil.ParsePrivateKeyPEM(keyPEM)
	if err != nil {
		return keyPair{}, err
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return keyPair{}, fmt.Errorf("unexpected kind of key %T", parsed)
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return keyPair{}, err
	}
	template.NotBefore = ca.NotBefore
	template.NotAfter = time.Now().Add(7 * 24 * time.Hour)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, &template, ca, key.Public(), caKey)
	if err != nil {
		return keyPair{}, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return keyPair{}, err
	}
	certPEM, err := cert.EncodeCertificates(leaf)
	return keyPair{cert: certPEM, key: keyPEM}, err
}

// writeFiles writes what the API server reads.
func (k *pki) writeFiles(dir *workDir) error {
	for name, content := range map[string][]byte{
		caFile:          k.ca,
		servingCertFile: k.serving.cert,
		servingKeyFile:  k.serving.key,
		accountKeyFile:  k.accountKey,
	} {
		if err := os.WriteFile(dir.file(name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func serverURL(port int) string { return fmt.Sprintf("https://127.0.0.1:%d", port) }

func (k *pki) restConfig(port int) *rest.Config {
	return &rest.Config{
		Host:            serverURL(port),
		TLSClientConfig: rest.TLSClientConfig{CAData: k.ca, CertData: k.admin.cert, KeyData: k.admin.key},
		QPS:             -1, // no limit
	}
}

func (k *pki) writeKubeconfig(path string, port int) error {
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{Server: serverURL(port), CertificateAuthorityData: k.ca}
	config.AuthInfos["admin"] = &clientcmdapi.AuthInfo{ClientCertificateData: k.admin.cert, ClientKeyData: k.admin.key}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "admin"}
	config.CurrentContext = "test"
	return clientcmd.WriteToFile(*config, path)
}
