package terraform

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"

	"github.com/fluxcd/pkg/runtime/conditions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/operation"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// newPlanStatus is what status shows of a plan.
func newPlanStatus(obj *infrav1.Terraform, snapshot operation.Snapshot[attempt]) *infrav1.PlanStatus {
	plan := snapshot.Result.GetPlan()
	status := &infrav1.PlanStatus{
		ID:           plan.GetId(),
		HasChanges:   plan.GetChanges(),
		SourceDigest: plan.GetModuleDigest(),
		Digest:       plan.GetDigest(),
		Generation:   snapshot.Meta.Generation,
		Destroy:      plan.GetDestroy(),
		Drift:        plan.GetDrift(),
		Outputs:      plannedOutputs(obj, plan),
		Summary:      planSummary(plan.GetSummary()),
	}
	if source := snapshot.Meta.Source; source != nil {
		status.Revision = source.Revision
	}
	for _, warning := range snapshot.Result.GetWarnings() {
		if len(status.Warnings) == infrav1.MaxStatusWarnings {
			break
		}
		status.Warnings = append(status.Warnings, truncate(warning, infrav1.MaxStatusMessageLength))
	}
	return status
}

func planSummary(sum *runnerpb.Summary) *infrav1.PlanSummary {
	if sum == nil {
		return nil
	}
	return &infrav1.PlanSummary{
		Add: sum.GetAdd(), Change: sum.GetChange(), Destroy: sum.GetDestroy(), Replace: sum.GetReplace(),
		Import: sum.GetImport(), Move: sum.GetMove(), Forget: sum.GetForget(), Outputs: sum.GetOutputs(),
	}
}

// plannedOutputs lists the published outputs. Those of which the runner says
// nothing are known only after the apply.
func plannedOutputs(obj *infrav1.Terraform, plan *runnerpb.PlanResult) []infrav1.PlannedOutput {
	var outputs []infrav1.PlannedOutput
	room := budget(maxValues)
	for _, name := range slices.Sorted(slices.Values(obj.Spec.PublishOutputs)) {
		if !showable(name) {
			continue
		}
		value := room.value(plan.GetPlannedOutputs()[name])
		outputs = append(outputs, infrav1.PlannedOutput{Name: name, Unknown: value == nil, Value: value})
	}
	return outputs
}

func rawJSON(text string) *apiextensionsv1.JSON {
	if text == "" || !json.Valid([]byte(text)) {
		return nil
	}
	return &apiextensionsv1.JSON{Raw: []byte(text)}
}

func byName(a, b *runnerpb.Output) int { return cmp.Compare(a.GetName(), b.GetName()) }

// recordOutputs replaces status.outputs.
func (s *scope) recordOutputs(outputs []*runnerpb.Output) {
	var list []infrav1.OutputStatus
	room := budget(maxValues)
	for _, output := range slices.SortedFunc(slices.Values(outputs), byName) {
		if len(list) == infrav1.MaxStatusOutputs {
			break
		}
		if !showable(output.GetName()) {
			continue
		}
		entry := infrav1.OutputStatus{Name: output.GetName(), Type: truncate(typeNotation(output.GetType()), maxType), Sensitive: output.GetSensitive()}
		if !entry.Sensitive {
			entry.Value = room.value(output.GetValue())
		}
		list = append(list, entry)
	}
	s.obj.Status.Outputs = list
}

// recordOutputsWritten notes that the outputs stand where spec.outputs wants them.
func (s *scope) recordOutputsWritten(written bool) {
	switch {
	case len(s.obj.Spec.Outputs) == 0:
		conditions.Delete(s.obj, infrav1.OutputsWrittenCondition)
	case written:
		conditions.MarkTrue(s.obj, infrav1.OutputsWrittenCondition, infrav1.OutputsWrittenReason, "%s", "The outputs are written")
	}
}

// recordResources replaces the inventory by that after an apply.
func (s *scope) recordResources(resources []*runnerpb.Resource, count int64) {
	var list []infrav1.ResourceStatus
	room := budget(maxResources)
	if s.obj.GetInventory() {
		for _, resource := range resources[:min(len(resources), infrav1.MaxStatusResources)] {
			if !room.take(len(resource.GetAddress()) + len(resource.GetType()) + len(resource.GetProvider()) + len(resource.GetId())) {
				break
			}
			list = append(list, infrav1.ResourceStatus{
				Address: resource.GetAddress(), Type: resource.GetType(), Provider: resource.GetProvider(), ID: resource.GetId(),
			})
		}
	}
	total := int32(min(max(count, int64(len(resources))), math.MaxInt32))
	s.obj.Status.Resources, s.obj.Status.ResourceCount = list, &total
}

// driftedResources names what no longer matches the state. The plan shows how it
// would be put right; what happened to it is the reverse.
func driftedResources(changed []*runnerpb.ResourceChange) []infrav1.DriftedResource {
	var list []infrav1.DriftedResource
	room := budget(maxResources)
	for _, change := range changed {
		if len(list) == infrav1.MaxStatusResources || !room.take(len(change.GetAddress())) {
			break
		}
		action := "update"
		if len(change.GetActions()) == 1 && change.GetActions()[0] == "create" {
			action = "delete"
		}
		list = append(list, infrav1.DriftedResource{Address: change.GetAddress(), Action: action})
	}
	return list
}
