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

	"github.com/fluxcd/pkg/apis/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Defaults of TerraformSpec. The CRD sets the same values; the constants serve
// objects that are made in Go and never passed an API server.
const (
	// DefaultTerraformRetryInterval is the default of spec.retryInterval.
	DefaultTerraformRetryInterval = 30 * time.Second
	// DefaultTerraformMaxRetryInterval is the default of spec.maxRetryInterval.
	DefaultTerraformMaxRetryInterval = time.Hour
	// DefaultTerraformTimeout is the default of spec.timeout.
	DefaultTerraformTimeout = time.Hour
	// DefaultTerraformPath is the default of spec.path.
	DefaultTerraformPath = "./"
	// DefaultWorkspace is the default of spec.workspace.
	DefaultWorkspace = "default"
	// DefaultRunnerServiceAccountName is the default of
	// spec.runner.serviceAccountName.
	DefaultRunnerServiceAccountName = "terrace-runner"
	// DefaultRunnerIdleTimeout is the default of spec.runner.idleTimeout.
	DefaultRunnerIdleTimeout = 10 * time.Minute
	// DefaultParallelism is the default of spec.planOptions.parallelism.
	DefaultParallelism = 10
	// DefaultHealthCheckTimeout is the default of spec.healthChecks[].timeout.
	DefaultHealthCheckTimeout = 20 * time.Second
	// DefaultHistoryLimit is the default of spec.historyLimit.
	DefaultHistoryLimit = 10
)

// Tool is the program that plans and applies.
// +kubebuilder:validation:Enum=OpenTofu;Terraform
type Tool string

const (
	// ToolOpenTofu runs the tofu binary of the runner image.
	ToolOpenTofu Tool = "OpenTofu"
	// ToolTerraform runs the terraform binary of the runner image.
	ToolTerraform Tool = "Terraform"
)

// TerraformSpec declares one root module, its state and how changes of it reach
// the world.
// +kubebuilder:validation:XValidation:rule="has(self.sourceRef) != has(self.inline)",message="exactly one of sourceRef and inline must be set"
// +kubebuilder:validation:XValidation:rule="!(has(self.cloud) && has(self.backend))",message="cloud and backend exclude each other"
// +kubebuilder:validation:XValidation:rule="!has(self.cloud) || !has(self.cloud.workspace.name) || !has(self.workspace) || self.workspace == 'default'",message="workspace and cloud.workspace.name exclude each other: with cloud.workspace.tags the workspace selects one of the tagged workspaces"
// +kubebuilder:validation:XValidation:rule="has(self.cloud) || (has(self.backend) && (has(self.backend.custom) || has(self.backend.none))) || !has(self.workspace) || self.workspace.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="workspace must be a DNS label (lower-case letters, digits and dashes) with backend.kubernetes, because it becomes part of the name of a Secret"
// +kubebuilder:validation:XValidation:rule="!has(self.retryInterval) || !has(self.maxRetryInterval) || duration(self.retryInterval) <= duration(self.maxRetryInterval)",message="retryInterval must not be longer than maxRetryInterval"
type TerraformSpec struct {
	// suspend stops planning and applying. Deletion goes on nevertheless, and an
	// operation that already runs is not interrupted.
	// +optional
	Suspend bool `json:"suspend,omitempty"`

	// interval between two checks for drift after a success; the operator adds
	// jitter. At least 1s.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s')",message="interval must be at least 1s"
	// +required
	Interval metav1.Duration `json:"interval"`

	// retryInterval is the wait before the first retry after a failure. It doubles
	// with every further failure up to maxRetryInterval. At least 100ms.
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('100ms')",message="retryInterval must be at least 100ms"
	// +optional
	RetryInterval *metav1.Duration `json:"retryInterval,omitempty"`

	// maxRetryInterval caps the wait between two retries.
	// +kubebuilder:default="1h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +optional
	MaxRetryInterval *metav1.Duration `json:"maxRetryInterval,omitempty"`

	// timeout of one operation, such as a plan or an apply. Between 1s and 24h.
	// +kubebuilder:default="1h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="timeout must be between 1s and 24h"
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	// sourceRef points to the Flux source that holds the module. Exactly one of
	// sourceRef and inline must be set.
	// +optional
	SourceRef *SourceReference `json:"sourceRef,omitempty"`

	// inline holds the files of a small module, by relative path. The module may
	// call modules from any address. Exactly one of sourceRef and inline must be
	// set.
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(p, size(p) <= 255 && !p.startsWith('/') && !p.split('/').exists(s, s == '..' || s == ''))",message="the file names in inline must be relative paths of at most 255 characters without '..'"
	// +mapType=granular
	// +optional
	Inline map[string]string `json:"inline,omitempty"`

	// path of the root module inside the source.
	// +kubebuilder:default="./"
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('/') && !self.split('/').exists(s, s == '..')",message="path must be relative and must not contain '..'"
	// +optional
	Path string `json:"path,omitempty"`

	// tool that plans and applies; its version is that of the runner image. A
	// state belongs to one tool: after the first run a change takes effect only
	// together with the annotation reconcile.fluxcd.io/forceAt.
	// +kubebuilder:default=OpenTofu
	// +optional
	Tool Tool `json:"tool,omitempty"`

	// workspace of the state. With backend.kubernetes it must be a DNS label.
	// +kubebuilder:default=default
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=90
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_][-A-Za-z0-9_.]*$`
	// +optional
	Workspace string `json:"workspace,omitempty"`

	// backend says where the state is kept. Without backend and cloud it is a
	// Secret in the namespace of the object.
	// +optional
	Backend *Backend `json:"backend,omitempty"`

	// cloud keeps the state in HCP Terraform or a service with the same API. It
	// excludes backend.
	// +optional
	Cloud *Cloud `json:"cloud,omitempty"`

	// cliConfigSecretRef points to the CLI configuration (the content of a
	// .terraformrc or .tofurc file) in a Secret.
	// +optional
	CLIConfigSecretRef *KeyReference `json:"cliConfigSecretRef,omitempty"`

	// variables of the root module. They take precedence over variablesFrom, and
	// that over variableFiles.
	// +kubebuilder:validation:MaxItems=256
	// +listType=map
	// +listMapKey=name
	// +optional
	Variables []Variable `json:"variables,omitempty"`

	// variablesFrom takes variables from the keys of Secrets and ConfigMaps. A
	// later entry takes precedence over an earlier one.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	VariablesFrom []VariablesFrom `json:"variablesFrom,omitempty"`

	// variableFiles are paths of .tfvars files in the source, relative to path.
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self.all(f, !f.startsWith('/') && !f.split('/').exists(s, s == '..'))",message="variableFiles must be relative paths without '..'"
	// +listType=atomic
	// +optional
	VariableFiles []string `json:"variableFiles,omitempty"`

	// files are written into the module directory before the tool starts.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=path
	// +optional
	Files []File `json:"files,omitempty"`

	// approval says which plans are applied.
	// +kubebuilder:default={}
	// +optional
	Approval Approval `json:"approval,omitzero"`

	// policies judge a plan before anybody is asked to approve it.
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=name
	// +optional
	Policies []Policy `json:"policies,omitempty"`

	// planOptions shape the plan.
	// +optional
	PlanOptions *PlanOptions `json:"planOptions,omitempty"`

	// drift says what happens when the world no longer matches the state.
	// +kubebuilder:default={}
	// +optional
	Drift DriftPolicy `json:"drift,omitzero"`

	// outputs writes outputs of the module to Secrets and ConfigMaps in the
	// namespace of the object.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=kind
	// +listMapKey=name
	// +optional
	Outputs []OutputTarget `json:"outputs,omitempty"`

	// publishOutputs names non-sensitive outputs whose values appear in
	// status.outputs, where other objects can read them.
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=128
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z_][A-Za-z0-9_-]*$`
	// +listType=set
	// +optional
	PublishOutputs []string `json:"publishOutputs,omitempty"`

	// inventory shows the managed resources in status.resources, at most 500 of
	// them.
	// +kubebuilder:default=true
	// +optional
	Inventory *bool `json:"inventory,omitempty"`

	// healthChecks run in the runner, that is in the network of the tenant, after
	// an apply and at every interval.
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=name
	// +optional
	HealthChecks []HealthCheck `json:"healthChecks,omitempty"`

	// dependsOn names objects that must be ready before anything is planned.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	DependsOn []DependencyReference `json:"dependsOn,omitempty"`

	// deletionPolicy says what happens to the resources when the object is
	// deleted: Orphan leaves them and the state alone, Destroy destroys them.
	// +kubebuilder:default=Orphan
	// +optional
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`

	// stateLock says what happens to a lock that nobody releases any more.
	// +kubebuilder:default={}
	// +optional
	StateLock StateLock `json:"stateLock,omitzero"`

	// runner describes the pod that runs the tool.
	// +kubebuilder:default={}
	// +optional
	Runner Runner `json:"runner,omitzero"`

	// historyLimit is the number of operations kept in status.history.
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=50
	// +optional
	HistoryLimit *int32 `json:"historyLimit,omitempty"`
}

// DeletionPolicy says what happens to the resources when the object is deleted.
// +kubebuilder:validation:Enum=Orphan;Destroy
type DeletionPolicy string

const (
	// DeletionOrphan leaves the resources and their state alone.
	DeletionOrphan DeletionPolicy = "Orphan"
	// DeletionDestroy destroys the resources, then removes the state.
	DeletionDestroy DeletionPolicy = "Destroy"
)

// Runner describes the pod that runs the tool.
type Runner struct {
	// serviceAccountName is the account of the pod, in the namespace of the object.
	// +kubebuilder:default=terrace-runner
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	ServiceAccountName string `json:"serviceAccountName,omitempty"`

	// idleTimeout is how long a pod without work is kept warm. 0s removes it at
	// once. At most 24h.
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('24h')",message="runner.idleTimeout must be at most 24h"
	// +optional
	IdleTimeout *metav1.Duration `json:"idleTimeout,omitempty"`

	// template changes the pod that the operator makes.
	// +optional
	Template *PodTemplate `json:"template,omitempty"`
}

// GetServiceAccountName returns the account of the pod, by default
// terrace-runner.
func (in Runner) GetServiceAccountName() string {
	return orDefault(in.ServiceAccountName, DefaultRunnerServiceAccountName)
}

// GetIdleTimeout returns how long an idle pod is kept, by default 10m.
func (in Runner) GetIdleTimeout() time.Duration {
	return durationOr(in.IdleTimeout, DefaultRunnerIdleTimeout)
}

// Terraform declares one root module and its state. OpenTofu or Terraform runs
// it in a pod in the namespace of the object, with the rights of that namespace.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=tf,categories=terrace
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp",description=""
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].status",description=""
// +kubebuilder:printcolumn:name="Status",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].message",description=""
// +kubebuilder:printcolumn:name="Plan",type="string",JSONPath=".status.plan.id",description="",priority=1
// +kubebuilder:printcolumn:name="Revision",type="string",JSONPath=".status.lastAppliedRevision",description="",priority=1
// +kubebuilder:printcolumn:name="Drifted",type="string",JSONPath=".status.conditions[?(@.type==\"Drifted\")].status",description="",priority=1
// +kubebuilder:printcolumn:name="Resources",type="integer",JSONPath=".status.resourceCount",description="",priority=1
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="metadata.name must be at most 63 characters, because it becomes a label value"
type Terraform struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what is wanted.
	// +required
	Spec TerraformSpec `json:"spec"`

	// status is what the operator observed and did last.
	// +kubebuilder:default={"observedGeneration":-1}
	// +optional
	Status TerraformStatus `json:"status,omitempty"`
}

// TerraformList is a list of Terraform objects.
// +kubebuilder:object:root=true
type TerraformList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	// items of the list.
	Items []Terraform `json:"items"`
}

// GetConditions returns the conditions of the object.
func (in *Terraform) GetConditions() []metav1.Condition { return in.Status.Conditions }

// SetConditions replaces the conditions of the object.
func (in *Terraform) SetConditions(conditions []metav1.Condition) {
	in.Status.Conditions = conditions
}

// GetRequeueAfter returns the time between two checks after a success.
func (in *Terraform) GetRequeueAfter() time.Duration { return in.Spec.Interval.Duration }

// GetRetryInterval returns the wait before the first retry, by default 30s.
func (in *Terraform) GetRetryInterval() time.Duration {
	return durationOr(in.Spec.RetryInterval, DefaultTerraformRetryInterval)
}

// GetMaxRetryInterval returns the longest wait between two retries, by default
// 1h.
func (in *Terraform) GetMaxRetryInterval() time.Duration {
	return durationOr(in.Spec.MaxRetryInterval, DefaultTerraformMaxRetryInterval)
}

// GetTimeout returns the timeout of one operation, by default 1h.
func (in *Terraform) GetTimeout() time.Duration {
	return durationOr(in.Spec.Timeout, DefaultTerraformTimeout)
}

// GetPath returns the path of the root module inside the source, by default ./.
func (in *Terraform) GetPath() string { return orDefault(in.Spec.Path, DefaultTerraformPath) }

// GetTool returns the program to run, by default OpenTofu.
func (in *Terraform) GetTool() Tool { return orDefault(in.Spec.Tool, ToolOpenTofu) }

// GetWorkspace returns the workspace of the state, by default "default".
func (in *Terraform) GetWorkspace() string { return orDefault(in.Spec.Workspace, DefaultWorkspace) }

// GetSecretSuffix returns what ends the name of the state Secret, by default the
// name of the object.
func (in *Terraform) GetSecretSuffix() string {
	if in.Spec.Backend != nil && in.Spec.Backend.Kubernetes != nil {
		return orDefault(in.Spec.Backend.Kubernetes.SecretSuffix, in.Name)
	}
	return in.Name
}

// UsesKubernetesBackend says whether the state is kept in a Secret in the
// namespace of the object, which is so unless the spec names another place.
func (in *Terraform) UsesKubernetesBackend() bool {
	if in.Spec.Cloud != nil {
		return false
	}
	backend := in.Spec.Backend
	return backend == nil || (backend.Custom == "" && backend.None == nil)
}

// GetInventory returns whether resources appear in the status, by default true.
func (in *Terraform) GetInventory() bool { return derefOr(in.Spec.Inventory, true) }

// GetDeletionPolicy returns what happens on deletion, by default Orphan.
func (in *Terraform) GetDeletionPolicy() DeletionPolicy {
	return orDefault(in.Spec.DeletionPolicy, DeletionOrphan)
}

// GetHistoryLimit returns the number of operations kept in the status, by
// default 10.
func (in *Terraform) GetHistoryLimit() int {
	return int(derefOr(in.Spec.HistoryLimit, DefaultHistoryLimit))
}

// GetSourceNamespace returns the namespace of the source, by default that of the
// object, and the empty string for an inline module.
func (in *Terraform) GetSourceNamespace() string {
	if in.Spec.SourceRef == nil {
		return ""
	}
	return orDefault(in.Spec.SourceRef.Namespace, in.Namespace)
}

// GetDependsOn returns the dependencies that are Terraform objects themselves:
// Flux sorts objects of one kind by them. spec.dependsOn has all of them.
func (in *Terraform) GetDependsOn() []meta.DependencyReference {
	refs := make([]meta.DependencyReference, 0, len(in.Spec.DependsOn))
	for _, dep := range in.Spec.DependsOn {
		if dep.GetKind() == TerraformKind && dep.GetAPIVersion() == GroupVersion.String() {
			refs = append(refs, dep.fluxDependency())
		}
	}
	return refs
}

// GetLastHandledReconcileRequest returns the reconcile request handled last.
func (in *Terraform) GetLastHandledReconcileRequest() string {
	return in.Status.GetLastHandledReconcileRequest()
}

// GetLastHandledForceRequestStatus returns where the force request handled last
// is kept.
func (in *Terraform) GetLastHandledForceRequestStatus() *string {
	return &in.Status.LastHandledForceAt
}

// GetLastHandledResetRequestStatus returns where the reset request handled last
// is kept.
func (in *Terraform) GetLastHandledResetRequestStatus() *string {
	return &in.Status.LastHandledResetAt
}
