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

// ApprovalMode says which plans need an approval.
// +kubebuilder:validation:Enum=Auto;Manual;Never
type ApprovalMode string

const (
	// ApprovalAuto applies every plan that no policy stops.
	ApprovalAuto ApprovalMode = "Auto"
	// ApprovalManual applies only plans that somebody approved.
	ApprovalManual ApprovalMode = "Manual"
	// ApprovalNever applies nothing: it plans and reports drift.
	ApprovalNever ApprovalMode = "Never"
)

// DestroyApproval says whether the destruction at the end of the object's life
// needs an approval.
// +kubebuilder:validation:Enum=Required;NotRequired
type DestroyApproval string

const (
	// DestroyApprovalRequired waits for an approval of the destroy plan.
	DestroyApprovalRequired DestroyApproval = "Required"
	// DestroyApprovalNotRequired destroys as soon as the object is deleted.
	DestroyApprovalNotRequired DestroyApproval = "NotRequired"
)

// Approval says which plans are applied.
// +kubebuilder:validation:XValidation:rule="!has(self.mode) || self.mode != 'Never' || (!has(self.plan) && !has(self.autoWhen))",message="approval.mode Never excludes approval.plan and approval.autoWhen"
type Approval struct {
	// mode says which plans need an approval: none (Auto), all (Manual), or that no
	// plan is applied at all (Never).
	// +kubebuilder:default=Manual
	// +optional
	Mode ApprovalMode `json:"mode,omitempty"`

	// plan approves exactly the plan of this id, as status.plan.id shows it. An id
	// of an earlier plan approves nothing.
	// +kubebuilder:validation:MaxLength=69
	// +kubebuilder:validation:Pattern=`^plan-[0-9a-f]{8,64}$`
	// +optional
	Plan string `json:"plan,omitempty"`

	// autoWhen is a CEL expression over the plan; a plan for which it is true needs
	// no approval. Example: plan.destroy == 0 && plan.replace == 0
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	AutoWhen string `json:"autoWhen,omitempty"`

	// destroy says whether the destruction that deletionPolicy Destroy brings needs
	// an approval of its own.
	// +kubebuilder:default=NotRequired
	// +optional
	Destroy DestroyApproval `json:"destroy,omitempty"`
}

// GetMode returns the mode, by default Manual.
func (in Approval) GetMode() ApprovalMode { return orDefault(in.Mode, ApprovalManual) }

// GetDestroy returns whether destruction needs an approval, by default not.
func (in Approval) GetDestroy() DestroyApproval {
	return orDefault(in.Destroy, DestroyApprovalNotRequired)
}

// PolicyAction is what a policy does with a plan for which it is true.
// +kubebuilder:validation:Enum=Deny;RequireApproval
type PolicyAction string

const (
	// PolicyDeny refuses the plan: no approval helps.
	PolicyDeny PolicyAction = "Deny"
	// PolicyRequireApproval demands an approval, also with approval.mode Auto and
	// with approval.autoWhen.
	PolicyRequireApproval PolicyAction = "RequireApproval"
)

// Policy judges a plan.
type Policy struct {
	// name of the policy, shown when it acts.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +required
	Name string `json:"name"`

	// expression is CEL over the plan. The policy acts on a plan for which it is
	// true. Example: plan.changes.exists(c, c.type == "aws_db_instance" && c.action == "delete")
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	// +required
	Expression string `json:"expression"`

	// action on a plan for which the expression is true.
	// +kubebuilder:default=Deny
	// +optional
	Action PolicyAction `json:"action,omitempty"`

	// message tells people why the policy acted.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Message string `json:"message,omitempty"`
}

// GetAction returns the action, by default Deny.
func (in Policy) GetAction() PolicyAction { return orDefault(in.Action, PolicyDeny) }

// PlanOptions shape the plan.
// +kubebuilder:validation:XValidation:rule="!has(self.refreshOnly) || !self.refreshOnly || !has(self.refresh) || self.refresh",message="planOptions.refreshOnly excludes planOptions.refresh false"
// +kubebuilder:validation:XValidation:rule="!has(self.refreshOnly) || !self.refreshOnly || !has(self.destroy) || !self.destroy",message="planOptions.refreshOnly excludes planOptions.destroy"
// +kubebuilder:validation:XValidation:rule="!has(self.replace) || size(self.replace) == 0 || !((has(self.refreshOnly) && self.refreshOnly) || (has(self.destroy) && self.destroy))",message="planOptions.replace excludes planOptions.refreshOnly and planOptions.destroy"
// +kubebuilder:validation:XValidation:rule="!has(self.lockTimeout) || !has(self.lock) || self.lock",message="planOptions.lockTimeout needs planOptions.lock"
type PlanOptions struct {
	// targets limits the plan to these resource addresses and what they depend on.
	// +kubebuilder:validation:MaxItems=128
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=1024
	// +listType=set
	// +optional
	Targets []string `json:"targets,omitempty"`

	// replace plans to replace the resource instances at these addresses.
	// +kubebuilder:validation:MaxItems=128
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=1024
	// +listType=set
	// +optional
	Replace []string `json:"replace,omitempty"`

	// refresh reads the real resources before planning. With false the plan trusts
	// the state and cannot see drift.
	// +kubebuilder:default=true
	// +optional
	Refresh *bool `json:"refresh,omitempty"`

	// refreshOnly plans to update the state from the real resources and changes
	// nothing else. It excludes refresh false, replace and destroy.
	// +optional
	RefreshOnly bool `json:"refreshOnly,omitempty"`

	// parallelism is the number of resources worked on at a time. Between 1 and
	// 256.
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=256
	// +optional
	Parallelism *int32 `json:"parallelism,omitempty"`

	// lock takes the lock of the state. With false two runs may corrupt the state.
	// +kubebuilder:default=true
	// +optional
	Lock *bool `json:"lock,omitempty"`

	// lockTimeout is how long the tool waits for the lock of the state before it
	// fails. Empty means not at all. At most 1h.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('1h')",message="planOptions.lockTimeout must be at most 1h"
	// +optional
	LockTimeout *metav1.Duration `json:"lockTimeout,omitempty"`

	// destroy plans the destruction of everything in the state while the object
	// lives on.
	// +optional
	Destroy bool `json:"destroy,omitempty"`
}

// GetRefresh returns whether the plan reads the real resources, by default true.
func (in *PlanOptions) GetRefresh() bool { return in == nil || derefOr(in.Refresh, true) }

// GetLock returns whether the plan takes the lock, by default true.
func (in *PlanOptions) GetLock() bool { return in == nil || derefOr(in.Lock, true) }

// GetParallelism returns the number of resources worked on at a time, by default
// 10.
func (in *PlanOptions) GetParallelism() int32 {
	if in == nil {
		return DefaultParallelism
	}
	return derefOr(in.Parallelism, DefaultParallelism)
}

// GetLockTimeout returns how long the tool waits for the lock, by default zero.
func (in *PlanOptions) GetLockTimeout() time.Duration {
	if in == nil {
		return 0
	}
	return durationOr(in.LockTimeout, 0)
}

// DriftMode says what happens when the world no longer matches the state.
// +kubebuilder:validation:Enum=Correct;Report;Disabled
type DriftMode string

const (
	// DriftCorrect plans the correction; whether it is applied, spec.approval says.
	DriftCorrect DriftMode = "Correct"
	// DriftReport only reports drift.
	DriftReport DriftMode = "Report"
	// DriftDisabled does not look for drift.
	DriftDisabled DriftMode = "Disabled"
)

// DriftPolicy says what happens when the world no longer matches the state.
type DriftPolicy struct {
	// mode says whether drift is corrected, only reported, or not looked for.
	// +kubebuilder:default=Correct
	// +optional
	Mode DriftMode `json:"mode,omitempty"`

	// ignore names resource addresses whose drift does not count. An address
	// covers what is inside it: a module covers its resources, a resource its
	// instances.
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=1024
	// +listType=set
	// +optional
	Ignore []string `json:"ignore,omitempty"`
}

// GetMode returns the mode, by default Correct.
func (in DriftPolicy) GetMode() DriftMode { return orDefault(in.Mode, DriftCorrect) }
