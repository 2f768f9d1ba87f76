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

// The names in this file are load-bearing: they are written into objects in
// people's clusters and repositories. Changing one orphans what was written
// under the old name, so a change needs a migration, not a rename.
const (
	// Finalizer keeps an object of any kind of this group until its controller
	// has done what the deletion policy asks for.
	Finalizer = "infra.terrace.dev/finalizer"

	// StateFinalizer keeps the Secrets with the state and the record of a Terraform
	// object whose deletionPolicy is Destroy until the resources are destroyed or
	// orphaned: a destruction needs both. The runner sets and removes it.
	StateFinalizer = "infra.terrace.dev/state"

	// ApproveAnnotation approves a plan from outside the spec: its value is the
	// id of the plan, exactly as status.plan.id shows it.
	ApproveAnnotation = "infra.terrace.dev/approve"

	// IgnoreHoldAnnotation lets a Terraform plan run although a KubesprayCluster
	// still uses a machine that the plan removes. Its value is the id of the
	// plan, so that it never covers a later plan.
	IgnoreHoldAnnotation = "infra.terrace.dev/ignore-hold"

	// AdoptAnnotation with the value "true" lets a KubesprayCluster take over a
	// cluster that Kubespray built before the object existed.
	AdoptAnnotation = "infra.terrace.dev/adopt"

	// TerraformLabel names the Terraform object that a Secret, a ConfigMap or a pod
	// was made for. Longer names than a label holds are shortened with a digest.
	TerraformLabel = "infra.terrace.dev/terraform"

	// RecoverAnnotation asks for the recovery of a KubesprayCluster's control plane
	// by name: its value lists the broken nodes, separated by commas. Nothing else
	// ever starts a recovery, and it needs an approval like any destructive step.
	RecoverAnnotation = "infra.terrace.dev/recover"

	// ResetRequestAnnotation asks for the failure count to be forgotten, which
	// also ends the back-off between retries. As with all Flux annotations of
	// this kind its value must equal that of reconcile.fluxcd.io/requestedAt.
	ResetRequestAnnotation = "reconcile.fluxcd.io/resetAt"
)

// Kind names, as they appear in manifests and in references.
const (
	// TerraformKind is the kind name of Terraform.
	TerraformKind = "Terraform"
	// KubesprayClusterKind is the kind name of KubesprayCluster.
	KubesprayClusterKind = "KubesprayCluster"
	// ConfigReloadKind is the kind name of ConfigReload.
	ConfigReloadKind = "ConfigReload"
)

// Bounds that controllers must respect when they write status: the API server
// refuses a status that exceeds them, so callers cut before they write.
const (
	// MaxStatusMessageLength is the longest message, in characters, in any status
	// field other than a condition.
	MaxStatusMessageLength = 4096
	// MaxStatusOutputs is the largest number of entries in status.outputs.
	MaxStatusOutputs = 256
	// MaxStatusResources is the largest number of entries in status.resources
	// and in status.drift.resources.
	MaxStatusResources = 500
	// MaxStatusWarnings is the largest number of warnings kept with a plan.
	MaxStatusWarnings = 32
	// MaxStatusNodes is the largest number of nodes of a KubesprayCluster.
	MaxStatusNodes = 1000
	// MaxStatusSteps is the largest number of steps of a plan in
	// KubesprayCluster status.
	MaxStatusSteps = 128
	// MaxStatusFailures is the largest number of failures in an entry of the history.
	MaxStatusFailures = 16
	// MaxStatusSources is the largest number of sources of a ConfigReload.
	MaxStatusSources = 1024
	// MaxStatusSourceKeys is the largest number of keys of a source in ConfigReload
	// status.
	MaxStatusSourceKeys = 256
	// MaxStatusPods is the largest number of pods in ConfigReload status.
	MaxStatusPods = 200
	// MaxHistory is the largest value of a historyLimit.
	MaxHistory = 50
)
