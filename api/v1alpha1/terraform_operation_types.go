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

// OperationType is what an operation does.
// +kubebuilder:validation:Enum=Plan;Apply;Destroy;Refresh;Output;ForceUnlock;ShowPlan
type OperationType string

const (
	// OperationPlan plans.
	OperationPlan OperationType = "Plan"
	// OperationApply applies a saved plan.
	OperationApply OperationType = "Apply"
	// OperationDestroy plans the destruction and applies it.
	OperationDestroy OperationType = "Destroy"
	// OperationRefresh updates the state from the real resources.
	OperationRefresh OperationType = "Refresh"
	// OperationOutput reads the outputs.
	OperationOutput OperationType = "Output"
	// OperationForceUnlock releases a lock.
	OperationForceUnlock OperationType = "ForceUnlock"
	// OperationShowPlan reads a saved plan.
	OperationShowPlan OperationType = "ShowPlan"
)

// OperationPhase is how far an operation has come. The runner may report phases
// that are not listed here; the constants are those that the operator sets.
type OperationPhase string

const (
	// OperationPending says that the operation is written down but was not started.
	OperationPending OperationPhase = "Pending"
	// OperationRunning says that the runner accepted the operation.
	OperationRunning OperationPhase = "Running"
	// OperationCancelling says that the runner was asked to stop the operation.
	OperationCancelling OperationPhase = "Cancelling"
)

// OperationStatus is an operation that runs or is about to.
type OperationStatus struct {
	// id of the operation, unique for ever. Starting an operation again under the
	// same id starts nothing new.
	// +kubebuilder:validation:MaxLength=128
	// +required
	ID string `json:"id"`

	// type of the operation.
	// +required
	Type OperationType `json:"type"`

	// runner is the name of the pod that runs the operation.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Runner string `json:"runner,omitempty"`

	// phase is how far the operation has come.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Phase OperationPhase `json:"phase,omitempty"`

	// message says in words what the operation is doing.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	Message string `json:"message,omitempty"`

	// startedAt is when the operation was written down.
	// +optional
	StartedAt *metav1.Time `json:"startedAt,omitempty"`

	// planID is the id of the plan that the operation applies or shows.
	// +kubebuilder:validation:MaxLength=69
	// +optional
	PlanID string `json:"planID,omitempty"`

	// generation of the object that the operation acts on.
	// +optional
	Generation int64 `json:"generation,omitempty"`

	// revision of the source that the operation acts on.
	// +optional
	Revision string `json:"revision,omitempty"`
}

// OperationResult is how an operation ended.
// +kubebuilder:validation:Enum=Succeeded;Failed;Cancelled;Lost
type OperationResult string

const (
	// OperationSucceeded says that the operation did what it was to do.
	OperationSucceeded OperationResult = "Succeeded"
	// OperationFailed says that the operation failed; it may have done a part.
	OperationFailed OperationResult = "Failed"
	// OperationCancelled says that the operation was stopped on request.
	OperationCancelled OperationResult = "Cancelled"
	// OperationLost says that the runner ended before it could report. What the
	// operation did is found out by the next plan.
	OperationLost OperationResult = "Lost"
)

// HistoryEntry is an operation of the past.
type HistoryEntry struct {
	// id of the operation.
	// +kubebuilder:validation:MaxLength=128
	// +required
	ID string `json:"id"`

	// type of the operation.
	// +required
	Type OperationType `json:"type"`

	// planID is the id of the plan that was made, applied or shown.
	// +kubebuilder:validation:MaxLength=69
	// +optional
	PlanID string `json:"planID,omitempty"`

	// revision of the source.
	// +optional
	Revision string `json:"revision,omitempty"`

	// result is how the operation ended.
	// +required
	Result OperationResult `json:"result"`

	// startedAt is when the operation started.
	// +optional
	StartedAt *metav1.Time `json:"startedAt,omitempty"`

	// duration of the operation.
	// +optional
	Duration *metav1.Duration `json:"duration,omitempty"`

	// summary counts what was planned or applied.
	// +optional
	Summary *PlanSummary `json:"summary,omitempty"`

	// message says why the operation failed.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	Message string `json:"message,omitempty"`
}
