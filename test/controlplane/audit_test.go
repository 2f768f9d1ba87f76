package controlplane

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestReadAuditLogIgnoresAHalfWrittenLine(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	content := `{"verb":"create","objectRef":{"resource":"secrets","name":"a"}}
{"verb":"get","objectRef":{"resource":"secrets","name":"a"}}
{"verb":"pat`
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	events, err := ReadAuditLog(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(events) != 2 || !events[0].IsWrite() || events[1].IsWrite() {
		t.Errorf("got %+v, want a write and a read", events)
	}
}

func TestReadAuditLogFromGoesOnWhereItStopped(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	content := `{"verb":"create"}
{"verb":"get"}
`
	var verbs []string
	var offset int64
	for _, size := range []int{3, 20, 20, len(content)} { // the file grows, and not by lines
		if err := os.WriteFile(path, []byte(content[:size]), 0o600); err != nil {
			t.Fatal(err)
		}
		events, next, err := ReadAuditLogFrom(path, offset)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			verbs = append(verbs, e.Verb)
		}
		offset = next
	}
	if !slices.Equal(verbs, []string{"create", "get"}) {
		t.Errorf("got %v, want each request once", verbs)
	}
}
