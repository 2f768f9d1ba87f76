package terraform

import (
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/reconcile"
)

// rest is the result for an object that nothing is to be done about now.
func (s *scope) rest(why cause) reconcile.Result {
	obj, plan := s.obj, s.obj.Status.Plan
	if why == causeUnapproved {
		text := plan.ID + of(plan.Revision) + " needs an approval (" + summaryText(plan.Summary) + "); " + howToApprove(obj, plan.ID)
		conditions.MarkTrue(obj, infrav1.ApprovalRequiredCondition, infrav1.ApprovalRequiredReason, "%s", text)
		return reconcile.Awaiting(infrav1.ApprovalRequiredReason, text)
	}
	conditions.Delete(obj, infrav1.ApprovalRequiredCondition)
	switch why {
	case causeNever:
		return reconcile.Ready(infrav1.PlanOnlyReason, plan.ID+of(plan.Revision)+" would change "+summaryText(plan.Summary)+
			"; nothing is applied, because spec.approval.mode is Never")
	case causeDrift:
		return reconcile.Ready(infrav1.DriftDetectedReason, "Drift detected in "+driftText(obj.Status.Drift)+" ("+plan.ID+
			"); nothing is corrected, because spec.drift.mode is "+string(obj.Spec.Drift.GetMode())+"; "+howToApprove(obj, plan.ID))
	default:
		return reconcile.Ready(meta.ReconciliationSucceededReason, upToDateText(obj))
	}
}

// upToDateText depends on nothing that changes from one look to the next.
func upToDateText(obj *infrav1.Terraform) string {
	revision := ""
	if obj.Status.Source != nil {
		revision = obj.Status.Source.Revision
	}
	applied := obj.Status.Applied
	switch {
	case applied == nil && revision == "":
		return "No changes"
	case applied == nil:
		return "No changes in " + revision
	case applied.Revision == revision:
		return "Applied " + applied.PlanID + of(revision)
	default:
		return "No changes in " + revision + "; applied last: " + applied.PlanID + of(applied.Revision)
	}
}
