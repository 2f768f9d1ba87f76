package pki

import (
	"crypto/tls"
	"crypto/x509"
	"slices"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

// reread is the authority as a process knows it that was started just now.
func reread(t *testing.T, ca *CA, clock *clocktesting.FakePassiveClock) *CA {
	t.Helper()
	bundle, keys, err := ca.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	again := must[*CA](t)(ParseCA(bundle, keys, clock, ca.lives))
	if !again.Equal(ca) {
		t.Error("what was read differs from what was written")
	}
	return again
}

func rotated(t *testing.T, ca *CA) *CA {
	t.Helper()
	return must[*CA](t)(ca.Rotate())
}

// issuer returns the certificate of the authority that signs now.
func issuer(t *testing.T, ca *CA) *x509.Certificate {
	t.Helper()
	leaf := must[tls.Certificate](t)(ca.IssueServer(runner, 0))
	i := slices.IndexFunc(ca.authorities, func(own authority) bool { return leaf.Leaf.CheckSignatureFrom(own.certificate) == nil })
	if i < 0 {
		t.Fatal("signed by nobody")
	}
	return ca.authorities[i].certificate
}

func TestARestartedManagerReachesRunnersThatMissedRotations(t *testing.T) {
	t.Parallel()
	clock := newClock()
	first := newCA(t, clock)
	behind := ServerConfig(fixed(clock.Now, first.Pool(), must[tls.Certificate](t)(first.IssueServer(runner, 0))))
	ca := first
	for range 10 {
		clock.SetTime(clock.Now().Add(time.Hour))
		ca = reread(t, rotated(t, ca), clock)
		clients := must[[]tls.Certificate](t)(ca.IssueClients(0))
		expect(t, behind, must[*tls.Config](t)(ClientConfig(fixed(clock.Now, ca.Pool(), clients...), runner)()), "")
		newest := ServerConfig(fixed(clock.Now, rotated(t, newCA(t, clock)).Merge(ca).Pool(), must[tls.Certificate](t)(ca.IssueServer(runner, 0))))
		expect(t, newest, must[*tls.Config](t)(ClientConfig(fixed(clock.Now, ca.Pool(), clients...), runner)()), "")
	}
	if n := len(ca.authorities); n != 11 {
		t.Errorf("%d authorities are trusted after ten rotations", n)
	}
	for range 10 {
		ca = rotated(t, ca)
	}
	if n := len(ca.authorities); n != maxAuthorities {
		t.Errorf("%d authorities are trusted after twenty rotations", n)
	}
	clock.SetTime(clock.Now().Add(CALife))
	if n := len(rotated(t, ca).authorities); n != 1 {
		t.Errorf("%d authorities are trusted when all before it expired", n)
	}
}

func TestAnAuthorityWithoutItsKeyIsTrustedOnly(t *testing.T) {
	t.Parallel()
	clock := newClock()
	second := rotated(t, newCA(t, clock))
	second.authorities[1].key = nil
	ca := reread(t, second, clock)
	if n := len(must[[]tls.Certificate](t)(ca.IssueClients(0))); n != 1 {
		t.Errorf("%d certificates", n)
	}
	if n := len(rotated(t, ca).authorities); n != 3 {
		t.Errorf("%d authorities", n)
	}
}

func TestWhichAuthoritySigns(t *testing.T) {
	t.Parallel()
	day := 24 * time.Hour
	for name, test := range map[string]struct {
		made    []time.Duration // when each was made, the oldest first
		at      time.Duration
		signer  int // of made; -1: none
		rotates bool
	}{
		"the only one":                          {made: []time.Duration{0}, at: day},
		"at two thirds of its life":             {made: []time.Duration{0}, at: 60 * day, rotates: true},
		"it expired":                            {made: []time.Duration{0}, at: 90 * day, signer: -1, rotates: true},
		"the newer one":                         {made: []time.Duration{0, day}, at: day, signer: 1},
		"the clock was too slow by 4 min":       {made: []time.Duration{0}, at: -4 * time.Minute},
		"the clock jumped back":                 {made: []time.Duration{0}, at: -10 * day, signer: -1, rotates: true},
		"another's clock is ahead":              {made: []time.Duration{0, 50 * day}, at: day},
		"another's clock is ahead, ours is due": {made: []time.Duration{0, 80 * day}, at: 70 * day, rotates: true},
		"the newer one is as good as over":      {made: []time.Duration{50 * day, 0}, at: 65 * day},
		"all are as good as over":               {made: []time.Duration{0, day}, at: 70 * day, signer: 1, rotates: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock := newClock()
			begun := clock.Now()
			var ca *CA
			var made []*x509.Certificate
			for _, at := range test.made {
				clock.SetTime(begun.Add(at))
				next := newCA(t, clock)
				if ca != nil {
					next = next.Merge(ca)
				}
				ca = next
				made = append(made, ca.authorities[0].certificate)
			}
			clock.SetTime(begun.Add(test.at))
			if ca.NeedsRotation(clock.Now()) != test.rotates {
				t.Errorf("rotates: %v", !test.rotates)
			}
			if at := ca.RotateAt(clock.Now()); !test.rotates && (!at.Equal(RenewAt(made[test.signer])) || ca.NeedsRotation(at.Add(-time.Second))) {
				t.Errorf("rotates at %v", at)
			}
			if ca.Usable(clock.Now()) != (test.signer >= 0) {
				t.Errorf("usable: %v", test.signer < 0)
			}
			if test.signer < 0 {
				if _, err := ca.IssueServer(runner, 0); err == nil {
					t.Error("issued a certificate")
				}
				if _, err := ca.IssueClients(0); err == nil {
					t.Error("issued the manager's certificate")
				}
			} else if !issuer(t, ca).Equal(made[test.signer]) {
				t.Error("the wrong one signs")
			}
		})
	}
}

func TestMerge(t *testing.T) {
	t.Parallel()
	clock := newClock()
	one, other := newCA(t, clock), newCA(t, clock)
	both := one.Merge(other)
	if len(both.authorities) != 2 || !issuer(t, both).Equal(one.authorities[0].certificate) || len(must[[]tls.Certificate](t)(both.IssueClients(0))) != 2 {
		t.Error("the other was not added behind")
	}
	for name, known := range map[string]*CA{"itself": both, "the one": one, "the other": other} {
		if both.Merge(known) != both {
			t.Errorf("%s: there was something to add", name)
		}
	}
	keyless := other.Merge(one)
	keyless.authorities[1].key = nil
	if n := len(must[[]tls.Certificate](t)(keyless.Merge(one).IssueClients(0))); n != 2 {
		t.Errorf("a key was not added: %d certificates", n)
	}
	full := newCA(t, clock)
	for range maxAuthorities {
		full = rotated(t, full)
	}
	if full.Merge(one) != full {
		t.Error("a full bundle grew")
	}
	clock.SetTime(clock.Now().Add(CALife))
	if late := newCA(t, clock); late.Merge(one) != late {
		t.Error("what expired was added")
	}
}

func TestLives(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		lives Lives
		ok    bool
	}{
		"the defaults":               {ok: true},
		"a third":                    {lives: Lives{CA: 3 * time.Hour, Leaf: time.Hour}, ok: true},
		"more than a third":          {lives: Lives{CA: 3 * time.Hour, Leaf: time.Hour + 1}},
		"more than a third, default": {lives: Lives{CA: 48 * time.Hour}},
		"less than a minute":         {lives: Lives{Leaf: time.Second}},
		"negative":                   {lives: Lives{CA: -time.Hour, Leaf: -time.Hour}},
	} {
		clock := newClock()
		ca, err := NewCA(clock, test.lives)
		if (err == nil) != test.ok {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err != nil {
			continue
		}
		want, leaf := test.lives.orDefault(), must[tls.Certificate](t)(reread(t, ca, clock).IssueServer(runner, 0)).Leaf
		if life := ca.authorities[0].certificate.NotAfter.Sub(clock.Now()); life != want.CA {
			t.Errorf("%s: the authority lives %v", name, life)
		}
		if life := leaf.NotAfter.Sub(clock.Now()); life != want.Leaf {
			t.Errorf("%s: a certificate lives %v", name, life)
		}
		if at := RenewAt(leaf).Sub(clock.Now()); at != want.Leaf/3*2 {
			t.Errorf("%s: a certificate is renewed after %v", name, at)
		}
	}
}
