package terraform

import (
	"testing"
	"time"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/operation"
)

var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// quiet are the facts of an object with nothing to do: planned, up to date, and
// within its interval.
func quiet() facts {
	return facts{
		Now: noon, EverPlanned: true, NextPlanAt: noon.Add(time.Minute),
		Mode: infrav1.ApprovalManual, Drift: infrav1.DriftCorrect,
	}
}

func TestDecide(t *testing.T) {
	t.Parallel()
	pending := func(f *facts) { f.PlanID = "plan-1" }
	misfit := func(f *facts) { f.PlanMisfit = true }
	due := func(f *facts) { f.NextPlanAt = noon }
	auto := func(f *facts) { f.Mode = infrav1.ApprovalAuto }
	never := func(f *facts) { f.Mode = infrav1.ApprovalNever }
	report := func(f *facts) { f.Drift = infrav1.DriftReport }
	disabled := func(f *facts) { f.Drift = infrav1.DriftDisabled }
	drifted := func(f *facts) { f.PlanID, f.PlanDrift = "plan-1", true }
	approved := func(f *facts) { f.Approved = true }
	failed := func(f *facts) { f.Failed, f.RetryAt = true, noon.Add(time.Hour) }
	stalled := func(f *facts) { f.Failed, f.Stalled = true, true }
	generation := func(f *facts) { f.GenerationChanged = true }
	source := func(f *facts) { f.SourceChanged = true }
	requested := func(f *facts) { f.Requested = true }

	type change = func(*facts)
	plan := func(c cause, v operation.Visibility) decision {
		return decision{Action: actionPlan, Cause: c, Visibility: v, Save: true}
	}
	unsaved := func(d decision) decision { d.Save = false; return d }
	ifChanged := func(d decision) decision { d.IfChanged = true; return d }
	force := func(d decision) decision { d.Force = true; return d }
	rest := func(c cause) decision {
		return decision{Action: actionRest, Cause: c, Wake: noon.Add(time.Minute)}
	}
	await := decision{Action: actionAwait, Cause: causeUnapproved, Wake: noon.Add(time.Minute)}
	apply := func(c cause) decision {
		return decision{Action: actionApply, Cause: c, Visibility: operation.Full}
	}

	for name, test := range map[string]struct {
		facts []change
		want  decision
	}{
		"nothing to do":                                  {nil, rest(causeUpToDate)},
		"the first plan runs in any case":                {[]change{func(f *facts) { f.EverPlanned = false }, generation, source}, plan(causeFirst, operation.Full)},
		"a plan that may need an approval is saved":      {[]change{requested}, plan(causeRequest, operation.Quiet)},
		"a plan that needs none is not":                  {[]change{requested, auto}, unsaved(plan(causeRequest, operation.Quiet))},
		"a plan whose drift is reported is saved":        {[]change{requested, auto, report}, plan(causeRequest, operation.Quiet)},
		"a new generation is planned if it matters":      {[]change{generation}, ifChanged(plan(causeGeneration, operation.Full))},
		"a new source is planned if it matters":          {[]change{source}, ifChanged(plan(causeSource, operation.Full))},
		"a new generation comes before the pending plan": {[]change{pending, approved, generation}, ifChanged(plan(causeGeneration, operation.Full))},
		"a request comes before a new generation":        {[]change{generation, requested}, plan(causeRequest, operation.Quiet)},
		"force comes before a request":                   {[]change{requested, func(f *facts) { f.Forced = true }}, force(plan(causeForce, operation.Quiet))},
		"the end of the interval is silent":              {[]change{due}, plan(causeInterval, operation.Silent)},
		"without interest in drift only inputs count":    {[]change{due, disabled}, ifChanged(plan(causeInterval, operation.Silent))},
		"an unapproved plan is refreshed on interval":    {[]change{pending, due}, plan(causeInterval, operation.Silent)},
		"an approved plan is not":                        {[]change{pending, approved, due}, apply(causeApproved)},
		"a standing drift report is refreshed":           {[]change{drifted, report, due}, plan(causeInterval, operation.Silent)},
		"a plan that does not fit is made anew":          {[]change{pending, approved, auto, misfit}, unsaved(ifChanged(plan(causeMisfit, operation.Full)))},
		"an unapproved one too":                          {[]change{pending, misfit}, ifChanged(plan(causeMisfit, operation.Full))},
		"but not before a failure may be tried again":    {[]change{pending, misfit, failed}, decision{Action: actionNone, Cause: causeBackoff, Wake: noon.Add(time.Hour)}},
		"Manual waits":                                    {[]change{pending}, await},
		"Manual applies what is approved":                 {[]change{pending, approved}, apply(causeApproved)},
		"Auto applies":                                    {[]change{pending, auto}, apply(causeAuto)},
		"Never applies nothing":                           {[]change{pending, never}, rest(causeNever)},
		"Never applies nothing even if approved":          {[]change{pending, never, approved}, rest(causeNever)},
		"Auto corrects drift":                             {[]change{drifted, auto}, apply(causeAuto)},
		"Auto with Report leaves drift alone":             {[]change{drifted, auto, report}, rest(causeDrift)},
		"Auto with Disabled leaves drift alone":           {[]change{drifted, auto, disabled}, rest(causeDrift)},
		"Auto with Report applies what is no drift":       {[]change{pending, auto, report}, apply(causeAuto)},
		"a reported drift plan can be approved":           {[]change{drifted, report, approved}, apply(causeApproved)},
		"drift in Manual needs an approval":               {[]change{drifted}, await},
		"a lost operation is planned anew":                {[]change{func(f *facts) { f.Lost = true }, pending, approved}, plan(causeLost, operation.Full)},
		"a lost operation comes before a pending retry":   {[]change{func(f *facts) { f.Lost = true }, failed}, plan(causeLost, operation.Full)},
		"a stale plan is planned anew":                    {[]change{func(f *facts) { f.Stale = true }, pending, approved}, plan(causeStale, operation.Full)},
		"a failure is tried again when it is due":         {[]change{failed, func(f *facts) { f.RetryAt = noon }}, plan(causeRetry, operation.Quiet)},
		"a failure without a time is due":                 {[]change{func(f *facts) { f.Failed = true }}, plan(causeRetry, operation.Quiet)},
		"a failure waits until then":                      {[]change{failed, pending, approved, due}, decision{Action: actionNone, Cause: causeBackoff, Wake: noon.Add(time.Hour)}},
		"a new generation does not wait":                  {[]change{failed, generation}, plan(causeGeneration, operation.Full)},
		"a new source does not wait":                      {[]change{failed, source}, plan(causeSource, operation.Full)},
		"a request does not wait":                         {[]change{failed, requested}, plan(causeRequest, operation.Quiet)},
		"a reset does not wait":                           {[]change{failed, requested, func(f *facts) { f.Reset = true }}, plan(causeReset, operation.Quiet)},
		"a stalled object does not try again by itself":   {[]change{stalled, due}, decision{Action: actionNone, Cause: causeStalled}},
		"a stalled object tries a new generation":         {[]change{stalled, generation}, plan(causeGeneration, operation.Full)},
		"a stalled object tries a new source":             {[]change{stalled, source}, plan(causeSource, operation.Full)},
		"a stalled object answers a request":              {[]change{stalled, requested}, plan(causeRequest, operation.Quiet)},
		"a failed object without any plan plans for real": {[]change{failed, generation, func(f *facts) { f.EverPlanned = false }}, plan(causeGeneration, operation.Full)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := quiet()
			for _, change := range test.facts {
				change(&f)
			}
			if got := decide(f); got != test.want {
				t.Errorf("decide = %+v, want %+v", got, test.want)
			}
		})
	}
}

// TestNeverMeansNever tries all combinations of the facts that are yes or no.
func TestNeverMeansNever(t *testing.T) {
	t.Parallel()
	for bits := range 1 << 11 {
		bit := func(i int) bool { return bits&(1<<i) != 0 }
		f := quiet()
		f.EverPlanned, f.GenerationChanged, f.SourceChanged, f.Requested, f.Forced = bit(0), bit(1), bit(2), bit(3), bit(4)
		f.Lost, f.Stale, f.Failed, f.PlanDrift, f.Approved = bit(5), bit(6), bit(7), bit(8), bit(9)
		f.PlanMisfit = bit(10)
		f.PlanID = "plan-1"
		for _, drift := range []infrav1.DriftMode{infrav1.DriftCorrect, infrav1.DriftReport, infrav1.DriftDisabled} {
			f.Drift = drift
			f.Mode = infrav1.ApprovalNever
			if got := decide(f); got.Action == actionApply {
				t.Fatalf("mode Never applies: %+v for %+v", got, f)
			}
			f.Mode = infrav1.ApprovalManual
			if got := decide(f); got.Action == actionApply && !f.Approved {
				t.Fatalf("mode Manual applies an unapproved plan: %+v for %+v", got, f)
			}
			if got := decide(f); got.Action == actionApply && f.PlanMisfit {
				t.Fatalf("a plan that does not fit is applied: %+v for %+v", got, f)
			}
		}
	}
}
