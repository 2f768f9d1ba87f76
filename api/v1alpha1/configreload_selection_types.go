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

// ReloadSource selects objects to watch.
// +kubebuilder:validation:XValidation:rule="has(self.name) != has(self.selector)",message="exactly one of sources[].name and sources[].selector must be set"
type ReloadSource struct {
	// kind of the objects.
	// +required
	Kind ConfigKind `json:"kind"`

	// name of the one object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Name string `json:"name,omitempty"`

	// selector chooses objects by their labels.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// keys chooses keys of the objects. Empty means all of them.
	// +optional
	Keys *KeyFilter `json:"keys,omitempty"`
}

// KeyFilter chooses keys by shell patterns, in which * stands for any text and ?
// for one character.
type KeyFilter struct {
	// include chooses the keys that match one of these patterns. Empty means all.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[-._a-zA-Z0-9*?]+$`
	// +listType=set
	// +optional
	Include []string `json:"include,omitempty"`

	// exclude takes the keys that match one of these patterns out again.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[-._a-zA-Z0-9*?]+$`
	// +listType=set
	// +optional
	Exclude []string `json:"exclude,omitempty"`
}

// ReloadTarget selects pods to act on.
// +kubebuilder:validation:XValidation:rule="(has(self.workloadRef) ? 1 : 0) + (has(self.podSelector) ? 1 : 0) + (has(self.consumers) ? 1 : 0) == 1",message="exactly one of targets[].workloadRef, targets[].podSelector and targets[].consumers must be set"
type ReloadTarget struct {
	// workloadRef selects the pods of a workload of any kind.
	// +optional
	WorkloadRef *WorkloadReference `json:"workloadRef,omitempty"`

	// podSelector selects pods by their labels.
	// +optional
	PodSelector *metav1.LabelSelector `json:"podSelector,omitempty"`

	// consumers selects every pod that consumes a source.
	// +optional
	Consumers *Consumers `json:"consumers,omitempty"`
}

// Consumers is a marker without fields.
type Consumers struct{}

// WorkloadReference names a workload in the namespace of the object.
type WorkloadReference struct {
	// apiVersion of the workload.
	// +kubebuilder:default="apps/v1"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +optional
	APIVersion string `json:"apiVersion,omitempty"`

	// kind of the workload.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	Kind string `json:"kind"`

	// name of the workload.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
}

// GetAPIVersion returns the API version of the workload, by default apps/v1.
func (in WorkloadReference) GetAPIVersion() string { return orDefault(in.APIVersion, "apps/v1") }

// ReloadExclude takes pods, workloads and sources out again.
type ReloadExclude struct {
	// pods that match this selector are left alone.
	// +optional
	Pods *metav1.LabelSelector `json:"pods,omitempty"`

	// workloads whose pods are left alone.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	Workloads []WorkloadReference `json:"workloads,omitempty"`

	// sources whose changes do not count.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=kind
	// +listMapKey=name
	// +optional
	Sources []SourceName `json:"sources,omitempty"`
}

// SourceName names a ConfigMap or Secret in the namespace of the object.
type SourceName struct {
	// kind of the object.
	// +required
	Kind ConfigKind `json:"kind"`

	// name of the object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
}
