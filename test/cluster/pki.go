//go:build linux

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"os"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// lifetime of certificates. A cluster does not live for long.
const lifetime = 30 * 24 * time.Hour

// authority signs the certificates of one cluster.
type authority struct {
	site        *site
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// writePKI writes certificates, keys and kubeconfigs of all components to pki/.
func writePKI(s *site) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	certificate, err := cert.NewSelfSignedCACert(cert.Config{CommonName: s.Name + "-ca"}, key)
	if err != nil {
		return err
	}
	ca := &authority{site: s, certificate: certificate, key: key}
	if err := ca.write("ca", certificate, key); err != nil {
		return err
	}
	accounts, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	if err := ca.writeKey("service-accounts", accounts); err != nil {
		return err
	}
	node := net.IP(s.NodeIP.AsSlice())
	for name, template := range map[string]*x509.Certificate{
		"kube-apiserver": {
			Subject:     pkix.Name{CommonName: "kube-apiserver"},
			DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), node, s.APIServiceIP.AsSlice()},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		},
		"kubelet": {
			Subject:     pkix.Name{CommonName: s.Name},
			DNSNames:    []string{s.Name},
			IPAddresses: []net.IP{node},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		},
		"kubelet-client": client("kube-apiserver-kubelet-client", "system:masters"),
	} {
		certificate, key, err := ca.issue(template)
		if err != nil {
			return err
		}
		if err := ca.write(name, certificate, key); err != nil {
			return err
		}
	}
	for name, template := range map[string]*x509.Certificate{
		"admin":                   client("admin", "system:masters"),
		"kube-controller-manager": client("system:kube-controller-manager"),
		"kube-scheduler":          client("system:kube-scheduler"),
		"kube-proxy":              client("system:kube-proxy"),
		"kubelet":                 client("system:node:"+s.Name, "system:nodes"),
	} {
		if err := ca.writeKubeconfig(name, template); err != nil {
			return err
		}
	}
	return nil
}

func client(name string, groups ...string) *x509.Certificate {
	return &x509.Certificate{
		Subject:     pkix.Name{CommonName: name, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
}

func (a *authority) issue(template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return nil, nil, err
	}
	template.NotBefore = a.certificate.NotBefore
	template.NotAfter = time.Now().Add(lifetime)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		return nil, nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	return certificate, key, err
}

func (a *authority) write(name string, certificate *x509.Certificate, key *ecdsa.PrivateKey) error {
	encoded, err := cert.EncodeCertificates(certificate)
	if err != nil {
		return err
	}
	if err := os.WriteFile(a.site.run("pki", name+".crt"), encoded, 0o600); err != nil {
		return err
	}
	return a.writeKey(name, key)
}

func (a *authority) writeKey(name string, key *ecdsa.PrivateKey) error {
	encoded, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return err
	}
	return os.WriteFile(a.site.run("pki", name+".key"), encoded, 0o600)
}

func (a *authority) writeKubeconfig(name string, template *x509.Certificate) error {
	certificate, key, err := a.issue(template)
	if err != nil {
		return err
	}
	ca, err := cert.EncodeCertificates(a.certificate)
	if err != nil {
		return err
	}
	certPEM, err := cert.EncodeCertificates(certificate)
	if err != nil {
		return err
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return err
	}
	config := clientcmdapi.NewConfig()
	config.Clusters[a.site.Name] = &clientcmdapi.Cluster{Server: a.site.server(), CertificateAuthorityData: ca}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: certPEM, ClientKeyData: keyPEM}
	config.Contexts[a.site.Name] = &clientcmdapi.Context{Cluster: a.site.Name, AuthInfo: name}
	config.CurrentContext = a.site.Name
	return clientcmd.WriteToFile(*config, a.site.run("pki", name+".kubeconfig"))
}
