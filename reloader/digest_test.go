package reloader_test

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/terrace-dev/terrace/reloader"
)

const secret = "hunter2"

// fixedKey is the same in every run.
func fixedKey(t testing.TB) reloader.Key {
	t.Helper()
	key, err := reloader.ParseKey([]byte(strings.Repeat("k", 32)))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// Digests are kept in the status of objects and on pods. If one of these changes, every pod is bumped once at the upgrade.
func TestDigestsAreTheSameInEveryVersion(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	key := fixedKey(t)

	g.Expect(key.ID()).To(Equal("kpverupx"))
	g.Expect(key.Digest([]byte(secret))).To(Equal("pnkflatjtskwcr56jnu2"))
	g.Expect(key.Sum([]reloader.Entry{{Name: "Secret/db/password", Digest: key.Digest([]byte(secret))}})).To(Equal("n73egfyscodyjqqgfdde"))
}

func TestDigestsHaveCharactersThatFitEverywhere(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)

	for range 100 {
		key := reloader.NewKey()
		g.Expect(key.ID()).To(MatchRegexp(`^[a-z0-9]{8}$`))
		g.Expect(key.Digest(key.Bytes())).To(MatchRegexp(`^[a-z0-9]{20}$`))
		g.Expect(key.Sum(nil)).To(MatchRegexp(`^[a-z0-9]{20}$`))
	}
}

func TestDigestsDependOnKeyAndContent(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	key, other := fixedKey(t), reloader.NewKey()

	g.Expect(key.Digest([]byte("a"))).To(Equal(key.Digest([]byte("a"))))
	g.Expect(key.Digest([]byte("a"))).NotTo(Equal(key.Digest([]byte("b"))))
	g.Expect(key.Digest([]byte("a"))).NotTo(Equal(other.Digest([]byte("a"))))
	g.Expect(key.Digest(nil)).NotTo(Equal(key.Sum(nil)), "a value is no sum")
	g.Expect(key.ID()).NotTo(Equal(other.ID()))
}

func TestSumsTellEntriesApart(t *testing.T) {
	t.Parallel()
	key := fixedKey(t)
	base := []reloader.Entry{{Name: "a", Digest: "1"}, {Name: "b", Digest: "2"}}
	for name, tt := range map[string]struct {
		entries []reloader.Entry
		same    bool
	}{
		"in another order they are the same":     {[]reloader.Entry{{Name: "b", Digest: "2"}, {Name: "a", Digest: "1"}}, true},
		"one less is another":                    {base[:1], false},
		"none is another":                        {nil, false},
		"digests exchanged are another":          {[]reloader.Entry{{Name: "a", Digest: "2"}, {Name: "b", Digest: "1"}}, false},
		"names that run into digests are others": {[]reloader.Entry{{Name: "a1", Digest: ""}, {Name: "b", Digest: "2"}}, false},
		"names that run into names are others":   {[]reloader.Entry{{Name: "a", Digest: "1b"}, {Name: "", Digest: "2"}}, false},
		"one twice is another":                   {append(base[:2:2], base[0]), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			NewWithT(t).Expect(key.Sum(tt.entries) == key.Sum(base)).To(Equal(tt.same))
		})
	}
}

func TestSumsDoNotDependOnTheOrderOfEqualNames(t *testing.T) {
	t.Parallel()
	key, one, two := fixedKey(t), reloader.Entry{Name: "a", Digest: "1"}, reloader.Entry{Name: "a", Digest: "2"}
	NewWithT(t).Expect(key.Sum([]reloader.Entry{one, two})).To(Equal(key.Sum([]reloader.Entry{two, one})))
}

func TestSumsLeaveTheirEntriesInOrder(t *testing.T) {
	t.Parallel()
	entries := []reloader.Entry{{Name: "b"}, {Name: "a"}}
	fixedKey(t).Sum(entries)
	NewWithT(t).Expect(entries).To(Equal([]reloader.Entry{{Name: "b"}, {Name: "a"}}))
}

func TestAKeySurvivesBeingKept(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	key := reloader.NewKey()

	kept, err := reloader.ParseKey(key.Bytes())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(kept).To(Equal(key))
}

func TestWhatIsNoKeyIsRefusedWithoutRepeatingIt(t *testing.T) {
	t.Parallel()
	for name, data := range map[string][]byte{
		"nothing":    nil,
		"a password": []byte(secret),
		"too long":   []byte(strings.Repeat(secret, 10)),
		"zeros":      make([]byte, 32),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			_, err := reloader.ParseKey(data)
			g.Expect(err).To(HaveOccurred())
			g.Expect(err.Error()).NotTo(ContainSubstring(secret))
		})
	}
}

func TestAKeyNeverShows(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	key := fixedKey(t)
	type inside struct{ key reloader.Key }
	holder := struct{ Key reloader.Key }{key}

	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		for _, value := range []any{key, &key, holder, inside{key}, []inside{{key}}} {
			g.Expect(fmt.Sprintf(format, value)).NotTo(MatchRegexp(`kkkk|6b6b|6B6B|107 107|0x6b, 0x6b`), "%s of %T", format, value)
		}
	}
}

func TestTheZeroKeyMakesNoDigests(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	var none reloader.Key

	g.Expect(none.IsZero()).To(BeTrue())
	g.Expect(none.ID()).To(Equal("none"))
	g.Expect(func() { none.Digest([]byte(secret)) }).To(Panic())
	g.Expect(func() { none.Sum(nil) }).To(Panic())
}

func TestTheSecretOfAKeyIsNamedAfterTheObject(t *testing.T) {
	t.Parallel()
	NewWithT(t).Expect(reloader.KeySecretName("app")).To(Equal("terrace-reload-app"))
}
