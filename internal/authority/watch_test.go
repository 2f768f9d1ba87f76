package authority

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/terrace-dev/terrace/internal/pki"
)

// logged collects what is logged.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) into(ctx context.Context) context.Context {
	return log.IntoContext(ctx, funcr.New(func(_, args string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.text.WriteString(args + "\n")
	}, funcr.Options{}))
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func TestAnotherManagersRotationIsNoticed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s, other := w.store(), w.store()
	first := s.Changed()
	w.start(t.Context(), s)
	w.eventually("the first load", func() bool { return closed(first) })
	next := s.Changed()
	w.load(other)
	behind := w.runner(s)
	forceRotation(w, other)
	w.eventually("the rotation", func() bool { return closed(next) })
	if s.Generation() != other.Generation() || w.trusted(s) != 2 {
		t.Error("it is another authority")
	}
	for _, runner := range []func() error{
		func() error { return w.calls(s, behind) },
		func() error { return w.calls(s, w.runner(other)) },
		func() error { return w.calls(other, w.runner(s)) },
	} {
		if err := runner(); err != nil {
			t.Error(err)
		}
	}
}

func closed(channel <-chan struct{}) bool {
	select {
	case <-channel:
		return true
	default:
		return false
	}
}

func TestTheAuthorityIsRotatedAtTwoThirdsOfItsLife(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.store()
	w.load(s)
	w.start(t.Context(), s)
	w.eventually("the timer", w.clock.HasWaiters)
	w.clock.Step(pki.CALife*2/3 - time.Second)
	if w.sync(s) || w.trusted(s) != 1 {
		t.Error("it was rotated before")
	}
	w.clock.Step(time.Second)
	w.eventually("a rotation", func() bool { return w.trusted(s) == 2 })
	w.clock.Step(pki.CALife * 2 / 3)
	w.eventually("a second rotation, and the first authority is dropped", func() bool {
		certificates, err := pki.ParseBundle(w.secret().Data[bundleKey])
		return err == nil && len(certificates) == 2 && w.trusted(s) == 2 && !s.loaded().ca.NeedsRotation(w.clock.Now())
	})
}

func TestADeletedSecretIsWrittenAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.store()
	w.load(s)
	w.start(t.Context(), s)
	before := w.secret()
	for range 2 {
		if err := w.Delete(t.Context(), w.secret()); err != nil {
			t.Fatal(err)
		}
		w.eventually("the Secret is back", func() bool { return w.secret() != nil })
		if !same(before, w.secret()) {
			t.Error("it holds something else")
		}
	}
	if err := w.calls(w.store(), w.runner(s)); err != nil {
		t.Error(err)
	}
}

func TestASecretThatIsDeletedBeforeTheWatchBeginsIsWrittenAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var reads atomic.Int32
	vanish := sync.OnceFunc(func() {
		w.eventually("Start has looked", func() bool { return reads.Load() == 2 })
		if err := w.Delete(context.Background(), w.secret()); err != nil {
			t.Error(err)
		}
	})
	s := w.store(func(o *Options) {
		o.Client = interceptor.NewClient(w.client(nil), interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
				defer reads.Add(1)
				return c.Get(ctx, key, object, options...)
			},
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
				vanish()
				return c.List(ctx, list, options...)
			},
			Watch: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) (watch.Interface, error) {
				vanish()
				return c.Watch(ctx, list, options...)
			},
		})
	})
	w.load(s)
	before := w.secret()
	w.start(t.Context(), s)
	w.eventually("the Secret is back", func() bool {
		now := w.secret()
		return now != nil && now.UID != before.UID && same(before, now)
	})
}

func same(a, b *corev1.Secret) bool {
	return slices.Equal(keys(a), keys(b)) && bytes.Equal(a.Data[bundleKey], b.Data[bundleKey]) &&
		bytes.Equal(a.Data[keysKey], b.Data[keysKey]) && bytes.Equal(a.Data[namesKey], b.Data[namesKey])
}

func keys(secret *corev1.Secret) []string {
	var all []string
	for key := range secret.Data {
		all = append(all, key)
	}
	slices.Sort(all)
	return all
}

func TestADamagedSecretIsWrittenAgain(t *testing.T) {
	t.Parallel()
	foreign := func(w *world) *corev1.Secret {
		other := newWorld(w.t)
		other.load(other.store())
		return other.secret()
	}
	for name, test := range map[string]struct {
		damage    func(*world, *corev1.Secret)
		keepsCA   bool // also by a manager that knows nothing
		keepsName bool // likewise
	}{
		"it is empty":                {damage: func(_ *world, s *corev1.Secret) { s.Data = nil }},
		"no certificates":            {damage: func(_ *world, s *corev1.Secret) { delete(s.Data, bundleKey) }, keepsName: true},
		"no keys":                    {damage: func(_ *world, s *corev1.Secret) { delete(s.Data, keysKey) }, keepsName: true},
		"half a certificate":         {damage: func(_ *world, s *corev1.Secret) { s.Data[bundleKey] = s.Data[bundleKey][:200] }, keepsName: true},
		"rubbish after the key":      {damage: func(_ *world, s *corev1.Secret) { s.Data[keysKey] = append(s.Data[keysKey], "x"...) }, keepsName: true},
		"the key of another":         {damage: func(w *world, s *corev1.Secret) { s.Data[keysKey] = foreign(w).Data[keysKey] }, keepsName: true},
		"the certificate of another": {damage: func(w *world, s *corev1.Secret) { s.Data[bundleKey] = foreign(w).Data[bundleKey] }, keepsName: true},
		"no key for names":           {damage: func(_ *world, s *corev1.Secret) { delete(s.Data, namesKey) }, keepsCA: true},
		"a short key for names":      {damage: func(_ *world, s *corev1.Secret) { s.Data[namesKey] = s.Data[namesKey][:31] }, keepsCA: true},
		"the keys in place of others": {damage: func(_ *world, s *corev1.Secret) {
			s.Data[bundleKey], s.Data[keysKey] = s.Data[keysKey], s.Data[bundleKey]
		}, keepsName: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			knows := w.store()
			w.load(knows)
			stop := w.start(t.Context(), knows)
			before, log := w.secret(), &logged{}
			w.change(func(s *corev1.Secret) { test.damage(w, s) })
			w.eventually("the Secret is as it was", func() bool { return same(before, w.secret()) })
			stop()

			w.change(func(s *corev1.Secret) { test.damage(w, s) })
			restarted := w.store()
			w.start(log.into(t.Context()), restarted)
			w.eventually("there is an authority", func() bool { return restarted.Generation() != "" })
			after := w.secret()
			if kept := bytes.Equal(before.Data[bundleKey], after.Data[bundleKey]); kept != test.keepsCA {
				t.Errorf("a manager that knows nothing kept the authority: %v", kept)
			}
			if kept := bytes.Equal(before.Data[namesKey], after.Data[namesKey]); kept != test.keepsName {
				t.Errorf("a manager that knows nothing kept the key of names: %v", kept)
			}
			if err := w.calls(w.store(), w.runner(restarted)); err != nil {
				t.Error(err)
			}
			if !strings.Contains(log.String(), "damaged") {
				t.Errorf("it was not said: %s", log)
			}
			for _, secret := range w.secrets() {
				if strings.Contains(log.String(), secret) {
					t.Error("a secret was logged")
				}
			}
		})
	}
}

func TestAnIdleStoreMakesNoRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	counts := &requests{}
	s := w.store(func(o *Options) { o.Client = w.client(counts) })
	w.load(s)
	w.start(t.Context(), s)
	// An unrelated Secret, and a change that others make, are the beat by which this test counts.
	w.change(func(secret *corev1.Secret) { secret.Labels["beat"] = "1" })
	seen := func(beat string) func() bool {
		return func() bool {
			return w.secret().ResourceVersion == s.loaded().version && w.secret().Labels["beat"] == beat
		}
	}
	w.eventually("the first change", seen("1"))
	before := len(counts.list())
	for _, at := range []time.Duration{time.Minute, time.Hour, 23 * time.Hour, 10 * day} {
		w.clock.Step(at)
		if _, err := s.Issue(t.Context(), podName); err != nil {
			t.Fatal(err)
		}
		if _, err := s.ClientConfig(podName)(); err != nil {
			t.Fatal(err)
		}
	}
	other := &corev1.Secret{}
	other.Namespace, other.Name = w.namespace, "other"
	if err := w.Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	w.change(func(secret *corev1.Secret) { secret.Labels["beat"] = "2" })
	w.eventually("the second change", seen("2"))
	if all := counts.list(); len(all) != before+1 || len(all) > 10 {
		t.Errorf("%d requests between two changes:\n%s", len(all)-before, strings.Join(all, "\n"))
	}
}

func TestAFailureIsTriedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var failures atomic.Int32
	s := w.store(func(o *Options) {
		o.Client = interceptor.NewClient(w.client(nil), interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
				if failures.Add(1) == 1 {
					return errors.New("out of order")
				}
				return c.Get(ctx, key, object, options...)
			},
		})
	})
	log := &logged{}
	w.start(log.into(t.Context()), s)
	w.eventually("the Secret", func() bool { return s.Generation() != "" })
	if !strings.Contains(log.String(), "out of order") {
		t.Errorf("the failure was not said: %s", log)
	}
}
