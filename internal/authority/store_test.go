package authority

import (
	"context"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/terrace-dev/terrace/internal/pki"
)

const day = 24 * time.Hour

func TestStoresThatCreateTheSecretAtOnceHaveOneAuthority(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stores := make([]*Store, 6)
	for i := range stores {
		stores[i] = w.store()
	}
	var all sync.WaitGroup
	for _, s := range stores {
		for range 2 {
			all.Go(func() {
				if _, err := s.Issue(t.Context(), podName); err != nil {
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
	first := w.load(stores[0])
	name, err := stores[0].NewName(t.Context(), "apps")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range stores {
		if s.Generation() != first || w.trusted(s) != 1 {
			t.Error("they have different authorities")
		}
		if ok, err := s.Issued(t.Context(), "apps", name); !ok || err != nil {
			t.Errorf("they have different keys for names: %v", err)
		}
		if err := w.calls(s, w.runner(stores[0])); err != nil {
			t.Error(err)
		}
	}
	secret := w.secret()
	if got := sets.KeySet(secret.Data); !got.Equal(sets.New("ca.crt", "ca.key", "names.key")) {
		t.Errorf("the Secret has the keys %v", got)
	}
	if want := map[string]string{"app.kubernetes.io/name": "terrace", "app.kubernetes.io/component": "ca"}; !maps.Equal(secret.Labels, want) {
		t.Errorf("the Secret has the labels %v", secret.Labels)
	}
}

func TestStoresThatRotateAtOnceHaveOneAuthority(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stores := []*Store{w.store(), w.store(), w.store(), w.store()}
	for _, s := range stores {
		w.load(s)
	}
	names := w.secret().Data[namesKey]
	w.clock.Step(pki.CALife * 2 / 3)
	var all sync.WaitGroup
	for _, s := range stores {
		all.Go(func() { w.sync(s) })
	}
	all.Wait()
	for _, s := range stores {
		if s.Generation() != stores[0].Generation() || w.trusted(s) != 2 {
			t.Errorf("they have different authorities: %d in %s", w.trusted(s), s.Generation())
		}
	}
	if string(w.secret().Data[namesKey]) != string(names) {
		t.Error("the key of names did not survive")
	}
	if err := w.calls(stores[1], w.runner(stores[2])); err != nil {
		t.Error(err)
	}
}

func TestARestartedManagerCallsRunnersThatMissedRotations(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.store()
	w.load(first)
	for rotation := 1; rotation <= 10; rotation++ {
		behind := w.runner(first)
		newest := w.store()
		w.load(newest)
		forceRotation(w, newest)
		restarted := w.store()
		if w.load(restarted) != newest.Generation() || w.trusted(restarted) != rotation+1 {
			t.Errorf("%d authorities are trusted after %d rotations", w.trusted(restarted), rotation)
		}
		if err := w.calls(restarted, behind); err != nil {
			t.Errorf("a runner that missed %d rotations: %v", rotation, err)
		}
		if err := w.calls(restarted, w.runner(newest)); err != nil {
			t.Errorf("a runner that missed none of %d rotations: %v", rotation, err)
		}
	}
}

// forceRotation rotates out of turn.
func forceRotation(w *world, s *Store) {
	w.t.Helper()
	known := s.loaded()
	next, err := known.ca.Rotate()
	if err != nil {
		w.t.Fatal(err)
	}
	version, err := s.write(w.t.Context(), w.secret(), material{ca: next, names: known.names})
	if err != nil {
		w.t.Fatal(err)
	}
	s.adopt(material{ca: next, names: known.names}, version)
}

func TestTime(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		passes  time.Duration
		trusted int  // in the end
		changes bool // the Secret is written
	}{
		"a manager that was off for a while":      {passes: 30 * day, trusted: 1},
		"a manager that was off for months":       {passes: 65 * day, trusted: 2, changes: true},
		"a manager that was off for years":        {passes: 1000 * day, trusted: 1, changes: true},
		"a clock that is slow":                    {passes: -4 * time.Minute, trusted: 1},
		"a clock that jumped back":                {passes: -10 * day, trusted: 2, changes: true},
		"a clock that jumped back a long way":     {passes: -1000 * day, trusted: 2, changes: true},
		"a clock that jumped back by six minutes": {passes: -6 * time.Minute, trusted: 2, changes: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			before := w.load(w.store())
			w.clock.Step(test.passes)
			s := w.store()
			if after := w.load(s); (after != before) != test.changes || w.trusted(s) != test.trusted {
				t.Errorf("changed: %v, %d authorities", after != before, w.trusted(s))
			}
			if err := w.calls(s, w.runner(s)); err != nil {
				t.Error(err)
			}
			if w.sync(s) {
				t.Error("it came not to rest")
			}
		})
	}
}

func TestManagersWhoseClocksDifferDoNotRotateInTurns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ahead := clocktesting.NewFakeClock(w.clock.Now().Add(80 * day))
	one, other := w.store(), w.store(func(o *Options) { o.Clock = ahead })
	writes := 0
	for range 10 {
		for _, s := range []*Store{one, other} {
			w.load(s)
			if w.sync(s) {
				writes++
			}
		}
	}
	if writes > 1 || w.trusted(one) != 2 || one.Generation() != other.Generation() {
		t.Errorf("%d writes, %d authorities", writes, w.trusted(one))
	}
	if err := w.calls(one, w.runner(one)); err != nil {
		t.Error(err)
	}
}

func TestAuthoritiesThatKnowNothingOfEachOtherAreMerged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old := w.store()
	w.load(old)
	runner := w.runner(old)
	if err := w.Delete(t.Context(), w.secret()); err != nil {
		t.Fatal(err)
	}
	other := w.store()
	w.load(other)
	if err := w.calls(other, runner); err == nil {
		t.Fatal("the second authority is not another one")
	}
	for _, s := range []*Store{old, other, old} {
		w.sync(s)
	}
	restarted := w.store()
	for _, s := range []*Store{old, other, restarted} {
		if w.load(s) != old.Generation() || w.trusted(s) != 2 {
			t.Errorf("%d authorities", w.trusted(s))
		}
		if err := w.calls(s, runner); err != nil {
			t.Error(err)
		}
	}
}

func TestLeavesAreRenewed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.store(func(o *Options) { o.Lives = pki.Lives{CA: 9 * time.Hour, Leaf: 3 * time.Hour} })
	leaf, err := s.Issue(t.Context(), podName)
	if err != nil {
		t.Fatal(err)
	}
	now := w.clock.Now()
	if leaf.NotAfter.Sub(now) != 3*time.Hour || leaf.RenewAt.Sub(now) != 2*time.Hour || leaf.Generation != s.Generation() {
		t.Errorf("expires %v, is renewed %v, of %s", leaf.NotAfter, leaf.RenewAt, leaf.Generation)
	}
	serial := func() string {
		t.Helper()
		credentials, err := s.credentials()
		if err != nil {
			t.Fatal(err)
		}
		return credentials.Certificates[0].Leaf.SerialNumber.String()
	}
	first := serial()
	w.clock.Step(2*time.Hour - time.Second)
	if serial() != first {
		t.Error("the manager's certificate was renewed too early")
	}
	w.clock.Step(time.Second)
	second := serial()
	if second == first {
		t.Error("the manager's certificate was not renewed at two thirds of its life")
	}
	w.clock.Step(4 * time.Hour)
	w.sync(s) // rotates
	if w.trusted(s) != 2 || serial() == second {
		t.Error("the new authority issued no certificate for the manager")
	}
	if _, err := s.Issue(t.Context(), "no name"); err == nil {
		t.Error("issued a certificate for something else than a name")
	}
}

func TestWithoutRightsNothingIsIssued(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.store(func(o *Options) { o.Namespace = "kube-system" })
	if _, err := s.Issue(t.Context(), podName); err == nil || !strings.Contains(err.Error(), "kube-system/terrace-ca") || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("got %v", err)
	}
	if s.Generation() != "" {
		t.Error("it loaded something")
	}
	if err := w.calls(s, nil); err == nil {
		t.Error("the manager has a certificate")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.writing <- struct{}{}
	if _, err := s.NewName(ctx, "apps"); err == nil {
		t.Error("it did not wait")
	}
	if _, err := s.Issued(ctx, "apps", NamePrefix+"aaaaaaaaaa-aaaaaaaaaa"); err == nil {
		t.Error("it judged a name without the key")
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, options := range map[string]Options{
		"no client":     {Namespace: "x"},
		"no namespace":  {Client: w.client(nil)},
		"unequal lives": {Client: w.client(nil), Namespace: "x", Lives: pki.Lives{CA: time.Hour}},
	} {
		if _, err := New(options); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	if !w.store().NeedLeaderElection() {
		t.Error("followers would write the Secret too")
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.store()
	name, err := s.NewName(t.Context(), "apps")
	if err != nil {
		t.Fatal(err)
	}
	next, err := s.NewName(t.Context(), "apps")
	if err != nil || next == name {
		t.Errorf("the same name twice, or %v", err)
	}
	if len(name) != len("terrace-runner-")+21 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz234567-") != "" {
		t.Errorf("the name is %q", name)
	}
	other := "a"
	if strings.HasSuffix(name, "a") {
		other = "b"
	}
	random := name[:len(NamePrefix)+namePart]
	for title, test := range map[string]struct {
		namespace, name string
		want            bool
	}{
		"the name":                      {"apps", name, true},
		"another one's code":            {"apps", random + next[len(random):], false},
		"in another namespace":          {"ops", name, false},
		"with another code":             {"apps", name[:len(name)-1] + other, false},
		"with more":                     {"apps", name + "a", false},
		"with less":                     {"apps", name[:len(name)-1], false},
		"without its code":              {"apps", random, false},
		"in capitals":                   {"apps", strings.ToUpper(name), false},
		"somebody's host":               {"apps", "laptop", false},
		"a namespace that has a slash":  {"apps/" + random[len(NamePrefix):], NamePrefix + name[len(random)+1:], false},
		"nothing":                       {"apps", "", false},
		"the prefix":                    {"apps", NamePrefix, false},
		"a name of the right length":    {"apps", NamePrefix + strings.Repeat("a", 21), false},
		"a code in place of the random": {"apps", NamePrefix + name[len(random)+1:] + "-" + random[len(NamePrefix):], false},
	} {
		if got, err := s.Issued(t.Context(), test.namespace, test.name); got != test.want || err != nil {
			t.Errorf("%s: %v, %v", title, got, err)
		}
	}
	forceRotation(w, s)
	if ok, err := w.store().Issued(t.Context(), "apps", name); !ok || err != nil {
		t.Errorf("the name did not survive a rotation and a restart: %v", err)
	}
}

func TestDecide(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	ca := func() *pki.CA {
		made, err := pki.NewCA(clock, pki.Lives{})
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	old := material{ca: ca(), names: []byte("old")}
	clock.Step(70 * day)
	good, other := material{ca: ca(), names: []byte("good")}, material{ca: ca(), names: []byte("other")}
	damage := errors.New("damaged")
	for name, test := range map[string]struct {
		memory *material
		stored found
		why    []action
		names  string // "": new ones
	}{
		"all is well":                         {memory: &good, stored: found{exists: true, material: good}, names: "good"},
		"read for the first time":             {stored: found{exists: true, material: good}, names: "good"},
		"there never was any":                 {why: []action{create}},
		"it was deleted":                      {memory: &good, why: []action{restore}, names: "good"},
		"it was deleted when it was due":      {memory: &old, why: []action{restore, rotate}, names: "old"},
		"damaged, and nothing is known":       {stored: found{exists: true, damage: damage}, why: []action{replace}},
		"damaged, and the rest is known":      {memory: &good, stored: found{exists: true, damage: damage}, why: []action{repair}, names: "good"},
		"half damaged, and nothing is known":  {stored: found{exists: true, damage: damage, material: material{names: []byte("x")}}, why: []action{replace}, names: "x"},
		"half damaged, and the rest is known": {memory: &good, stored: found{exists: true, damage: damage, material: material{names: []byte("x")}}, why: []action{repair}, names: "x"},
		"another's":                           {memory: &other, stored: found{exists: true, material: good}, why: []action{merge}, names: "good"},
		"due":                                 {memory: &old, stored: found{exists: true, material: old}, why: []action{rotate}, names: "old"},
		"due in memory alone":                 {memory: &old, stored: found{exists: true, material: good}, why: []action{merge}, names: "good"},
	} {
		want, why, err := decide(test.memory, test.stored, clock, pki.Lives{})
		if err != nil || !slices.Equal(why, test.why) {
			t.Errorf("%s: %v, %v", name, why, err)
		}
		if test.names != "" && string(want.names) != test.names || len(want.names) == 0 {
			t.Errorf("%s: the key of names is %q", name, want.names)
		}
		if want.ca == nil || want.ca.NeedsRotation(clock.Now()) || test.memory != nil && want.ca.Merge(test.memory.ca) != want.ca {
			t.Errorf("%s: the authority is not in order", name)
		}
		if again, why, _ := decide(&want, found{exists: true, material: want}, clock, pki.Lives{}); len(why) > 0 || again.ca != want.ca {
			t.Errorf("%s: it comes not to rest: %v", name, why)
		}
	}
}

// secrets are texts that must not show up anywhere.
func (w *world) secrets() []string {
	data := w.secret().Data
	all := []string{string(data[namesKey]), base64.StdEncoding.EncodeToString(data[namesKey])}
	for block, rest := pem.Decode(data[keysKey]); block != nil; block, rest = pem.Decode(rest) {
		all = append(all, string(block.Bytes), strings.Split(string(pem.EncodeToMemory(block)), "\n")[2])
	}
	return all
}
