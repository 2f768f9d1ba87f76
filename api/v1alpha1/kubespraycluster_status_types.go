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

// KubesprayClusterStatus is what the operator observed and did last.
type KubesprayClusterStatus struct {
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
	// true, and InventoryReady, Validated, ApprovalRequired, Available,
	// UpgradeInProgress, Drifted, CertificatesExpiring and Deleting.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// plan is what is to be done, step by step. It is made anew after every step
	// from what is then observed.
	// +optional
	Plan *ClusterPlan `json:"plan,omitempty"`

	// operation is the run that goes on or is about to. It is written before its Job
	// is created, so that it is found again after a crash.
	// +optional
	Operation *ClusterRun `json:"operation,omitempty"`

	// lastSequence is the number of the latest run. The name of the Job ends with
	// it.
	// +kubebuilder:validation:Minimum=0
	// +optional
	LastSequence int64 `json:"lastSequence,omitempty"`

	// applied is what runs brought about and checks confirmed.
	// +optional
	Applied *AppliedCluster `json:"applied,omitempty"`

	// controlPlaneOrder names the control plane nodes in the order in which they
	// joined; the first of them is the first in every inventory.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	// +listType=atomic
	// +optional
	ControlPlaneOrder []string `json:"controlPlaneOrder,omitempty"`

	// observed is what the cluster itself said last.
	// +optional
	Observed *ObservedCluster `json:"observed,omitempty"`

	// cordonedBefore names the nodes that were cordoned before the upgrade started,
	// so that it leaves them so.
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=63
	// +listType=set
	// +optional
	CordonedBefore []string `json:"cordonedBefore,omitempty"`

	// releasedNodes are nodes that left the cluster, so that a Terraform plan may
	// remove their machines.
	// +kubebuilder:validation:MaxItems=1000
	// +listType=map
	// +listMapKey=name
	// +optional
	ReleasedNodes []ReleasedNode `json:"releasedNodes,omitempty"`

	// history holds the latest runs, the newest first, as many as
	// spec.job.historyLimit says.
	// +kubebuilder:validation:MaxItems=50
	// +listType=atomic
	// +optional
	History []ClusterHistoryEntry `json:"history,omitempty"`

	// failures is the number of failures in a row; it sets the pace of retries.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Failures int64 `json:"failures,omitempty"`

	// nextRetryAt is when the next retry is due.
	// +optional
	NextRetryAt *metav1.Time `json:"nextRetryAt,omitempty"`
}

// ClusterPlan is what is to be done, step by step.
type ClusterPlan struct {
	// id of the plan: a digest of its steps.
	// +kubebuilder:validation:MaxLength=69
	// +optional
	ID string `json:"id,omitempty"`

	// generation of the object that was planned.
	// +optional
	Generation int64 `json:"generation,omitempty"`

	// createdAt is when a plan of this id was first made.
	// +optional
	CreatedAt *metav1.Time `json:"createdAt,omitempty"`

	// approvedAt is when the plan was approved. Empty while it is not.
	// +optional
	ApprovedAt *metav1.Time `json:"approvedAt,omitempty"`

	// steps in the order in which they run.
	// +kubebuilder:validation:MaxItems=128
	// +listType=atomic
	// +optional
	Steps []ClusterStep `json:"steps,omitempty"`
}

// ClusterStep is one playbook run of a plan.
type ClusterStep struct {
	// operation that the step does.
	// +required
	Operation ClusterOperation `json:"operation"`

	// playbook of Kubespray that does it.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	Playbook string `json:"playbook,omitempty"`

	// release of Kubespray that the step runs with.
	// +kubebuilder:validation:MaxLength=32
	// +optional
	Release string `json:"release,omitempty"`

	// from is the Kubernetes version before the step.
	// +kubebuilder:validation:MaxLength=32
	// +optional
	From string `json:"from,omitempty"`

	// to is the Kubernetes version after the step.
	// +kubebuilder:validation:MaxLength=32
	// +optional
	To string `json:"to,omitempty"`

	// nodes that the step is about.
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=63
	// +listType=atomic
	// +optional
	Nodes []string `json:"nodes,omitempty"`

	// destructive says that approval.mode Destructive waits before the step.
	// +optional
	Destructive bool `json:"destructive,omitempty"`

	// reason says in words why the step is needed.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	Reason string `json:"reason,omitempty"`

	// warnings say what to expect of the step.
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=4096
	// +listType=atomic
	// +optional
	Warnings []string `json:"warnings,omitempty"`
}

// ClusterRun is a playbook run that goes on or is about to.
type ClusterRun struct {
	// seq is the number of the run, unique for the object.
	// +kubebuilder:validation:Minimum=1
	// +required
	Seq int64 `json:"seq"`

	// type of the operation.
	// +required
	Type ClusterOperation `json:"type"`

	// job is the name of the Job.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Job string `json:"job,omitempty"`

	// planID is the id of the plan that the run belongs to.
	// +kubebuilder:validation:MaxLength=69
	// +optional
	PlanID string `json:"planID,omitempty"`

	// step is the number of the step in the plan, counted from 1.
	// +kubebuilder:validation:Minimum=1
	// +optional
	Step int32 `json:"step,omitempty"`

	// release of Kubespray that the run uses.
	// +kubebuilder:validation:MaxLength=32
	// +optional
	Release string `json:"release,omitempty"`

	// target is the Kubernetes version that the run leads to.
	// +kubebuilder:validation:MaxLength=32
	// +optional
	Target string `json:"target,omitempty"`

	// nodes that the run is about.
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=63
	// +listType=atomic
	// +optional
	Nodes []string `json:"nodes,omitempty"`

	// attempt at this step, counted from 1.
	// +kubebuilder:validation:Minimum=1
	// +optional
	Attempt int32 `json:"attempt,omitempty"`

	// startedAt is when the run was written down.
	// +optional
	StartedAt *metav1.Time `json:"startedAt,omitempty"`

	// play that Ansible is at.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	Play string `json:"play,omitempty"`

	// task that Ansible is at.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	Task string `json:"task,omitempty"`

	// tasksDone is the number of tasks that ended.
	// +kubebuilder:validation:Minimum=0
	// +optional
	TasksDone int32 `json:"tasksDone,omitempty"`

	// tasksTotal is the number of tasks expected, an estimate.
	// +kubebuilder:validation:Minimum=0
	// +optional
	TasksTotal int32 `json:"tasksTotal,omitempty"`

	// failedHosts names the machines on which a task failed so far.
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=63
	// +listType=set
	// +optional
	FailedHosts []string `json:"failedHosts,omitempty"`
}

// AppliedCluster is what runs brought about and checks confirmed.
type AppliedCluster struct {
	// version of Kubernetes, without a leading v.
	// +kubebuilder:validation:MaxLength=32
	// +optional
	Version string `json:"version,omitempty"`

	// release of Kubespray that was used last.
	// +kubebuilder:validation:MaxLength=32
	// +optional
	Release string `json:"release,omitempty"`

	// varsDigest is the digest of the variables that were applied.
	// +optional
	VarsDigest string `json:"varsDigest,omitempty"`

	// nodes that belong to the cluster, by name. A node stays here until its
	// removal is verified.
	// +kubebuilder:validation:MaxProperties=1000
	// +optional
	Nodes map[string]AppliedNode `json:"nodes,omitempty"`
}

// AppliedNode is a node as it joined.
type AppliedNode struct {
	// roles of the node.
	// +kubebuilder:validation:MaxItems=3
	// +listType=set
	// +optional
	Roles []NodeRole `json:"roles,omitempty"`

	// ip is the IPv4 address that the node joined with.
	// +optional
	IP string `json:"ip,omitempty"`

	// accessIP is the IPv4 address at which others reach the node.
	// +optional
	AccessIP string `json:"accessIP,omitempty"`

	// ip6 is the IPv6 address that the node joined with.
	// +optional
	IP6 string `json:"ip6,omitempty"`

	// accessIP6 is the IPv6 address at which others reach the node.
	// +optional
	AccessIP6 string `json:"accessIP6,omitempty"`

	// ansibleHost is the name or address for ssh.
	// +optional
	AnsibleHost string `json:"ansibleHost,omitempty"`

	// port for ssh.
	// +optional
	Port int32 `json:"port,omitempty"`

	// user for ssh.
	// +optional
	User string `json:"user,omitempty"`

	// etcdMember is the name of the member of etcd on the node.
	// +optional
	EtcdMember string `json:"etcdMember,omitempty"`

	// terraformRef names the Terraform object whose output the node came from.
	// +optional
	TerraformRef *TerraformReference `json:"terraformRef,omitempty"`
}

// ObservedCluster is what the cluster itself said.
type ObservedCluster struct {
	// at is when the cluster was asked.
	// +optional
	At *metav1.Time `json:"at,omitempty"`

	// apiServerVersion is the version of the API server, without a leading v.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	APIServerVersion string `json:"apiServerVersion,omitempty"`

	// nodes in the cluster, by name.
	// +kubebuilder:validation:MaxProperties=1000
	// +optional
	Nodes map[string]ObservedNode `json:"nodes,omitempty"`

	// certificatesExpireAt is when the first certificate of the cluster that the
	// operator can see ends.
	// +optional
	CertificatesExpireAt *metav1.Time `json:"certificatesExpireAt,omitempty"`
}

// ObservedNode is a node as the cluster sees it.
type ObservedNode struct {
	// kubelet is the version of the kubelet, without a leading v.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Kubelet string `json:"kubelet,omitempty"`

	// ready is the condition of that name.
	// +optional
	Ready bool `json:"ready"`

	// schedulable says that the node is not cordoned.
	// +optional
	Schedulable bool `json:"schedulable"`
}

// ReleasedNode is a node that left the cluster.
type ReleasedNode struct {
	// name of the node.
	// +kubebuilder:validation:MaxLength=63
	// +required
	Name string `json:"name"`

	// planID is the id of the Terraform plan that the node left for.
	// +kubebuilder:validation:MaxLength=69
	// +optional
	PlanID string `json:"planID,omitempty"`

	// terraformRef names the Terraform object of that plan.
	// +optional
	TerraformRef *TerraformReference `json:"terraformRef,omitempty"`

	// releasedAt is when the node left.
	// +optional
	ReleasedAt *metav1.Time `json:"releasedAt,omitempty"`
}
