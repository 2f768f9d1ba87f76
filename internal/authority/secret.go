package authority

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/terrace-dev/terrace/internal/pki"
)

// What the Secret holds.
const (
	bundleKey = "ca.crt"    // the authorities, the newest first
	keysKey   = "ca.key"    // their keys, in the same order
	namesKey  = "names.key" // what names of pods are derived from; rotations do not touch it
)

const (
	namesKeySize = 32
	fieldOwner   = "terrace-manager"
)

var labels = map[string]string{"app.kubernetes.io/name": "terrace", "app.kubernetes.io/component": "ca"}

// material is what is worth keeping.
type material struct {
	ca    *pki.CA
	names []byte
}

// found is what a Secret was found to hold: no Secret, or parts of it, and what is wrong with the rest.
type found struct {
	exists bool
	material
	damage error
}

// action is one reason to write the Secret.
type action string

const (
	create  action = "Create"  // there is none, and never was any as far as memory goes
	restore action = "Restore" // it was deleted
	repair  action = "Repair"  // it is damaged, and memory has what is missing
	replace action = "Replace" // it is damaged, and what is missing is made anew
	merge   action = "Merge"   // it lacks authorities that memory has
	rotate  action = "Rotate"  // time has come
)

// decide returns what the Secret must hold and why it does not, which is nothing if
// it does. But for the random bits of what is new it depends on its arguments alone.
func decide(memory *material, stored found, clock clock.PassiveClock, lives pki.Lives) (want material, why []action, err error) {
	want = stored.material
	switch {
	case !stored.exists && memory == nil:
		why = append(why, create)
	case !stored.exists:
		why = append(why, restore)
	case stored.damage != nil && memory == nil:
		why = append(why, replace)
	case stored.damage != nil:
		why = append(why, repair)
	}
	if memory != nil {
		if want.names == nil {
			want.names = memory.names
		}
		if want.ca == nil {
			want.ca = memory.ca
		} else if merged := want.ca.Merge(memory.ca); merged != want.ca {
			want.ca, why = merged, append(why, merge)
		}
	}
	if want.names == nil {
		want.names = make([]byte, namesKeySize)
		_, _ = rand.Read(want.names) // never fails
	}
	switch {
	case want.ca == nil:
		want.ca, err = pki.NewCA(clock, lives)
	case want.ca.NeedsRotation(clock.Now()):
		why = append(why, rotate)
		want.ca, err = want.ca.Rotate()
	}
	return want, why, err
}

// parse reads as much of the Secret as is in order; nil means that there is none.
func parse(secret *corev1.Secret, clock clock.PassiveClock, lives pki.Lives) found {
	if secret == nil {
		return found{}
	}
	out := found{exists: true}
	ca, err := pki.ParseCA(secret.Data[bundleKey], secret.Data[keysKey], clock, lives)
	if err == nil {
		out.ca = ca
	}
	names := secret.Data[namesKey]
	if len(names) == namesKeySize {
		out.names = names
	} else {
		err = errors.Join(err, fmt.Errorf("%s has %d bytes instead of %d", namesKey, len(names), namesKeySize))
	}
	out.damage = err
	return out
}

// sync brings the Secret and memory together and says whether it wrote. It is called with the lock held.
func (s *Store) sync(ctx context.Context) (wrote bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err = retry.OnError(retry.DefaultBackoff, lostRace, func() error {
		wrote, err = s.syncOnce(ctx)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("keeping the certificate authority in Secret %s/%s: %w", s.namespace, SecretName, err)
	}
	return wrote, nil
}

// lostRace says whether another manager was faster, so that its Secret has to be read.
func lostRace(err error) bool {
	return apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) || errors.Is(err, errDeleted)
}

var errDeleted = errors.New("it was deleted meanwhile")

func (s *Store) syncOnce(ctx context.Context) (wrote bool, err error) {
	secret, err := s.get(ctx)
	if err != nil {
		return false, err
	}
	var memory *material
	if known := s.loaded(); known != nil {
		memory = &known.material
	}
	stored := parse(secret, s.clock, s.lives)
	want, why, err := decide(memory, stored, s.clock, s.lives)
	if err != nil {
		return false, err
	}
	if len(why) == 0 {
		s.adopt(want, secret.ResourceVersion)
		return false, nil
	}
	version, err := s.write(ctx, secret, want)
	if err != nil {
		return false, err
	}
	s.report(ctx, why, stored.damage, s.adopt(want, version))
	return true, nil
}

// report logs what was done to the Secret.
func (s *Store) report(ctx context.Context, why []action, damage error, now *state) {
	logger := log.FromContext(ctx).WithValues("secret", s.namespace+"/"+SecretName, "actions", why, "authorities", now.generation, "rotation", now.ca.RotateAt(s.clock.Now()))
	if damage != nil {
		logger.Error(damage, "The Secret of the certificate authority was damaged and has been written again; if it was replaced, runner pods are replaced too")
		return
	}
	logger.Info("Wrote the Secret of the certificate authority")
}

// get reads the Secret; nil means that there is none.
func (s *Store) get(ctx context.Context) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	err := s.client.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: SecretName}, secret)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // there is none
	}
	return secret, err
}

// write creates the Secret if it was not there, else it updates what was read, and
// returns its new version. What it does not know stays in the Secret.
func (s *Store) write(ctx context.Context, secret *corev1.Secret, want material) (string, error) {
	bundle, keys, err := want.ca.Marshal()
	if err != nil {
		return "", err
	}
	next := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: SecretName}, Type: corev1.SecretTypeOpaque}
	if secret != nil {
		next = secret.DeepCopy()
	}
	for name, value := range labels {
		metav1.SetMetaDataLabel(&next.ObjectMeta, name, value)
	}
	if next.Data == nil {
		next.Data = map[string][]byte{}
	}
	next.Data[bundleKey], next.Data[keysKey], next.Data[namesKey] = bundle, keys, bytes.Clone(want.names)
	if secret == nil {
		err = s.client.Create(ctx, next, client.FieldOwner(fieldOwner))
	} else if err = s.client.Update(ctx, next, client.FieldOwner(fieldOwner)); apierrors.IsNotFound(err) {
		err = errDeleted
	}
	return next.ResourceVersion, err
}
