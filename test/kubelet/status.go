package kubelet

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// finished says whether the pod ended for good.
func (p *pod) finished() bool {
	return p.status != nil && (p.status.Phase == corev1.PodSucceeded || p.status.Phase == corev1.PodFailed)
}

// summarize computes the pod's status from its containers'.
func (p *pod) summarize() {
	if p.finished() {
		return
	}
	s := p.status
	if p.ip != "" {
		s.PodIP, s.PodIPs = p.ip, []corev1.PodIP{{IP: p.ip}}
	}
	s.ContainerStatuses = nil
	var unready []string
	running, begun, failed := 0, false, false
	for _, c := range p.containers {
		s.ContainerStatuses = append(s.ContainerStatuses, *c.status.DeepCopy())
		if !c.status.Ready {
			unready = append(unready, c.spec.Name)
		}
		if !c.over {
			running++
		}
		begun = begun || c.begun
		failed = failed || c.over && (c.status.State.Terminated == nil || c.status.State.Terminated.ExitCode != 0)
	}
	switch {
	case running == 0 && p.eviction != nil:
		s.Phase, s.Reason, s.Message = corev1.PodFailed, "Evicted", *p.eviction
		setCondition(s, corev1.DisruptionTarget, corev1.ConditionTrue, corev1.PodReasonTerminationByKubelet, *p.eviction)
	case running == 0 && failed:
		s.Phase = corev1.PodFailed
	case running == 0:
		s.Phase = corev1.PodSucceeded
	case begun:
		s.Phase = corev1.PodRunning
	default:
		s.Phase = corev1.PodPending
	}
	ready, reason, message := corev1.ConditionTrue, "", ""
	if len(unready) > 0 {
		ready, reason, message = corev1.ConditionFalse, "ContainersNotReady", fmt.Sprintf("containers with unready status: %v", unready)
	}
	if s.Phase == corev1.PodSucceeded {
		reason, message = "PodCompleted", ""
	}
	setCondition(s, corev1.PodInitialized, corev1.ConditionTrue, "", "")
	setCondition(s, corev1.ContainersReady, ready, reason, message)
	setCondition(s, corev1.PodReady, ready, reason, message)
}

// setCondition sets a condition; its time changes with its status only.
func setCondition(s *corev1.PodStatus, kind corev1.PodConditionType, status corev1.ConditionStatus, reason, message string) {
	set := corev1.PodCondition{Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(now())}
	for i := range s.Conditions {
		if c := &s.Conditions[i]; c.Type == kind {
			if c.Status == status {
				set.LastTransitionTime = c.LastTransitionTime
			}
			*c = set
			return
		}
	}
	s.Conditions = append(s.Conditions, set)
}

// publish writes the status if it is another than before.
func (p *pod) publish() error {
	if equality.Semantic.DeepEqual(p.status, p.published) {
		return nil
	}
	if err := p.patch(p.status); err != nil {
		if isMoot(err) {
			return nil
		}
		return err
	}
	p.published = p.status.DeepCopy()
	return nil
}

func (p *pod) patch(status *corev1.PodStatus) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.uid}, "status": status})
	if err != nil {
		return err
	}
	_, err = p.k.client.CoreV1().Pods(p.namespace).Patch(p.ctx, p.name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}
