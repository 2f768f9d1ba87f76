package terraform

import (
	"context"
	"strings"
	"unicode/utf8"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
)

// What parts of the status may take, so that the whole fits into etcd's 1.5 MiB.
const (
	maxValue     = 64 << 10  // one output
	maxValues    = 256 << 10 // all outputs
	maxResources = 200 << 10 // all resources
	maxName      = 128       // characters of an output's name, as in the API
	maxType      = 1 << 10   // an output's type
	maxPlanID    = 69        // a plan's id, as in the API
)

// budget is how many bytes a list may still take.
type budget int

// take says whether there is room, and uses it.
func (b *budget) take(size int) bool {
	if size > int(*b) {
		*b = 0 // what follows would make the list look complete
		return false
	}
	*b -= budget(size)
	return true
}

// value returns the JSON of an output's value if there is room for it.
func (b *budget) value(text string) *apiextensionsv1.JSON {
	if text == "" || len(text) > maxValue || !b.take(len(text)) {
		return nil
	}
	return rawJSON(text)
}

// showable says whether the API takes the name of an output.
func showable(name string) bool { return name != "" && utf8.RuneCountInString(name) <= maxName }

// write writes the status. One that the API server refuses as it is, for its size
// or its content, is written without everything that is optional.
func (s *scope) write(ctx context.Context) error {
	err := s.patcher.Status(ctx, s.obj)
	if !refused(err) {
		return err
	}
	s.trim(err)
	return s.patcher.Status(ctx, s.obj)
}

// refused tells answers of the API server that repeating the request does not change.
func refused(err error) bool {
	if err == nil {
		return false
	}
	return apierrors.IsRequestEntityTooLargeError(err) || apierrors.IsInvalid(err) ||
		strings.Contains(err.Error(), "request is too large") || strings.Contains(err.Error(), "message larger than max")
}

// trim drops what the object can do without, and says so in Ready.
func (s *scope) trim(err error) {
	status := &s.obj.Status
	status.Resources = nil
	for i := range status.Outputs {
		status.Outputs[i].Type, status.Outputs[i].Value = "", nil
	}
	if plan := status.Plan; plan != nil {
		plan.Warnings = nil
		for i := range plan.Outputs {
			plan.Outputs[i].Unknown, plan.Outputs[i].Value = true, nil
		}
	}
	if status.Drift != nil {
		status.Drift.Resources = nil
	}
	for i := range status.History {
		status.History[i].Message = ""
	}
	if !conditions.IsFalse(s.obj, meta.ReadyCondition) {
		conditions.MarkFalse(s.obj, meta.ReadyCondition, meta.FailedReason, "%s",
			truncate("The status was written without resources and values of outputs, because the API server refused it: "+err.Error(), infrav1.MaxStatusMessageLength))
	}
}
