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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ConfigReloadStatus is what the operator observed and did last. Digests are
// keyed (HMAC), so that they reveal nothing about the content of Secrets.
type ConfigReloadStatus struct {
	meta.ReconcileRequestStatus `json:",inline"`
	meta.ForceRequestStatus     `json:",inline"`

	// lastHandledResetAt is the most recent value of the annotation
	// reconcile.fluxcd.io/resetAt that was handled.
	// +optional
	LastHandledResetAt string `json:"lastHandledResetAt,omitempty"`

	// observedGeneration is the last generation that was dealt with.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions of the object: Ready always, Reconciling and Stalled only when
	// true, and Delivered, Verified, Applied, RestartRequired and Flapping.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// keyID identifies the key of the digests. When the key was lost or replaced,
	// digests under another id say nothing, and resourceVersions are compared
	// instead.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	KeyID string `json:"keyID,omitempty"`

	// sources are the objects that are watched, with the content that was acted on
	// last.
	// +kubebuilder:validation:MaxItems=1024
	// +listType=map
	// +listMapKey=kind
	// +listMapKey=name
	// +optional
	Sources []SourceState `json:"sources,omitempty"`

	// summary counts the selected pods.
	// +optional
	Summary *PodSummary `json:"summary,omitempty"`

	// pods that are not well, the worst first, at most 200.
	// +kubebuilder:validation:MaxItems=200
	// +listType=atomic
	// +optional
	Pods []PodStatus `json:"pods,omitempty"`

	// history holds the latest actions, the newest first, at most 50.
	// +kubebuilder:validation:MaxItems=50
	// +listType=atomic
	// +optional
	History []ReloadHistoryEntry `json:"history,omitempty"`

	// failures is the number of failures in a row; it sets the pace of retries.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Failures int64 `json:"failures,omitempty"`
}

// SourceState is a watched object with the content that was acted on last.
type SourceState struct {
	// kind of the object.
	// +required
	Kind ConfigKind `json:"kind"`

	// name of the object.
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`

	// uid of the object. Another uid under the same name is another object.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	UID string `json:"uid,omitempty"`

	// resourceVersion at which the content was read.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	ResourceVersion string `json:"resourceVersion,omitempty"`

	// digest over all keys.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	Digest string `json:"digest,omitempty"`

	// keys with the digest of each.
	// +kubebuilder:validation:MaxItems=256
	// +listType=map
	// +listMapKey=name
	// +optional
	Keys []KeyDigest `json:"keys,omitempty"`

	// changedAt is when the content changed last.
	// +optional
	ChangedAt *metav1.Time `json:"changedAt,omitempty"`
}

// KeyDigest is the digest of the content under a key.
type KeyDigest struct {
	// name of the key.
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`

	// digest of the content.
	// +kubebuilder:validation:MaxLength=128
	// +required
	Digest string `json:"digest"`
}

// PodSummary counts the selected pods.
type PodSummary struct {
	// pods that are selected.
	// +optional
	Pods int32 `json:"pods"`

	// fresh pods have the latest content, as far as anybody looks.
	// +optional
	Fresh int32 `json:"fresh"`

	// pending pods are still to be told.
	// +optional
	Pending int32 `json:"pending"`

	// stale pods have the old content after all attempts.
	// +optional
	Stale int32 `json:"stale"`

	// denied pods could not be annotated or restarted.
	// +optional
	Denied int32 `json:"denied"`

	// restartRequired pods can have the latest content only after a restart.
	// +optional
	RestartRequired int32 `json:"restartRequired"`
}

// PodClass is what it takes to bring a change into a pod.
// +kubebuilder:validation:Enum=Refresh;Restart
type PodClass string

const (
	// PodClassRefresh says that the pod consumes the change through volumes.
	PodClassRefresh PodClass = "Refresh"
	// PodClassRestart says that the pod consumes the change in a way that only a
	// restart renews.
	PodClassRestart PodClass = "Restart"
)

// PodState is how far a change got with a pod.
// +kubebuilder:validation:Enum=Pending;Bumped;Fresh;Stale;Denied;RestartRequired;Restarting;NotifyFailed
type PodState string

const (
	// PodPending says that the pod is still to be told.
	PodPending PodState = "Pending"
	// PodBumped says that the pod was told and is not verified yet.
	PodBumped PodState = "Bumped"
	// PodFresh says that the pod has the latest content, as far as anybody looks.
	PodFresh PodState = "Fresh"
	// PodStale says that the pod has the old content after all attempts.
	PodStale PodState = "Stale"
	// PodDenied says that the pod could not be annotated or restarted.
	PodDenied PodState = "Denied"
	// PodRestartRequired says that only a restart, which the strategy does not
	// allow, brings the change into the pod.
	PodRestartRequired PodState = "RestartRequired"
	// PodRestarting says that the pod is being replaced.
	PodRestarting PodState = "Restarting"
	// PodNotifyFailed says that the content is in the pod and that the application
	// did not answer as expected.
	PodNotifyFailed PodState = "NotifyFailed"
)

// PodStatus is how far the latest change got with a pod.
type PodStatus struct {
	// name of the pod.
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`

	// node that the pod runs on.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Node string `json:"node,omitempty"`

	// class is what it takes to bring the change into the pod.
	// +optional
	Class PodClass `json:"class,omitempty"`

	// state is how far the change got.
	// +optional
	State PodState `json:"state,omitempty"`

	// bumpedAt is when the pod was annotated last.
	// +optional
	BumpedAt *metav1.MicroTime `json:"bumpedAt,omitempty"`

	// attempts is how often the pod was annotated for the change.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Attempts int32 `json:"attempts,omitempty"`

	// digest of the content that the pod is to have.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	Digest string `json:"digest,omitempty"`

	// message says what is wrong with the pod.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	Message string `json:"message,omitempty"`
}

// ReloadAction is what was done about a change.
// +kubebuilder:validation:Enum=Baseline;Refresh;Restart;Report
type ReloadAction string

const (
	// ActionBaseline recorded the content of a source that was new.
	ActionBaseline ReloadAction = "Baseline"
	// ActionRefresh annotated pods.
	ActionRefresh ReloadAction = "Refresh"
	// ActionRestart restarted workloads.
	ActionRestart ReloadAction = "Restart"
	// ActionReport only reported.
	ActionReport ReloadAction = "Report"
)

// ReloadHistoryEntry is an action of the past.
type ReloadHistoryEntry struct {
	// at is when the action started.
	// +required
	At metav1.MicroTime `json:"at"`

	// source that changed, as kind/name; with several it is the first of them.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Source string `json:"source,omitempty"`

	// keys that changed.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=atomic
	// +optional
	Keys []string `json:"keys,omitempty"`

	// action that was taken.
	// +required
	Action ReloadAction `json:"action"`

	// pods that the action reached.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Pods int32 `json:"pods"`

	// latencyP50 is the median time from the change to its delivery to a pod.
	// +optional
	LatencyP50 *metav1.Duration `json:"latencyP50,omitempty"`

	// latencyP99 is the time within which 99 of 100 pods had the change delivered.
	// +optional
	LatencyP99 *metav1.Duration `json:"latencyP99,omitempty"`

	// failures counts the pods that the action did not reach.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Failures int32 `json:"failures"`
}
