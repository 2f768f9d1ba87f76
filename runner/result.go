package runner

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// maxResultBytes keeps a result, with the event around it, below MaxMessageBytes:
// a result that does not fit would never arrive.
const maxResultBytes = MaxMessageBytes - 64<<10

// failed is the result of an operation that ended without one of the engine's. Trying again may help.
func failed(reason, message string) *runnerpb.Result {
	return &runnerpb.Result{
		Outcome: runnerpb.Outcome_OUTCOME_FAILED,
		Failure: &runnerpb.Failure{Kind: runnerpb.Failure_KIND_RETRY, Reason: reason, Message: message},
	}
}

// complete makes a result that can be sent out of whatever the engine returned.
// ctx is the operation's: it says why a cancelled operation was.
func complete(ctx context.Context, result *runnerpb.Result, timeout time.Duration) *runnerpb.Result {
	if result == nil || result.GetOutcome() == runnerpb.Outcome_OUTCOME_UNSPECIFIED {
		return failed(ReasonInternal, "the runner's engine returned no result")
	}
	if result.GetOutcome() == runnerpb.Outcome_OUTCOME_CANCELLED && result.GetFailure() == nil {
		result.Failure = interruption(context.Cause(ctx), timeout)
	}
	if _, err := proto.Marshal(result); err != nil {
		mend(result.ProtoReflect())
	}
	fit(result)
	return result
}

// interruption explains why an operation was interrupted.
func interruption(cause error, timeout time.Duration) *runnerpb.Failure {
	failure := &runnerpb.Failure{Kind: runnerpb.Failure_KIND_RETRY, Reason: ReasonCancelled, Message: "the operation was interrupted"}
	if cause != nil {
		failure.Message = cause.Error()
	}
	switch {
	case errors.Is(cause, ErrTimedOut):
		failure.Reason = ReasonTimedOut
		failure.Message = fmt.Sprintf("%v of %v", cause, timeout)
	case errors.Is(cause, ErrShutdown):
		failure.Reason = ReasonShutdown
	}
	return failure
}

// luxuries are what a result can be understood without, the largest first.
var luxuries = []struct {
	name string
	drop func(*runnerpb.Result)
}{
	{"the plan's JSON", func(r *runnerpb.Result) {
		if r.Shown != nil {
			r.Shown.Json = ""
		}
	}},
	{"the end of the plan's text", func(r *runnerpb.Result) {
		if r.Shown != nil {
			r.Shown.Text = strings.ToValidUTF8(r.Shown.Text[:min(len(r.Shown.Text), maxResultBytes/2)], "")
		}
	}},
	{"the resources", func(r *runnerpb.Result) {
		if r.Apply != nil {
			r.Apply.Resources = nil
		}
	}},
	{"its other warnings", func(r *runnerpb.Result) { r.Warnings = nil }},
	{"the changed resources", func(r *runnerpb.Result) {
		if r.Plan != nil {
			r.Plan.Changed = nil
		}
	}},
	{"the outputs", func(r *runnerpb.Result) {
		if r.Plan != nil {
			r.Plan.Outputs, r.Plan.PlannedOutputs = nil, nil
		}
		if r.Apply != nil {
			r.Apply.Outputs = nil
		}
	}},
	{"the end of the failure's message", func(r *runnerpb.Result) {
		if r.Failure != nil {
			r.Failure.Message = clip(r.Failure.Message)
		}
	}},
}

// fit drops luxuries until the result is small enough to be sent, and says so in warnings.
func fit(result *runnerpb.Result) {
	for _, luxury := range luxuries {
		before := proto.Size(result)
		if before <= maxResultBytes {
			return
		}
		luxury.drop(result)
		if proto.Size(result) < before {
			result.Warnings = append(result.Warnings, "the result was too large to be sent whole: it lacks "+luxury.name)
		}
	}
}

// mend replaces what is not UTF-8 in every text of a message. A tool prints what
// its providers print, and a message with broken text could never be sent.
func mend(message protoreflect.Message) {
	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.IsMap():
			mendMap(field, value.Map())
		case field.IsList():
			mendList(field, value.List())
		case field.Kind() == protoreflect.StringKind:
			message.Set(field, mended(value))
		case field.Message() != nil:
			mend(value.Message())
		}
		return true
	})
}

func mendList(field protoreflect.FieldDescriptor, list protoreflect.List) {
	for i := range list.Len() {
		switch {
		case field.Kind() == protoreflect.StringKind:
			list.Set(i, mended(list.Get(i)))
		case field.Message() != nil:
			mend(list.Get(i).Message())
		}
	}
}

// mendMap covers maps from string to string or message, the only ones in the protocol.
func mendMap(field protoreflect.FieldDescriptor, entries protoreflect.Map) {
	texts := map[string]protoreflect.Value{}
	entries.Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
		if field.MapValue().Kind() == protoreflect.StringKind {
			value = mended(value)
		} else if field.MapValue().Message() != nil {
			mend(value.Message())
		}
		texts[key.String()] = value
		return true
	})
	for key, value := range texts {
		clean := strings.ToValidUTF8(key, "\uFFFD")
		if clean != key {
			entries.Clear(protoreflect.ValueOfString(key).MapKey())
		}
		entries.Set(protoreflect.ValueOfString(clean).MapKey(), value)
	}
}

func mended(value protoreflect.Value) protoreflect.Value {
	return protoreflect.ValueOfString(strings.ToValidUTF8(value.String(), "\uFFFD"))
}
