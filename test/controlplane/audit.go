package controlplane

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// auditPolicy records who did what to which object and how it ended, never a
// body. What the API server does to itself is left out.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  users: ["system:apiserver"]
- level: Metadata
`

// AuditEvent is one request of an audit log: the part of audit.k8s.io/v1 that
// counting requests needs.
type AuditEvent struct {
	// Stage is ResponseComplete for all requests but watches, which are recorded
	// as ResponseStarted too.
	Stage string `json:"stage"`
	// Verb is the API verb: get, list, watch, create, update, patch, delete or deletecollection.
	Verb string `json:"verb"`
	// Received is when the API server got the request.
	Received time.Time `json:"requestReceivedTimestamp"`
	// Staged is when it came to Stage.
	Staged time.Time `json:"stageTimestamp"`
	// RequestURI is the path and query of the request.
	RequestURI string `json:"requestURI"`
	// UserAgent is what the client calls itself.
	UserAgent string `json:"userAgent"`
	// User sent the request.
	User AuditUser `json:"user"`
	// ImpersonatedUser is whom User acted as, nil for itself.
	ImpersonatedUser *AuditUser `json:"impersonatedUser"`
	// ObjectRef names the object; nil for requests outside the resource API.
	ObjectRef *AuditObject `json:"objectRef"`
	// ResponseStatus holds the answer's HTTP status.
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	// Annotations hold what parts of the API server said about the request, for
	// example "allow" or "forbid" under authorization.k8s.io/decision.
	Annotations map[string]string `json:"annotations"`
}

// AuditUser is a user of an AuditEvent.
type AuditUser struct {
	// Username is the user's name.
	Username string `json:"username"`
}

// AuditObject names the object of an AuditEvent. Name is empty for lists,
// watches and creations with a generated name.
type AuditObject struct {
	// Resource is the plural name, for example "secrets".
	Resource string `json:"resource"`
	// Namespace is empty for cluster-scoped objects.
	Namespace string `json:"namespace"`
	// Name is the object's name.
	Name string `json:"name"`
	// APIGroup is empty for the core group.
	APIGroup string `json:"apiGroup"`
	// Subresource is for example "status".
	Subresource string `json:"subresource"`
}

// IsWrite says whether the request was to change something.
func (e *AuditEvent) IsWrite() bool {
	switch e.Verb {
	case "create", "update", "patch", "delete", "deletecollection":
		return true
	}
	return false
}

// ReadAuditLog returns the requests recorded so far in the file that
// Options.AuditLog named. The API server records a request before it answers,
// so a client finds its own requests there.
func ReadAuditLog(path string) ([]AuditEvent, error) {
	events, _, err := ReadAuditLogFrom(path, 0)
	return events, err
}

// ReadAuditLogFrom does so from an offset in the file, 0 or what an earlier call
// returned as next. An error loses what was read.
func ReadAuditLogFrom(path string, offset int64) (events []AuditEvent, next int64, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, offset, err
	}
	defer file.Close()
	if _, err := file.Seek(offset, io.SeekStart); err != nil {
		return nil, offset, err
	}

	decoder := json.NewDecoder(bufio.NewReader(file))
	for {
		var event AuditEvent
		switch err := decoder.Decode(&event); {
		case err == nil:
			events, next = append(events, event), offset+decoder.InputOffset()
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF): // the last line may be half written
			return events, max(offset, next), nil
		default:
			return nil, offset, fmt.Errorf("reading %s: %w", path, err)
		}
	}
}
