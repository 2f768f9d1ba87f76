package terraform

import (
	"context"
	"errors"
	"fmt"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/artifact"
	"github.com/terrace-dev/terrace/internal/operation"
	"github.com/terrace-dev/terrace/internal/reconcile"
	"github.com/terrace-dev/terrace/runner"
)

// source is a Flux source.
type source interface {
	client.Object
	GetArtifact() *meta.Artifact
}

// sourceKinds are the kinds that spec.sourceRef may name.
var sourceKinds = map[string]func() source{
	sourcev1.GitRepositoryKind:    func() source { return &sourcev1.GitRepository{} },
	sourcev1.OCIRepositoryKind:    func() source { return &sourcev1.OCIRepository{} },
	sourcev1.BucketKind:           func() source { return &sourcev1.Bucket{} },
	sourcev1.ExternalArtifactKind: func() source { return &sourcev1.ExternalArtifact{} },
}

// resolveSource finds the artifact to work on. Inline modules need none.
func (r *Reconciler) resolveSource(ctx context.Context, s *scope) (reconcile.Result, error) {
	ref := s.obj.Spec.SourceRef
	if ref == nil {
		return reconcile.Continue(), nil
	}
	if err := r.allowed(s.obj, s.obj.GetSourceNamespace(), "spec.sourceRef"); err != nil {
		return reconcile.Result{}, err
	}
	found, err := r.getSource(ctx, *ref, s.obj.GetSourceNamespace())
	if err != nil {
		return reconcile.Result{}, err
	}
	s.artifact = found.GetArtifact()
	if s.artifact == nil {
		return reconcile.Result{}, reconcile.Waitingf(r.RequeueDependency, infrav1.SourceNotReadyReason,
			"%s has no artifact yet; the object goes on as soon as it has one", ref)
	}
	return reconcile.Continue(), nil
}

func (r *Reconciler) getSource(ctx context.Context, ref infrav1.SourceReference, namespace string) (source, error) {
	newSource, ok := sourceKinds[ref.Kind]
	if !ok {
		return nil, reconcile.Terminalf(infrav1.InvalidSpecReason, "spec.sourceRef.kind %s is none of GitRepository, OCIRepository, Bucket, ExternalArtifact", ref.Kind)
	}
	found := newSource()
	if err := r.sources.installed(ref.Kind); apimeta.IsNoMatchError(err) {
		return nil, reconcile.Waitingf(r.RequeueDependency, infrav1.SourceNotFoundReason,
			"%s: the kind %s is not installed in this cluster; install Flux's source-controller, or use spec.inline", ref, ref.Kind)
	} else if err != nil {
		return nil, fmt.Errorf("looking for the kind %s: %w", ref.Kind, err)
	}
	if err := r.sources.watch(ref.Kind); err != nil {
		return nil, fmt.Errorf("watching the kind %s: %w", ref.Kind, err)
	}
	err := r.Get(ctx, types.NamespacedName{Namespace: namespace, Name: ref.Name}, found)
	if apierrors.IsNotFound(err) {
		return nil, reconcile.Waitingf(r.RequeueDependency, infrav1.SourceNotFoundReason,
			"%s does not exist in namespace %s; the object goes on as soon as it does", ref, namespace)
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", ref, err)
	}
	return found, nil
}

// sourceChanged says whether the artifact is another one than that of the latest attempt.
func sourceChanged(obj *infrav1.Terraform, found *meta.Artifact) bool {
	if found == nil {
		return false
	}
	last := obj.Status.Source
	return last == nil || last.Digest != found.Digest || last.Revision != found.Revision
}

// originRevisionKey is the annotation in which OCI artifacts name the Git revision they were made from.
const originRevisionKey = "org.opencontainers.image.revision"

func sourceStatus(found *meta.Artifact) *infrav1.SourceStatus {
	if found == nil {
		return nil
	}
	return &infrav1.SourceStatus{
		Revision:       found.Revision,
		OriginRevision: found.Metadata[originRevisionKey],
		Digest:         found.Digest,
	}
}

// sourceFunc brings the artifact to the runner that asks for it.
func (r *Reconciler) sourceFunc(found *meta.Artifact) operation.SourceFunc {
	if found == nil {
		return nil
	}
	return func(ctx context.Context, to operation.Runner) error {
		_, err := artifact.Send(ctx, r.Fetcher, to, found.URL, found.Digest)
		return err
	}
}

// sourceFailure maps what can go wrong between source-controller and the runner.
func (r *Reconciler) sourceFailure(err error) error {
	switch {
	case errors.Is(err, artifact.ErrNotFound):
		return reconcile.Waitingf(r.RequeueDependency, meta.ArtifactFailedReason,
			"The artifact is gone, usually because a newer one replaced it; waiting for the source: %v", err)
	case errors.Is(err, artifact.ErrTooLarge), errors.Is(err, runner.ErrTooLarge):
		return reconcile.Terminalf(meta.ArtifactFailedReason,
			"The artifact is too large: %v; leave out what the module does not need, for example with spec.ignore of the source", err)
	case errors.Is(err, artifact.ErrInvalidDigest):
		return reconcile.Terminalf(meta.ArtifactFailedReason, "The artifact's digest cannot be checked: %v", err)
	case errors.Is(err, runner.ErrInvalid):
		return reconcile.Terminalf(meta.ArtifactFailedReason, "The runner refuses the artifact: %v; a new revision of the source is tried at once", err)
	default:
		return reconcile.Retry(meta.ArtifactFailedReason, fmt.Errorf("the artifact could not be brought to the runner: %w", err))
	}
}
