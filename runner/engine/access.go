package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apilabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
)

// metadataOnly asks the API server for the metadata of what it returns, and nothing else.
const metadataOnly = "application/json;as=%s;g=meta.k8s.io;v=v1,application/json"

// codecs know the kinds that the engine works with.
var codecs = serializer.NewCodecFactory(newScheme())

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for group, kinds := range map[schema.GroupVersion][]runtime.Object{
		corev1.SchemeGroupVersion:         {&corev1.Secret{}, &corev1.SecretList{}, &corev1.ConfigMap{}},
		coordinationv1.SchemeGroupVersion: {&coordinationv1.Lease{}},
		infrav1.GroupVersion:              {&infrav1.Terraform{}},
	} {
		scheme.AddKnownTypes(group, kinds...)
		metav1.AddToGroupVersion(scheme, group)
	}
	utilruntime.Must(metav1.AddMetaToScheme(scheme))
	return scheme
}

// object is one of the kinds that the engine works with, or the metadata of a Secret.
type object interface {
	metav1.Object
	runtime.Object
}

// access reads and writes them. A client for any kind would link all of Kubernetes'
// kinds, which takes more than a third of the memory of an idle runner.
type access struct{ core, coordination, own rest.Interface }

func newAccess(config *rest.Config) (*access, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1 // an operation has few requests
	config.NegotiatedSerializer = codecs.WithoutConversion()
	if config.UserAgent == "" {
		config.UserAgent = rest.DefaultKubernetesUserAgent()
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	a := &access{}
	for group, c := range map[schema.GroupVersion]*rest.Interface{
		corev1.SchemeGroupVersion: &a.core, coordinationv1.SchemeGroupVersion: &a.coordination, infrav1.GroupVersion: &a.own,
	} {
		config.GroupVersion, config.APIPath = &group, "/apis"
		if group.Group == "" {
			config.APIPath = "/api"
		}
		if *c, err = rest.RESTClientForConfigAndClient(config, client); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// resource returns the client for a kind, the resource, and what to accept.
func (a *access) resource(o runtime.Object) (c rest.Interface, resource, accept string) {
	switch o.(type) {
	case *corev1.Secret, *corev1.SecretList:
		return a.core, "secrets", runtime.ContentTypeJSON
	case *metav1.PartialObjectMetadata:
		return a.core, "secrets", fmt.Sprintf(metadataOnly, "PartialObjectMetadata")
	case *metav1.PartialObjectMetadataList:
		return a.core, "secrets", fmt.Sprintf(metadataOnly, "PartialObjectMetadataList")
	case *corev1.ConfigMap:
		return a.core, "configmaps", runtime.ContentTypeJSON
	case *coordinationv1.Lease:
		return a.coordination, "leases", runtime.ContentTypeJSON
	default:
		return a.own, "terraforms", runtime.ContentTypeJSON
	}
}

func (a *access) do(ctx context.Context, verb string, o object, change func(*rest.Request) *rest.Request) error {
	c, resource, accept := a.resource(o)
	request := c.Verb(verb).Namespace(o.GetNamespace()).Resource(resource).SetHeader("Accept", accept)
	return change(request).Do(ctx).Into(o)
}

// Get reads an object into o.
func (a *access) Get(ctx context.Context, key types.NamespacedName, o object) error {
	o.SetNamespace(key.Namespace)
	return a.do(ctx, "GET", o, func(r *rest.Request) *rest.Request { return r.Name(key.Name) })
}

// Create creates o and fills in what the API server made of it.
func (a *access) Create(ctx context.Context, o object) error {
	return a.do(ctx, "POST", o, func(r *rest.Request) *rest.Request { return r.Body(o) })
}

// Update replaces the object, if nobody changed it since o was read.
func (a *access) Update(ctx context.Context, o object) error {
	return a.do(ctx, "PUT", o, func(r *rest.Request) *rest.Request { return r.Name(o.GetName()).Body(o) })
}

// Annotate writes o's finalizers and these annotations (nil removes one), if nobody
// changed the object since o was read.
func (a *access) Annotate(ctx context.Context, o object, annotations map[string]any) error {
	metadata := map[string]any{"resourceVersion": o.GetResourceVersion(), "finalizers": o.GetFinalizers()}
	if annotations != nil {
		metadata["annotations"] = annotations
	}
	return a.Patch(ctx, o, map[string]any{"metadata": metadata})
}

// Patch merges a change into the object.
func (a *access) Patch(ctx context.Context, o object, change map[string]any) error {
	text, err := json.Marshal(change)
	if err != nil {
		return err
	}
	return a.do(ctx, "PATCH", o, func(r *rest.Request) *rest.Request {
		return r.Name(o.GetName()).SetHeader("Content-Type", string(types.MergePatchType)).Body(text)
	})
}

// Delete deletes the object, if it is there; uid is that of the only one that may
// be deleted, "" any of the name.
func (a *access) Delete(ctx context.Context, o object, uid types.UID) error {
	options := &metav1.DeleteOptions{}
	if uid != "" {
		options.Preconditions = metav1.NewUIDPreconditions(string(uid))
	}
	c, resource, _ := a.resource(o)
	return ignoreNotFound(c.Delete().Namespace(o.GetNamespace()).Resource(resource).Name(o.GetName()).Body(options).Do(ctx).Error())
}

// List reads the Secrets of a namespace with these labels into a list.
func (a *access) List(ctx context.Context, list runtime.Object, namespace string, selector apilabels.Set) error {
	c, resource, accept := a.resource(list)
	return c.Get().Namespace(namespace).Resource(resource).SetHeader("Accept", accept).Param("labelSelector", selector.String()).Do(ctx).Into(list)
}

func keyOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// addFinalizer says whether the object did not have ours.
func addFinalizer(o metav1.Object) bool {
	if hasFinalizer(o) {
		return false
	}
	o.SetFinalizers(append(o.GetFinalizers(), infrav1.StateFinalizer))
	return true
}

// dropFinalizer says whether the object had ours; what others hold on to is theirs.
func dropFinalizer(o metav1.Object) bool {
	had := hasFinalizer(o)
	o.SetFinalizers(slices.DeleteFunc(o.GetFinalizers(), func(name string) bool { return name == infrav1.StateFinalizer }))
	return had
}

func hasFinalizer(o metav1.Object) bool {
	return slices.Contains(o.GetFinalizers(), infrav1.StateFinalizer)
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
