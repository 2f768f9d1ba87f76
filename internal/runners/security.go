package runners

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	psaapi "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/reconcile"
)

// evaluator is Kubernetes' own of the Pod Security Standards.
var evaluator = sync.OnceValues(func() (policy.Evaluator, error) {
	return policy.NewEvaluator(policy.DefaultChecks(), nil)
})

// restricted refuses a pod that the Pod Security Standard "restricted" forbids, also
// in namespaces whose labels do not enforce it.
func (p *Pool) restricted(pod *corev1.Pod) error {
	check, err := evaluator()
	if err != nil {
		return err
	}
	level := psaapi.LevelVersion{Level: psaapi.LevelRestricted, Version: psaapi.LatestVersion()}
	result := policy.AggregateCheckResults(check.EvaluatePod(level, &pod.ObjectMeta, &pod.Spec))
	if result.Allowed {
		return nil
	}
	return reconcile.Terminalf(infrav1.PodTemplateInvalidReason,
		"spec.runner.template makes a pod that the Pod Security Standard restricted forbids: %s; change it, or let the operator run with --allow-unrestricted-runners",
		result.ForbiddenDetail())
}
