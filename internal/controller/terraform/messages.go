package terraform

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/operation"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// workText says what an operation does.
func workText(obj *infrav1.Terraform, t runnerpb.OperationType, made attempt) string {
	revision := ""
	if made.Source != nil {
		revision = made.Source.Revision
	}
	switch t {
	case runnerpb.OperationType_OPERATION_TYPE_APPLY:
		if plan := obj.Status.Plan; plan != nil && plan.ID == made.PlanID {
			revision = plan.Revision
		}
		return "Applying " + made.PlanID + of(revision)
	case runnerpb.OperationType_OPERATION_TYPE_DESTROY:
		return "Destroying all resources"
	default:
		if made.Deletion {
			return "Planning the destruction of all resources"
		}
		return strings.TrimSpace("Planning " + revision)
	}
}

// progressText says how far an operation has come.
func progressText(obj *infrav1.Terraform, snapshot operation.Snapshot[attempt]) string {
	switch {
	case !snapshot.SilentSince.IsZero():
		return fmt.Sprintf(": runner pod %[1]s has not answered since %[2]s (%[3]s). What it has begun may go on and is not started a second time; "+
			"it is waited for until %[4]s. To give up earlier, delete the pod: kubectl delete pod -n %[5]s %[1]s",
			snapshot.Runner, moment(snapshot.SilentSince), snapshot.WaitsFor, moment(snapshot.PatientUntil), obj.Namespace)
	case snapshot.WaitsFor != "":
		return ": waiting for " + snapshot.WaitsFor
	case snapshot.ResourcesDone > 0:
		if total := changeCount(obj.Status.Plan, snapshot.Meta.PlanID); total > 0 {
			return fmt.Sprintf(": %d of %d changes done, now %s", snapshot.ResourcesDone, total, snapshot.Resource)
		}
		return fmt.Sprintf(": %d changes done, now %s", snapshot.ResourcesDone, snapshot.Resource)
	case snapshot.Phase != "":
		return ": " + snapshot.Phase
	default:
		return ""
	}
}

// changeCount is the number of actions that a plan takes; a replacement is two.
func changeCount(plan *infrav1.PlanStatus, id string) int {
	if plan == nil || plan.ID != id || plan.Summary == nil {
		return 0
	}
	sum := plan.Summary
	return int(sum.Add + sum.Change + sum.Destroy + 2*sum.Replace)
}

// of is " of <revision>", or nothing for modules without one.
func of(revision string) string {
	if revision == "" {
		return ""
	}
	return " of " + revision
}

// summaryText counts what a plan would do. Rare things are left out when there are none.
func summaryText(sum *infrav1.PlanSummary) string {
	if sum == nil {
		return "changes"
	}
	parts := []string{
		fmt.Sprintf("%d to add", sum.Add), fmt.Sprintf("%d to change", sum.Change), fmt.Sprintf("%d to destroy", sum.Destroy),
	}
	for _, rare := range []struct {
		count int32
		text  string
	}{
		{sum.Replace, "to replace"}, {sum.Import, "to import"}, {sum.Move, "to move"}, {sum.Forget, "to forget"}, {sum.Outputs, "outputs to change"},
	} {
		if rare.count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", rare.count, rare.text))
		}
	}
	return strings.Join(parts, ", ")
}

// maxNamed is how many drifted resources a message names.
const maxNamed = 5

// driftText counts the drifted resources and names some of them.
func driftText(drift *infrav1.DriftStatus) string {
	if drift == nil || len(drift.Resources) == 0 {
		return "outputs only"
	}
	var names []string
	for _, resource := range drift.Resources[:min(len(drift.Resources), maxNamed)] {
		names = append(names, resource.Address)
	}
	text := strings.Join(names, ", ")
	if more := len(drift.Resources) - len(names); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	if len(drift.Resources) == 1 {
		return "1 resource: " + text
	}
	return fmt.Sprintf("%d resources: %s", len(drift.Resources), text)
}

// howToApprove tells people how to approve a plan.
func howToApprove(obj *infrav1.Terraform, id string) string {
	return fmt.Sprintf("to approve it set spec.approval.plan to %[1]s, or run: kubectl annotate terraform %[2]s -n %[3]s --overwrite %[4]s=%[1]s",
		id, obj.Name, obj.Namespace, infrav1.ApproveAnnotation)
}

// truncate cuts a text to a number of bytes without breaking a character.
func truncate(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	const mark = "…"
	cut := max(limit-len(mark), 0)
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + mark
}

// moment is a point in time as messages show it.
func moment(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func timeOf(t time.Time) metav1.Time { return metav1.NewTime(t.UTC().Truncate(time.Second)) }

// typeNotation turns the JSON of a type into the tool's notation: ["list","string"] into list(string).
func typeNotation(text string) string {
	var parsed any
	if json.Unmarshal([]byte(text), &parsed) != nil {
		return text
	}
	return notation(parsed)
}

func notation(parsed any) string {
	switch t := parsed.(type) {
	case string:
		return t
	case []any:
		if len(t) < 2 {
			return "any"
		}
		return fmt.Sprintf("%v(%s)", t[0], notation(t[1]))
	case map[string]any:
		var fields []string
		for name, field := range t {
			fields = append(fields, name+"="+notation(field))
		}
		slices.Sort(fields)
		return "{" + strings.Join(fields, ",") + "}"
	default:
		return "any"
	}
}
