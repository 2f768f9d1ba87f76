package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/terrace-dev/terrace/internal/pki"
)

const runnerName = "terrace-runner-abc.apps"

// issuer issues credentials that count from some time on.
type issuer struct {
	t     *testing.T
	clock *clocktesting.FakePassiveClock
	ca    *pki.CA
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	clock := clocktesting.NewFakePassiveClock(time.Now().Add(-4 * pki.LeafLife))
	ca, err := pki.NewCA(clock, pki.Lives{})
	if err != nil {
		t.Fatal(err)
	}
	clock.SetTime(time.Now())
	return &issuer{t: t, clock: clock, ca: ca}
}

// issue issues credentials that expire after so long, which may be in the past.
func (i *issuer) issue(name string, expires time.Duration) bundle {
	i.t.Helper()
	now := i.clock.Now()
	i.clock.SetTime(now.Add(expires - pki.LeafLife))
	defer i.clock.SetTime(now)
	leaf, err := i.ca.IssueServer(name, 0)
	if err != nil {
		i.t.Fatal(err)
	}
	b := bundle{Authorities: i.ca.Bundle()}
	if b.Certificate, b.Key, err = pki.MarshalLeaf(leaf); err != nil {
		i.t.Fatal(err)
	}
	return b
}

func (b bundle) mount(t *testing.T, dir string) {
	t.Helper()
	for name, content := range map[string][]byte{"tls.crt": b.Certificate, "tls.key": b.Key, "ca.crt": b.Authorities} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func (b bundle) renew(t *testing.T, dir string) {
	t.Helper()
	if err := (&keychain{file: filepath.Join(dir, credentialsFile)}).keep(b); err != nil {
		t.Fatal(err)
	}
}

// mixed is a certificate with the key of another one.
func mixed(one, other bundle) bundle {
	one.Key = other.Key
	return one
}

// presents says whether the keychain serves with this certificate.
func presents(t *testing.T, k *keychain, b bundle) bool {
	t.Helper()
	credentials, err := k.source()
	if err != nil {
		t.Fatal(err)
	}
	want, err := pki.ParseServer(b.Certificate, b.Key, b.Authorities, "", credentials.Certificates[0].Leaf.NotBefore)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Equal(credentials.Certificates[0].Leaf.Raw, want.Certificates[0].Leaf.Raw)
}

func TestTheCredentialsThatLastLongerAreTaken(t *testing.T) {
	t.Parallel()
	ca := newIssuer(t)
	soon, late := ca.issue(runnerName, time.Hour), ca.issue(runnerName, 20*time.Hour)
	expired, foreign := ca.issue(runnerName, -time.Hour), ca.issue("terrace-runner-xyz.apps", 20*time.Hour)
	for name, test := range map[string]struct {
		mounted, renewed *bundle
		garbage          string
		want             *bundle
		err, log         string
	}{
		"a new pod has its Secret alone":            {mounted: &late, want: &late},
		"renewed ones last longer":                  {mounted: &soon, renewed: &late, want: &late},
		"the Secret lasts longer":                   {mounted: &late, renewed: &soon, want: &late},
		"the Secret expired":                        {mounted: &expired, renewed: &soon, want: &soon, log: "expired"},
		"there is no Secret any more":               {renewed: &soon, want: &soon, log: "no such file"},
		"the renewed ones expired":                  {mounted: &soon, renewed: &expired, want: &soon, log: "expired"},
		"the renewed ones are another runner's":     {mounted: &soon, renewed: &foreign, want: &soon, log: "terrace-runner-xyz"},
		"the renewed ones are garbage":              {mounted: &soon, garbage: "\x00 s3cret", want: &soon, log: "not what this program wrote"},
		"the renewed ones are an empty file":        {mounted: &soon, garbage: " ", want: &soon, log: "not what this program wrote"},
		"the renewed ones are of another structure": {mounted: &soon, garbage: `{"tls.key": 7}`, want: &soon, log: "not what this program wrote"},
		"both expired":                              {mounted: &expired, renewed: &expired, err: "the manager replaces the pod", log: "expired"},
		"the Secret is another runner's":            {mounted: &foreign, err: "terrace-runner-xyz"},
		"there is nothing":                          {err: "no valid credentials for " + runnerName},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tlsDir, dataDir := t.TempDir(), t.TempDir()
			if test.mounted != nil {
				test.mounted.mount(t, tlsDir)
			}
			if test.renewed != nil {
				test.renewed.renew(t, dataDir)
			}
			if test.garbage != "" {
				if err := os.WriteFile(filepath.Join(dataDir, credentialsFile), []byte(test.garbage), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var log bytes.Buffer
			k, err := openKeychain(tlsDir, dataDir, runnerName, time.Now, newLogger(&log, slog.LevelInfo))
			if test.err == "" && err != nil || test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
				t.Fatalf("got %v, want an error about %q", err, test.err)
			}
			if err == nil && !presents(t, k, *test.want) {
				t.Error("others were taken")
			}
			if !strings.Contains(log.String(), test.log) || test.log == "" && log.Len() > 0 || strings.Contains(log.String(), "s3cret") {
				t.Errorf("the log says %q, want %q", log.String(), test.log)
			}
		})
	}
}

func TestRotationIsAllOrNothing(t *testing.T) {
	t.Parallel()
	ca, other := newIssuer(t), newIssuer(t)
	first, second := ca.issue(runnerName, time.Hour), ca.issue(runnerName, 20*time.Hour)
	stray := second
	stray.Authorities = other.ca.Bundle()
	for name, test := range map[string]struct {
		sent bundle
		err  string
	}{
		"newer ones":                        {sent: second},
		"with another authority":            {sent: other.issue(runnerName, 20*time.Hour)},
		"nothing":                           {err: "certificate"},
		"a key of another certificate":      {sent: mixed(second, first), err: "another certificate"},
		"a certificate of another runner":   {sent: ca.issue("terrace-runner-xyz.apps", 20*time.Hour), err: "terrace-runner-xyz"},
		"a certificate that expired":        {sent: ca.issue(runnerName, -time.Hour), err: "expired"},
		"authorities that did not issue it": {sent: stray, err: "unknown authority"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tlsDir, dataDir := t.TempDir(), t.TempDir()
			first.mount(t, tlsDir)
			reopen := func() *keychain {
				t.Helper()
				k, err := openKeychain(tlsDir, dataDir, runnerName, time.Now, slog.New(slog.DiscardHandler))
				if err != nil {
					t.Fatal(err)
				}
				return k
			}
			k, want := reopen(), first
			err := k.rotate(test.sent.Certificate, test.sent.Key, test.sent.Authorities)
			if test.err == "" && err != nil || test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
				t.Errorf("got %v, want an error about %q", err, test.err)
			}
			if test.err == "" {
				want = test.sent
			}
			if !presents(t, k, want) || !presents(t, reopen(), want) {
				t.Error("this process, or the next, serves with other credentials")
			}
		})
	}
}

func TestRenewedCredentialsAreKeptPrivateAndWhole(t *testing.T) {
	t.Parallel()
	ca := newIssuer(t)
	tlsDir, dataDir := t.TempDir(), t.TempDir()
	ca.issue(runnerName, time.Hour).mount(t, tlsDir)
	k, err := openKeychain(tlsDir, dataDir, runnerName, time.Now, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 20 {
		b := ca.issue(runnerName, time.Duration(i+2)*time.Hour)
		all.Go(func() {
			if err := k.rotate(b.Certificate, b.Key, b.Authorities); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			if _, err := k.parse(readRenewed(k.file)); err != nil && !os.IsNotExist(err) {
				t.Errorf("half a renewal: %v", err)
			}
		})
	}
	all.Wait()
	files, err := os.ReadDir(dataDir)
	if err != nil || len(files) != 1 {
		t.Fatalf("left over: %v, %v", files, err)
	}
	if info, err := files[0].Info(); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if kept, err := readRenewed(k.file); err != nil || !presents(t, k, kept) {
		t.Errorf("what is kept is not what is served with: %v", err)
	}
}

func TestCredentialsThatCannotBeKeptCountAllTheSame(t *testing.T) {
	t.Parallel()
	ca := newIssuer(t)
	tlsDir, dataDir := t.TempDir(), t.TempDir()
	ca.issue(runnerName, time.Hour).mount(t, tlsDir)
	k, err := openKeychain(tlsDir, filepath.Join(dataDir, "gone"), runnerName, time.Now, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	next := ca.issue(runnerName, 20*time.Hour)
	if err := k.rotate(next.Certificate, next.Key, next.Authorities); err != nil || !presents(t, k, next) {
		t.Errorf("they were not taken: %v", err)
	}
}
