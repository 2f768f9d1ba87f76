package runners

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
)

// phase is how far a pod has come, as the pool sees it.
type phase int

const (
	// starting pods may still come up.
	starting phase = iota
	// running pods have an address and a process.
	running
	// ending pods are being deleted; what runs in them is given time to end.
	ending
	// gone pods have no process any more.
	gone
)

// state is what matters of a pod's status. For pods that do not run, Reason and
// Message say why, in the words of who knows.
type state struct {
	Phase           phase
	IP              string
	Reason, Message string
}

// stateOf classifies a pod.
func stateOf(pod *corev1.Pod) state {
	s := state{IP: pod.Status.PodIP, Reason: infrav1.RunnerStartingReason, Message: "the pod is starting"}
	switch {
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		s.Phase, s.Reason, s.Message = gone, infrav1.RunnerFailedReason, endOf(pod)
		return s
	case !pod.DeletionTimestamp.IsZero():
		s.Phase, s.Reason, s.Message = ending, infrav1.RunnerFailedReason, "the pod is being deleted"
		return s
	}
	for _, c := range pod.Status.ContainerStatuses {
		if c.Name == container && c.State.Running != nil && s.IP != "" {
			s.Phase, s.Message = running, ""
			return s
		}
	}
	if scheduled := condition(pod, corev1.PodScheduled); scheduled != nil && scheduled.Status == corev1.ConditionFalse {
		s.Reason, s.Message = infrav1.PodUnschedulableReason, cmp.Or(scheduled.Message, scheduled.Reason)
		return s
	}
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if reason, message := waiting(&c); message != "" {
			s.Reason, s.Message = reason, message
			return s
		}
	}
	return s
}

func condition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == kind {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// waiting says why a container does not run, if that is worth a word. The reasons
// are the kubelet's (pkg/kubelet/images and kuberuntime of Kubernetes 1.37).
func waiting(c *corev1.ContainerStatus) (reason, message string) {
	// The kubelet may leave it at that while it waits before it starts the container again.
	if ended := c.State.Terminated; ended != nil && ended.ExitCode != 0 {
		return infrav1.RunnerFailedReason, fmt.Sprintf("container %s is to be started again; it ended with %s", c.Name, exitOf(ended))
	}
	if c.State.Waiting == nil {
		return "", ""
	}
	text := fmt.Sprintf("container %s: %s", c.Name, c.State.Waiting.Reason)
	if c.State.Waiting.Message != "" {
		text += ": " + c.State.Waiting.Message
	}
	switch c.State.Waiting.Reason {
	case "", "ContainerCreating", "PodInitializing":
		return "", ""
	case "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable":
		return infrav1.ImagePullFailedReason, fmt.Sprintf("image %s: %s", c.Image, text)
	default:
		if last := c.LastTerminationState.Terminated; last != nil {
			text += "; it ended before with " + exitOf(last)
		}
		return infrav1.RunnerFailedReason, text
	}
}

// endOf says how a pod ended.
func endOf(pod *corev1.Pod) string {
	if pod.Status.Message != "" || pod.Status.Reason != "" {
		return fmt.Sprintf("the pod ended: %s %s", pod.Status.Reason, pod.Status.Message)
	}
	for _, c := range pod.Status.ContainerStatuses {
		if c.Name == container && c.State.Terminated != nil {
			return "the pod ended with " + exitOf(c.State.Terminated)
		}
	}
	return "the pod ended"
}

func exitOf(t *corev1.ContainerStateTerminated) string {
	text := fmt.Sprintf("exit code %d (%s)", t.ExitCode, t.Reason)
	switch {
	case t.Reason == "OOMKilled": // its last words do not know of it
		text += ": it needs more memory than its limit, which spec.runner.template can raise"
	case t.Message != "":
		text += ": " + t.Message
	}
	return text
}

// Strip keeps of a pod in a cache what the pool looks at.
func Strip(object any) (any, error) {
	full, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	small := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: full.Namespace, Name: full.Name, UID: full.UID, ResourceVersion: full.ResourceVersion,
		CreationTimestamp: full.CreationTimestamp, DeletionTimestamp: full.DeletionTimestamp,
		Labels: full.Labels, Annotations: full.Annotations,
	}}
	small.Status = corev1.PodStatus{
		Phase: full.Status.Phase, PodIP: full.Status.PodIP, Reason: full.Status.Reason, Message: full.Status.Message,
		ContainerStatuses: full.Status.ContainerStatuses, InitContainerStatuses: full.Status.InitContainerStatuses,
	}
	if scheduled := condition(full, corev1.PodScheduled); scheduled != nil {
		small.Status.Conditions = []corev1.PodCondition{*scheduled}
	}
	return small, nil
}
