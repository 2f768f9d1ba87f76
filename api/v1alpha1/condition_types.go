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

// Conditions and reasons are load-bearing: scripts wait for them, alerts match
// them, and docs/troubleshooting.md explains each of them.
//
// Ready, Reconciling, Stalled and Healthy, and the generic reasons such as
// Succeeded, Progressing and DependencyNotReady, are those of
// github.com/fluxcd/pkg/apis/meta.

// Conditions of more than one kind.
const (
	// ApprovalRequiredCondition is true while a plan waits for a person. It is only
	// present when true.
	ApprovalRequiredCondition = "ApprovalRequired"

	// DriftedCondition says whether the world differs from what was applied.
	DriftedCondition = "Drifted"
)

// Conditions of Terraform.
const (
	// PlannedCondition says whether the latest plan could be made.
	PlannedCondition = "Planned"

	// AppliedCondition says whether the latest apply succeeded. A ConfigReload sets
	// it too: it then says whether the application took over the new content.
	AppliedCondition = "Applied"

	// OutputsWrittenCondition says whether the outputs stand in the Secrets and
	// ConfigMaps that spec.outputs names.
	OutputsWrittenCondition = "OutputsWritten"

	// StateLockedCondition is true while somebody else's lock on the state stands in
	// the way. It is only present when true.
	StateLockedCondition = "StateLocked"

	// HeldByClusterCondition is true while a plan waits for a KubesprayCluster to
	// release the machines that the plan removes. It is only present when true.
	HeldByClusterCondition = "HeldByCluster"
)

// Conditions of KubesprayCluster.
const (
	// InventoryReadyCondition says whether the nodes, from the spec and from
	// Terraform outputs, are known and without contradiction.
	InventoryReadyCondition = "InventoryReady"

	// ValidatedCondition says whether the wish can be planned at all.
	ValidatedCondition = "Validated"

	// AvailableCondition says whether the API server of the cluster answers through
	// the published kubeconfig.
	AvailableCondition = "Available"

	// UpgradeInProgressCondition is true from the first hop of an upgrade to the
	// end of the last. It is only present when true.
	UpgradeInProgressCondition = "UpgradeInProgress"

	// CertificatesExpiringCondition is true when a certificate of the cluster ends
	// soon. It is only present when true.
	CertificatesExpiringCondition = "CertificatesExpiring"

	// DeletingCondition is true while the deletion of the object goes on. It is only
	// present when true.
	DeletingCondition = "Deleting"
)

// Conditions of ConfigReload.
const (
	// DeliveredCondition says whether the kubelets were told about the latest
	// content of every source.
	DeliveredCondition = "Delivered"

	// VerifiedCondition says whether agents in the pods saw the latest content.
	VerifiedCondition = "Verified"

	// RestartRequiredCondition is true while pods need a restart that the strategy
	// does not allow. It is only present when true.
	RestartRequiredCondition = "RestartRequired"

	// FlappingCondition is true while restarts are withheld because a source
	// changes too often. It is only present when true.
	FlappingCondition = "Flapping"
)

// Reasons that more than one kind uses.
const (
	// AccessDeniedReason says that a reference across namespaces is not allowed.
	AccessDeniedReason = "AccessDenied"

	// InvalidSpecReason says that the spec contradicts itself in a way that the API
	// server cannot see.
	InvalidSpecReason = "InvalidSpec"

	// NotSupportedReason says that the spec uses a field that this version of the
	// operator does not act on. It refuses the object rather than ignore the field.
	NotSupportedReason = "NotSupported"

	// ApprovalRequiredReason says that a plan waits for a person. The message says
	// how to approve it.
	ApprovalRequiredReason = "ApprovalRequired"

	// DriftDetectedReason says that the world differs from what was applied.
	DriftDetectedReason = "DriftDetected"

	// NoDriftReason says that the world is as it was applied.
	NoDriftReason = "NoDrift"

	// InputNotFoundReason says that a Secret, a ConfigMap, a key in one of them or
	// an output of another object does not exist.
	InputNotFoundReason = "InputNotFound"

	// InputInvalidReason says that an input exists and cannot be used, for example
	// because it is not the JSON that it should be.
	InputInvalidReason = "InputInvalid"

	// OperationTimedOutReason says that an operation took longer than spec.timeout
	// and was stopped.
	OperationTimedOutReason = "OperationTimedOut"

	// OperationLostReason says that the pod of an operation ended before it could
	// report. What it did is found out before anything else is started.
	OperationLostReason = "OperationLost"

	// OperationCancelledReason says that an operation was stopped on request.
	OperationCancelledReason = "OperationCancelled"

	// PodTemplateInvalidReason says that the pod template of the spec cannot be
	// merged, is not a pod, or asks for more than the operator allows.
	PodTemplateInvalidReason = "PodTemplateInvalid"

	// PodRejectedReason says that the API server refused a pod, for example because
	// of PodSecurity or an admission webhook.
	PodRejectedReason = "PodRejected"

	// PodQuotaExceededReason says that a ResourceQuota leaves no room for a pod.
	PodQuotaExceededReason = "PodQuotaExceeded"

	// PodUnschedulableReason says that no node takes a pod.
	PodUnschedulableReason = "PodUnschedulable"

	// ImagePullFailedReason says that the image of a pod cannot be pulled.
	ImagePullFailedReason = "ImagePullFailed"

	// ServiceAccountNotFoundReason says that the account of a pod, or the account to
	// impersonate, does not exist in the namespace of the object.
	ServiceAccountNotFoundReason = "ServiceAccountNotFound"

	// NamespaceTerminatingReason says that the namespace is being deleted, so that
	// no pod can be created any more. The message says what remains.
	NamespaceTerminatingReason = "NamespaceTerminating"

	// DeletionBlockedReason says that the deletion waits for something, which the
	// message names together with the way out.
	DeletionBlockedReason = "DeletionBlocked"
)

// Reasons of Terraform.
const (
	// SourceNotFoundReason says that the source does not exist, or that its kind is
	// not installed.
	SourceNotFoundReason = "SourceNotFound"

	// SourceNotReadyReason says that the source has no artifact yet.
	SourceNotReadyReason = "SourceNotReady"

	// PathNotFoundReason says that spec.path does not exist in the source.
	PathNotFoundReason = "PathNotFound"

	// RunnerStartingReason says that the runner pod is not ready yet.
	RunnerStartingReason = "RunnerStarting"

	// RunnerFailedReason says that the runner pod ended or keeps crashing.
	RunnerFailedReason = "RunnerFailed"

	// RunnerUnreachableReason says that the manager cannot connect to a running
	// runner pod, for example because of a NetworkPolicy.
	RunnerUnreachableReason = "RunnerUnreachable"

	// RunnerIncompatibleReason says that the runner image does not speak the
	// protocol of the manager.
	RunnerIncompatibleReason = "RunnerIncompatible"

	// ToolUnavailableReason says that the runner image lacks the program that
	// spec.tool names.
	ToolUnavailableReason = "ToolUnavailable"

	// ToolChangedReason says that spec.tool is not the program that owns the state;
	// the annotation reconcile.fluxcd.io/forceAt hands the state over.
	ToolChangedReason = "ToolChanged"

	// InitFailedReason says that the tool could not prepare the module: a provider,
	// a module or the backend is missing or refuses.
	InitFailedReason = "InitFailed"

	// PlanFailedReason says that the tool could not make a plan.
	PlanFailedReason = "PlanFailed"

	// PlannedWithChangesReason says that the plan would change something.
	PlannedWithChangesReason = "PlannedWithChanges"

	// PlannedNoChangesReason says that there is nothing to change.
	PlannedNoChangesReason = "PlannedNoChanges"

	// PlanDeniedReason says that a policy refused the plan; no approval helps.
	PlanDeniedReason = "PlanDenied"

	// PlanOnlyReason says that the plan has changes that are not applied, because
	// approval.mode is Never.
	PlanOnlyReason = "PlanOnly"

	// PlanOutdatedReason says that the saved plan no longer fits the state and that
	// a new plan would do something else, so that the approval no longer counts.
	PlanOutdatedReason = "PlanOutdated"

	// HeldByClusterReason says that a KubesprayCluster still uses a machine that the
	// plan removes.
	HeldByClusterReason = "HeldByCluster"

	// AppliedReason says that the plan was applied.
	AppliedReason = "Applied"

	// ApplyFailedReason says that the tool failed while it applied; it may have
	// applied a part of the plan.
	ApplyFailedReason = "ApplyFailed"

	// DestroyedReason says that everything in the state was destroyed.
	DestroyedReason = "Destroyed"

	// DestroyFailedReason says that the tool failed while it destroyed; it may have
	// destroyed a part.
	DestroyFailedReason = "DestroyFailed"

	// OutputsWrittenReason says that the outputs were written.
	OutputsWrittenReason = "OutputsWritten"

	// OutputsFailedReason says that outputs could not be read or written.
	OutputsFailedReason = "OutputsFailed"

	// OutputConflictReason says that an object to write outputs to exists and was
	// not made by this object.
	OutputConflictReason = "OutputConflict"

	// OutputSensitiveReason says that the spec asks for a sensitive output where
	// only others may stand: in a ConfigMap or in the status.
	OutputSensitiveReason = "OutputSensitive"

	// OutputNotFoundReason says that the module has no output of that name.
	OutputNotFoundReason = "OutputNotFound"

	// HealthChecksSucceededReason says that every health check passed.
	HealthChecksSucceededReason = "HealthChecksSucceeded"

	// StateLockedReason says that somebody else's lock on the state stands in the
	// way. The message says who holds it and how to release it.
	StateLockedReason = "StateLocked"

	// StateUnlockedReason says that a lock was released by force.
	StateUnlockedReason = "StateUnlocked"

	// StateSaveFailedReason says that the tool could not save the state. It is kept
	// in the runner and pushed before anything else is done.
	StateSaveFailedReason = "StateSaveFailed"

	// PermissionDeniedReason says that the runner's ServiceAccount may not do what
	// the operation needs. Opening a namespace for runners is one manifest,
	// config/runner-namespace.
	PermissionDeniedReason = "PermissionDenied"

	// BackendInvalidReason says that the state would be kept where it is lost with
	// the runner.
	BackendInvalidReason = "BackendInvalid"

	// StateMissingReason says that the state is gone, so that what is in it cannot be
	// destroyed.
	StateMissingReason = "StateMissing"

	// BackendChangedReason says that the spec names another place for the state than
	// the one that holds it; the annotation reconcile.fluxcd.io/forceAt begins anew
	// there.
	BackendChangedReason = "BackendChanged"

	// RecordDamagedReason says that the Secret in which the runner remembers the
	// object does not match its digest.
	RecordDamagedReason = "RecordDamaged"

	// StateTooLargeReason says that the state comes close to what a Secret can
	// hold.
	StateTooLargeReason = "StateTooLarge"
)

// Reasons of KubesprayCluster.
const (
	// InventoryReadyReason says that the nodes are known.
	InventoryReadyReason = "InventoryReady"

	// InventoryInvalidReason says that the nodes contradict one another or miss
	// something, for example an address that two of them have.
	InventoryInvalidReason = "InventoryInvalid"

	// OutputEmptyReason says that a Terraform output that lists nodes is empty or
	// missing. It never means that all nodes are to be removed.
	OutputEmptyReason = "OutputEmpty"

	// ValidatedReason says that the wish can be planned.
	ValidatedReason = "Validated"

	// VersionUnavailableReason says that no Kubespray release, or not the one in
	// spec.kubespray.release, installs the Kubernetes version.
	VersionUnavailableReason = "VersionUnavailable"

	// DowngradeRefusedReason says that the version is lower than the one that runs.
	DowngradeRefusedReason = "DowngradeRefused"

	// UpgradePathMissingReason says that no chain of Kubespray releases leads from
	// the version that runs to the one that is wanted.
	UpgradePathMissingReason = "UpgradePathMissing"

	// QuorumAtRiskReason says that etcd would lose its majority, or end with an
	// even number of members.
	QuorumAtRiskReason = "QuorumAtRisk"

	// EndpointRequiredReason says that the first control plane node cannot be
	// removed without a stable endpoint.
	EndpointRequiredReason = "EndpointRequired"

	// ImmutableChangeReason says that something was changed that a cluster keeps for
	// life.
	ImmutableChangeReason = "ImmutableChange"

	// MachineOwnedReason says that another KubesprayCluster uses one of the
	// machines.
	MachineOwnedReason = "MachineOwned"

	// AdoptionRequiredReason says that the machines already form a cluster and that
	// the object was not told to adopt it.
	AdoptionRequiredReason = "AdoptionRequired"

	// AdoptionFailedReason says that the cluster to adopt differs from the spec in
	// names, addresses or versions.
	AdoptionFailedReason = "AdoptionFailed"

	// RunSucceededReason says that a playbook run did what its step promised.
	RunSucceededReason = "RunSucceeded"

	// RunFailedReason says that a playbook run failed in a way that has no reason of
	// its own.
	RunFailedReason = "RunFailed"

	// RunInterruptedReason says that a run ended without a result: its pod was
	// evicted, replaced or removed. The cluster is observed again before anything
	// is started.
	RunInterruptedReason = "RunInterrupted"

	// HostUnreachableReason says that Ansible could not reach a host.
	HostUnreachableReason = "HostUnreachable"

	// SSHFailedReason says that a host refused the ssh key, or that its host key is
	// not the known one.
	SSHFailedReason = "SSHFailed"

	// BecomeFailedReason says that a host refused to let Ansible become root.
	BecomeFailedReason = "BecomeFailed"

	// PreflightFailedReason says that a check of Kubespray refused the hosts or the
	// settings before anything was changed.
	PreflightFailedReason = "PreflightFailed"

	// DownloadFailedReason says that a host could not download what it needs.
	DownloadFailedReason = "DownloadFailed"

	// DrainFailedReason says that a node could not be drained, most often because
	// of a PodDisruptionBudget.
	DrainFailedReason = "DrainFailed"

	// InitControlPlaneFailedReason says that the first control plane node did not
	// come up.
	InitControlPlaneFailedReason = "InitControlPlaneFailed"

	// JoinFailedReason says that a node could not join the cluster.
	JoinFailedReason = "JoinFailed"

	// EtcdFailedReason says that etcd did not get healthy.
	EtcdFailedReason = "EtcdFailed"

	// VerificationFailedReason says that a run ended well and that the cluster is
	// nevertheless not what the step promised.
	VerificationFailedReason = "VerificationFailed"

	// KubeconfigConflictReason says that the Secret for the kubeconfig exists and
	// was not made by this object.
	KubeconfigConflictReason = "KubeconfigConflict"

	// KubeconfigFailedReason says that the kubeconfig does not lead to the cluster:
	// the address, the certificate or the login is refused.
	KubeconfigFailedReason = "KubeconfigFailed"

	// ClusterReachableReason says that the API server of the cluster answers.
	ClusterReachableReason = "ClusterReachable"

	// ClusterUnreachableReason says that the API server of the cluster does not
	// answer.
	ClusterUnreachableReason = "ClusterUnreachable"

	// UpgradingReason says that an upgrade is under way.
	UpgradingReason = "Upgrading"

	// CertificatesExpiringReason says that a certificate of the cluster ends soon.
	CertificatesExpiringReason = "CertificatesExpiring"

	// ResettingReason says that the machines are being reset.
	ResettingReason = "Resetting"

	// ResetFailedReason says that machines could not be reset. With deletionPolicy
	// Retain the object can go without it.
	ResetFailedReason = "ResetFailed"
)

// Reasons of ConfigReload.
const (
	// DeliveredReason says that the kubelets were told about the latest content.
	DeliveredReason = "Delivered"

	// DeliveringReason says that pods are still to be told about the latest
	// content.
	DeliveringReason = "Delivering"

	// VerifiedReason says that agents saw the latest content.
	VerifiedReason = "Verified"

	// NotVerifiedReason says that nobody looks: refresh.verify is None, or no
	// selected pod has an agent.
	NotVerifiedReason = "NotVerified"

	// BaselineRecordedReason says that the content was seen for the first time and
	// that nothing was touched.
	BaselineRecordedReason = "BaselineRecorded"

	// NoConsumersReason says that no selected pod consumes any of the sources.
	NoConsumersReason = "NoConsumers"

	// PatchDeniedReason says that pods could not be annotated, because the API
	// server or an admission webhook refused it.
	PatchDeniedReason = "PatchDenied"

	// StaleContentReason says that pods still have the old content after all
	// attempts.
	StaleContentReason = "StaleContent"

	// ImmutableSourceReason says that a source is immutable, so that only a restart
	// with a new source can change what pods see.
	ImmutableSourceReason = "ImmutableSource"

	// RestartRequiredReason says that pods can see the new content only after a
	// restart, which the strategy does not allow.
	RestartRequiredReason = "RestartRequired"

	// RestartingReason says that workloads are being restarted.
	RestartingReason = "Restarting"

	// RestartFailedReason says that a workload did not come back after a restart, or
	// that the restart was refused.
	RestartFailedReason = "RestartFailed"

	// OutsideWindowReason says that a restart waits for the next window.
	OutsideWindowReason = "OutsideWindow"

	// FlappingReason says that restarts are withheld, because a source changes more
	// often than limits.flapThreshold allows.
	FlappingReason = "Flapping"

	// NotifyFailedReason says that an application did not answer the notification
	// as expected.
	NotifyFailedReason = "NotifyFailed"

	// RolloutPausedReason says that a workload is paused, so that a restart waits.
	RolloutPausedReason = "RolloutPaused"

	// AnnotationUnknownReason says that an annotation of this API group is misspelt
	// and has no effect.
	AnnotationUnknownReason = "AnnotationUnknown"
)
