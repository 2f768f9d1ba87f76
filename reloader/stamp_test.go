package reloader_test

import (
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/terrace-dev/terrace/reloader"
)

var stampShape = regexp.MustCompile(`^v1\.[a-z0-9]+\.[a-z0-9]+\.[1-9][0-9]*(\.n)?(\.e[a-z0-9]+)?$`)

func TestStampsAreReadAsTheyWereWritten(t *testing.T) {
	t.Parallel()
	for text, stamp := range map[string]reloader.Stamp{
		"v1.abcdefgh.digest.1":          {KeyID: "abcdefgh", Digest: "digest", Attempt: 1},
		"v1.abcdefgh.digest.12.n":       {KeyID: "abcdefgh", Digest: "digest", Attempt: 12, Notified: true},
		"v1.abcdefgh.digest.2.eexpect":  {KeyID: "abcdefgh", Digest: "digest", Attempt: 2, Expect: "expect"},
		"v1.abcdefgh.digest.2.n.ex":     {KeyID: "abcdefgh", Digest: "digest", Attempt: 2, Notified: true, Expect: "x"},
		"v1.abcdefgh.e.2.n.ee":          {KeyID: "abcdefgh", Digest: "e", Attempt: 2, Notified: true, Expect: "e"},
		"v1.abcdefgh.digest.2.en":       {KeyID: "abcdefgh", Digest: "digest", Attempt: 2, Expect: "n"},
		"v1.7.0123456789.2147483647.ee": {KeyID: "7", Digest: "0123456789", Attempt: 2147483647, Expect: "e"},
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			g.Expect(stamp.String()).To(Equal(text))
			read, err := reloader.ParseStamp(text)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(read).To(Equal(stamp))
		})
	}
}

func TestAStampWithoutDigestIsNone(t *testing.T) {
	t.Parallel()
	NewWithT(t).Expect(reloader.Stamp{KeyID: "abcdefgh", Attempt: 1}.String()).To(BeEmpty())
}

func TestWhatIsNoStampIsRefused(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"nothing":               "",
		"a time":                "2026-01-01T00:00:00Z",
		"another version":       "v2.abcdefgh.digest.1",
		"no attempt":            "v1.abcdefgh.digest",
		"attempt zero":          "v1.abcdefgh.digest.0",
		"a negative attempt":    "v1.abcdefgh.digest.-1",
		"attempt with a zero":   "v1.abcdefgh.digest.01",
		"attempt with a plus":   "v1.abcdefgh.digest.+1",
		"attempt too large":     "v1.abcdefgh.digest.99999999999999999999",
		"no key":                "v1..digest.1",
		"no digest":             "v1.abcdefgh..1",
		"an empty expectation":  "v1.abcdefgh.digest.1.e",
		"expectation first":     "v1.abcdefgh.digest.1.ex.n",
		"notified twice":        "v1.abcdefgh.digest.1.n.n",
		"an unknown part":       "v1.abcdefgh.digest.1.x",
		"one part too many":     "v1.abcdefgh.digest.1.n.ex.y",
		"a capital":             "v1.abcdefgh.Digest.1",
		"a space":               "v1.abcdefgh.digest.1 ",
		"a line":                "v1.abcdefgh.digest\n.1",
		"longer than any stamp": "v1.abcdefgh." + strings.Repeat("d", 300) + ".1",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			stamp, err := reloader.ParseStamp(text)
			g.Expect(err).To(HaveOccurred())
			g.Expect(stamp).To(BeZero())
		})
	}
}

func FuzzParseStamp(f *testing.F) {
	f.Add("v1.abcdefgh.digest.1.n.eexpect")
	f.Add("v1.abcdefgh.digest.01")
	f.Fuzz(func(t *testing.T, text string) {
		stamp, err := reloader.ParseStamp(text)
		if err == nil && (stamp.String() != text || !stampShape.MatchString(text)) {
			t.Errorf("%q was read as %#v", text, stamp)
		}
	})
}
