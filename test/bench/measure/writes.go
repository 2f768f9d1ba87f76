package measure

import (
	"github.com/terrace-dev/terrace/test/controlplane"
	"github.com/terrace-dev/terrace/test/harness"
)

// ManagerUser is whom the manager is to the API server.
const ManagerUser = "system:serviceaccount:" + harness.ManagerNamespace + ":terrace-manager"

// AuditLog is the file in which an API server records requests.
type AuditLog struct {
	Path string
	next int64 // where what was not counted yet begins
}

// Writes returns how many requests that change something came since the last call:
// from the manager, outside its own namespace, and from runners and their tools.
func (a *AuditLog) Writes() (manager, runner int, err error) {
	events, next, err := controlplane.ReadAuditLogFrom(a.Path, a.next)
	if err != nil {
		return 0, 0, err
	}
	a.next = next
	for _, e := range events {
		if !e.IsWrite() || e.ObjectRef == nil || e.ObjectRef.Namespace == harness.ManagerNamespace {
			continue
		}
		switch e.User.Username {
		case ManagerUser:
			manager++
		case "system:serviceaccount:" + e.ObjectRef.Namespace + ":terrace-runner":
			runner++
		}
	}
	return manager, runner, nil
}
