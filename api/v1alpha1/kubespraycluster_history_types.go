/*
Copyright 2026 The Terrace Authors

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// RunResult is how a run ended.
// +kubebuilder:validation:Enum=Succeeded;Failed;Interrupted;Cancelled
type RunResult string

const (
	// RunSucceeded says that the run ended well and that the cluster is what the
	// step promised.
	RunSucceeded RunResult = "Succeeded"
	// RunFailed says that the run failed, or that the cluster is not what the step
	// promised.
	RunFailed RunResult = "Failed"
	// RunInterrupted says that the run ended without a result.
	RunInterrupted RunResult = "Interrupted"
	// RunCancelled says that the run was stopped on request.
	RunCancelled RunResult = "Cancelled"
)

// ClusterHistoryEntry is a run of the past.
type ClusterHistoryEntry struct {
	// seq is the number of the run.
	// +kubebuilder:validation:Minimum=1
	// +required
	Seq int64 `json:"seq"`

	// operation of the run.
	// +required
	Operation ClusterOperation `json:"operation"`

	// planID is the id of the plan that the run belonged to.
	// +kubebuilder:validation:MaxLength=69
	// +optional
	PlanID string `json:"planID,omitempty"`

	// from is the Kubernetes version before the run.
	// +kubebuilder:validation:MaxLength=32
	// +optional
	From string `json:"from,omitempty"`

	// to is the Kubernetes version that the run was to lead to.
	// +kubebuilder:validation:MaxLength=32
	// +optional
	To string `json:"to,omitempty"`

	// result is how the run ended.
	// +required
	Result RunResult `json:"result"`

	// reason is the reason of the failure, one of the condition reasons.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Reason string `json:"reason,omitempty"`

	// recap adds up Ansible's recap.
	// +optional
	Recap *Recap `json:"recap,omitempty"`

	// failures are the first tasks that failed and were not ignored, at most 16.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	Failures []TaskFailure `json:"failures,omitempty"`

	// startedAt is when the run started.
	// +optional
	StartedAt *metav1.Time `json:"startedAt,omitempty"`

	// duration of the run.
	// +optional
	Duration *metav1.Duration `json:"duration,omitempty"`
}

// Recap adds up Ansible's recap over all hosts. The machines with failures are
// named in the failures of the run; a list of all would not be bounded.
type Recap struct {
	// hosts is the number of machines in the recap.
	// +optional
	Hosts int32 `json:"hosts"`

	// ok counts tasks that ended well.
	// +optional
	OK int32 `json:"ok"`

	// changed counts tasks that changed something.
	// +optional
	Changed int32 `json:"changed"`

	// unreachable counts machines that could not be reached.
	// +optional
	Unreachable int32 `json:"unreachable"`

	// failed counts tasks that failed.
	// +optional
	Failed int32 `json:"failed"`
}

// TaskFailure is a task that failed on a machine.
type TaskFailure struct {
	// host on which the task failed.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Host string `json:"host,omitempty"`

	// task that failed.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	Task string `json:"task,omitempty"`

	// message is the first line of what the task said.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	Message string `json:"message,omitempty"`
}
