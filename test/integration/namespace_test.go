package integration_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/test/harness"
)

// terminator plays the controller that empties a namespace that is being deleted.
type terminator struct {
	l         *lab
	clients   *kubernetes.Clientset
	metadata  metadata.Interface
	resources []schema.GroupVersionResource
}

// terminate deletes the namespace.
func (l *lab) terminate() *terminator {
	l.t.Helper()
	clients, err := kubernetes.NewForConfig(suite.plane.Config)
	if err != nil {
		l.t.Fatal(err)
	}
	objects, err := metadata.NewForConfig(suite.plane.Config)
	if err != nil {
		l.t.Fatal(err)
	}
	lists, err := clients.Discovery().ServerPreferredNamespacedResources()
	if err != nil {
		l.t.Fatal(err)
	}
	found, err := discovery.GroupVersionResources(discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "delete"}}, lists))
	if err != nil {
		l.t.Fatal(err)
	}
	d := &terminator{l: l, clients: clients, metadata: objects}
	for resource := range found {
		d.resources = append(d.resources, resource)
	}
	if err := clients.CoreV1().Namespaces().Delete(l.ctx, l.namespace, metav1.DeleteOptions{}); err != nil {
		l.t.Fatal(err)
	}
	return d
}

// sweep deletes what is left, pods first and nothing else before they are gone, as
// the real one does. It returns what has not gone yet.
func (d *terminator) sweep() (left []string) {
	d.l.t.Helper()
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	if left = d.clear(pods); len(left) > 0 {
		return left
	}
	for _, resource := range d.resources {
		if resource != pods {
			left = append(left, d.clear(resource)...)
		}
	}
	slices.Sort(left)
	return left
}

func (d *terminator) clear(resource schema.GroupVersionResource) (left []string) {
	d.l.t.Helper()
	of := d.metadata.Resource(resource).Namespace(d.l.namespace)
	list, err := of.List(d.l.ctx, metav1.ListOptions{})
	if err != nil {
		d.l.t.Fatal(err)
	}
	for i := range list.Items {
		found := &list.Items[i]
		if found.DeletionTimestamp == nil {
			if err := of.Delete(d.l.ctx, found.Name, metav1.DeleteOptions{}); client.IgnoreNotFound(err) != nil {
				d.l.t.Fatal(err)
			}
		}
		left = append(left, resource.Resource+"/"+found.Name)
	}
	return left
}

// finish waits until the namespace is empty and gone.
func (d *terminator) finish() {
	d.l.t.Helper()
	var left []string
	defer func() {
		if d.l.t.Failed() {
			d.l.t.Logf("left: %q", left)
		}
	}()
	d.l.eventually("the namespace to be empty", func() bool {
		left = d.sweep()
		return len(left) == 0
	})
	namespaces := d.clients.CoreV1().Namespaces()
	ns, err := namespaces.Get(d.l.ctx, d.l.namespace, metav1.GetOptions{})
	if err != nil {
		d.l.t.Fatal(err)
	}
	ns.Spec.Finalizers = nil
	if _, err := namespaces.Finalize(d.l.ctx, ns, metav1.UpdateOptions{}); err != nil {
		d.l.t.Fatal(err)
	}
	d.l.eventually("the namespace to go", func() bool {
		_, err := namespaces.Get(d.l.ctx, d.l.namespace, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// sweepUntil empties the namespace until the object is as wanted.
func (d *terminator) sweepUntil(what string, wanted func(*infrav1.Terraform) bool) {
	d.l.t.Helper()
	d.l.await(what, func(o *infrav1.Terraform) bool {
		d.sweep()
		return wanted(o)
	})
}

func TestANamespaceWhoseResourcesStayEmptiesByItself(t *testing.T) {
	t.Parallel()
	for name, suspended := range map[string]bool{"with a ready object": false, "with a suspended one": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			file := l.createFile(infrav1.DeletionOrphan)
			l.change(func(o *infrav1.Terraform) { o.Spec.Suspend = suspended })
			l.terminate().finish()
			l.wantFile(file, true)
		})
	}
}

// TestANamespaceWhoseResourcesAreToBeDestroyedIsKept follows the recipe in
// docs/spec/v1alpha1/terraform.md, Deletion, command by command.
func TestANamespaceWhoseResourcesAreToBeDestroyedIsKept(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	file := l.createFile(infrav1.DeletionDestroy)
	l.wantKept(recordSecret, stateSecret)
	d := l.terminate()
	d.sweepUntil("the reason", func(o *infrav1.Terraform) bool { return readyReason(o) == infrav1.NamespaceTerminatingReason })
	_, message := l.awaitReason(infrav1.NamespaceTerminatingReason)
	l.wantMessage(message, "1 resources could not be destroyed", "Namespace "+l.namespace+" is being deleted", "set spec.deletionPolicy to Orphan")
	l.eventually("the namespace to keep the object, its record and its state", func() bool {
		return slices.Equal(d.sweep(), []string{"secrets/" + recordSecret, "secrets/" + stateSecret, "terraforms/tf"})
	})
	l.wantFile(file, true)

	saved := l.saveState(stateSecret)
	orphanAfterAll(l)
	l.awaitGone()
	l.letGo()
	d.finish()
	l.wantFile(file, true)

	l.restore(file, saved)
	l.delete()
	l.awaitGone()
	l.wantFile(file, false)
}

// saveState is: kubectl get secret -o json | jq '{apiVersion, kind, type, data, metadata: …}'.
func (l *lab) saveState(name string) *corev1.Secret {
	l.t.Helper()
	state := &corev1.Secret{}
	if err := suite.client.Get(l.ctx, client.ObjectKey{Namespace: l.namespace, Name: name}, state); err != nil {
		l.t.Fatal(err)
	}
	return &corev1.Secret{Type: state.Type, Data: state.Data, ObjectMeta: metav1.ObjectMeta{
		Name: state.Name, Namespace: state.Namespace, Labels: state.Labels,
		Annotations: map[string]string{"encoding": state.Annotations["encoding"]},
	}}
}

// letGo is: kubectl get secrets -o name | grep … | xargs kubectl patch … {"metadata":{"finalizers":null}}.
func (l *lab) letGo() {
	l.t.Helper()
	list := &corev1.SecretList{}
	if err := suite.client.List(l.ctx, list, client.InNamespace(l.namespace)); err != nil {
		l.t.Fatal(err)
	}
	for i := range list.Items {
		if name := list.Items[i].Name; strings.HasPrefix(name, "tfstate-") || strings.HasPrefix(name, "terrace-record-") {
			patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
			if err := suite.client.Patch(l.ctx, &list.Items[i], patch); err != nil {
				l.t.Fatal(err)
			}
		}
	}
}

// restore begins again in a namespace of the same name, with the state.
func (l *lab) restore(file string, state *corev1.Secret) {
	l.t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: l.namespace}}
	if err := suite.client.Create(l.ctx, namespace); err != nil {
		l.t.Fatal(err)
	}
	_, err := harness.OpenNamespace(l.ctx, suite.client, l.namespace)
	if err := errors.Join(err, suite.client.Create(l.ctx, state)); err != nil {
		l.t.Fatal(err)
	}
	module := strings.Replace(driftingFile(file), "as declared", "secret content", 1)
	l.create(module, func(o *infrav1.Terraform) { o.Spec.DeletionPolicy = infrav1.DeletionDestroy })
	o := l.awaitReady()
	if o.Status.Applied != nil {
		l.t.Errorf("applied = %+v: the state was not taken over", o.Status.Applied)
	}
}
