package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const runner = "terrace-runner-abc.apps"

func newClock() *clocktesting.FakePassiveClock {
	return clocktesting.NewFakePassiveClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
}

func must[T any](t *testing.T) func(T, error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func newCA(t *testing.T, clock *clocktesting.FakePassiveClock) *CA {
	t.Helper()
	return must[*CA](t)(NewCA(clock, Lives{}))
}

// issueClient returns the manager's certificate by the newest authority.
func issueClient(t *testing.T, ca *CA, ttl time.Duration) tls.Certificate {
	t.Helper()
	return must[[]tls.Certificate](t)(ca.IssueClients(ttl))[0]
}

// handshake connects both ends over loopback, exchanges a byte each way, and returns what each end thinks of it.
func handshake(t *testing.T, server, client *tls.Config) (serverErr, clientErr error) {
	t.Helper()
	lis := must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
	defer func() { _ = lis.Close() }()
	ended := make(chan error, 1)
	go func() {
		conn, err := lis.Accept()
		if err == nil {
			err = exchange(tls.Server(conn, server))
		}
		ended <- err
	}()
	conn := must[net.Conn](t)(net.Dial("tcp", lis.Addr().String()))
	clientErr = exchange(tls.Client(conn, client))
	return <-ended, clientErr
}

func exchange(conn *tls.Conn) error {
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	if err := conn.Handshake(); err != nil {
		return err
	}
	if _, err := conn.Write([]byte{1}); err != nil {
		return err
	}
	_, err := conn.Read(make([]byte, 1))
	return err
}

// fixed is a source that never changes.
func fixed(now func() time.Time, roots *x509.CertPool, certificates ...tls.Certificate) Source {
	return func() (*Credentials, error) {
		return &Credentials{Certificates: certificates, Roots: roots, Now: now}, nil
	}
}

// custom signs a client certificate that IssueClient would not.
func custom(t *testing.T, ca *CA, change func(*x509.Certificate)) tls.Certificate {
	t.Helper()
	template := &x509.Certificate{
		URIs:        []*url.URL{must[*url.URL](t)(url.Parse(ManagerID))},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	change(template)
	return must[tls.Certificate](t)(ca.issue(template, 0))
}

func uris(t *testing.T, ids ...string) []*url.URL {
	t.Helper()
	var out []*url.URL
	for _, id := range ids {
		out = append(out, must[*url.URL](t)(url.Parse(id)))
	}
	return out
}

func TestARunnerAcceptsTheManagerAlone(t *testing.T) {
	t.Parallel()
	clock := newClock()
	ca, foreign := newCA(t, clock), newCA(t, clock)
	server := ServerConfig(fixed(clock.Now, ca.Pool(), must[tls.Certificate](t)(ca.IssueServer(runner, 0))))
	manager := issueClient(t, ca, 0)
	expired := custom(t, ca, func(*x509.Certificate) {})
	expired = must[tls.Certificate](t)(ca.issue(expired.Leaf, time.Nanosecond))
	for name, test := range map[string]struct {
		certificate *tls.Certificate
		want        string // part of the server's error; empty: accepted
	}{
		"the manager":                   {certificate: &manager},
		"no certificate":                {want: "didn't provide a certificate"},
		"an expired certificate":        {certificate: &expired, want: "expired"},
		"a self-signed certificate":     {certificate: selfSigned(t, clock), want: "unknown authority"},
		"another authority":             {certificate: new(issueClient(t, foreign, 0)), want: "unknown authority"},
		"a runner's certificate":        {certificate: new(must[tls.Certificate](t)(ca.IssueServer("other.apps", 0))), want: "key usage"},
		"the runner's own certificate":  {certificate: new(must[tls.Certificate](t)(ca.IssueServer(runner, 0))), want: "key usage"},
		"another identity":              {certificate: new(custom(t, ca, func(c *x509.Certificate) { c.URIs = uris(t, ManagerID+"/x") })), want: "not " + ManagerID},
		"another trust domain":          {certificate: new(custom(t, ca, func(c *x509.Certificate) { c.URIs = uris(t, "spiffe://evil.dev/manager") })), want: "not " + ManagerID},
		"two identities":                {certificate: new(custom(t, ca, func(c *x509.Certificate) { c.URIs = uris(t, ManagerID, ManagerID) })), want: "not " + ManagerID},
		"an identity with a name":       {certificate: new(custom(t, ca, func(c *x509.Certificate) { c.DNSNames = []string{runner} })), want: "not " + ManagerID},
		"no identity":                   {certificate: new(custom(t, ca, func(c *x509.Certificate) { c.URIs = nil })), want: "not " + ManagerID},
		"an identity in the name alone": {certificate: new(custom(t, ca, func(c *x509.Certificate) { c.URIs = nil; c.Subject.CommonName = ManagerID })), want: "not " + ManagerID},
		"a certificate for both ends": {certificate: new(custom(t, ca, func(c *x509.Certificate) {
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		})), want: "key usage"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := &tls.Config{MinVersion: tls.VersionTLS13, ServerName: runner, RootCAs: ca.Pool(), Time: clock.Now}
			client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				if test.certificate == nil {
					return &tls.Certificate{}, nil
				}
				return test.certificate, nil
			}
			// The expired one was valid for an instant; this is a moment later for the server.
			own := server
			if name == "an expired certificate" {
				later := func() time.Time { return clock.Now().Add(time.Second) }
				own = ServerConfig(fixed(later, ca.Pool(), must[tls.Certificate](t)(ca.IssueServer(runner, 0))))
			}
			expect(t, own, client, test.want)
		})
	}
}

// expect checks what the server thinks of a client.
func expect(t *testing.T, server, client *tls.Config, want string) {
	t.Helper()
	serverErr, clientErr := handshake(t, server, client)
	switch {
	case want == "" && (serverErr != nil || clientErr != nil):
		t.Errorf("refused: server %v, client %v", serverErr, clientErr)
	case want != "" && serverErr == nil:
		t.Errorf("accepted; want an error about %q", want)
	case want != "" && !strings.Contains(serverErr.Error(), want):
		t.Errorf("got %v, want an error about %q", serverErr, want)
	case want != "" && clientErr == nil:
		t.Error("the client was served all the same")
	}
}

func selfSigned(t *testing.T, clock *clocktesting.FakePassiveClock) *tls.Certificate {
	t.Helper()
	leaf := issueClient(t, newCA(t, clock), 0)
	template := *leaf.Leaf
	key := leaf.PrivateKey.(*ecdsa.PrivateKey)
	certificate := must[*x509.Certificate](t)(sign(&template, &template, key.Public(), key))
	return &tls.Certificate{Certificate: [][]byte{certificate.Raw}, PrivateKey: key}
}

func TestTheManagerAcceptsOneRunnerAlone(t *testing.T) {
	t.Parallel()
	clock := newClock()
	ca, foreign := newCA(t, clock), newCA(t, clock)
	manager := issueClient(t, ca, 0)
	for name, test := range map[string]struct {
		serves tls.Certificate
		ahead  time.Duration // of the manager's clock
		want   string
	}{
		"the runner":               {serves: must[tls.Certificate](t)(ca.IssueServer(runner, 0))},
		"another runner":           {serves: must[tls.Certificate](t)(ca.IssueServer("terrace-runner-xyz.apps", 0)), want: "is valid for"},
		"another authority":        {serves: must[tls.Certificate](t)(foreign.IssueServer(runner, 0)), want: "unknown authority"},
		"the manager's own":        {serves: manager, want: "not valid for any names"},
		"a client with that name":  {serves: custom(t, ca, func(c *x509.Certificate) { c.DNSNames = []string{runner} }), want: "key usage"},
		"a clock that is slow":     {serves: must[tls.Certificate](t)(ca.IssueServer(runner, 0)), ahead: -4 * time.Minute},
		"a clock that is too slow": {serves: must[tls.Certificate](t)(ca.IssueServer(runner, 0)), ahead: -6 * time.Minute, want: "not yet valid"},
		"the last minute":          {serves: must[tls.Certificate](t)(ca.IssueServer(runner, 0)), ahead: LeafLife - time.Minute},
		"a minute later":           {serves: must[tls.Certificate](t)(ca.IssueServer(runner, 0)), ahead: LeafLife + time.Minute, want: "expired"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := func() time.Time { return clock.Now().Add(test.ahead) }
			client := must[*tls.Config](t)(ClientConfig(fixed(now, ca.Pool(), manager), runner)())
			_, err := handshake(t, ServerConfig(fixed(clock.Now, ca.Pool(), test.serves)), client)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want an error about %q", err, test.want)
			}
		})
	}
}

func TestOldProtocolsAreRefused(t *testing.T) {
	t.Parallel()
	clock := newClock()
	authority := must[*Authority](t)(NewAuthority(clock))
	old := must[*tls.Config](t)(authority.ClientConfig(runner)())
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if serverErr, clientErr := handshake(t, authority.ServerConfig(runner), old); serverErr == nil || clientErr == nil {
		t.Errorf("the server accepted TLS 1.2: %v, %v", serverErr, clientErr)
	}
	server := authority.ServerConfig(runner)
	server.GetConfigForClient = nil
	server.MinVersion, server.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if serverErr, clientErr := handshake(t, server, must[*tls.Config](t)(authority.ClientConfig(runner)())); serverErr == nil || clientErr == nil {
		t.Errorf("the client accepted TLS 1.2: %v, %v", serverErr, clientErr)
	}
}

func TestSessionsAreNotResumed(t *testing.T) {
	t.Parallel()
	authority := must[*Authority](t)(NewAuthority(newClock()))
	client := must[*tls.Config](t)(authority.ClientConfig(runner)())
	client.ClientSessionCache = tls.NewLRUClientSessionCache(4)
	client.VerifyConnection = func(state tls.ConnectionState) error {
		if state.DidResume {
			t.Error("a session was resumed")
		}
		return nil
	}
	for range 3 {
		expect(t, authority.ServerConfig(runner), client, "")
	}
}

func TestSourcesThatLackSomething(t *testing.T) {
	t.Parallel()
	clock := newClock()
	authority := must[*Authority](t)(NewAuthority(clock))
	ca := newCA(t, clock)
	leaf := must[tls.Certificate](t)(ca.IssueServer(runner, 0))
	client := must[*tls.Config](t)(authority.ClientConfig(runner)())
	for name, source := range map[string]Source{
		"no certificate": fixed(clock.Now, ca.Pool()),
		"no authorities": fixed(clock.Now, nil, leaf), // not: those of the host
	} {
		if err, _ := handshake(t, ServerConfig(source), client); err == nil {
			t.Errorf("%s: the server accepted a client", name)
		}
	}
	if _, err := ClientConfig(fixed(clock.Now, ca.Pool()), runner)(); err == nil {
		t.Error("a client without a certificate was configured")
	}
	if _, err := ClientConfig(fixed(clock.Now, ca.Pool(), leaf), "")(); err == nil {
		t.Error("a client that expects no name was configured")
	}
	if _, err := handshake(t, authority.ServerConfig(runner), must[*tls.Config](t)(ClientConfig(fixed(clock.Now, nil, leaf), runner)())); err == nil {
		t.Error("a client without authorities accepted a server")
	}
}

func TestCertificates(t *testing.T) {
	t.Parallel()
	clock := newClock()
	ca := newCA(t, clock)
	server := must[tls.Certificate](t)(ca.IssueServer(runner, 0)).Leaf
	client := issueClient(t, ca, time.Hour).Leaf
	for _, certificate := range []*x509.Certificate{ca.authorities[0].certificate, server, client} {
		key, ok := certificate.PublicKey.(*ecdsa.PublicKey)
		if !ok || key.Curve != elliptic.P256() {
			t.Error("not ECDSA P-256")
		}
		if bits := certificate.SerialNumber.BitLen(); bits > 128 || bits < 64 {
			t.Errorf("a serial number of %d bits", bits)
		}
		if skew := clock.Now().Sub(certificate.NotBefore); skew != 5*time.Minute {
			t.Errorf("backdated by %v", skew)
		}
	}
	if life := ca.authorities[0].certificate.NotAfter.Sub(clock.Now()); life != CALife {
		t.Errorf("the authority lives %v", life)
	}
	if life := server.NotAfter.Sub(clock.Now()); life != LeafLife {
		t.Errorf("a leaf lives %v", life)
	}
	if life := client.NotAfter.Sub(clock.Now()); life != time.Hour {
		t.Errorf("a leaf of an hour lives %v", life)
	}
	if server.IsCA || len(server.DNSNames) != 1 || server.DNSNames[0] != runner || len(server.URIs) > 0 {
		t.Errorf("the runner's names are %v %v", server.DNSNames, server.URIs)
	}
	if server.SerialNumber.Cmp(client.SerialNumber) == 0 {
		t.Error("serial numbers repeat")
	}
	for _, name := range []string{"", "*", "*.apps", "a b", "spiffe://terrace.dev/manager", strings.Repeat("a", 300)} {
		if _, err := ca.IssueServer(name, 0); err == nil {
			t.Errorf("issued a certificate for %q", name)
		}
	}
	if _, err := ca.IssueClients(-time.Hour); err == nil {
		t.Error("issued a certificate that was never valid")
	}
	clock.SetTime(clock.Now().Add(CALife - time.Hour))
	if leaf := issueClient(t, ca, 0).Leaf; leaf.NotAfter.After(ca.authorities[0].certificate.NotAfter) {
		t.Error("a leaf outlives its authority")
	}
	clock.SetTime(clock.Now().Add(time.Hour))
	if _, err := ca.IssueClients(0); err == nil {
		t.Error("an expired authority issued a certificate")
	}
}

func TestRotationOverlaps(t *testing.T) {
	t.Parallel()
	clock := newClock()
	first := newCA(t, clock)
	begun := clock.Now()
	if first.NeedsRotation(begun.Add(60*24*time.Hour - time.Second)) {
		t.Error("rotation before two thirds of the life")
	}
	if !first.NeedsRotation(begun.Add(60 * 24 * time.Hour)) {
		t.Error("no rotation at two thirds of the life")
	}
	clock.SetTime(begun.Add(60 * 24 * time.Hour))
	oldManager := issueClient(t, first, 0)
	oldRunner := must[tls.Certificate](t)(first.IssueServer(runner, 0))
	second := must[*CA](t)(first.Rotate())
	newManager := issueClient(t, second, 0)
	newRunner := must[tls.Certificate](t)(second.IssueServer(runner, 0))

	renewed := ServerConfig(fixed(clock.Now, second.Pool(), newRunner))
	behind := ServerConfig(fixed(clock.Now, first.Pool(), oldRunner))
	both := ClientConfig(fixed(clock.Now, second.Pool(), newManager, oldManager), runner)
	expect(t, renewed, must[*tls.Config](t)(both()), "")
	// A runner that has not been told yet gets the certificate that it knows.
	expect(t, behind, must[*tls.Config](t)(both()), "")
	expect(t, behind, must[*tls.Config](t)(ClientConfig(fixed(clock.Now, second.Pool(), newManager), runner)()), "unknown authority")
	expect(t, renewed, must[*tls.Config](t)(ClientConfig(fixed(clock.Now, second.Pool(), oldManager), runner)()), "")

	// The first authority has expired by the time of the next rotation.
	clock.SetTime(begun.Add(120 * 24 * time.Hour))
	third := must[*CA](t)(second.Rotate())
	if n := len(third.authorities); n != 2 {
		t.Errorf("%d authorities are trusted", n)
	}
}

func TestAuthorityRenews(t *testing.T) {
	t.Parallel()
	clock := newClock()
	authority := must[*Authority](t)(NewAuthority(clock))
	serial := func() string {
		t.Helper()
		return must[*Credentials](t)(authority.server(runner)).Certificates[0].Leaf.SerialNumber.String()
	}
	first := serial()
	clock.SetTime(clock.Now().Add(LeafLife*2/3 - time.Second))
	if serial() != first {
		t.Error("renewed before two thirds of the life")
	}
	clock.SetTime(clock.Now().Add(time.Second))
	if serial() == first {
		t.Error("not renewed at two thirds of the life")
	}
	second := serial()
	authority.Forget(runner)
	if serial() == second {
		t.Error("a forgotten runner kept its certificate")
	}
	server := authority.ServerConfig(runner)
	for day := range 400 {
		clock.SetTime(clock.Now().Add(24 * time.Hour))
		if day%10 == 0 {
			expect(t, server, must[*tls.Config](t)(authority.ClientConfig(runner)()), "")
		}
	}
}

func TestMarshal(t *testing.T) {
	t.Parallel()
	clock := newClock()
	first := newCA(t, clock)
	_, oldKey, err := first.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	ca := must[*CA](t)(first.Rotate())
	bundle, key, err := ca.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	again := must[*CA](t)(ParseCA(bundle, key, clock, Lives{}))
	if !bytes.Equal(again.Bundle(), bundle) || len(again.authorities) != 2 || !again.Equal(ca) {
		t.Error("what was read differs from what was written")
	}
	// What the one issues the other accepts.
	leaf := must[tls.Certificate](t)(again.IssueServer(runner, 0))
	certificate, leafKey, err := MarshalLeaf(leaf)
	if err != nil {
		t.Fatal(err)
	}
	pair := must[tls.Certificate](t)(tls.X509KeyPair(certificate, leafKey))
	client := must[*tls.Config](t)(ClientConfig(fixed(clock.Now, ca.Pool(), issueClient(t, ca, 0)), runner)())
	expect(t, ServerConfig(fixed(clock.Now, again.Pool(), pair)), client, "")

	_, otherKey, err := newCA(t, clock).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for name, input := range map[string][2][]byte{
		"nothing":              {nil, nil},
		"no key":               {bundle, nil},
		"another's key":        {bundle, otherKey},
		"another's key too":    {bundle, append(bytes.Clone(key), otherKey...)},
		"the old key alone":    {bundle, oldKey},
		"half a certificate":   {bundle[:len(bundle)-100], key},
		"half a key":           {bundle, key[:len(key)-50]},
		"headless key":         {bundle, key[50:]},
		"a broken key":         {bundle, encode(pemKey, []byte("x"))},
		"a leaf":               {certificate, leafKey},
		"a key in the bundle":  {append(bytes.Clone(bundle), key...), key},
		"a broken certificate": {encode(pemCertificate, []byte("x")), key},
	} {
		if _, err := ParseCA(input[0], input[1], clock, Lives{}); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	if _, _, err := MarshalLeaf(tls.Certificate{}); err == nil {
		t.Error("an empty leaf was written")
	}
}
