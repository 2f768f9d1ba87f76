package authority

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/terrace-dev/terrace/internal/pki"
	"github.com/terrace-dev/terrace/test/controlplane"
)

// patience is how long a test waits for what must happen.
const patience = 60 * time.Second

// podName is the name of a runner, as a server.
const podName = "terrace-runner-a.apps"

var plane *controlplane.ControlPlane

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.New(log.NullLogSink{}))
	os.Exit(runTests(m))
}

func runTests(m *testing.M) (code int) {
	var err error
	if plane, err = controlplane.Start(controlplane.Options{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	leaks := goleak.IgnoreCurrent()
	if code = m.Run(); code != 0 {
		_ = plane.Stop()
		return code
	}
	if err := errors.Join(plane.Stop(), goleak.Find(leaks)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// world is the namespace of a manager, with the rights that a manager has, and no others.
type world struct {
	client.Client // an administrator's
	t             *testing.T
	namespace     string
	config        *rest.Config // the manager's
	clock         *clocktesting.FakeClock
}

func newWorld(t *testing.T) *world {
	t.Helper()
	c, err := client.New(plane.Config, client.Options{Scheme: clientgoscheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{Client: c, t: t, namespace: plane.Namespace(t), clock: clocktesting.NewFakeClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))}
	w.config = rest.AnonymousClientConfig(plane.Config)
	w.config.QPS = -1
	w.config.BearerToken = w.account("manager")
	w.grant("manager")
	return w
}

// account creates an account and returns a token of it.
func (w *world) account(name string) string {
	w.t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
	if err := w.Create(w.t.Context(), account); err != nil {
		w.t.Fatal(err)
	}
	request := &authenticationv1.TokenRequest{}
	if err := w.SubResource("token").Create(w.t.Context(), account, request); err != nil {
		w.t.Fatal(err)
	}
	return request.Status.Token
}

// grant gives an account what the markers of Store say.
func (w *world) grant(account string) {
	w.t.Helper()
	meta := metav1.ObjectMeta{Namespace: w.namespace, Name: account}
	for _, object := range []client.Object{
		&rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"create"}},
			{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{SecretName}, Verbs: []string{"get", "list", "watch", "update"}},
		}},
		&rbacv1.RoleBinding{
			ObjectMeta: meta,
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: account},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: w.namespace, Name: account}},
		},
	} {
		if err := w.Create(w.t.Context(), object); err != nil {
			w.t.Fatal(err)
		}
	}
	// The authorizer learns of it through a watch of its own.
	c := w.client(nil)
	w.eventually("the manager has its rights", func() bool {
		return client.IgnoreNotFound(c.Get(w.t.Context(), client.ObjectKey{Namespace: w.namespace, Name: SecretName}, &corev1.Secret{})) == nil
	})
}

// client is the manager's.
func (w *world) client(counts *requests) client.WithWatch {
	w.t.Helper()
	config := rest.CopyConfig(w.config)
	if counts != nil {
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				counts.add(r)
				return next.RoundTrip(r)
			})
		})
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: clientgoscheme.Scheme})
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip is the function itself.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// requests are those for Secrets.
type requests struct {
	mu  sync.Mutex
	all []string
}

func (q *requests) add(r *http.Request) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.all = append(q.all, r.Method+" "+r.URL.RequestURI())
}

func (q *requests) list() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return append([]string(nil), q.all...)
}

// store is the authority as a manager process knows it that was started just now.
func (w *world) store(change ...func(*Options)) *Store {
	w.t.Helper()
	options := Options{Namespace: w.namespace, Clock: w.clock}
	for _, f := range change {
		f(&options)
	}
	if options.Client == nil {
		options.Client = w.client(nil)
	}
	s, err := New(options)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// start runs a store until the end of the test, or until the function that it returns is called.
func (w *world) start(ctx context.Context, s *Store) (stop func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Start(ctx); err != nil {
			w.t.Error(err)
		}
	}()
	stop = func() {
		cancel()
		<-done
	}
	w.t.Cleanup(stop)
	return stop
}

// load has a store read or create the Secret and returns the name of the bundle.
func (w *world) load(s *Store) string {
	w.t.Helper()
	if _, err := s.current(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	return s.Generation()
}

// sync is what Start does when it looks.
func (w *world) sync(s *Store) (wrote bool) {
	w.t.Helper()
	release, err := s.lock(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	defer release()
	if wrote, err = s.sync(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	return wrote
}

// trusted is the number of authorities in a store's bundle.
func (w *world) trusted(s *Store) int {
	w.t.Helper()
	certificates, err := pki.ParseBundle(s.loaded().bundle)
	if err != nil {
		w.t.Fatal(err)
	}
	return len(certificates)
}

// secret reads the Secret; nil means that there is none.
func (w *world) secret() *corev1.Secret {
	w.t.Helper()
	secret := &corev1.Secret{}
	err := w.Get(w.t.Context(), client.ObjectKey{Namespace: w.namespace, Name: SecretName}, secret)
	if client.IgnoreNotFound(err) != nil {
		w.t.Fatal(err)
	}
	if err != nil {
		return nil
	}
	return secret
}

// change writes the Secret as an administrator.
func (w *world) change(f func(*corev1.Secret)) {
	w.t.Helper()
	secret := w.secret()
	before := secret.DeepCopy()
	f(secret)
	if err := w.Patch(w.t.Context(), secret, client.MergeFrom(before)); err != nil {
		w.t.Fatal(err)
	}
}

// eventually waits for a condition.
func (w *world) eventually(what string, is func() bool) {
	w.t.Helper()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.After(patience)
	for !is() {
		select {
		case <-ticker.C:
		case <-deadline:
			w.t.Fatalf("not in time: %s", what)
		}
	}
}

// runner serves with what a store issued, and knows of nothing that came later.
func (w *world) runner(s *Store) *tls.Config {
	w.t.Helper()
	leaf, err := s.Issue(w.t.Context(), podName)
	if err != nil {
		w.t.Fatal(err)
	}
	credentials, err := pki.ParseServer(leaf.Certificate, leaf.Key, leaf.Authorities, podName, w.clock.Now())
	if err != nil {
		w.t.Fatal(err)
	}
	credentials.Now = w.clock.Now
	return pki.ServerConfig(func() (*pki.Credentials, error) { return credentials, nil })
}

// calls has a store call a runner over loopback.
func (w *world) calls(s *Store, server *tls.Config) error {
	w.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	defer listener.Close()
	ended := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			err = exchange(tls.Server(conn, server))
		}
		ended <- err
	}()
	config, err := s.ClientConfig(podName)()
	if err != nil {
		listener.Close()
		<-ended
		return err
	}
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		w.t.Fatal(err)
	}
	err = exchange(tls.Client(conn, config))
	if served := <-ended; err == nil {
		err = served
	}
	return err
}

// exchange has one byte go each way.
func exchange(conn *tls.Conn) error {
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte{1}); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, make([]byte, 1))
	return err
}
