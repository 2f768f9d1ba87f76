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

import (
	"github.com/fluxcd/pkg/apis/meta"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TerraformStatus is what the operator observed and did last.
type TerraformStatus struct {
	meta.ReconcileRequestStatus `json:",inline"`
	meta.ForceRequestStatus     `json:",inline"`

	// lastHandledResetAt is the most recent value of the annotation
	// reconcile.fluxcd.io/resetAt that was handled.
	// +optional
	LastHandledResetAt string `json:"lastHandledResetAt,omitempty"`

	// observedGeneration is the last generation that was dealt with: brought to
	// Ready, found Stalled, or planned and waiting for an approval.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions of the object: Ready always, Reconciling and Stalled only when
	// true, and Planned, ApprovalRequired, Applied, Drifted, OutputsWritten,
	// StateLocked and Healthy.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// lastAttemptedRevision is the revision of the source of the last attempt.
	// +optional
	LastAttemptedRevision string `json:"lastAttemptedRevision,omitempty"`

	// lastAppliedRevision is the revision of the source that was applied last.
	// +optional
	LastAppliedRevision string `json:"lastAppliedRevision,omitempty"`

	// source is the artifact that the object works with.
	// +optional
	Source *SourceStatus `json:"source,omitempty"`

	// operation is the one that runs or is about to. It is written before the
	// operation starts, so that it is found again after a crash.
	// +optional
	Operation *OperationStatus `json:"operation,omitempty"`

	// plan is the latest plan.
	// +optional
	Plan *PlanStatus `json:"plan,omitempty"`

	// applied is the latest successful apply.
	// +optional
	Applied *AppliedStatus `json:"applied,omitempty"`

	// outputs of the module. Only those in spec.publishOutputs have a value here.
	// +kubebuilder:validation:MaxItems=256
	// +listType=map
	// +listMapKey=name
	// +optional
	Outputs []OutputStatus `json:"outputs,omitempty"`

	// resources are the managed resources in the state, at most 500.
	// +kubebuilder:validation:MaxItems=500
	// +listType=atomic
	// +optional
	Resources []ResourceStatus `json:"resources,omitempty"`

	// resourceCount is the number of all managed resources in the state.
	// +optional
	ResourceCount *int32 `json:"resourceCount,omitempty"`

	// lock is the lock on the state that stands in the way.
	// +optional
	Lock *LockStatus `json:"lock,omitempty"`

	// drift is what no longer matches the state.
	// +optional
	Drift *DriftStatus `json:"drift,omitempty"`

	// history holds the latest operations, the newest first, as many as
	// spec.historyLimit says. A plan without changes leaves no entry.
	// +kubebuilder:validation:MaxItems=50
	// +listType=atomic
	// +optional
	History []HistoryEntry `json:"history,omitempty"`

	// tool that ran last.
	// +optional
	Tool *ToolStatus `json:"tool,omitempty"`

	// failures is the number of failures in a row; it sets the pace of retries.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Failures int64 `json:"failures,omitempty"`

	// nextRetryAt is when the next retry is due.
	// +optional
	NextRetryAt *metav1.Time `json:"nextRetryAt,omitempty"`
}

// SourceStatus identifies an artifact.
type SourceStatus struct {
	// revision of the source, for example main@sha1:6f1c….
	// +optional
	Revision string `json:"revision,omitempty"`

	// originRevision is the revision that the source's own origin recorded, which
	// commit statuses need for artifacts that were not made from Git directly.
	// +optional
	OriginRevision string `json:"originRevision,omitempty"`

	// digest of the artifact, as algorithm:checksum.
	// +optional
	Digest string `json:"digest,omitempty"`
}

// PlanStatus describes a saved plan.
type PlanStatus struct {
	// id of the plan. Plans that would do the same have the same id.
	// +kubebuilder:validation:MaxLength=69
	// +optional
	ID string `json:"id,omitempty"`

	// hasChanges says whether the plan would change anything. The counts in
	// summary do not tell: a plan that only moves resources counts zero.
	// +optional
	HasChanges bool `json:"hasChanges,omitempty"`

	// revision of the source that was planned.
	// +optional
	Revision string `json:"revision,omitempty"`

	// sourceDigest is the digest of the files of the source that the plan used.
	// +optional
	SourceDigest string `json:"sourceDigest,omitempty"`

	// digest of the saved plan. Only a plan that still has it is applied.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	Digest string `json:"digest,omitempty"`

	// generation of the object that was planned.
	// +optional
	Generation int64 `json:"generation,omitempty"`

	// createdAt is when the plan was made.
	// +optional
	CreatedAt *metav1.Time `json:"createdAt,omitempty"`

	// approvedAt is when the plan was approved. Empty while it is not.
	// +optional
	ApprovedAt *metav1.Time `json:"approvedAt,omitempty"`

	// destroy says that the plan destroys everything in the state.
	// +optional
	Destroy bool `json:"destroy,omitempty"`

	// drift says that the plan corrects drift: source and inputs are those that
	// were applied last.
	// +optional
	Drift bool `json:"drift,omitempty"`

	// outputs are the planned values of the published outputs.
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=name
	// +optional
	Outputs []PlannedOutput `json:"outputs,omitempty"`

	// summary counts what the plan would do.
	// +optional
	Summary *PlanSummary `json:"summary,omitempty"`

	// warnings of the tool, the first line of each.
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=4096
	// +listType=atomic
	// +optional
	Warnings []string `json:"warnings,omitempty"`
}

// PlannedOutput is the value that a published output will have after the plan.
type PlannedOutput struct {
	// name of the output.
	// +kubebuilder:validation:MaxLength=128
	// +required
	Name string `json:"name"`

	// unknown says that the value, or a part of it, is known only after the apply.
	// +optional
	Unknown bool `json:"unknown,omitempty"`

	// value that is planned. Parts that are not known yet are null.
	// +optional
	Value *apiextensionsv1.JSON `json:"value,omitempty"`
}

// PlanSummary counts resource instances and outputs by what happens to them.
type PlanSummary struct {
	// add counts resources that are created.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Add int32 `json:"add"`

	// change counts resources that are updated in place.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Change int32 `json:"change"`

	// destroy counts resources that are destroyed and not created again.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Destroy int32 `json:"destroy"`

	// replace counts resources that are destroyed and created again.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Replace int32 `json:"replace"`

	// import counts resources that are taken into the state.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Import int32 `json:"import"`

	// move counts resources whose address changes.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Move int32 `json:"move"`

	// forget counts resources that are removed from the state and live on.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Forget int32 `json:"forget"`

	// outputs counts outputs that change.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Outputs int32 `json:"outputs"`
}

// AppliedStatus describes a successful apply.
type AppliedStatus struct {
	// planID is the id of the plan that was applied.
	// +kubebuilder:validation:MaxLength=69
	// +optional
	PlanID string `json:"planID,omitempty"`

	// revision of the source that was applied.
	// +optional
	Revision string `json:"revision,omitempty"`

	// generation of the object that was applied.
	// +optional
	Generation int64 `json:"generation,omitempty"`

	// at is when the apply ended.
	// +optional
	At *metav1.Time `json:"at,omitempty"`
}

// OutputStatus is an output of the module.
type OutputStatus struct {
	// name of the output.
	// +kubebuilder:validation:MaxLength=128
	// +required
	Name string `json:"name"`

	// type of the output in the notation of the tool, for example list(string).
	// +optional
	Type string `json:"type,omitempty"`

	// sensitive says that the value never appears here.
	// +optional
	Sensitive bool `json:"sensitive,omitempty"`

	// value of a published output.
	// +optional
	Value *apiextensionsv1.JSON `json:"value,omitempty"`
}

// ResourceStatus is a managed resource in the state.
type ResourceStatus struct {
	// address of the resource instance.
	// +required
	Address string `json:"address"`

	// type of the resource.
	// +optional
	Type string `json:"type,omitempty"`

	// provider that manages the resource.
	// +optional
	Provider string `json:"provider,omitempty"`

	// id of the resource, where the provider has one that is not sensitive.
	// +optional
	ID string `json:"id,omitempty"`
}

// LockStatus is a lock on the state.
type LockStatus struct {
	// id of the lock.
	// +optional
	ID string `json:"id,omitempty"`

	// who took the lock, as the tool recorded it.
	// +optional
	Who string `json:"who,omitempty"`

	// operation that took the lock, as the tool recorded it.
	// +optional
	Operation string `json:"operation,omitempty"`

	// createdAt is when the lock was taken.
	// +optional
	CreatedAt *metav1.Time `json:"createdAt,omitempty"`
}

// DriftStatus is what no longer matches the state.
type DriftStatus struct {
	// detectedAt is when the drift was first seen.
	// +optional
	DetectedAt *metav1.Time `json:"detectedAt,omitempty"`

	// resources that drifted, at most 500.
	// +kubebuilder:validation:MaxItems=500
	// +listType=atomic
	// +optional
	Resources []DriftedResource `json:"resources,omitempty"`
}

// DriftedResource is a resource that no longer matches the state.
type DriftedResource struct {
	// address of the resource instance.
	// +required
	Address string `json:"address"`

	// action that happened to the resource outside of the operator: update or
	// delete.
	// +optional
	Action string `json:"action,omitempty"`
}

// ToolStatus is the program that ran.
type ToolStatus struct {
	// name of the program.
	// +optional
	Name Tool `json:"name,omitempty"`

	// version of the program.
	// +optional
	Version string `json:"version,omitempty"`
}
