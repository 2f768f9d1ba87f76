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
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Upgrade says how gently nodes are upgraded.
type Upgrade struct {
	// serial is how many workers are upgraded at a time, a number or a percentage.
	// Control plane nodes are always upgraded one at a time.
	// Between 1 and 1000, or between 1% and 100%.
	// +kubebuilder:default="20%"
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern=`^([1-9][0-9]?|100)%$`
	// +kubebuilder:validation:XValidation:rule="type(self) != int || (self >= 1 && self <= 1000)",message="upgrade.serial must be a number from 1 to 1000 or a percentage from 1% to 100%"
	// +optional
	Serial *intstr.IntOrString `json:"serial,omitempty"`

	// drain says how nodes are drained before they are upgraded.
	// +kubebuilder:default={}
	// +optional
	Drain Drain `json:"drain,omitzero"`
}

// GetSerial returns how many workers are upgraded at a time, by default 20%.
func (in Upgrade) GetSerial() intstr.IntOrString {
	return derefOr(in.Serial, intstr.FromString(DefaultUpgradeSerial))
}

// Drain says how nodes are drained.
type Drain struct {
	// timeout of one attempt to drain a node. Between 1s and 24h.
	// +kubebuilder:default="6m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="upgrade.drain.timeout must be between 1s and 24h"
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	// gracePeriod that pods get to end. At most 24h.
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('24h')",message="upgrade.drain.gracePeriod must be at most 24h"
	// +optional
	GracePeriod *metav1.Duration `json:"gracePeriod,omitempty"`

	// retries after a failed attempt. Between 0 and 20.
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=20
	// +optional
	Retries *int32 `json:"retries,omitempty"`

	// fallback deletes the pods, past PodDisruptionBudgets, when every attempt to
	// evict them failed.
	// +optional
	Fallback bool `json:"fallback,omitempty"`
}

// GetTimeout returns the timeout of one attempt, by default 6m.
func (in Drain) GetTimeout() time.Duration { return durationOr(in.Timeout, DefaultDrainTimeout) }

// GetGracePeriod returns the time that pods get to end, by default 5m.
func (in Drain) GetGracePeriod() time.Duration {
	return durationOr(in.GracePeriod, DefaultDrainGracePeriod)
}

// GetRetries returns the number of attempts after the first, by default 3.
func (in Drain) GetRetries() int32 { return derefOr(in.Retries, DefaultDrainRetries) }

// ClusterApprovalMode says which plans wait for a person.
// +kubebuilder:validation:Enum=Auto;Destructive;Manual
type ClusterApprovalMode string

const (
	// ClusterApprovalAuto runs every plan.
	ClusterApprovalAuto ClusterApprovalMode = "Auto"
	// ClusterApprovalDestructive waits before plans that remove or reset nodes,
	// recover or change the control plane, or upgrade to another minor version.
	ClusterApprovalDestructive ClusterApprovalMode = "Destructive"
	// ClusterApprovalManual waits before every plan.
	ClusterApprovalManual ClusterApprovalMode = "Manual"
)

// ClusterApproval says which plans wait for a person.
type ClusterApproval struct {
	// mode says which plans need an approval: none (Auto), those that can destroy
	// (Destructive), or all (Manual).
	// +kubebuilder:default=Destructive
	// +optional
	Mode ClusterApprovalMode `json:"mode,omitempty"`

	// plan approves exactly the plan of this id, as status.plan.id shows it.
	// +kubebuilder:validation:MaxLength=69
	// +kubebuilder:validation:Pattern=`^plan-[0-9a-f]{8,64}$`
	// +optional
	Plan string `json:"plan,omitempty"`
}

// GetMode returns the mode, by default Destructive.
func (in ClusterApproval) GetMode() ClusterApprovalMode {
	return orDefault(in.Mode, ClusterApprovalDestructive)
}

// Hooks run playbooks of your own.
type Hooks struct {
	// before lists playbooks to run before an operation. When one fails, the
	// operation is not started.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	Before []Hook `json:"before,omitempty"`

	// after lists playbooks to run after an operation that succeeded.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	After []Hook `json:"after,omitempty"`
}

// ClusterOperation is what a step of a plan does.
// +kubebuilder:validation:Enum=Install;Upgrade;ResumeUpgrade;Scale;AddControlPlane;RemoveNode;Reconfigure;Recover;Reset;Kubeconfig
type ClusterOperation string

const (
	// ClusterInstall makes a cluster of the machines.
	ClusterInstall ClusterOperation = "Install"
	// ClusterUpgrade brings the cluster to a higher version.
	ClusterUpgrade ClusterOperation = "Upgrade"
	// ClusterResumeUpgrade ends an upgrade that stopped half-way.
	ClusterResumeUpgrade ClusterOperation = "ResumeUpgrade"
	// ClusterScale adds workers.
	ClusterScale ClusterOperation = "Scale"
	// ClusterAddControlPlane adds a control plane node or a member of etcd.
	ClusterAddControlPlane ClusterOperation = "AddControlPlane"
	// ClusterRemoveNode removes nodes by their exact names.
	ClusterRemoveNode ClusterOperation = "RemoveNode"
	// ClusterReconfigure applies changed variables.
	ClusterReconfigure ClusterOperation = "Reconfigure"
	// ClusterRecover rebuilds a control plane that lost nodes.
	ClusterRecover ClusterOperation = "Recover"
	// ClusterReset removes Kubernetes from the machines.
	ClusterReset ClusterOperation = "Reset"
	// ClusterKubeconfig collects the kubeconfig; it changes nothing.
	ClusterKubeconfig ClusterOperation = "Kubeconfig"
)

// Hook runs a playbook of your own.
type Hook struct {
	// operation that the hook belongs to.
	// +required
	Operation ClusterOperation `json:"operation"`

	// playbook to run.
	// +required
	Playbook HookPlaybook `json:"playbook"`
}

// HookPlaybook is a playbook of your own.
type HookPlaybook struct {
	// configMapRef points to the playbook.
	// +required
	ConfigMapRef PlaybookReference `json:"configMapRef"`
}

// PlaybookReference points to a playbook in a ConfigMap.
type PlaybookReference struct {
	// name of the ConfigMap.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`

	// key of the playbook.
	// +kubebuilder:default=playbook.yml
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	// +optional
	Key string `json:"key,omitempty"`
}

// GetKey returns the key of the playbook, by default playbook.yml.
func (in PlaybookReference) GetKey() string { return orDefault(in.Key, DefaultPlaybookKey) }

// Job describes the Jobs that run the playbooks.
type Job struct {
	// serviceAccountName is the account of the pods, which get no token of it. Empty
	// means the default account of the namespace.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	ServiceAccountName string `json:"serviceAccountName,omitempty"`

	// template changes the pods that the operator makes.
	// +optional
	Template *PodTemplate `json:"template,omitempty"`

	// forks is the number of machines that Ansible works on at a time. Between 1
	// and 200.
	// +kubebuilder:default=20
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=200
	// +optional
	Forks *int32 `json:"forks,omitempty"`

	// historyLimit is the number of runs kept in status.history.
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=50
	// +optional
	HistoryLimit *int32 `json:"historyLimit,omitempty"`

	// ttl is how long a Job is kept after its result was recorded. At most 720h.
	// +kubebuilder:default="24h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('720h')",message="job.ttl must be at most 720h"
	// +optional
	TTL *metav1.Duration `json:"ttl,omitempty"`
}

// GetForks returns the number of machines worked on at a time, by default 20.
func (in Job) GetForks() int32 { return derefOr(in.Forks, DefaultForks) }

// GetHistoryLimit returns the number of runs kept in the status, by default 10.
func (in Job) GetHistoryLimit() int { return int(derefOr(in.HistoryLimit, DefaultHistoryLimit)) }

// GetTTL returns how long a Job is kept, by default 24h.
func (in Job) GetTTL() time.Duration { return durationOr(in.TTL, DefaultJobTTL) }
