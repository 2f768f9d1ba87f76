package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
)

// ownerAnnotation names the Terraform object whose state a Secret of the
// kubernetes backend holds. A Secret without it may be adopted.
const ownerAnnotation = infrav1.GroupName + "/owner"

// guards says whether record and state have to outlast a deletion by mistake.
func (op *operation) guards() bool { return op.object.GetDeletionPolicy() == infrav1.DeletionDestroy }

// guardState makes the Secret of the kubernetes backend this object's own before
// the tool works with it, and gives it and the record a finalizer while the
// deletion policy is Destroy. The Secret is read for that policy, whose warnings
// it is for, and whenever it might bear what it should not.
func (op *operation) guardState(ctx context.Context) error {
	r, guarded := op.record, op.guards()
	if op.object.UsesKubernetesBackend() && (guarded || r.Guarded || r.head == nil || !op.workspace.initialised()) {
		var err error
		if guarded, err = op.markState(ctx, guarded); err != nil {
			return err
		}
	}
	if r.head != nil && !r.head.DeletionTimestamp.IsZero() && ownedBy(r.head, op.object.UID) {
		op.warnGoing(r.head, "what the runner remembers of the object")
	}
	if r.Guarded == guarded {
		return nil
	}
	r.Guarded = guarded
	if r.head == nil {
		return nil // the first apply writes it
	}
	return op.saveRecord(ctx)
}

// markState looks at the state's Secret, makes it where there is none, and says
// whether it bears the finalizer.
func (op *operation) markState(ctx context.Context, guarded bool) (bool, error) {
	secret := secretMeta(op.object.Namespace, op.stateSecret())
	err := op.client.Get(ctx, keyOf(secret), secret)
	if apierrors.IsNotFound(err) {
		return guarded, op.createState(ctx, guarded)
	}
	if err != nil {
		return false, err
	}
	owner, err := op.otherOwner(ctx, secret)
	if err != nil {
		return false, err
	}
	if owner != "" {
		return false, terminal(infrav1.BackendInvalidReason, "Secret %s/%s holds the state of the Terraform object %q already; set spec.backend.kubernetes.secretSuffix or spec.workspace to others, or, if the state is to be this object's, remove the annotation %s from the Secret", secret.Namespace, secret.Name, owner, ownerAnnotation)
	}
	if !secret.DeletionTimestamp.IsZero() {
		op.warnGoing(secret, "the state")
		return hasFinalizer(secret), nil
	}
	changed := secret.Annotations[ownerAnnotation] != op.object.Name
	metav1.SetMetaDataAnnotation(&secret.ObjectMeta, ownerAnnotation, op.object.Name)
	if guarded {
		changed = addFinalizer(secret) || changed
	} else {
		changed = dropFinalizer(secret) || changed
	}
	if changed {
		err = op.client.Annotate(ctx, secret, map[string]any{ownerAnnotation: op.object.Name})
	}
	return guarded, err
}

// createState makes the Secret as the tools would, but for the state: they begin
// that in a Secret they find, and save making it.
func (op *operation) createState(ctx context.Context, guarded bool) error {
	labels := map[string]string{
		"tfstate": "true", "tfstateSecretSuffix": op.object.GetSecretSuffix(), "tfstateWorkspace": op.object.GetWorkspace(),
		"app.kubernetes.io/managed-by": "terraform",
	}
	if backend := op.object.Spec.Backend; backend != nil && backend.Kubernetes != nil {
		maps.Copy(labels, backend.Kubernetes.Labels)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: op.object.Namespace, Name: op.stateSecret(), Labels: labels,
		Annotations: map[string]string{"encoding": "gzip", ownerAnnotation: op.object.Name},
	}}
	if guarded {
		secret.Finalizers = []string{infrav1.StateFinalizer}
	}
	return op.client.Create(ctx, secret)
}

// otherOwner is the name of another object that keeps its state in the Secret; ""
// when none does. One that is gone, or that moved its state elsewhere, does not count.
func (op *operation) otherOwner(ctx context.Context, secret object) (string, error) {
	name := secret.GetAnnotations()[ownerAnnotation]
	if name == "" || name == op.object.Name {
		return "", nil
	}
	other := &infrav1.Terraform{}
	err := op.client.Get(ctx, types.NamespacedName{Namespace: op.object.Namespace, Name: name}, other)
	if apierrors.IsNotFound(err) || err == nil && (!other.UsesKubernetesBackend() || stateSecret(other) != secret.GetName()) {
		return "", nil
	}
	return name, err
}

func (op *operation) warnGoing(secret object, what string) {
	if !op.object.DeletionTimestamp.IsZero() {
		return // the object goes as well
	}
	op.warnings = append(op.warnings, fmt.Sprintf(
		"Secret %s/%s with %s is being deleted since %s and only its finalizer %s keeps it: delete the Terraform object too, or copy the Secret without its metadata but for name, labels and annotations, remove the finalizer, and create the copy",
		secret.GetNamespace(), secret.GetName(), what, secret.GetDeletionTimestamp().UTC().Format(time.RFC3339), infrav1.StateFinalizer))
}

func secretMeta(namespace, name string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

// removeFinalizer lets go of a Secret; what others hold on to is theirs.
func removeFinalizer(ctx context.Context, c *access, secret object) error {
	if !dropFinalizer(secret) {
		return nil
	}
	return ignoreNotFound(c.Annotate(ctx, secret, nil))
}

// leaveState gives up a state that stays: any object may adopt it.
func leaveState(ctx context.Context, c *access, object *infrav1.Terraform, name string) error {
	secret := secretMeta(object.Namespace, name)
	if err := c.Get(ctx, keyOf(secret), secret); err != nil {
		return ignoreNotFound(err)
	}
	if secret.Annotations[ownerAnnotation] != object.Name {
		return nil
	}
	dropFinalizer(secret)
	return ignoreNotFound(c.Annotate(ctx, secret, map[string]any{ownerAnnotation: nil}))
}

// leaveOldState gives up the state's Secret when the object moves on to another place.
func (op *operation) leaveOldState(ctx context.Context) error {
	name, found := strings.CutPrefix(op.record.State, secretPlace)
	if !found || op.object.UsesKubernetesBackend() && name == op.stateSecret() {
		return nil
	}
	return leaveState(ctx, op.client, op.object, name)
}

// release lets go of what the runner kept for a Terraform object whose resources
// stay: the states stay without their finalizers, free to be adopted, and the
// record goes. A record that holds the only copy of a state stays too. It may be
// called whenever nothing works on the object any more, also after it is gone;
// what belongs to a later object of the same name is left alone.
func release(ctx context.Context, c *access, object *infrav1.Terraform) error {
	later := &infrav1.Terraform{}
	err := c.Get(ctx, keyOf(object), later)
	if ignoreNotFound(err) != nil {
		return err
	}
	replaced := err == nil && later.UID != object.UID
	err = releaseRecord(ctx, c, object, replaced)
	if replaced {
		return err
	}
	return errors.Join(err, releaseStates(ctx, c, object))
}

func releaseRecord(ctx context.Context, c *access, object *infrav1.Terraform, replaced bool) error {
	secrets, err := listSecrets(ctx, c, object.Namespace, recordLabels(object))
	if err != nil {
		return err
	}
	var errs []error
	for i := range secrets.Items {
		secret := &secrets.Items[i]
		onlyCopy := len(secret.OwnerReferences) == 0
		if !strings.HasPrefix(secret.Name, RecordName(object.Name)) || onlyCopy && replaced || !ownedBy(secret, object.UID) {
			continue
		}
		errs = append(errs, removeFinalizer(ctx, c, secret))
		if !onlyCopy {
			errs = append(errs, c.Delete(ctx, secret, ""))
		}
	}
	return errors.Join(errs...)
}

func releaseStates(ctx context.Context, c *access, object *infrav1.Terraform) error {
	secrets, err := listSecrets(ctx, c, object.Namespace, map[string]string{"tfstate": "true"})
	if err != nil {
		return err
	}
	var errs []error
	for i := range secrets.Items {
		if secrets.Items[i].Annotations[ownerAnnotation] == object.Name {
			errs = append(errs, releaseState(ctx, c, object, secrets.Items[i].Name))
		}
	}
	return errors.Join(errs...)
}

func releaseState(ctx context.Context, c *access, object *infrav1.Terraform, name string) error {
	if err := leaveState(ctx, c, object, name); err != nil {
		return err
	}
	secret := &corev1.Secret{}
	err := c.Get(ctx, types.NamespacedName{Namespace: object.Namespace, Name: name}, secret)
	if err != nil || len(secret.Data[stateKey]) > 0 {
		return ignoreNotFound(err)
	}
	return c.Delete(ctx, secret, secret.UID) // no tool ever began a state in it
}

func listSecrets(ctx context.Context, c *access, namespace string, labels map[string]string) (*metav1.PartialObjectMetadataList, error) {
	secrets := &metav1.PartialObjectMetadataList{}
	return secrets, c.List(ctx, secrets, namespace, labels)
}
