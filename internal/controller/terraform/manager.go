package terraform

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	ctrlreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/operation"
)

// SetupOptions configure how the controller runs.
type SetupOptions struct {
	// Concurrent is how many objects are reconciled at the same time.
	Concurrent int
	// RateLimiter paces repetitions after bugs; nil means controller-runtime's.
	RateLimiter workqueue.TypedRateLimiter[ctrlreconcile.Request]
	// SkipNameValidation allows several controllers of this kind in one process, as tests need.
	SkipNameValidation bool
}

// Fields that objects are found by.
const (
	sourceIndex     = ".spec.sourceRef"
	dependencyIndex = ".spec.dependsOn"
)

// SetupWithManager starts the controller with the manager. The context is the
// process's: when it ends, operations are not followed any more.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, options SetupOptions) error {
	if r.Runners == nil || r.Recorder == nil || r.APIReader == nil || r.Fetcher == nil {
		return errors.New("the Terraform controller needs Runners, Recorder, APIReader and Fetcher")
	}
	r.tracker = operation.New[attempt](ctx, r.Times)
	if err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		<-ctx.Done()
		r.tracker.Wait()
		return nil
	})); err != nil {
		return err
	}
	indexer := mgr.GetFieldIndexer()
	if err := indexer.IndexField(ctx, &infrav1.Terraform{}, sourceIndex, indexBySource); err != nil {
		return fmt.Errorf("indexing by source: %w", err)
	}
	if err := indexer.IndexField(ctx, &infrav1.Terraform{}, dependencyIndex, indexByDependency); err != nil {
		return fmt.Errorf("indexing by dependency: %w", err)
	}
	built, err := ctrl.NewControllerManagedBy(mgr).
		For(&infrav1.Terraform{}, builder.WithPredicates(r.ownChanges())).
		Watches(&infrav1.Terraform{}, handler.EnqueueRequestsFromMapFunc(r.dependents), builder.WithPredicates(becameReady())).
		WatchesRawSource(ctrlsource.Channel(r.tracker.Events(), &handler.EnqueueRequestForObject{})).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: options.Concurrent,
			RateLimiter:             options.RateLimiter,
			SkipNameValidation:      &options.SkipNameValidation,
		}).
		Build(r)
	if err != nil {
		return err
	}
	return r.watchSources(ctx, mgr, built)
}

// watchSources watches the kinds of sources that are installed. Others are watched
// as soon as an object refers to them and they are there.
func (r *Reconciler) watchSources(ctx context.Context, mgr ctrl.Manager, built controller.Controller) error {
	r.sources.mapper = mgr.GetRESTMapper()
	r.sources.start = func(kind string) error {
		return built.Watch(ctrlsource.Kind[client.Object](mgr.GetCache(), sourceKinds[kind](),
			handler.EnqueueRequestsFromMapFunc(r.usersOf(kind)), artifactChanged()))
	}
	for kind := range sourceKinds {
		err := r.sources.installed(kind)
		if apimeta.IsNoMatchError(err) {
			log.FromContext(ctx).Info("objects cannot use this kind of source before it is installed", "kind", kind)
			continue
		}
		if err != nil {
			return fmt.Errorf("looking for the kind %s: %w", kind, err)
		}
		if err := r.sources.watch(kind); err != nil {
			return fmt.Errorf("watching the kind %s: %w", kind, err)
		}
	}
	return nil
}

// sourceWatches knows which kinds of sources are watched.
type sourceWatches struct {
	mapper apimeta.RESTMapper
	start  func(kind string) error

	mu      sync.Mutex
	watched map[string]bool
}

// installed returns a NoMatch error if the kind is not installed.
func (w *sourceWatches) installed(kind string) error {
	w.mu.Lock()
	known := w.watched[kind]
	w.mu.Unlock()
	if known {
		return nil
	}
	_, err := w.mapper.RESTMapping(sourcev1.GroupVersion.WithKind(kind).GroupKind(), sourcev1.GroupVersion.Version)
	return err
}

// watch starts watching a kind, once.
func (w *sourceWatches) watch(kind string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.watched[kind] {
		return nil
	}
	if err := w.start(kind); err != nil {
		return err
	}
	if w.watched == nil {
		w.watched = map[string]bool{}
	}
	w.watched[kind] = true
	return nil
}

func indexBySource(object client.Object) []string {
	obj, ok := object.(*infrav1.Terraform)
	if !ok || obj.Spec.SourceRef == nil {
		return nil
	}
	return []string{sourceKey(obj.Spec.SourceRef.Kind, obj.GetSourceNamespace(), obj.Spec.SourceRef.Name)}
}

func sourceKey(kind, namespace, name string) string { return kind + "/" + namespace + "/" + name }

func indexByDependency(object client.Object) []string {
	obj, ok := object.(*infrav1.Terraform)
	if !ok {
		return nil
	}
	var keys []string
	for _, dep := range obj.GetDependsOn() {
		namespace := dep.Namespace
		if namespace == "" {
			namespace = obj.Namespace
		}
		keys = append(keys, namespace+"/"+dep.Name)
	}
	return keys
}

// usersOf maps a source to the objects that work with it.
func (r *Reconciler) usersOf(kind string) handler.MapFunc {
	return func(ctx context.Context, object client.Object) []ctrlreconcile.Request {
		return r.requestsFor(ctx, sourceIndex, sourceKey(kind, object.GetNamespace(), object.GetName()))
	}
}

// dependents maps an object to those that depend on it.
func (r *Reconciler) dependents(ctx context.Context, object client.Object) []ctrlreconcile.Request {
	return r.requestsFor(ctx, dependencyIndex, object.GetNamespace()+"/"+object.GetName())
}

func (r *Reconciler) requestsFor(ctx context.Context, index, key string) []ctrlreconcile.Request {
	var list infrav1.TerraformList
	if err := r.List(ctx, &list, client.MatchingFields{index: key}); err != nil {
		log.FromContext(ctx).Error(err, "objects that may have to be reconciled could not be listed", "index", index, "key", key)
		return nil
	}
	requests := make([]ctrlreconcile.Request, 0, len(list.Items))
	for i := range list.Items {
		requests = append(requests, ctrlreconcile.Request{NamespacedName: types.NamespacedName{
			Namespace: list.Items[i].Namespace, Name: list.Items[i].Name,
		}})
	}
	return requests
}

// requestAnnotations are those whose change is a request.
var requestAnnotations = []string{
	meta.ReconcileRequestAnnotation,
	meta.ForceRequestAnnotation,
	infrav1.ResetRequestAnnotation,
	infrav1.ApproveAnnotation,
}

// ownChanges lets through what people do to objects, and not what the controller
// writes itself. What is known of objects that are gone is dropped.
func (r *Reconciler) ownChanges() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			if e.ObjectOld == nil || e.ObjectNew == nil {
				return false
			}
			if e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() ||
				e.ObjectOld.GetDeletionTimestamp().IsZero() != e.ObjectNew.GetDeletionTimestamp().IsZero() {
				return true
			}
			for _, annotation := range requestAnnotations {
				if e.ObjectOld.GetAnnotations()[annotation] != e.ObjectNew.GetAnnotations()[annotation] {
					return true
				}
			}
			return false
		},
		DeleteFunc: func(e event.DeleteEvent) bool {
			r.drop(e.Object.GetUID())
			return false
		},
	}
}

// becameReady lets through objects that others may have waited for.
func becameReady() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(conditions.Getter)
			if !ok {
				return false
			}
			after, ok := e.ObjectNew.(conditions.Getter)
			return ok && conditions.IsTrue(after, meta.ReadyCondition) && !conditions.IsTrue(before, meta.ReadyCondition)
		},
	}
}

// artifactChanged lets through sources with an artifact that is not the one before.
func artifactChanged() predicate.Predicate {
	artifactOf := func(object client.Object) *meta.Artifact {
		if found, ok := object.(source); ok {
			return found.GetArtifact()
		}
		return nil
	}
	return predicate.Funcs{
		CreateFunc:  func(e event.CreateEvent) bool { return artifactOf(e.Object) != nil },
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, after := artifactOf(e.ObjectOld), artifactOf(e.ObjectNew)
			return after != nil && (before == nil || before.Digest != after.Digest || before.Revision != after.Revision)
		},
	}
}
