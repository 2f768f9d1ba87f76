package terraform

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/operation"
	"github.com/terrace-dev/terrace/internal/reconcile"
	"github.com/terrace-dev/terrace/runner"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// unattached is a scope for what needs no API server.
func unattached(change func(*infrav1.Terraform)) *scope {
	obj := &infrav1.Terraform{}
	change(obj)
	return &scope{obj: obj, memory: &memory{}, now: noon}
}

func TestStatusIsBounded(t *testing.T) {
	t.Parallel()
	value := func(size int) string { return `"` + strings.Repeat("x", size-2) + `"` }
	var outputs []*runnerpb.Output
	planned := map[string]string{}
	s := unattached(func(*infrav1.Terraform) {})
	for i := range 300 {
		name := fmt.Sprintf("o%03d", i)
		outputs = append(outputs, &runnerpb.Output{Name: name, Type: `"string"`, Value: value(60 << 10)})
		planned[name] = value(60 << 10)
	}
	outputs[0].Value, planned["o000"] = value(maxValue+1), value(maxValue+1)
	outputs[1].Name = strings.Repeat("n", maxName+1)
	s.obj.Spec.PublishOutputs = []string{"o000", "o001", "o002", "o003", "o004", "o005", "o006"}
	s.recordOutputs(outputs)

	size, values := 0, 0
	for _, output := range s.obj.Status.Outputs {
		if output.Value != nil {
			size, values = size+len(output.Value.Raw), values+1
		}
	}
	if len(s.obj.Status.Outputs) != infrav1.MaxStatusOutputs || values != 4 || size > maxValues || s.obj.Status.Outputs[0].Value != nil {
		t.Errorf("%d outputs, %d with values of %d bytes", len(s.obj.Status.Outputs), values, size)
	}
	values = 0
	for _, output := range plannedOutputs(s.obj, &runnerpb.PlanResult{PlannedOutputs: planned}) {
		if output.Unknown == (output.Value != nil) {
			t.Errorf("%s has unknown=%v, value=%v", output.Name, output.Unknown, output.Value != nil)
		}
		if !output.Unknown {
			values++
		}
	}
	if values != 4 {
		t.Errorf("%d planned values, want 4", values)
	}

	var resources []*runnerpb.Resource
	for i := range 400 {
		resources = append(resources, &runnerpb.Resource{Address: fmt.Sprintf("a.r%d", i), Id: strings.Repeat("i", 1000)})
	}
	s.recordResources(resources, 400)
	if n := len(s.obj.Status.Resources); n < 190 || n > 205 || *s.obj.Status.ResourceCount != 400 {
		t.Errorf("%d of %d resources", n, *s.obj.Status.ResourceCount)
	}
}

func TestOnlyAnswersThatStandAreRefusals(t *testing.T) {
	t.Parallel()
	if refused(nil) || refused(errReset) {
		t.Error("a lost connection is no refusal")
	}
	if !refused(errors.New("etcdserver: request is too large")) {
		t.Error("etcd's answer is a refusal")
	}
}

func TestANextRetryFarAheadDoesNotHoldTheObjectUp(t *testing.T) {
	t.Parallel()
	s := unattached(func(o *infrav1.Terraform) {
		o.Spec.MaxRetryInterval = &metav1.Duration{Duration: time.Minute}
		o.Status.NextRetryAt = new(metav1.NewTime(noon.Add(24 * time.Hour)))
	})
	if at := s.retryAt(); !at.Equal(noon.Add(time.Minute)) {
		t.Errorf("retry at %v, want a minute after noon", at)
	}
	s.obj.Status.NextRetryAt = new(metav1.NewTime(noon.Add(time.Second)))
	if at := s.retryAt(); !at.Equal(noon.Add(time.Second)) {
		t.Errorf("retry at %v, want a second after noon", at)
	}
}

func TestAnOverloadedRunnerIsWaitedFor(t *testing.T) {
	t.Parallel()
	err := runnerFailure(fmt.Errorf("start: %w", runner.ErrOverloaded), unattached(func(*infrav1.Terraform) {}).obj)
	if reconcile.KindOf(err) != reconcile.KindWaiting {
		t.Errorf("error = %v of kind %v, want one that waits", err, reconcile.KindOf(err))
	}
}

func TestStalePlansAreCountedOnce(t *testing.T) {
	t.Parallel()
	s := unattached(func(*infrav1.Terraform) {})
	stale := func(id string) {
		s.recordFailure(t.Context(), nil, operation.Snapshot[attempt]{ID: id, Result: failure(runnerpb.Failure_KIND_STALE_PLAN, infrav1.PlanOutdatedReason, "stale")})
	}
	stale("apply-1")
	stale("apply-1") // the status could not be written
	stale("apply-2")
	if s.memory.stale != 2 {
		t.Errorf("counted %d, want 2", s.memory.stale)
	}
}

func TestWaitingIsNotHasty(t *testing.T) {
	t.Parallel()
	for interval, want := range map[time.Duration]time.Duration{100 * time.Millisecond: time.Second, time.Minute: time.Minute} {
		obj := unattached(func(o *infrav1.Terraform) { o.Spec.RetryInterval = &metav1.Duration{Duration: interval} }).obj
		if got := waitInterval(obj); got != want {
			t.Errorf("%v becomes %v, want %v", interval, got, want)
		}
	}
}
