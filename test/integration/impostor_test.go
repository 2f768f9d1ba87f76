package integration_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/pki"
	"github.com/terrace-dev/terrace/runner"
	"github.com/terrace-dev/terrace/test/harness"
)

// impostor listens where the manager expects a runner.
type impostor struct {
	ip    string
	met   atomic.Int32 // connections
	mu    sync.Mutex
	heard []byte // that were said to it as to a runner
}

var impostors atomic.Int32

// newImpostor listens with a certificate; without one, in plain text.
func newImpostor(t *testing.T, own *tls.Certificate) *impostor {
	t.Helper()
	i := &impostor{ip: fmt.Sprintf("127.66.%d.%d", time.Now().UnixNano()>>10&0xff, impostors.Add(1))}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort(i.ip, strconv.Itoa(runner.Port)))
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			i.met.Add(1)
			serving.Go(func() { i.serve(conn, own) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		serving.Wait()
	})
	return i
}

func (i *impostor) serve(conn net.Conn, own *tls.Certificate) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if own != nil {
		conn = tls.Server(conn, &tls.Config{
			Certificates: []tls.Certificate{*own}, ClientAuth: tls.RequestClientCert, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12,
		})
	} else if _, err := conn.Write([]byte("\x00\x00\x00\x04\x00\x00\x00\x00\x00")); err != nil { // as a server without TLS greets
		return
	}
	said, _ := io.ReadAll(io.LimitReader(conn, 1<<10))
	if own == nil && (len(said) == 0 || said[0] == 22) { // a handshake, which is nothing yet
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.heard = append(i.heard, said...)
}

// pretend sets the address in a pod's status, as whoever may change that can.
func (l *lab) pretend(pod *corev1.Pod, ip string) {
	l.t.Helper()
	patch := fmt.Sprintf(`{"status":{"podIP":%q,"podIPs":[{"ip":%q}]}}`, ip, ip)
	object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
	if err := suite.client.Status().Patch(l.ctx, object, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
		l.t.Fatal(err)
	}
}

func serverLike(name string) func(*x509.Certificate) {
	return func(c *x509.Certificate) {
		c.URIs, c.DNSNames, c.ExtKeyUsage = nil, []string{name}, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
}

func TestTheManagerTellsNothingToAnImpostor(t *testing.T) {
	t.Parallel()
	for name, certificate := range map[string]func(t *testing.T, real signer, name string) *tls.Certificate{
		"in plain text": func(*testing.T, signer, string) *tls.Certificate { return nil },
		"with the leaf of another pod of the tenant": func(t *testing.T, real signer, name string) *tls.Certificate {
			made, _ := issue(t, &real, managerLike(serverLike("x"+name)))
			return &made
		},
		"with the leaf of another tenant's pod": func(t *testing.T, real signer, name string) *tls.Certificate {
			made, _ := issue(t, &real, managerLike(serverLike(name+"-2")))
			return &made
		},
		"with the right name of a made-up authority": func(t *testing.T, _ signer, name string) *tls.Certificate {
			by := madeUp(t, nil)
			made, _ := issue(t, &by, managerLike(serverLike(name)))
			made.Certificate = append(made.Certificate, by.certificate.Raw)
			return &made
		},
		"with the pod's own leaf that expired": func(t *testing.T, real signer, name string) *tls.Certificate {
			made, _ := issue(t, &real, managerLike(func(c *x509.Certificate) {
				serverLike(name)(c)
				c.NotAfter = time.Now().Add(-time.Second)
			}))
			return &made
		},
		"with a leaf that is not for serving": func(t *testing.T, real signer, name string) *tls.Certificate {
			made, _ := issue(t, &real, managerLike(func(c *x509.Certificate) { c.DNSNames = []string{name} }))
			return &made
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, pod := warm(t)
			fake := newImpostor(t, certificate(t, l.realSigner(), pod.Name+"."+pod.Namespace))
			l.pretend(pod, fake.ip)
			l.change(func(o *infrav1.Terraform) { o.Spec.Inline["more.tf"] = `resource "terraform_data" "more" {}` })
			l.eventually("the manager to meet the impostor", func() bool { return fake.met.Load() > 1 })
			l.pretend(pod, pod.Status.PodIP)
			l.awaitReady()
			fake.mu.Lock()
			defer fake.mu.Unlock()
			if len(fake.heard) > 0 {
				t.Errorf("the manager told the impostor %q", fake.heard)
			}
		})
	}
}

// take puts a Secret of the tenant's own in the place of the one that the manager made for a pod.
func (l *lab) take(pod string, data map[string][]byte) {
	l.t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: pod}}
	l.eventually("the Secret to be the tenant's", func() bool {
		_ = suite.client.Delete(l.ctx, secret.DeepCopy()) // the manager may write it again
		own := secret.DeepCopy()
		own.Data = data
		return suite.client.Create(l.ctx, own) == nil
	})
}

// ownCredentials make a runner that trusts the tenant, and not the manager.
func ownCredentials(t *testing.T, name string) map[string][]byte {
	t.Helper()
	by := madeUp(t, nil)
	made, _ := issue(t, &by, managerLike(serverLike(name)))
	certificate, key, err := pki.MarshalLeaf(made)
	if err != nil {
		t.Fatal(err)
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: by.certificate.Raw})
	return map[string][]byte{"tls.crt": certificate, "tls.key": key, "ca.crt": ca}
}

func TestATenantThatTakesTheSecretOfItsPodHarmsItselfOnly(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		data         func(t *testing.T, name string) map[string][]byte
		reason, want string
	}{
		"with an authority of its own": {data: ownCredentials, reason: infrav1.RunnerUnreachableReason, want: "does not have the certificate"},
		"with rubbish": {
			data:   func(*testing.T, string) map[string][]byte { return map[string][]byte{"tls.crt": []byte("rubbish")} },
			reason: infrav1.RunnerFailedReason, want: "no valid credentials",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			l.own("--runner-start-timeout=20s")
			other := newLab(t)
			other.manager = l.manager                                   // one manager for both tenants
			release := suite.kubelet.Unschedulable(l.namespace, "wait") // before its Secret is mounted
			l.create(greeting, nil)
			pod := l.pod()
			l.take(pod, test.data(t, pod+"."+l.namespace))
			release()
			_, message := l.awaitReason(test.reason)
			l.wantMessage(message, pod, test.want)
			other.create(greeting, nil)
			other.awaitReady()
			l.awaitReady() // the tenant has stopped
			l.awaitPodGone(pod)
		})
	}
}

func TestPodsThatTheManagerDidNotMakeGetNothing(t *testing.T) {
	t.Parallel()
	l, pod := warm(t)
	_, other := warm(t)
	forged := map[string]bool{"terrace-runner-aaaaaaaaaa-bbbbbbbbbb": true, other.Name: true, "mine": true}
	for name := range forged {
		fake := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: name, Labels: pod.Labels, Annotations: pod.Annotations}, Spec: *pod.Spec.DeepCopy()}
		fake.Spec.NodeName = ""
		for i := range fake.Spec.Volumes {
			if secret := fake.Spec.Volumes[i].Secret; secret != nil {
				secret.SecretName = name
			}
		}
		if name != "mine" { // it waits for the manager to give it a certificate
			l.make(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: ownCredentials(t, name+"."+l.namespace)})
		}
		if err := suite.client.Create(l.ctx, fake); err != nil {
			t.Fatal(err)
		}
	}
	l.eventually("the forged runners to run", func() bool {
		running := 0
		for _, p := range l.pods() {
			if forged[p.Name] && p.Status.Phase == corev1.PodRunning {
				running++
			}
		}
		return running == len(forged)-1
	})
	l.change(func(o *infrav1.Terraform) { o.Spec.Inline["more.tf"] = `resource "terraform_data" "more" {}` })
	l.await("the object to be ready", func(o *infrav1.Terraform) bool {
		if o.Status.Operation != nil && o.Status.Operation.Runner != pod.Name {
			t.Errorf("an operation was given to pod %s", o.Status.Operation.Runner)
		}
		return harness.IsReady(o)
	})
	// The real one goes: still no forged one takes its place.
	l.deletePod(pod.Name)
	l.awaitPodGone(pod.Name)
	l.change(func(o *infrav1.Terraform) { o.Spec.Inline["more.tf"] = `resource "terraform_data" "other" {}` })
	l.await("the object to be ready", func(o *infrav1.Terraform) bool {
		if o.Status.Operation != nil && forged[o.Status.Operation.Runner] {
			t.Errorf("an operation was given to pod %s", o.Status.Operation.Runner)
		}
		return harness.IsReady(o)
	})
	if err := suite.client.Get(l.ctx, client.ObjectKey{Namespace: l.namespace, Name: "mine"}, &corev1.Secret{}); err == nil {
		t.Error("a pod that the tenant made was given a certificate")
	}
}

func TestATenantThatChangesItsPodDuringAnApply(t *testing.T) {
	t.Parallel()
	_, victim := warm(t)
	for name, test := range map[string]struct {
		harm func(l *lab, pod *corev1.Pod)
		undo func(l *lab, pod *corev1.Pod)
	}{
		"takes its labels off": {harm: func(l *lab, pod *corev1.Pod) {
			bare := pod.DeepCopy()
			bare.Labels = nil
			if err := suite.client.Patch(l.ctx, bare, client.MergeFrom(pod)); err != nil {
				l.t.Fatal(err)
			}
		}},
		"gives it to another manager": {harm: func(l *lab, pod *corev1.Pod) {
			moved := pod.DeepCopy()
			moved.Labels[infrav1.GroupName+"/manager"] = "nobody"
			if err := suite.client.Patch(l.ctx, moved, client.MergeFrom(pod)); err != nil {
				l.t.Fatal(err)
			}
		}},
		"says that it lives where another tenant's does": {
			harm: func(l *lab, pod *corev1.Pod) { l.pretend(pod, victim.Status.PodIP) },
			undo: func(l *lab, pod *corev1.Pod) { l.pretend(pod, pod.Status.PodIP) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, g := newLab(t), newGate(t)
			l.create(g.gated(), nil)
			g.await(l)
			pod := l.onlyPod()
			test.harm(l, pod)
			l.missed(pod)
			if test.undo != nil {
				test.undo(l, pod)
			}
			g.open(l)
			o := l.awaitReady()
			if o.Status.Plan == nil || o.Status.Plan.ID != "" || l.lockHolder() != "" {
				t.Errorf("the pending plan is %+v, and the lock is held by %q", o.Status.Plan, l.lockHolder())
			}
			if got := l.processes(); count(got, "apply") != 1 || count(got, "force-unlock") != 0 {
				t.Errorf("tool processes = %q, want one apply", got)
			}
			secret := authoritySecret(t, harness.ManagerNamespace)
			said, err := asManager(t, parseAuthority(t, secret.Data["ca.crt"], secret.Data["ca.key"]), victim).Handshake(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			for _, op := range said.GetOperations() {
				if op.GetObject().GetNamespace() != victim.Namespace {
					t.Errorf("the other tenant's runner got %v", op)
				}
			}
		})
	}
}

// missed waits until the manager has lost the pod of an operation, in one way or another.
func (l *lab) missed(pod *corev1.Pod) {
	l.t.Helper()
	l.await("the runner to be missed", func(o *infrav1.Terraform) bool {
		return o.Status.Operation == nil || o.Status.Operation.Runner != pod.Name || strings.Contains(o.Status.Operation.Message, pod.Name)
	})
}
