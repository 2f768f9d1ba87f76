package terraform

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/runner"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// scriptedEngine is a runner's engine whose results are functions. It remembers
// what it was asked to do.
type scriptedEngine struct {
	mu      sync.Mutex
	plan    answer
	apply   answer
	destroy answer
	ran     []ran
	sources map[string]bool
	pending map[string]string // the plan that an apply would take, by object
	ended   int
}

type answer func(ctx context.Context, request *runnerpb.StartOperationRequest, report runner.Reporter) *runnerpb.Result

// ran is an operation that the engine was asked for.
type ran struct {
	request *runnerpb.StartOperationRequest
	object  *infrav1.Terraform
}

func newScriptedEngine() *scriptedEngine {
	return &scriptedEngine{sources: map[string]bool{}, pending: map[string]string{}, plan: always(noChanges()), apply: applies, destroy: always(ok())}
}

// on replaces answers; nil leaves one as it is.
func (e *scriptedEngine) on(plan, apply, destroy answer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range []struct {
		to  *answer
		new answer
	}{{&e.plan, plan}, {&e.apply, apply}, {&e.destroy, destroy}} {
		if a.new != nil {
			*a.to = a.new
		}
	}
}

// began says whether an operation was begun, by this or an earlier server.
func (e *scriptedEngine) began(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.ContainsFunc(e.ran, func(r ran) bool { return r.request.GetId() == id })
}

// Tools implements runner.Engine.
func (e *scriptedEngine) Tools() []*runnerpb.Tool { return nil }

// HasSource implements runner.Engine.
func (e *scriptedEngine) HasSource(digest string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sources[digest]
}

// StoreSource implements runner.Engine.
func (e *scriptedEngine) StoreSource(_ context.Context, digest string, archive io.Reader) (int64, error) {
	size, err := readAll(archive)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sources[digest] = err == nil
	return size, err
}

// Run implements runner.Engine.
func (e *scriptedEngine) Run(ctx context.Context, request *runnerpb.StartOperationRequest, report runner.Reporter) *runnerpb.Result {
	if e.began(request.GetId()) {
		return failure(runnerpb.Failure_KIND_LOST, infrav1.OperationLostReason, "it was begun before")
	}
	obj := &infrav1.Terraform{}
	if err := json.Unmarshal(request.GetObject(), obj); err != nil {
		return failure(runnerpb.Failure_KIND_TERMINAL, infrav1.InvalidSpecReason, err.Error())
	}
	e.mu.Lock()
	e.ran = append(e.ran, ran{request, obj})
	run := e.plan
	switch request.GetType() {
	case runnerpb.OperationType_OPERATION_TYPE_APPLY:
		run = e.apply
	case runnerpb.OperationType_OPERATION_TYPE_DESTROY:
		run = e.destroy
	case runnerpb.OperationType_OPERATION_TYPE_FORGET:
		run = always(ok())
	}
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		e.ended++
		e.mu.Unlock()
	}()
	return e.remember(obj.Name, run(ctx, request, report))
}

// remember notes the plan that is pending, as the runner's record does. A plan that
// is skipped names it.
func (e *scriptedEngine) remember(object string, result *runnerpb.Result) *runnerpb.Result {
	e.mu.Lock()
	defer e.mu.Unlock()
	plan := result.GetPlan()
	switch {
	case plan.GetSkipped() && plan.GetId() == "":
		result = proto.CloneOf(result)
		result.Plan.Id = e.pending[object]
	case plan != nil && !plan.GetSkipped():
		e.pending[object] = plan.GetId()
	case result.GetApply() != nil:
		delete(e.pending, object)
	}
	return result
}

// all returns the operations of a type so far.
func (e *scriptedEngine) all(t runnerpb.OperationType) []ran {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(e.ran), func(r ran) bool { return r.request.GetType() != t })
}

func (e *scriptedEngine) plans() []ran { return e.all(runnerpb.OperationType_OPERATION_TYPE_PLAN) }
func (e *scriptedEngine) applies() []ran {
	return e.all(runnerpb.OperationType_OPERATION_TYPE_APPLY)
}
func (e *scriptedEngine) destroys() []ran {
	return e.all(runnerpb.OperationType_OPERATION_TYPE_DESTROY)
}
func (e *scriptedEngine) forgets() []ran {
	return e.all(runnerpb.OperationType_OPERATION_TYPE_FORGET)
}

// story tells what the engine was asked for, when a test fails.
func (e *scriptedEngine) story() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var text strings.Builder
	for _, r := range e.ran {
		fmt.Fprintf(&text, "%s %s plan{%v} apply{%v}\n", r.request.GetId(), r.object.Name, r.request.GetPlan(), r.request.GetApply())
	}
	fmt.Fprintf(&text, "%d of %d ended", e.ended, len(e.ran))
	return text.String()
}

func always(result *runnerpb.Result) answer {
	return func(context.Context, *runnerpb.StartOperationRequest, runner.Reporter) *runnerpb.Result {
		return result
	}
}

// inTurn answers each call with the next result, and further ones with the last.
func inTurn(results ...*runnerpb.Result) answer {
	var mu sync.Mutex
	return func(context.Context, *runnerpb.StartOperationRequest, runner.Reporter) *runnerpb.Result {
		mu.Lock()
		defer mu.Unlock()
		result := results[0]
		if len(results) > 1 {
			results = results[1:]
		}
		return result
	}
}

// gate is an answer that waits until it is opened, or the operation is interrupted.
type gate struct {
	entered chan struct{}
	open    chan struct{}
	result  *runnerpb.Result
	once    sync.Once
}

func newGate(result *runnerpb.Result) *gate {
	return &gate{entered: make(chan struct{}), open: make(chan struct{}), result: result}
}

func (g *gate) answer(ctx context.Context, _ *runnerpb.StartOperationRequest, report runner.Reporter) *runnerpb.Result {
	g.once.Do(func() { close(g.entered) })
	report.Phase("apply")
	select {
	case <-g.open:
		return g.result
	case <-ctx.Done():
		return &runnerpb.Result{Outcome: runnerpb.Outcome_OUTCOME_CANCELLED}
	}
}

// applies is the answer to an apply of any plan.
func applies(_ context.Context, request *runnerpb.StartOperationRequest, _ runner.Reporter) *runnerpb.Result {
	return applied(request.GetApply().GetPlanId())
}

func ok() *runnerpb.Result {
	return &runnerpb.Result{Outcome: runnerpb.Outcome_OUTCOME_SUCCEEDED, Tool: &runnerpb.Tool{Name: "OpenTofu", Version: "1.12.6"}}
}

func noChanges() *runnerpb.Result {
	result := ok()
	result.Plan = &runnerpb.PlanResult{}
	return result
}

func skipped() *runnerpb.Result {
	result := ok()
	result.Plan = &runnerpb.PlanResult{Skipped: true}
	return result
}

func changes(id string) *runnerpb.Result {
	result := ok()
	result.Plan = &runnerpb.PlanResult{Changes: true, Id: id, Summary: &runnerpb.Summary{Add: 2, Change: 1}}
	return result
}

func drift(id string) *runnerpb.Result {
	result := changes(id)
	result.Plan.Drift = true
	result.Plan.Changed = []*runnerpb.ResourceChange{{Address: "terraform_data.a", Actions: []string{"update"}, Drift: true}}
	return result
}

func destruction(id string) *runnerpb.Result {
	result := changes(id)
	result.Plan.Destroy = true
	result.Plan.Summary = &runnerpb.Summary{Destroy: 3}
	return result
}

func applied(id string) *runnerpb.Result {
	result := ok()
	result.Apply = &runnerpb.ApplyResult{
		PlanId: id, OutputsWritten: true, ResourceCount: 1,
		Outputs:   []*runnerpb.Output{{Name: "a", Type: `"number"`, Value: "1"}, {Name: "secret", Type: `["list","string"]`, Sensitive: true}},
		Resources: []*runnerpb.Resource{{Address: "terraform_data.a", Type: "terraform_data", Provider: "terraform.io/builtin/terraform", Id: "1"}},
	}
	return result
}

func failure(kind runnerpb.Failure_Kind, reason, message string) *runnerpb.Result {
	return &runnerpb.Result{
		Outcome: runnerpb.Outcome_OUTCOME_FAILED,
		Failure: &runnerpb.Failure{Kind: kind, Reason: reason, Message: message},
	}
}

// forgetSources makes the runner ask for every source again.
func (e *scriptedEngine) forgetSources() {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.sources)
}
