package engine_test

import (
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// editLease changes the object's lock as somebody who may write Leases could.
func (l *lab) editLease(object *infrav1.Terraform, edit func(*coordinationv1.Lease)) {
	l.t.Helper()
	lease := &coordinationv1.Lease{}
	if err := l.client.Get(l.t.Context(), clientKey(l, "lock-tfstate-default-"+object.Name), lease); err != nil {
		l.t.Fatal(err)
	}
	edit(lease)
	if err := l.client.Update(l.t.Context(), lease); err != nil {
		l.t.Fatal(err)
	}
}

func TestALockWithoutItsNoteIsReportedAndReleased(t *testing.T) {
	t.Parallel()
	for name, note := range map[string]map[string]string{
		"no note":        nil,
		"a damaged note": {"app.terraform.io/lock-info": "{"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			object := l.object("bare", greeting)
			l.settle(object)
			id := l.hold(object, "alice@laptop", time.Now())
			l.editLease(object, func(lease *coordinationv1.Lease) { lease.Annotations = note })
			result, _ := l.run(l.planRequest(object, &runnerpb.PlanOptions{}))
			f := result.GetFailure()
			if lock := f.GetLock(); f.GetKind() != runnerpb.Failure_KIND_LOCKED || lock.GetId() != id || lock.GetWho() == "" || lock.GetOperation() == "" ||
				time.Since(time.Unix(lock.GetCreatedUnix(), 0)).Abs() > 5*time.Minute {
				t.Errorf("failure = %v, want the lock %s reported as far as it is known", f, id)
			}
			object.Spec.StateLock.ID = id
			if released, _ := l.run(l.planRequest(object, &runnerpb.PlanOptions{})); released.GetPlan() == nil {
				t.Errorf("result = %v, want the lock released", released)
			}
		})
	}
}

func TestALockOfAStateThatIsNotThereYetIsReportedAndReleased(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	object := l.object("early", greeting)
	id := "22222222-2222-3333-4444-555555555555"
	l.create(&coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name: "lock-tfstate-default-early", Labels: map[string]string{"tfstate": "true"},
			Annotations: map[string]string{"app.terraform.io/lock-info": `{"ID":"` + id + `","Operation":"init","Who":"root@gone","Created":"2026-01-02T03:04:05Z"}`},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &id},
	})
	result, _ := l.run(l.planRequest(object, &runnerpb.PlanOptions{}))
	lock := result.GetFailure().GetLock()
	if result.GetFailure().GetKind() != runnerpb.Failure_KIND_LOCKED || lock.GetId() != id || lock.GetWho() != "root@gone" ||
		lock.GetOperation() != "init" || lock.GetCreatedUnix() != time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Unix() {
		t.Errorf("failure = %v, want the lock of the init reported", result.GetFailure())
	}
	request := l.planRequest(object, &runnerpb.PlanOptions{})
	request.StaleLock = id
	if result, _ = l.run(request); result.GetPlan() == nil {
		t.Errorf("result = %v, want the lock released, although the tool cannot", result)
	}
}

func TestALockThatChangesMeanwhileIsNoFailureOfOurs(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		becomes string // the lock, before it is released
		want    runnerpb.Failure_Kind
	}{
		"it is released":         {},
		"it is taken by another": {becomes: "33333333-2222-3333-4444-555555555555", want: runnerpb.Failure_KIND_LOCKED},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			object := l.object("changing", greeting)
			l.settle(object)
			object.Spec.StateLock.ID = l.hold(object, "alice@laptop", time.Now())
			report := &transcript{onLine: func(line string) {
				if line != "phase unlock" {
					return
				}
				l.editLease(object, func(lease *coordinationv1.Lease) {
					lease.Spec.HolderIdentity = nil
					if test.becomes == "" {
						delete(lease.Annotations, "app.terraform.io/lock-info")
						return
					}
					lease.Spec.HolderIdentity = &test.becomes
					note := lease.Annotations["app.terraform.io/lock-info"]
					lease.Annotations["app.terraform.io/lock-info"] = strings.ReplaceAll(note, object.Spec.StateLock.ID, test.becomes)
				})
			}}
			result, _ := l.runContext(t.Context(), l.planRequest(object, &runnerpb.PlanOptions{}), report)
			if f := result.GetFailure(); f.GetKind() != test.want || f.GetLock().GetId() != test.becomes {
				t.Errorf("result = %v, want what was found afterwards", result)
			}
			if len(result.GetWarnings()) > 0 {
				t.Errorf("warnings = %q, although nothing was released", result.GetWarnings())
			}
		})
	}
}
