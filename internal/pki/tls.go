package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

// Credentials are what one end of a connection presents and trusts.
type Credentials struct {
	// Certificates holds the newest first. A client presents the first one whose
	// authority the server names, a server always the very first.
	Certificates []tls.Certificate
	// Roots are the authorities that the other end's certificate may come from.
	Roots *x509.CertPool
	// Now is the time that certificates are judged by; nil means time.Now.
	Now func() time.Time
}

// Source hands out current credentials. It is asked at every handshake, possibly from many goroutines.
type Source func() (*Credentials, error)

var errNoCertificate = errors.New("there is no certificate to present")

// ServerConfig returns the TLS configuration of a runner. It accepts TLS 1.3 and the
// manager alone: a client certificate, signed by one of the source's authorities,
// whose only identity is ManagerID. Sessions are not resumed, so that each
// connection is judged by current credentials.
func ServerConfig(source Source) *tls.Config {
	config := serverBase()
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		current, err := source()
		if err != nil {
			return nil, fmt.Errorf("serving: %w", err)
		}
		if len(current.Certificates) == 0 {
			return nil, fmt.Errorf("serving: %w", errNoCertificate)
		}
		fresh := serverBase()
		fresh.Certificates = current.Certificates[:1]
		fresh.ClientCAs = roots(current)
		fresh.Time = current.Now
		return fresh, nil
	}
	return config
}

// serverBase holds what does not depend on the source. Its ClientCAs are empty: without the source it accepts nobody.
func serverBase() *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		ClientAuth:             tls.RequireAndVerifyClientCert,
		ClientCAs:              x509.NewCertPool(),
		SessionTicketsDisabled: true,
		VerifyConnection:       onlyManager,
		NextProtos:             []string{"h2"},
	}
}

// onlyManager runs after the certificate's chain, time and usage were verified.
func onlyManager(state tls.ConnectionState) error {
	if len(state.VerifiedChains) == 0 || len(state.PeerCertificates) == 0 {
		return errors.New("the client's certificate was not verified")
	}
	client := state.PeerCertificates[0]
	others := len(client.DNSNames) + len(client.IPAddresses) + len(client.EmailAddresses)
	if client.IsCA || others > 0 || len(client.URIs) != 1 || client.URIs[0].String() != ManagerID {
		return fmt.Errorf("the client is not %s", ManagerID)
	}
	return nil
}

// ClientConfig returns a function that makes the manager's TLS configuration for one
// connection to the runner with this name. It is to be called for each connection,
// since a tls.Config cannot change whom it trusts.
func ClientConfig(source Source, serverName string) func() (*tls.Config, error) {
	return func() (*tls.Config, error) {
		if serverName == "" {
			return nil, errors.New("calling a runner: its name is missing")
		}
		current, err := source()
		if err != nil {
			return nil, fmt.Errorf("calling runner %q: %w", serverName, err)
		}
		if len(current.Certificates) == 0 {
			return nil, fmt.Errorf("calling runner %q: %w", serverName, errNoCertificate)
		}
		return &tls.Config{
			MinVersion: tls.VersionTLS13,
			ServerName: serverName,
			RootCAs:    roots(current),
			Time:       current.Now,
			NextProtos: []string{"h2"},
			GetClientCertificate: func(request *tls.CertificateRequestInfo) (*tls.Certificate, error) {
				return choose(request, current.Certificates), nil
			},
		}, nil
	}
}

// choose picks the certificate to present. If the server would accept none it still
// gets the newest, so that it is the server who refuses and says so.
func choose(request *tls.CertificateRequestInfo, certificates []tls.Certificate) *tls.Certificate {
	for i := range certificates {
		if request.SupportsCertificate(&certificates[i]) == nil {
			return &certificates[i]
		}
	}
	return &certificates[0]
}

// roots never returns nil, which would mean the authorities of the host.
func roots(current *Credentials) *x509.CertPool {
	if current.Roots == nil {
		return x509.NewCertPool()
	}
	return current.Roots
}
