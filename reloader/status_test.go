package reloader_test

import (
	"encoding/json"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/terrace-dev/terrace/reloader"
)

// Agents and operators of different versions talk to each other: the names are for ever.
func TestAStatusIsWrittenAs(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, tt := range map[string]struct {
		status reloader.Status
		want   string
	}{
		"nothing known yet": {
			reloader.Status{Dirs: []reloader.DirStatus{{Dir: "/etc/app"}}},
			`{"dirs":[{"dir":"/etc/app","verified":false}],"applied":false}`,
		},
		"all known": {
			reloader.Status{
				Dirs:    []reloader.DirStatus{{Dir: "/etc/app", Observed: "o", Expected: "e", KeyID: "k", Verified: true, At: at}},
				Applied: true, AppliedAt: at, Error: "exit status 1",
			},
			`{"dirs":[{"dir":"/etc/app","observed":"o","expected":"e","keyID":"k","verified":true,"at":"2026-01-02T03:04:05Z"}],
			  "applied":true,"appliedAt":"2026-01-02T03:04:05Z","error":"exit status 1"}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			data, err := json.Marshal(tt.status)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(data).To(MatchJSON(tt.want))
			var read reloader.Status
			g.Expect(json.Unmarshal(data, &read)).To(Succeed())
			g.Expect(read).To(Equal(tt.status))
		})
	}
}
