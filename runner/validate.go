package runner

import (
	"encoding/json"
	"fmt"
	"regexp"
	"time"

	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// MaxTimeout is the longest timeout an operation may have.
const MaxTimeout = 7 * 24 * time.Hour

// operationID is what ids look like: they end up in messages, logs and file names.
var operationID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

// validate checks a request and returns the object it is about. Its errors are ErrInvalid.
func validate(request *runnerpb.StartOperationRequest) (*runnerpb.ObjectRef, error) {
	if !operationID.MatchString(request.GetId()) {
		return nil, invalid("id %q: want 1 to 128 letters, digits, dots, dashes or underscores", clip(request.GetId()))
	}
	if seconds := request.GetTimeoutSeconds(); seconds < 0 || seconds > int64(MaxTimeout/time.Second) {
		return nil, invalid("timeout_seconds %d: want 0 to %d", seconds, int64(MaxTimeout/time.Second))
	}
	if request.GetSource() != nil {
		if _, err := parseDigest(request.GetSource().GetDigest()); err != nil {
			return nil, fmt.Errorf("source: %w", err)
		}
	}
	if err := validateOptions(request); err != nil {
		return nil, err
	}
	return objectOf(request.GetObject())
}

// validateOptions checks that the options belong to the type and are complete.
func validateOptions(request *runnerpb.StartOperationRequest) error {
	kind, options := request.GetType(), request.GetOptions()
	none := options == nil
	_, plan := options.(*runnerpb.StartOperationRequest_Plan)
	_, apply := options.(*runnerpb.StartOperationRequest_Apply)
	_, unlock := options.(*runnerpb.StartOperationRequest_ForceUnlock)
	var fits bool
	switch kind {
	case runnerpb.OperationType_OPERATION_TYPE_PLAN:
		fits = none || plan
	case runnerpb.OperationType_OPERATION_TYPE_APPLY:
		fits = apply && request.GetApply().GetPlanId() != ""
	case runnerpb.OperationType_OPERATION_TYPE_DESTROY:
		fits = none || plan || apply
	case runnerpb.OperationType_OPERATION_TYPE_FORGET:
		fits = none
	case runnerpb.OperationType_OPERATION_TYPE_FORCE_UNLOCK:
		fits = unlock && request.GetForceUnlock().GetLockId() != ""
	case runnerpb.OperationType_OPERATION_TYPE_SHOW_PLAN:
		fits = none || apply
	default:
		return invalid("type %v is not one of this protocol", kind)
	}
	if !fits {
		return invalid("the options of %v are incomplete or of another type: %T", kind, options)
	}
	return nil
}

// objectOf reads the identity of an object from its JSON.
func objectOf(object []byte) (*runnerpb.ObjectRef, error) {
	var parsed struct {
		Metadata struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
			UID       string `json:"uid"`
		} `json:"metadata"`
	}
	// The error of the decoder is left out: it may quote what the object contains.
	if json.Unmarshal(object, &parsed) != nil {
		return nil, invalid("object: not JSON of a Kubernetes object")
	}
	ref := &runnerpb.ObjectRef{Namespace: parsed.Metadata.Namespace, Name: parsed.Metadata.Name, Uid: parsed.Metadata.UID}
	if ref.Namespace == "" || ref.Name == "" || ref.Uid == "" {
		return nil, invalid("object: metadata lacks namespace, name or uid")
	}
	return ref, nil
}
