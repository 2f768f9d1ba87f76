package controlplane

import (
	"os"
	"path/filepath"
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
