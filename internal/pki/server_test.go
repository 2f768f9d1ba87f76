package pki

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"strings"
	"testing"
	"time"
)

func TestParseServer(t *testing.T) {
	t.Parallel()
	clock := newClock()
	ca, foreign := newCA(t, clock), newCA(t, clock)
	good := must[tls.Certificate](t)(ca.IssueServer(runner, 0))
	text := func(leaf tls.Certificate) (certificate, key string) {
		c, k, err := MarshalLeaf(leaf)
		if err != nil {
			t.Fatal(err)
		}
		return string(c), string(k)
	}
	serving := func(change func(*x509.Certificate)) tls.Certificate {
		template := &x509.Certificate{DNSNames: []string{runner}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
		change(template)
		return must[tls.Certificate](t)(ca.issue(template, 0))
	}
	otherCertificate, otherKey := text(must[tls.Certificate](t)(ca.IssueServer(runner, 0)))
	for name, test := range map[string]struct {
		leaf        tls.Certificate
		key         string // "": the leaf's
		more        string // after the certificate
		authorities []byte // nil: the authority's
		expected    string
		ahead       time.Duration
		want        string // part of the error; "": none
	}{
		"the runner's own":                {leaf: good, expected: runner},
		"any name will do":                {leaf: good},
		"the last minute":                 {leaf: good, ahead: LeafLife - time.Minute},
		"the authority is one of several": {leaf: good, authorities: append(foreign.Bundle(), ca.Bundle()...)},
		"another name":                    {leaf: good, expected: "terrace-runner-xyz.apps", want: `its name is "terrace-runner-abc.apps"`},
		"another key":                     {leaf: good, key: otherKey, want: "belongs to another"},
		"no key":                          {leaf: good, key: "\n", want: "no PRIVATE KEY found"},
		"a key that is none":              {leaf: good, key: string(encode(pemKey, []byte("verysecret"))), want: "cannot be parsed"},
		"a certificate where the key is":  {leaf: good, key: otherCertificate, want: "more than PEM"},
		"two certificates":                {leaf: good, more: otherCertificate, want: "2 certificates"},
		"rubbish after the certificate":   {leaf: good, more: "rubbish", want: "more than PEM"},
		"expired":                         {leaf: good, ahead: LeafLife + time.Minute, want: "expired"},
		"not valid yet":                   {leaf: good, ahead: -6 * time.Minute, want: "not yet valid"},
		"another authority":               {leaf: good, authorities: foreign.Bundle(), want: "unknown authority"},
		"no authorities":                  {leaf: good, authorities: []byte("\n"), want: "no CERTIFICATE found"},
		"half of the authorities":         {leaf: good, authorities: append(ca.Bundle(), foreign.Bundle()[:200]...), want: "more than PEM"},
		"a leaf among the authorities":    {leaf: good, authorities: append(ca.Bundle(), otherCertificate...), want: "not of an authority"},
		"the manager's certificate":       {leaf: issueClient(t, ca, 0), want: "not for serving only"},
		"a certificate for serving and more": {leaf: serving(func(c *x509.Certificate) {
			c.ExtKeyUsage = append(c.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
		}), want: "not for serving only"},
		"two names":                {leaf: serving(func(c *x509.Certificate) { c.DNSNames = append(c.DNSNames, "x.apps") }), want: "2 names"},
		"an address as well":       {leaf: serving(func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)} }), want: "2 names"},
		"the manager's id as well": {leaf: serving(func(c *x509.Certificate) { c.URIs = uris(t, ManagerID) }), want: "2 names"},
		"no name":                  {leaf: serving(func(c *x509.Certificate) { c.DNSNames = nil }), want: "0 names"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			certificate, key := text(test.leaf)
			if test.key != "" {
				key = test.key
			}
			authorities := test.authorities
			if authorities == nil {
				authorities = ca.Bundle()
			}
			got, err := ParseServer([]byte(certificate+test.more), []byte(key), authorities, test.expected, clock.Now().Add(test.ahead))
			if test.want != "" {
				if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "verysecret") {
					t.Errorf("got %v, want an error about %q", err, test.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got.Now = clock.Now
			if len(got.Certificates) != 1 || got.Certificates[0].Leaf == nil {
				t.Error("the certificate is incomplete")
			}
			server := ServerConfig(func() (*Credentials, error) { return got, nil })
			clients := must[[]tls.Certificate](t)(ca.IssueClients(0))
			expect(t, server, must[*tls.Config](t)(ClientConfig(fixed(clock.Now, ca.Pool(), clients...), runner)()), "")
		})
	}
}
