package runners

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
)

func ended(code int32, reason, message string) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, Message: message}}
}

func TestAContainerThatIsToBeStartedAgainSaysHowItEnded(t *testing.T) {
	t.Parallel()
	backOff := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 10s"}}
	for name, test := range map[string]struct {
		init, main corev1.ContainerStatus
		reason     string
		want       []string
		not        string
	}{
		"it ran out of memory, and the kubelet says that it waits": {
			main:   corev1.ContainerStatus{State: backOff, LastTerminationState: ended(137, "OOMKilled", "a log line")},
			reason: infrav1.RunnerFailedReason, want: []string{"CrashLoopBackOff: back-off 10s", "137 (OOMKilled)", "spec.runner.template"}, not: "a log line",
		},
		"it ran out of memory, and the kubelet says no more": {
			main:   corev1.ContainerStatus{State: ended(137, "OOMKilled", "a log line"), LastTerminationState: ended(1, "Error", "earlier")},
			reason: infrav1.RunnerFailedReason, want: []string{"container runner is to be started again", "137 (OOMKilled)", "spec.runner.template"}, not: "earlier",
		},
		"it failed": {
			main:   corev1.ContainerStatus{State: ended(1, "Error", "--listen is required")},
			reason: infrav1.RunnerFailedReason, want: []string{"exit code 1 (Error): --listen is required"},
		},
		"an init container did its work": {
			init:   corev1.ContainerStatus{State: ended(0, "Completed", "")},
			reason: infrav1.RunnerStartingReason, want: []string{"the pod is starting"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.init.Name, test.main.Name = "init", container
			s := stateOf(&corev1.Pod{Status: corev1.PodStatus{
				Phase: corev1.PodRunning, PodIP: "10.0.0.1",
				InitContainerStatuses: []corev1.ContainerStatus{test.init}, ContainerStatuses: []corev1.ContainerStatus{test.main},
			}})
			if s.Phase != starting || s.Reason != test.reason {
				t.Errorf("state = %+v", s)
			}
			for _, want := range test.want {
				if !strings.Contains(s.Message, want) {
					t.Errorf("message %q does not contain %q", s.Message, want)
				}
			}
			if test.not != "" && strings.Contains(s.Message, test.not) {
				t.Errorf("message %q contains %q", s.Message, test.not)
			}
		})
	}
}
