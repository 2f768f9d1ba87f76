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

// Backend says where the state is kept. At most one of kubernetes, custom and
// none may be set; none of them means kubernetes.
// +kubebuilder:validation:XValidation:rule="(has(self.kubernetes) ? 1 : 0) + (has(self.custom) ? 1 : 0) + (has(self.none) ? 1 : 0) <= 1",message="at most one of backend.kubernetes, backend.custom and backend.none may be set"
// +kubebuilder:validation:XValidation:rule="!has(self.configFrom) || has(self.custom) || has(self.none)",message="backend.configFrom needs backend.custom or backend.none: the settings of backend.kubernetes are the operator's"
type Backend struct {
	// kubernetes keeps the state in a Secret in the namespace of the object.
	// +optional
	Kubernetes *KubernetesBackend `json:"kubernetes,omitempty"`

	// custom is the HCL of a backend block, for example
	// `backend "s3" { bucket = "states" }`. Secrets belong in configFrom.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16384
	// +optional
	Custom string `json:"custom,omitempty"`

	// configFrom takes settings of the backend from Secrets and ConfigMaps, one
	// per key. A later entry takes precedence over an earlier one.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	ConfigFrom []BackendConfigFrom `json:"configFrom,omitempty"`

	// none writes no backend: the module has its own backend block.
	// +optional
	None *NoBackend `json:"none,omitempty"`
}

// KubernetesBackend keeps the state in a Secret in the namespace of the object,
// compressed, and locks it with a Lease.
type KubernetesBackend struct {
	// secretSuffix ends the name of the Secret, which is
	// tfstate-<workspace>-<secretSuffix>. Empty means the name of the object. A
	// change starts with an empty state: move the Secret first.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$`
	// +optional
	SecretSuffix string `json:"secretSuffix,omitempty"`

	// labels of the Secret and the Lease, beside those that the tool sets.
	// +kubebuilder:validation:MaxProperties=32
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
}

// NoBackend is a marker without fields.
type NoBackend struct{}

// BackendConfigFrom takes settings of a backend from a Secret or ConfigMap.
type BackendConfigFrom struct {
	// kind of the object.
	// +required
	Kind ConfigKind `json:"kind"`

	// name of the object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`

	// keys to take. Empty means all of them.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[-._a-zA-Z0-9]+$`
	// +listType=set
	// +optional
	Keys []string `json:"keys,omitempty"`
}

// Cloud keeps the state in HCP Terraform or a service with the same API.
type Cloud struct {
	// organization that owns the workspaces.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Organization string `json:"organization"`

	// hostname of the service. Empty means the default of the tool.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9]([-.a-zA-Z0-9]*[a-zA-Z0-9])?(:[0-9]{1,5})?$`
	// +optional
	Hostname string `json:"hostname,omitempty"`

	// workspace selects the workspaces of the service.
	// +required
	Workspace CloudWorkspace `json:"workspace"`

	// tokenSecretRef points to the API token. Without it the token must be part of
	// the CLI configuration.
	// +optional
	TokenSecretRef *KeyReference `json:"tokenSecretRef,omitempty"`
}

// CloudWorkspace selects the workspaces of the service.
// +kubebuilder:validation:XValidation:rule="has(self.name) != has(self.tags)",message="exactly one of cloud.workspace.name and cloud.workspace.tags must be set"
type CloudWorkspace struct {
	// name of the one workspace.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=90
	// +kubebuilder:validation:Pattern=`^[-A-Za-z0-9_]+$`
	// +optional
	Name string `json:"name,omitempty"`

	// tags that the workspaces bear; spec.workspace selects one of them.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	// +listType=set
	// +optional
	Tags []string `json:"tags,omitempty"`

	// project that the workspaces belong to.
	// +kubebuilder:validation:MaxLength=40
	// +optional
	Project string `json:"project,omitempty"`
}

// ForceUnlock says when the operator releases a lock on its own.
// +kubebuilder:validation:Enum=Never;Stale
type ForceUnlock string

const (
	// ForceUnlockNever leaves every lock to people.
	ForceUnlockNever ForceUnlock = "Never"
	// ForceUnlockStale releases a lock when it belongs to an operation of this
	// object that is known to have ended without releasing it.
	ForceUnlockStale ForceUnlock = "Stale"
)

// StateLock says what happens to a lock that nobody releases any more.
type StateLock struct {
	// forceUnlock says when the operator releases a lock on its own.
	// +kubebuilder:default=Stale
	// +optional
	ForceUnlock ForceUnlock `json:"forceUnlock,omitempty"`

	// id of a lock to release now, whoever holds it, as status.lock.id shows it.
	// A lock with another id is left alone.
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_][^\s]*$`
	// +optional
	ID string `json:"id,omitempty"`
}

// GetForceUnlock returns when a lock is released, by default when it is stale.
func (in StateLock) GetForceUnlock() ForceUnlock {
	return orDefault(in.ForceUnlock, ForceUnlockStale)
}
