package runners

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/reconcile"
)

// quotaDelay is about how long a pod that a quota left no room for is tried again.
const quotaDelay = 15 * time.Second

// openHint says what a namespace needs before runners can work in it.
const openHint = "open the namespace for runners: kubectl apply -n %s -k config/runner-namespace"

// create creates the pod and then at once its Secret.
func (p *Pool) create(ctx context.Context, design *corev1.Pod, idle time.Duration) (*corev1.Pod, error) {
	name, err := p.options.Authority.NewName(ctx, design.Namespace)
	if err != nil {
		return nil, err
	}
	pod := named(design, name, map[string]string{idleAnnotation: idle.String(), authoritiesAnnotation: p.options.Authority.Generation()})
	if err := p.options.Client.Create(ctx, pod); err != nil {
		return nil, p.refused(pod, err)
	}
	if err := p.certify(ctx, client.ObjectKeyFromObject(pod), pod.UID); err != nil {
		// The pod waits for its Secret, and whoever waits for the pod tries again.
		log.FromContext(ctx).Error(err, "the certificate of a runner could not be written yet", "pod", name)
	}
	return pod, nil
}

// certify writes the Secret with a pod's certificate, if this installation gave out
// its name. One that is there already is not looked at: nobody here may read it, and a
// wrong one shows in the handshake.
func (p *Pool) certify(ctx context.Context, name types.NamespacedName, uid types.UID) error {
	issued, err := p.options.Authority.Issued(ctx, name.Namespace, name.Name)
	if err != nil || !issued {
		return err
	}
	leaf, err := p.options.Authority.Issue(ctx, serverName(name))
	if err != nil {
		return err
	}
	err = p.options.Client.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: name.Namespace, Name: name.Name, Labels: p.labels(),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: name.Name, UID: uid}},
		},
		Type:      corev1.SecretTypeTLS,
		Immutable: new(true),
		Data:      map[string][]byte{corev1.TLSCertKey: leaf.Certificate, corev1.TLSPrivateKeyKey: leaf.Key, "ca.crt": leaf.Authorities},
	})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("writing Secret %s with the certificate of a runner: %w", name, err)
	}
	return nil
}

// refused says in our words why the API server did not take a pod.
func (p *Pool) refused(pod *corev1.Pod, err error) error {
	namespace := pod.Namespace
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return reconcile.Waitingf(quotaDelay, infrav1.NamespaceTerminatingReason,
			"Namespace %s is being deleted, so that no runner pod can be created in it any more", namespace)
	case apierrors.IsInvalid(err):
		return reconcile.Terminalf(infrav1.PodTemplateInvalidReason, "spec.runner.template makes a pod that the API server refuses: %v", err)
	case !apierrors.IsForbidden(err):
		return fmt.Errorf("creating a runner pod: %w", err)
	}
	// Admission plugins tell their reasons in words only (plugin/pkg/admission of
	// Kubernetes 1.37: resourcequota, serviceaccount).
	switch text := err.Error(); {
	case strings.Contains(text, "exceeded quota"):
		if p.makeRoom(namespace) {
			return reconcile.Waitingf(time.Second, infrav1.PodQuotaExceededReason, "A quota leaves no room for a runner pod; an idle one is being removed: %v", err)
		}
		return reconcile.Waitingf(wait.Jitter(quotaDelay, 1), infrav1.PodQuotaExceededReason, "A quota leaves no room for a runner pod; it is tried again: %v", err)
	case strings.Contains(text, "error looking up service account"):
		return reconcile.Waitingf(quotaDelay, infrav1.ServiceAccountNotFoundReason,
			"ServiceAccount %s/%s, which spec.runner.serviceAccountName names, does not exist; "+openHint, namespace, pod.Spec.ServiceAccountName, namespace)
	case strings.Contains(text, "cannot create resource"):
		return fmt.Errorf("creating a runner pod in namespace %s: the operator may not do that: %w", namespace, err)
	default:
		return reconcile.Retry(infrav1.PodRejectedReason, fmt.Errorf("the API server refuses the runner pod of ServiceAccount %s/%s: %w",
			namespace, pod.Spec.ServiceAccountName, err))
	}
}

// makeRoom removes the idle pods of a namespace, which take a quota's place, and
// says whether there were any.
func (p *Pool) makeRoom(namespace string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	found := false
	for _, known := range p.pods {
		if known.name.Namespace == namespace && known.leases == 0 && known.state.Phase <= running {
			known.idle, known.idleSince, found = 0, time.Time{}, true
		}
	}
	p.poke()
	return found
}

// remove deletes a pod, if it is still the same one. It does not wait.
func (p *Pool) remove(ctx context.Context, known *pod, why string) error {
	log.FromContext(ctx).Info("removing a runner pod", "pod", known.name, "why", why)
	err := p.options.Client.Delete(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: known.name.Namespace, Name: known.name.Name}},
		client.Preconditions{UID: &known.uid}, client.PropagationPolicy(metav1.DeletePropagationBackground))
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
