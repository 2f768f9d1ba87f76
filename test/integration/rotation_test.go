package integration_test

import (
	"bytes"
	"context"
	"encoding/pem"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/authority"
	"github.com/terrace-dev/terrace/internal/pki"
	"github.com/terrace-dev/terrace/test/controlplane"
	"github.com/terrace-dev/terrace/test/harness"
)

// homes are the namespaces of managers whose authority is their own. Tests that lose,
// damage or use up an authority must not take that of the shared managers, whose
// runners other tests count the messages of.
var homes sync.Map

// newHome makes a namespace for managers, with a copy of the role that the shipped
// manager has in its own.
func newHome(t *testing.T) string {
	t.Helper()
	home := suite.plane.Namespace(t)
	homes.Store(home, true)
	role, binding := shippedRole(t), &rbacv1.RoleBinding{}
	role.Namespace, binding.Namespace, binding.Name = home, home, role.Name
	binding.RoleRef = rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name}
	binding.Subjects = []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: harness.ManagerNamespace, Name: "terrace-manager"}}
	for _, object := range []client.Object{role, binding} {
		if err := suite.client.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	clients, err := kubernetes.NewForConfig(suite.plane.Config)
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		review, err := clients.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: managerUser, ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: home, Verb: "get", Resource: "secrets", Name: authority.SecretName,
			}},
		}, metav1.CreateOptions{})
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("the manager may not work in %s: %v", home, err)
		}
		if review.Status.Allowed {
			return home
		}
	}
}

// shippedRole is the Role in config/rbac/role.yaml.
func shippedRole(t *testing.T) *rbacv1.Role {
	t.Helper()
	root, err := controlplane.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	for document := range strings.SplitSeq(read(t, filepath.Join(root, "config", "rbac", "role.yaml")), "\n---\n") {
		role := &rbacv1.Role{}
		if err := yaml.Unmarshal([]byte(strings.TrimPrefix(document, "---\n")), role); err != nil {
			t.Fatal(err)
		}
		if role.Kind == "Role" {
			return role
		}
	}
	t.Fatal("there is no Role")
	return nil
}

// house is a lab whose manager has an authority of its own, and certificates that live
// for minutes.
type house struct {
	*lab
	home string
}

func newHouse(t *testing.T) *house {
	t.Helper()
	return &house{lab: newLab(t), home: newHome(t)}
}

func (h *house) manage() *harness.Manager {
	h.t.Helper()
	return h.start(managerOptions{mode: harness.ModePod, home: h.home, args: []string{"--certificate-lifetime=2m", "--ca-lifetime=6m"}})
}

// edit changes the authority's Secret as another manager, or an accident, does.
func (h *house) edit(change func(*corev1.Secret)) {
	h.t.Helper()
	for {
		secret := authoritySecret(h.t, h.home)
		change(secret)
		err := suite.client.Update(h.ctx, secret)
		if err == nil {
			return
		}
		if !apierrors.IsConflict(err) {
			h.t.Fatal(err)
		}
	}
}

// rotate puts a new authority beside the ones that are there.
func (h *house) rotate() {
	h.t.Helper()
	h.edit(func(secret *corev1.Secret) {
		next, err := parseAuthority(h.t, secret.Data["ca.crt"], secret.Data["ca.key"]).Rotate()
		if err != nil {
			h.t.Fatal(err)
		}
		if secret.Data["ca.crt"], secret.Data["ca.key"], err = next.Marshal(); err != nil {
			h.t.Fatal(err)
		}
	})
}

// newest is the authority that stands first in the Secret, without the others.
func (h *house) newest() *pki.CA {
	h.t.Helper()
	secret := authoritySecret(h.t, h.home)
	certificate, _ := pem.Decode(secret.Data["ca.crt"])
	key, _ := pem.Decode(secret.Data["ca.key"])
	return parseAuthority(h.t, pem.EncodeToMemory(certificate), pem.EncodeToMemory(key))
}

// awaitRenewal waits until a runner trusts, and is trusted by, whoever knows nothing but
// that authority.
func (h *house) awaitRenewal(ca *pki.CA, pod *corev1.Pod) {
	h.t.Helper()
	c := asManager(h.t, ca, pod)
	h.eventually("the runner to have the new authority", func() bool {
		ctx, cancel := context.WithTimeout(h.ctx, 5*time.Second)
		defer cancel()
		_, err := c.Handshake(ctx)
		return err == nil
	})
}

// begin starts an apply that waits at the gate, and returns its pod.
func (h *house) begin(g gate) *corev1.Pod {
	h.t.Helper()
	h.create(g.gated(), nil)
	g.await(h.lab)
	return h.onlyPod()
}

// finish opens the gate and wants one apply, in one container.
func (h *house) finish(g gate) {
	h.t.Helper()
	g.open(h.lab)
	o := h.awaitReady()
	if got := harness.Results(o); len(got) != 2 || got[1] != "Apply Succeeded" || *o.Status.ResourceCount != 2 {
		h.t.Errorf("history = %q, %d resources", got, *o.Status.ResourceCount)
	}
	h.wantProcesses("init", "plan", "show", "apply")
	if started := suite.kubelet.Started(h.namespace, ""); started != 1 {
		h.t.Errorf("%d containers were started, want one", started)
	}
}

// replan has the object do something more, and returns when it did.
func (h *house) replan(word string) {
	h.t.Helper()
	h.change(func(o *infrav1.Terraform) {
		o.Spec.Inline["more.tf"] = `resource "terraform_data" "more" { input = "` + word + `" }`
	})
	h.awaitReady()
}

func TestTenRotationsDuringAnApply(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.manage()
	g := newGate(t)
	pod := h.begin(g)
	for range 10 {
		h.rotate()
		h.awaitRenewal(h.newest(), pod)
	}
	h.finish(g)
	// What a container that is restarted finds in the pod's Secret is the oldest of all.
	if err := suite.kubelet.Kill(h.namespace, pod.Name); err != nil {
		t.Fatal(err)
	}
	h.replan("after the restart")
	if again := h.onlyPod(); again.UID != pod.UID {
		t.Error("the pod was replaced")
	}
}

func TestTheAuthorityIsSafeWhileAManagerWorks(t *testing.T) {
	t.Parallel()
	for name, accident := range map[string]func(*testing.T, *house){
		"its Secret is deleted": func(t *testing.T, h *house) {
			if err := suite.client.Delete(t.Context(), authoritySecret(t, h.home)); err != nil {
				t.Fatal(err)
			}
		},
		"its Secret is emptied": func(_ *testing.T, h *house) { h.edit(func(s *corev1.Secret) { s.Data = nil }) },
		"its key is damaged": func(_ *testing.T, h *house) {
			h.edit(func(s *corev1.Secret) { s.Data["ca.key"] = s.Data["ca.key"][:len(s.Data["ca.key"])/2] })
		},
		"another authority takes its place": func(t *testing.T, h *house) {
			other, err := pki.NewCA(clock.RealClock{}, pki.Lives{})
			if err != nil {
				t.Fatal(err)
			}
			h.edit(func(s *corev1.Secret) {
				if s.Data["ca.crt"], s.Data["ca.key"], err = other.Marshal(); err != nil {
					t.Fatal(err)
				}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t)
			h.manage()
			g := newGate(t)
			pod := h.begin(g)
			before := authoritySecret(t, h.home)
			accident(t, h)
			h.eventually("the authority to be back", func() bool {
				now := &corev1.Secret{}
				err := suite.client.Get(t.Context(), client.ObjectKeyFromObject(before), now)
				return err == nil && bytes.Contains(now.Data["ca.crt"], before.Data["ca.crt"]) &&
					bytes.Contains(now.Data["ca.key"], before.Data["ca.key"]) && bytes.Equal(now.Data["names.key"], before.Data["names.key"])
			})
			h.awaitRenewal(h.newest(), pod)
			h.finish(g)
		})
	}
}

func TestARunnerThatMissedARotationIsFoundByTheNextManager(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	m := h.manage()
	g := newGate(t)
	pod := h.begin(g)
	if err := suite.kubelet.Freeze(h.namespace, pod.Name); err != nil {
		t.Fatal(err)
	}
	h.rotate()
	latest := h.newest()
	m.Kill()
	if err := suite.kubelet.Thaw(h.namespace, pod.Name); err != nil {
		t.Fatal(err)
	}
	h.manage()
	h.awaitRenewal(latest, pod)
	h.finish(g)
}

func TestAnAuthorityThatIsLostWhileNobodyWorksIsReplaced(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	m := h.manage()
	h.create(greeting, func(o *infrav1.Terraform) {
		o.Spec.Runner.IdleTimeout = &metav1.Duration{Duration: 30 * time.Second}
	})
	h.awaitReady()
	before := h.onlyPod()
	if err := m.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := suite.client.Delete(h.ctx, authoritySecret(t, h.home)); err != nil {
		t.Fatal(err)
	}
	h.manage()
	h.replan("with the new authority")
	if h.get().Status.Failures != 0 {
		t.Errorf("status = %+v, want no failure", h.get().Status)
	}
	h.awaitPodGone(before.Name)
}

func TestAPodOutlivesItsSecret(t *testing.T) {
	t.Parallel()
	l, pod := warm(t)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: pod.Name}}
	if err := suite.client.Delete(l.ctx, secret); err != nil {
		t.Fatal(err)
	}
	if err := suite.kubelet.Kill(l.namespace, pod.Name); err != nil {
		t.Fatal(err)
	}
	l.change(func(o *infrav1.Terraform) { o.Spec.Inline["more.tf"] = `resource "terraform_data" "more" {}` })
	l.awaitReady()
	if again := l.onlyPod(); again.UID != pod.UID || suite.kubelet.Started(l.namespace, pod.Name) != 2 {
		t.Errorf("the pod was replaced, or not restarted: %d containers", suite.kubelet.Started(l.namespace, ""))
	}
}

func TestANamespaceCanComeBack(t *testing.T) {
	t.Parallel()
	l, pod := warm(t)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: l.namespace}}
	if err := suite.client.Delete(l.ctx, namespace); err != nil {
		t.Fatal(err)
	}
	// What the controller of namespaces does.
	if err := suite.client.Delete(l.ctx, l.object); err != nil {
		t.Fatal(err)
	}
	l.awaitGone()
	for _, kind := range []client.Object{
		&corev1.Pod{}, &corev1.Secret{}, &corev1.ServiceAccount{}, &coordinationv1.Lease{}, &rbacv1.Role{}, &rbacv1.RoleBinding{}, &networkingv1.NetworkPolicy{},
	} {
		if err := suite.client.DeleteAllOf(l.ctx, kind, client.InNamespace(l.namespace)); err != nil {
			t.Fatal(err)
		}
	}
	l.awaitPodGone(pod.Name)
	clients, err := kubernetes.NewForConfig(suite.plane.Config)
	if err != nil {
		t.Fatal(err)
	}
	if err := suite.client.Get(l.ctx, client.ObjectKeyFromObject(namespace), namespace); err != nil {
		t.Fatal(err)
	}
	namespace.Spec.Finalizers = nil
	if _, err := clients.CoreV1().Namespaces().Finalize(l.ctx, namespace, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	l.eventually("the namespace to go", func() bool {
		return apierrors.IsNotFound(suite.client.Get(l.ctx, client.ObjectKeyFromObject(namespace), &corev1.Namespace{}))
	})
	again := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: l.namespace}}
	if err := suite.client.Create(l.ctx, again); err != nil {
		t.Fatal(err)
	}
	if _, err := harness.OpenNamespace(l.ctx, suite.client, l.namespace); err != nil {
		t.Fatal(err)
	}
	l.create(greeting, nil)
	l.awaitReady()
	if l.onlyPod().Name == pod.Name {
		t.Error("the name of the pod was used again")
	}
}
