package engine_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/runner/engine"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

const ownerAnnotation = "infra.terrace.dev/owner"

// guarded says whether a Secret bears the finalizer.
func (l *lab) guarded(name string) bool {
	l.t.Helper()
	return slices.Contains(l.getSecret(name).Finalizers, infrav1.StateFinalizer)
}

func (l *lab) wantGuarded(want bool, names ...string) {
	l.t.Helper()
	for _, name := range names {
		if got := l.guarded(name); got != want {
			l.t.Errorf("Secret %s has the finalizer: %v, want %v", name, got, want)
		}
	}
}

func (l *lab) wantGone(names ...string) {
	l.t.Helper()
	for _, name := range names {
		if err := l.client.Get(l.t.Context(), clientKey(l, name), &corev1.Secret{}); !apierrors.IsNotFound(err) {
			l.t.Errorf("Secret %s is still there (%v)", name, err)
		}
	}
}

func (l *lab) delete(objects ...client.Object) {
	l.t.Helper()
	for _, object := range objects {
		if err := l.client.Delete(l.t.Context(), object); err != nil {
			l.t.Fatal(err)
		}
	}
}

func (l *lab) forget(object *infrav1.Terraform) {
	l.t.Helper()
	request := l.request(object)
	request.Type = runnerpb.OperationType_OPERATION_TYPE_FORGET
	if result, _ := l.run(request); result.GetOutcome() != runnerpb.Outcome_OUTCOME_SUCCEEDED {
		l.t.Errorf("forget = %v", result)
	}
}

func TestWhatADestructionNeedsCostsNoFurtherWrites(t *testing.T) {
	t.Parallel()
	for _, policy := range []infrav1.DeletionPolicy{infrav1.DeletionOrphan, infrav1.DeletionDestroy} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			object := l.object("frugal", greeting)
			object.Spec.DeletionPolicy = policy
			l.settle(object)
			if writes := l.writes(); len(writes) != 10 {
				t.Errorf("the first apply took %d writes, want 10: %q", len(writes), writes)
			}
			l.plan(object, &runnerpb.PlanOptions{})
			if writes := l.writes(); len(writes) != 2 {
				t.Errorf("an unchanged cycle took %d writes, want 2: %q", len(writes), writes)
			}
			object.Spec.Variables = []infrav1.Variable{{Name: "name", Value: value("moon")}}
			l.settle(object)
			if writes := l.writes(); len(writes) != 6 {
				t.Errorf("another apply took %d writes, want 6: %q", len(writes), writes)
			}
		})
	}
}

func TestStateAndRecordBearAFinalizerWhileThePolicyIsDestroy(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	object := l.object("kept", greeting)
	names := []string{"tfstate-default-kept", engine.RecordName("kept")}
	for _, step := range []struct {
		policy  infrav1.DeletionPolicy
		options *runnerpb.PlanOptions
		want    bool
	}{
		{policy: infrav1.DeletionOrphan, options: &runnerpb.PlanOptions{}},
		{policy: infrav1.DeletionDestroy, options: &runnerpb.PlanOptions{IfChanged: true}, want: true},
		{policy: infrav1.DeletionOrphan, options: &runnerpb.PlanOptions{IfChanged: true}},
		{policy: infrav1.DeletionDestroy, options: &runnerpb.PlanOptions{}, want: true},
	} {
		object.Spec.DeletionPolicy = step.policy
		if plan := l.plan(object, step.options); plan.GetChanges() {
			l.apply(object, plan.GetId())
		}
		l.wantGuarded(step.want, names...)
	}
	if owner := l.getSecret(names[0]).Annotations[ownerAnnotation]; owner != "kept" {
		t.Errorf("owner = %q after the tool wrote the state", owner)
	}
	if result := l.destroy(object); result.GetApply().GetDestroyed() != 1 {
		t.Errorf("destroy = %v", result)
	}
	l.wantNoSecrets()
}

func TestARecordOfManyPartsLeavesNoneBehind(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	object := l.object("parts", `
variable "noise" {}
resource "terraform_data" "a" { input = length(var.noise) }`)
	object.Spec.Variables = []infrav1.Variable{{Name: "noise", Value: value(noise(t, 1<<20))}}
	object.Spec.DeletionPolicy = infrav1.DeletionDestroy
	first := l.plan(object, &runnerpb.PlanOptions{Save: true})
	parts := &corev1.SecretList{}
	if err := l.client.List(t.Context(), parts, inNamespace(l)); err != nil {
		t.Fatal(err)
	}
	if len(parts.Items) < 4 {
		t.Errorf("the record has %d parts, want at least 3", len(parts.Items)-1)
	}
	for _, part := range parts.Items {
		l.wantGuarded(true, part.Name)
	}
	l.apply(object, first.GetId())
	l.destroy(object)
	l.wantNoSecrets()
	parts = &corev1.SecretList{}
	if err := l.client.List(t.Context(), parts, inNamespace(l)); err != nil || len(parts.Items) != 1 {
		t.Errorf("%d Secrets are left (%v), want the record's head only", len(parts.Items), err)
	}
}

func TestAStateThatIsBeingDeletedIsStillWorkedOn(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	object := l.object("going", greeting)
	object.Spec.DeletionPolicy = infrav1.DeletionDestroy
	l.settle(object)
	names := []string{"tfstate-default-going", engine.RecordName("going")}
	uid := l.getSecret(names[0]).UID
	l.delete(l.getSecret(names[0]), l.getSecret(names[1]))

	object.Spec.Variables = []infrav1.Variable{{Name: "name", Value: value("moon")}}
	result, _ := l.run(l.planRequest(object, &runnerpb.PlanOptions{}))
	warnings := strings.Join(result.GetWarnings(), "\n")
	if !result.GetPlan().GetChanges() || !strings.Contains(warnings, names[0]) || !strings.Contains(warnings, names[1]) || !strings.Contains(warnings, "copy") {
		t.Fatalf("result = %v, want a plan that warns of both", result)
	}
	l.apply(object, result.GetPlan().GetId())
	state := l.getSecret(names[0])
	if state.UID != uid || state.DeletionTimestamp == nil {
		t.Error("the state was made anew")
	}
	l.wantGuarded(true, names...)
	// The policy Orphan does not lose what is still in use.
	object.Spec.DeletionPolicy = infrav1.DeletionOrphan
	if plan := l.plan(object, &runnerpb.PlanOptions{}); plan.GetChanges() {
		t.Errorf("plan = %v, want nothing to do", plan)
	}
	l.wantGuarded(true, names...)
	object.Spec.DeletionPolicy = infrav1.DeletionDestroy
	if result := l.destroy(object); result.GetApply().GetDestroyed() != 1 {
		t.Errorf("destroy = %v", result)
	}
	l.wantGone(names...)
}

func TestAForgottenObjectLeavesItsStateAndHoldsNothing(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	object := l.object("left", greeting)
	object.Spec.DeletionPolicy = infrav1.DeletionDestroy
	l.settle(object)
	broken := l.object("broken", "this is not HCL") // whose init made an empty Secret
	broken.Spec.DeletionPolicy = infrav1.DeletionDestroy
	l.run(l.planRequest(broken, &runnerpb.PlanOptions{}))
	l.forget(object)
	l.forget(broken)
	l.forget(object) // twice does no harm
	l.wantGuarded(false, "tfstate-default-left")
	if state := l.getSecret("tfstate-default-left"); len(state.Data["tfstate"]) == 0 || state.Annotations[ownerAnnotation] != "" {
		t.Errorf("state = %v, want it free to be adopted", state.ObjectMeta)
	}
	l.wantGone(engine.RecordName("left"), engine.RecordName("broken"), "tfstate-default-broken")
}

func TestForgettingAnObjectLeavesItsSuccessorAlone(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	old := l.object("again", greeting)
	old.UID = "uid-of-the-first"
	old.Spec.DeletionPolicy = infrav1.DeletionDestroy
	l.settle(old)
	l.delete(l.getSecret(engine.RecordName("again"))) // as the garbage collector does; the finalizer keeps it

	object := l.object("again", greeting)
	object.Spec.Interval = metav1.Duration{Duration: time.Minute}
	object.Spec.DeletionPolicy = infrav1.DeletionDestroy
	l.create(object)
	l.settle(object)
	names := []string{"tfstate-default-again", engine.RecordName("again")}
	if record := l.getSecret(names[1]); record.DeletionTimestamp != nil || record.OwnerReferences[0].UID != object.UID {
		t.Errorf("record = %v, want the new object's", record.ObjectMeta)
	}
	l.forget(old)
	l.wantGuarded(true, names...)
}

func TestTwoObjectsNeverShareAState(t *testing.T) {
	t.Parallel()
	for name, second := range map[string]func(*infrav1.Terraform){
		"the same suffix": func(o *infrav1.Terraform) {
			o.Name, o.UID = "second", "uid-second"
			o.Spec.Workspace = "a"
			o.Spec.Backend = &infrav1.Backend{Kubernetes: &infrav1.KubernetesBackend{SecretSuffix: "b-c"}}
		},
		"names that only look different": func(o *infrav1.Terraform) {
			o.Name, o.UID, o.Spec.Workspace = "c", "uid-c", "a-b"
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			first := l.object("b-c", greeting)
			first.Spec.Interval = metav1.Duration{Duration: time.Minute}
			first.Spec.Workspace = "a"
			l.create(first)
			l.settle(first)
			other := l.object("x", greeting)
			other.Spec.DeletionPolicy = infrav1.DeletionDestroy
			second(other)
			result, _ := l.run(l.planRequest(other, &runnerpb.PlanOptions{}))
			f := result.GetFailure()
			if f.GetKind() != runnerpb.Failure_KIND_TERMINAL || f.GetReason() != infrav1.BackendInvalidReason || !strings.Contains(f.GetMessage(), `"b-c"`) {
				t.Errorf("result = %v, want the state refused that is b-c's", result)
			}
			l.wantProcesses() // refused before any tool runs
			if result := l.destroy(other); result.GetOutcome() != runnerpb.Outcome_OUTCOME_SUCCEEDED || result.GetApply().GetDestroyed() != 0 {
				t.Errorf("destroy = %v, want nothing to destroy", result)
			}
			if plan := l.plan(first, &runnerpb.PlanOptions{}); plan.GetChanges() {
				t.Errorf("plan = %v, want the first one's state untouched", plan)
			}
			// One that is gone leaves its state to be adopted.
			l.delete(first)
			other.DeletionTimestamp = nil
			if adopted, _ := l.run(l.planRequest(other, &runnerpb.PlanOptions{})); adopted.GetPlan() == nil {
				t.Errorf("result = %v, want the state adopted", adopted)
			}
			if owner := l.getSecret("tfstate-a-b-c").Annotations[ownerAnnotation]; owner != other.Name {
				t.Errorf("owner = %q", owner)
			}
		})
	}
}

func TestAMovedObjectLetsGoOfItsOldState(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	object := l.object("moving", greeting)
	object.Spec.DeletionPolicy = infrav1.DeletionDestroy
	l.settle(object)
	object.Spec.Backend = &infrav1.Backend{Kubernetes: &infrav1.KubernetesBackend{SecretSuffix: "elsewhere"}}
	l.plan(object, &runnerpb.PlanOptions{Force: true})
	l.wantGuarded(false, "tfstate-default-moving")
	l.wantGuarded(true, "tfstate-default-elsewhere", engine.RecordName("moving"))
}

func TestADestructionEndsInANamespaceThatIsBeingDeleted(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	object := l.object("last", greeting)
	object.Spec.DeletionPolicy = infrav1.DeletionDestroy
	object.Spec.Outputs = []infrav1.OutputTarget{{Kind: infrav1.SecretKind, Name: "out"}}
	l.settle(object)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: l.namespace}}
	names := []string{"tfstate-default-last", engine.RecordName("last"), "out"}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: "lock-tfstate-default-last"}}
	l.delete(namespace, lease)
	for _, name := range names {
		l.delete(l.getSecret(name))
	}
	// Nothing can be made any more, and the message says so.
	for name, result := range map[string]*runnerpb.Result{
		"the state of another object": l.result(l.planRequest(l.object("late", greeting), &runnerpb.PlanOptions{})),
		"the lock of a plan":          l.result(l.planRequest(object, &runnerpb.PlanOptions{})),
	} {
		if f := result.GetFailure(); f.GetReason() != infrav1.NamespaceTerminatingReason || !strings.Contains(f.GetMessage(), l.namespace) {
			t.Errorf("%s: result = %v, want the namespace named", name, result)
		}
	}
	result := l.destroy(object)
	if result.GetApply().GetDestroyed() != 1 || !strings.Contains(strings.Join(result.GetWarnings(), "\n"), "without the state lock") {
		t.Errorf("destroy = %v, want everything destroyed", result)
	}
	l.wantGone(names...)
	if again := l.destroy(object); again.GetOutcome() != runnerpb.Outcome_OUTCOME_SUCCEEDED {
		t.Errorf("a repeated destruction = %v", again)
	}
}

func (l *lab) result(request *runnerpb.StartOperationRequest) *runnerpb.Result {
	l.t.Helper()
	result, _ := l.run(request)
	return result
}

func TestAPlanTellsOfTheLastApply(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	object := l.object("told", "")
	object.Spec.Inline, object.Generation = nil, 3
	object.Spec.SourceRef = &infrav1.SourceReference{Kind: "GitRepository", Name: "repo"}
	files := map[string]string{"main.tf": greeting}
	source := l.upload("main@sha1:1", files)
	plan := func(options *runnerpb.PlanOptions) *runnerpb.PlanResult {
		request := l.planRequest(object, options)
		request.Source = source
		return l.result(request).GetPlan()
	}
	first := plan(&runnerpb.PlanOptions{})
	if last := first.GetLastApply(); last != nil {
		t.Errorf("last apply = %v, although there was none", last)
	}
	request := l.applyRequest(object, first.GetId())
	request.Source = source
	l.run(request) // nobody hears of the result

	l.restart(l.dir + "/another")
	l.upload("main@sha1:1", files)
	object.Generation = 4
	object.Spec.Variables = []infrav1.Variable{{Name: "name", Value: value("moon")}}
	changed := plan(&runnerpb.PlanOptions{Save: true})
	skipped := plan(&runnerpb.PlanOptions{IfChanged: true})
	object.Spec.Variables = nil
	unchanged := plan(&runnerpb.PlanOptions{})
	for name, result := range map[string]*runnerpb.PlanResult{"a plan with changes": changed, "a skipped plan": skipped, "a plan without changes": unchanged} {
		last := result.GetLastApply()
		if last.GetPlanId() != first.GetId() || last.GetRevision() != "main@sha1:1" || last.GetGeneration() != 3 || time.Since(time.Unix(last.GetUnixSeconds(), 0)) > 5*time.Minute {
			t.Errorf("%s: last apply = %v, want %s", name, last, first.GetId())
		}
	}
	if !changed.GetChanges() || !skipped.GetSkipped() || unchanged.GetChanges() {
		t.Errorf("plans = %v, %v, %v", changed, skipped, unchanged)
	}
}
