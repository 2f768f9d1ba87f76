package faults_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestARunnerThatIsKilledAtAnyMessageLosesNothing(t *testing.T) {
	reference := clean(t)
	for i, message := range reference.messages {
		for _, pod := range []bool{false, true} {
			if !chosen(i%24 == 6 && !pod || i%24 == 18 && pod) {
				continue
			}
			name := "the process at " + message
			if pod {
				name = "the pod at " + message
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				t.Cleanup(func() { suite.points.ended(t, ofRunner) })
				tellWithRunner(t, reference, message, pod)
			})
		}
	}
}

func tellWithRunner(t *testing.T, clean *story, message string, pod bool) {
	t.Helper()
	s := tell(t, func(point) blow { return nothing }, func(s *story) {
		order := "die"
		if pod {
			order = "stall"
			go s.deleteStalled()
		}
		if err := os.WriteFile(filepath.Join(s.orders, order), []byte(message), 0o600); err != nil {
			t.Fatal(err)
		}
	})
	if _, err := os.Stat(filepath.Join(s.orders, "reached")); err != nil {
		t.Error("the point was not reached")
	}
	s.settled(clean)
	for i, want := range clean.told.Checkpoints {
		got := s.told.Checkpoints[i]
		applied := got.Applied
		if got.Applied != "" && want.Applied != "" && strings.HasSuffix(got.Name, " applied") {
			applied = want.Applied // there may be more plans; it is the last one that was approved
			if last := s.lastApproved(got); got.Applied != last {
				t.Errorf("%s: %s was applied, approved last was %s", got.Name, got.Applied, last)
			}
		}
		if got.File != want.File || got.Outputs != want.Outputs || applied != want.Applied || !slices.Equal(got.Conditions, want.Conditions) {
			t.Errorf("%s: %+v;\nwithout the fault %+v", want.Name, got, want)
		}
	}
	if got, want := count(s.told.Processes, "apply"), count(clean.told.Processes, "apply"); got > want+1 {
		t.Errorf("the tool's processes are %q: %d applies, without the fault %d", s.told.Processes, got, want)
	}
	if !slices.Equal(s.told.Left, clean.told.Left) {
		t.Errorf("what is left: %q, without the fault %q", s.told.Left, clean.told.Left)
	}
	if len(s.told.Pods) != 1 || !strings.HasPrefix(s.told.Pods[0], string(corev1.PodRunning)) {
		t.Errorf("the pods are %q", s.told.Pods)
	}
}

// lastApproved is the plan that was approved last before a checkpoint.
func (s *story) lastApproved(c checkpoint) string {
	return s.plan(s.approved[c.Approved-1])
}

func count(list []string, wanted string) (n int) {
	for _, element := range list {
		if element == wanted {
			n++
		}
	}
	return n
}

// deleteStalled deletes the pod without grace once its runner has come to the point.
func (s *story) deleteStalled() {
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-time.After(20 * time.Millisecond):
		}
		if _, err := os.Stat(filepath.Join(s.orders, "reached")); err != nil {
			continue
		}
		list := &corev1.PodList{}
		err := suite.client.List(s.ctx, list, client.InNamespace(s.namespace))
		for i := range list.Items {
			err = errors.Join(err, suite.client.Delete(s.ctx, &list.Items[i], client.GracePeriodSeconds(0)))
		}
		if err != nil {
			s.t.Error(err)
		}
		return
	}
}
