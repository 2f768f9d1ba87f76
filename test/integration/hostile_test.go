package integration_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io/fs"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terrace-dev/terrace/internal/authority"
	"github.com/terrace-dev/terrace/internal/pki"
	"github.com/terrace-dev/terrace/runner"
	"github.com/terrace-dev/terrace/runner/runnerpb"
	"github.com/terrace-dev/terrace/test/harness"
)

// warm is a tenant with a runner that has worked.
func warm(t *testing.T) (l *lab, pod *corev1.Pod) {
	t.Helper()
	l = newLab(t)
	l.create(greeting, nil)
	l.awaitReady()
	return l, l.onlyPod()
}

func (l *lab) onlyPod() *corev1.Pod {
	l.t.Helper()
	pods := l.pods()
	if len(pods) != 1 {
		l.t.Fatalf("there are %d pods in %s, want one", len(pods), l.namespace)
	}
	return &pods[0]
}

// authoritySecret reads the certificate authority of the managers in a namespace, as only an
// administrator can.
func authoritySecret(t *testing.T, namespace string) *corev1.Secret {
	t.Helper()
	secret := &corev1.Secret{}
	if err := suite.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: authority.SecretName}, secret); err != nil {
		t.Fatal(err)
	}
	return secret
}

func parseAuthority(t *testing.T, certificates, keys []byte) *pki.CA {
	t.Helper()
	ca, err := pki.ParseCA(certificates, keys, clock.RealClock{}, pki.Lives{})
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func target(pod *corev1.Pod) string {
	return net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(runner.Port))
}

// asManager calls a runner as the manager does that has this authority.
func asManager(t *testing.T, ca *pki.CA, pod *corev1.Pod) *runner.Client {
	t.Helper()
	source := func() (*pki.Credentials, error) {
		leaves, err := ca.IssueClients(0)
		return &pki.Credentials{Certificates: leaves, Roots: ca.Pool()}, err
	}
	c, err := runner.Dial(target(pod), pki.ClientConfig(source, pod.Name+"."+pod.Namespace))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// signer is an authority whose key somebody has.
type signer struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func (l *lab) realSigner() signer {
	l.t.Helper()
	secret := authoritySecret(l.t, harness.ManagerNamespace)
	pairs := pair(l.t, [][]byte{secret.Data["ca.crt"], secret.Data["ca.key"]})
	if len(pairs) == 0 {
		l.t.Fatal("no authority found")
	}
	return pairs[0]
}

// pair finds, in PEM, the certificates whose keys are there, too.
func pair(t *testing.T, blobs [][]byte) (found []signer) {
	t.Helper()
	var certificates []*x509.Certificate
	var keys []*ecdsa.PrivateKey
	for _, blob := range blobs {
		for block, rest := pem.Decode(blob); block != nil; block, rest = pem.Decode(rest) {
			if certificate, err := x509.ParseCertificate(block.Bytes); err == nil {
				certificates = append(certificates, certificate)
			}
			if key, err := x509.ParsePKCS8PrivateKey(block.Bytes); err == nil {
				if ours, ok := key.(*ecdsa.PrivateKey); ok {
					keys = append(keys, ours)
				}
			}
		}
	}
	for _, certificate := range certificates {
		for _, key := range keys {
			if key.PublicKey.Equal(certificate.PublicKey) {
				found = append(found, signer{certificate, key})
				break
			}
		}
	}
	return found
}

// managerLike is a certificate that is in all what a manager's is, until edit changes it.
func managerLike(edit func(*x509.Certificate)) *x509.Certificate {
	id, _ := url.Parse(pki.ManagerID) // a constant
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{Organization: []string{"Terrace"}, OrganizationalUnit: []string{"manager"}},
		NotBefore:    time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		URIs: []*url.URL{id}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
	}
	if edit != nil {
		edit(c)
	}
	return c
}

// issue signs a certificate; without a signer it signs itself.
func issue(t *testing.T, by *signer, template *x509.Certificate) (tls.Certificate, signer) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if by == nil {
		by = &signer{template, key}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by.certificate, key.Public(), by.key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, signer{leaf, key}
}

// madeUp is an authority of the tenant's own; with a model it calls itself the same.
func madeUp(t *testing.T, model *x509.Certificate) signer {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "made up"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	if model != nil {
		template.SerialNumber, template.Subject, template.SubjectKeyId = model.SerialNumber, model.Subject, model.SubjectKeyId
	}
	_, made := issue(t, nil, template)
	return made
}

// loot is all that is in a tenant's hands: what its Secrets and its pod's files hold.
func (l *lab) loot(pod *corev1.Pod) (blobs [][]byte) {
	l.t.Helper()
	secrets := &corev1.SecretList{}
	if err := suite.client.List(l.ctx, secrets, client.InNamespace(l.namespace)); err != nil {
		l.t.Fatal(err)
	}
	for i := range secrets.Items {
		for _, value := range secrets.Items[i].Data {
			blobs = append(blobs, value)
		}
	}
	for _, volume := range pod.Spec.Volumes {
		dir, err := suite.kubelet.VolumeDir(pod.Namespace, pod.Name, volume.Name)
		if err != nil {
			l.t.Fatal(err)
		}
		err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() {
				return err
			}
			text, err := os.ReadFile(path)
			blobs = append(blobs, text)
			var values map[string][]byte
			if json.Unmarshal(text, &values) == nil { // of renewed credentials, for example
				for _, value := range values {
					blobs = append(blobs, value)
				}
			}
			return err
		})
		if err != nil {
			l.t.Fatal(err)
		}
	}
	return blobs
}

func (l *lab) token(pod *corev1.Pod) string {
	l.t.Helper()
	for _, volume := range pod.Spec.Volumes {
		if volume.Projected == nil {
			continue
		}
		dir, err := suite.kubelet.VolumeDir(pod.Namespace, pod.Name, volume.Name)
		if err != nil {
			l.t.Fatal(err)
		}
		return read(l.t, filepath.Join(dir, "token"))
	}
	l.t.Fatal("the pod has no token")
	return ""
}

// calls are all methods that a runner serves.
var calls = map[string]func(context.Context, *grpc.ClientConn, ...grpc.CallOption) error{
	"Handshake": func(ctx context.Context, c *grpc.ClientConn, o ...grpc.CallOption) error {
		_, err := runnerpb.NewRunnerClient(c).Handshake(ctx, &runnerpb.HandshakeRequest{Versions: runner.ProtocolVersions()}, o...)
		return err
	},
	"UploadSource": func(ctx context.Context, c *grpc.ClientConn, o ...grpc.CallOption) error {
		stream, err := runnerpb.NewRunnerClient(c).UploadSource(ctx, o...)
		if err == nil {
			_, err = stream.CloseAndRecv()
		}
		return err
	},
	"StartOperation": func(ctx context.Context, c *grpc.ClientConn, o ...grpc.CallOption) error {
		_, err := runnerpb.NewRunnerClient(c).StartOperation(ctx, &runnerpb.StartOperationRequest{Id: "x"}, o...)
		return err
	},
	"WatchOperation": func(ctx context.Context, c *grpc.ClientConn, o ...grpc.CallOption) error {
		stream, err := runnerpb.NewRunnerClient(c).WatchOperation(ctx, &runnerpb.WatchOperationRequest{Id: "x"}, o...)
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	},
	"CancelOperation": func(ctx context.Context, c *grpc.ClientConn, o ...grpc.CallOption) error {
		_, err := runnerpb.NewRunnerClient(c).CancelOperation(ctx, &runnerpb.CancelOperationRequest{Id: "x"}, o...)
		return err
	},
	"Rotate": func(ctx context.Context, c *grpc.ClientConn, o ...grpc.CallOption) error {
		_, err := runnerpb.NewRunnerClient(c).Rotate(ctx, &runnerpb.RotateRequest{}, o...)
		return err
	},
	"Check": func(ctx context.Context, c *grpc.ClientConn, o ...grpc.CallOption) error {
		_, err := healthpb.NewHealthClient(c).Check(ctx, &healthpb.HealthCheckRequest{}, o...)
		return err
	},
}

// answers says which methods of the server at the address answered in any way,
// and what the others failed with.
func answers(t *testing.T, address string, secured credentials.TransportCredentials, token string) (answered, errs []string) {
	t.Helper()
	for name, call := range calls {
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(secured), grpc.WithNoProxy())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if token != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
		}
		var header, trailer metadata.MD
		err = call(ctx, conn, grpc.Header(&header), grpc.Trailer(&trailer))
		cancel()
		_ = conn.Close()
		if len(header)+len(trailer) > 0 || status.Code(err) != codes.Unavailable {
			answered = append(answered, name)
		}
		errs = append(errs, name+": "+status.Convert(err).Message())
	}
	return answered, errs
}

// opening is what an HTTP/2 client says first: that it is one, and that it has no settings.
const opening = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// hears says what the server answers after the handshake, or how that was refused.
func hears(t *testing.T, address string, config *tls.Config) (answer []byte, refusal error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	plain, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		t.Fatalf("nobody listens: %v", err)
	}
	defer plain.Close()
	_ = plain.SetDeadline(time.Now().Add(patience))
	conn := plain
	if config != nil {
		secured := tls.Client(plain, config)
		if err := secured.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		conn = secured
	}
	_, _ = conn.Write([]byte(opening)) // refused already, perhaps: it is read why
	buffer := make([]byte, 1024)
	n, err := conn.Read(buffer)
	return buffer[:n], err
}

// intrusions are the ways to call another tenant's runner. Those that need the real
// authority are beyond any tenant; they show that no single check stands alone.
var intrusions = map[string]func(t *testing.T, stolen []signer, real signer) []tls.Certificate{
	"without a certificate": func(*testing.T, []signer, signer) []tls.Certificate { return []tls.Certificate{{}} },
	"with each certificate of its own": func(_ *testing.T, stolen []signer, _ signer) (all []tls.Certificate) {
		for _, s := range stolen {
			all = append(all, tls.Certificate{Certificate: [][]byte{s.certificate.Raw}, PrivateKey: s.key, Leaf: s.certificate})
		}
		return all
	},
	"signed with each key of its own": func(t *testing.T, stolen []signer, _ signer) (all []tls.Certificate) {
		for _, s := range stolen {
			made, _ := issue(t, &s, managerLike(nil))
			made.Certificate = append(made.Certificate, s.certificate.Raw)
			all = append(all, made)
		}
		return all
	},
	"self-signed": func(t *testing.T, _ []signer, _ signer) []tls.Certificate {
		made, _ := issue(t, nil, managerLike(nil))
		return []tls.Certificate{made}
	},
	"of a made-up authority": func(t *testing.T, _ []signer, _ signer) []tls.Certificate {
		by := madeUp(t, nil)
		made, _ := issue(t, &by, managerLike(nil))
		made.Certificate = append(made.Certificate, by.certificate.Raw)
		return []tls.Certificate{made}
	},
	"of an authority with the real one's name": func(t *testing.T, _ []signer, real signer) []tls.Certificate {
		by := madeUp(t, real.certificate)
		made, _ := issue(t, &by, managerLike(nil))
		return []tls.Certificate{made}
	},
	"of the authority, but wrong": func(t *testing.T, _ []signer, real signer) (all []tls.Certificate) {
		for _, edit := range []func(*x509.Certificate){
			func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) },
			func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour / 2) },
			func(c *x509.Certificate) { c.URIs[0].Path = "/runner" },
			func(c *x509.Certificate) { c.URIs[0].Host = "terrace.dev.example.org" },
			func(c *x509.Certificate) { c.URIs = append(c.URIs, &url.URL{Scheme: "spiffe", Host: "other"}) },
			func(c *x509.Certificate) { c.URIs = nil },
			func(c *x509.Certificate) { c.URIs, c.DNSNames = nil, []string{pki.ManagerID} },
			func(c *x509.Certificate) { c.DNSNames = []string{"also.this"} },
			func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)} },
			func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} },
			func(c *x509.Certificate) { c.IsCA, c.KeyUsage = true, x509.KeyUsageCertSign },
		} {
			made, _ := issue(t, &real, managerLike(edit))
			all = append(all, made)
		}
		return all
	},
	"below a certificate of the authority": func(t *testing.T, _ []signer, real signer) []tls.Certificate {
		_, leaf := issue(t, &real, managerLike(nil))
		made, _ := issue(t, &leaf, managerLike(nil))
		made.Certificate = append(made.Certificate, leaf.certificate.Raw)
		return []tls.Certificate{made}
	},
}

func TestNoTenantCanCallTheRunnerOfAnother(t *testing.T) {
	t.Parallel()
	a, aPod := warm(t)
	b, bPod := warm(t)
	secret := authoritySecret(t, harness.ManagerNamespace)
	ca := parseAuthority(t, secret.Data["ca.crt"], secret.Data["ca.key"])
	renewed, err := ca.IssueServer(aPod.Name+"."+aPod.Namespace, 0)
	if err != nil {
		t.Fatal(err)
	}
	certificate, key, err := pki.MarshalLeaf(renewed)
	if err != nil {
		t.Fatal(err)
	}
	if err := asManager(t, ca, aPod).Rotate(t.Context(), certificate, key, ca.Bundle()); err != nil {
		t.Fatal(err)
	}
	stolen := pair(t, a.loot(aPod))
	if !slices.ContainsFunc(stolen, func(s signer) bool { return s.certificate.Equal(renewed.Leaf) }) || len(stolen) < 3 {
		t.Fatalf("the tenant found %d certificates with their keys, want the renewed one and that of the Secret, there and in the pod", len(stolen))
	}
	if i := slices.IndexFunc(stolen, func(s signer) bool { return s.certificate.IsCA }); i >= 0 {
		t.Fatalf("the tenant found the key of authority %s", stolen[i].certificate.Subject)
	}
	real := b.realSigner()
	for name, intrusion := range intrusions {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, own := range intrusion(t, stolen, real) {
				wantRefusal(t, target(bPod), &own, a.token(aPod))
			}
		})
	}
	t.Run("in plain text", func(t *testing.T) {
		t.Parallel()
		if answer, _ := hears(t, target(bPod), nil); len(answer) > 0 && answer[0] != 21 { // an alert of TLS
			t.Errorf("the runner answers %q", answer)
		}
		if answered, errs := answers(t, target(bPod), insecure.NewCredentials(), a.token(aPod)); len(answered) > 0 {
			t.Errorf("%q answered: %q", answered, errs)
		}
	})
	t.Run("with an older protocol, as the manager itself", func(t *testing.T) {
		t.Parallel()
		made, _ := issue(t, &real, managerLike(nil))
		old := &tls.Config{MaxVersion: tls.VersionTLS12, InsecureSkipVerify: true, Certificates: []tls.Certificate{made}, NextProtos: []string{"h2"}}
		if answer, err := hears(t, target(bPod), old); err == nil || len(answer) > 0 || !strings.Contains(err.Error(), "protocol version") {
			t.Errorf("the runner answers %q, %v", answer, err)
		}
	})
	t.Run("but the manager can, in the same way", func(t *testing.T) {
		t.Parallel()
		made, _ := issue(t, &real, managerLike(nil))
		if answer, err := hears(t, target(bPod), intruder(&made)); err != nil || len(answer) == 0 {
			t.Errorf("the runner answers %q, %v", answer, err)
		}
		if answered, errs := answers(t, target(bPod), credentials.NewTLS(intruder(&made)), ""); len(answered) != len(calls) {
			t.Errorf("%q answered: %q", answered, errs)
		}
	})
	for _, method := range runnerpb.Runner_ServiceDesc.Methods {
		if calls[method.MethodName] == nil {
			t.Errorf("nobody tried to call %s", method.MethodName)
		}
	}
	for _, stream := range runnerpb.Runner_ServiceDesc.Streams {
		if calls[stream.StreamName] == nil {
			t.Errorf("nobody tried to call %s", stream.StreamName)
		}
	}
}

// intruder presents a certificate whatever the server wants, and trusts whomever it meets.
func intruder(own *tls.Certificate) *tls.Config {
	return &tls.Config{
		InsecureSkipVerify: true, NextProtos: []string{"h2"},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own, nil },
	}
}

func wantRefusal(t *testing.T, address string, own *tls.Certificate, token string) {
	t.Helper()
	answer, err := hears(t, address, intruder(own))
	if err == nil || len(answer) > 0 || !strings.Contains(err.Error(), "remote error: tls: ") {
		t.Errorf("the runner answers %q, %v; want it to refuse the handshake", answer, err)
	}
	if answered, errs := answers(t, address, credentials.NewTLS(intruder(own)), token); len(answered) > 0 {
		t.Errorf("%q answered: %q", answered, errs)
	}
}
