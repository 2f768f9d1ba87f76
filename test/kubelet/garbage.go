package kubelet

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// collect plays the garbage collector for a pod that is gone: the Secret of the
// same name that the pod alone owns goes too. Who creates it may be late, so it
// looks more than once.
func (k *Kubelet) collect(namespace, name string, uid types.UID) {
	k.routines.Go(func() {
		for _, wait := range []time.Duration{0, time.Second, 5 * time.Second} {
			select {
			case <-k.ctx.Done():
				return
			case <-time.After(wait):
			}
			if k.collected(namespace, name, uid) {
				return
			}
		}
	})
}

func (k *Kubelet) collected(namespace, name string, uid types.UID) bool {
	secrets := k.client.CoreV1().Secrets(namespace)
	secret, err := secrets.Get(k.ctx, name, metav1.GetOptions{})
	if err != nil || len(secret.OwnerReferences) != 1 || secret.OwnerReferences[0].UID != uid {
		return false
	}
	err = secrets.Delete(k.ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &secret.UID}})
	return err == nil
}
