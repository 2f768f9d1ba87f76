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
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Defaults of ConfigReloadSpec. The CRD sets the same values; the constants
// serve objects that are made in Go and never passed an API server.
const (
	// DefaultRebumpAfter is the default of spec.refresh.rebumpAfter.
	DefaultRebumpAfter = 2 * time.Second
	// DefaultRefreshAttempts is the default of spec.refresh.attempts.
	DefaultRefreshAttempts = 3
	// DefaultNotifyPath is the default of spec.notify.http.path.
	DefaultNotifyPath = "/-/reload"
	// DefaultNotifyTimeout is the default of spec.notify.http.timeout.
	DefaultNotifyTimeout = 5 * time.Second
	// DefaultDebounceQuiet is the default of spec.debounce.quiet.
	DefaultDebounceQuiet = 50 * time.Millisecond
	// DefaultDebounceSpacing is the default of spec.debounce.spacing.
	DefaultDebounceSpacing = 5 * time.Second
	// DefaultPodsPerSecond is the default of spec.limits.podsPerSecond.
	DefaultPodsPerSecond = 100
	// DefaultMaxConcurrentRestarts is the default of
	// spec.limits.maxConcurrentRestarts.
	DefaultMaxConcurrentRestarts = 1
	// DefaultMinRestartInterval is the default of spec.limits.minInterval.
	DefaultMinRestartInterval = 30 * time.Second
	// DefaultFlapThreshold is the default of spec.limits.flapThreshold.
	DefaultFlapThreshold = "6/h"
)

// ConfigReloadSpec declares how changed ConfigMaps and Secrets reach the pods
// that run.
// +kubebuilder:validation:XValidation:rule="!has(self.restart) || !has(self.restart.when) || self.restart.when != 'InWindow' || (has(self.windows) && size(self.windows) > 0)",message="restart.when InWindow needs windows"
type ConfigReloadSpec struct {
	// suspend stops every action. Changes that happen meanwhile are acted upon when
	// it ends.
	// +optional
	Suspend bool `json:"suspend,omitempty"`

	// sources are the objects to watch, in the namespace of the object. Empty means
	// every ConfigMap and Secret that a target consumes.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	Sources []ReloadSource `json:"sources,omitempty"`

	// targets are the pods to act on, in the namespace of the object. Empty means
	// every pod that consumes a source.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	Targets []ReloadTarget `json:"targets,omitempty"`

	// exclude takes pods, workloads and sources out again.
	// +optional
	Exclude *ReloadExclude `json:"exclude,omitempty"`

	// serviceAccountName is the account, in the namespace of the object, that the
	// operator impersonates to read content, restart workloads and evict pods.
	// Empty means the default that the operator was started with.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	ServiceAccountName string `json:"serviceAccountName,omitempty"`

	// strategy says how a change reaches a pod.
	// +kubebuilder:default=Auto
	// +optional
	Strategy ReloadStrategy `json:"strategy,omitempty"`

	// refresh says how kubelets are made to update volumes.
	// +kubebuilder:default={}
	// +optional
	Refresh Refresh `json:"refresh,omitzero"`

	// restart says how workloads are restarted.
	// +kubebuilder:default={}
	// +optional
	Restart Restart `json:"restart,omitzero"`

	// notify tells the application after the content is in the pod.
	// +optional
	Notify *Notify `json:"notify,omitempty"`

	// debounce makes one action of several changes.
	// +kubebuilder:default={}
	// +optional
	Debounce Debounce `json:"debounce,omitzero"`

	// limits bound what one change, or many, can do.
	// +kubebuilder:default={}
	// +optional
	Limits Limits `json:"limits,omitzero"`

	// windows are the times in which restart.when InWindow allows restarts. They
	// hold back neither refreshes nor the kubelet's own updates.
	// +kubebuilder:validation:MaxItems=32
	// +listType=atomic
	// +optional
	Windows []Window `json:"windows,omitempty"`
}

// ReloadStrategy says how a change reaches a pod.
// +kubebuilder:validation:Enum=Auto;Refresh;Restart;Report
type ReloadStrategy string

const (
	// ReloadAuto refreshes pods where volumes suffice and restarts those where they
	// cannot, never both.
	ReloadAuto ReloadStrategy = "Auto"
	// ReloadRefresh only refreshes; pods that need a restart are reported.
	ReloadRefresh ReloadStrategy = "Refresh"
	// ReloadRestart restarts every pod that consumes a changed key.
	ReloadRestart ReloadStrategy = "Restart"
	// ReloadReport does nothing but report.
	ReloadReport ReloadStrategy = "Report"
)

// ConfigReload brings changed ConfigMaps and Secrets into the pods that run, in
// well under a second and, where files suffice, without a restart.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=cfr,categories=terrace
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp",description=""
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].status",description=""
// +kubebuilder:printcolumn:name="Status",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].message",description=""
// +kubebuilder:printcolumn:name="Strategy",type="string",JSONPath=".spec.strategy",description="",priority=1
// +kubebuilder:printcolumn:name="Pods",type="integer",JSONPath=".status.summary.pods",description="",priority=1
// +kubebuilder:printcolumn:name="Fresh",type="integer",JSONPath=".status.summary.fresh",description="",priority=1
// +kubebuilder:printcolumn:name="Restart required",type="integer",JSONPath=".status.summary.restartRequired",description="",priority=1
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="metadata.name must be at most 63 characters, because it becomes a label value"
type ConfigReload struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what is wanted.
	// +kubebuilder:default={}
	// +optional
	Spec ConfigReloadSpec `json:"spec,omitempty"`

	// status is what the operator observed and did last.
	// +kubebuilder:default={"observedGeneration":-1}
	// +optional
	Status ConfigReloadStatus `json:"status,omitempty"`
}

// ConfigReloadList is a list of ConfigReload objects.
// +kubebuilder:object:root=true
type ConfigReloadList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	// items of the list.
	Items []ConfigReload `json:"items"`
}

// GetConditions returns the conditions of the object.
func (in *ConfigReload) GetConditions() []metav1.Condition { return in.Status.Conditions }

// SetConditions replaces the conditions of the object.
func (in *ConfigReload) SetConditions(conditions []metav1.Condition) {
	in.Status.Conditions = conditions
}

// GetStrategy returns how a change reaches a pod, by default Auto.
func (in *ConfigReload) GetStrategy() ReloadStrategy { return orDefault(in.Spec.Strategy, ReloadAuto) }

// GetLastHandledReconcileRequest returns the reconcile request handled last.
func (in *ConfigReload) GetLastHandledReconcileRequest() string {
	return in.Status.GetLastHandledReconcileRequest()
}

// GetLastHandledForceRequestStatus returns where the force request handled last
// is kept.
func (in *ConfigReload) GetLastHandledForceRequestStatus() *string {
	return &in.Status.LastHandledForceAt
}

// GetLastHandledResetRequestStatus returns where the reset request handled last
// is kept.
func (in *ConfigReload) GetLastHandledResetRequestStatus() *string {
	return &in.Status.LastHandledResetAt
}
