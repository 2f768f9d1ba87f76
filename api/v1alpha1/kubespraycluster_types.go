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
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Defaults of KubesprayClusterSpec. The CRD sets the same values; the constants
// serve objects that are made in Go and never passed an API server.
const (
	// DefaultClusterInterval is the default of spec.interval.
	DefaultClusterInterval = 10 * time.Minute
	// KubesprayReleaseAuto lets the operator pick the Kubespray release of each
	// run. It is the default of spec.kubespray.release.
	KubesprayReleaseAuto = "auto"
	// DefaultNodesOutput is the default of spec.nodesFrom[].output.
	DefaultNodesOutput = "nodes"
	// DefaultEndpointOutput is the default of spec.endpointFrom.output.
	DefaultEndpointOutput = "endpoint"
	// DefaultEndpointPort is the default of spec.endpoint.port.
	DefaultEndpointPort = 6443
	// DefaultNetworkPlugin is the default of spec.network.plugin.
	DefaultNetworkPlugin = "calico"
	// DefaultPodCIDR is the default of spec.network.podCIDR.
	DefaultPodCIDR = "10.233.64.0/18"
	// DefaultServiceCIDR is the default of spec.network.serviceCIDR.
	DefaultServiceCIDR = "10.233.0.0/18"
	// DefaultDNSDomain is the default of spec.network.dnsDomain.
	DefaultDNSDomain = "cluster.local"
	// DefaultSSHUser is the default of spec.ssh.user.
	DefaultSSHUser = "root"
	// DefaultSSHPort is the default of spec.ssh.port.
	DefaultSSHPort = 22
	// DefaultSSHKey is the default of spec.ssh.secretRef.key.
	DefaultSSHKey = "ssh-privatekey"
	// DefaultKnownHostsKey is the default of spec.ssh.knownHostsRef.key.
	DefaultKnownHostsKey = "known_hosts"
	// DefaultPlaybookKey is the default of the key of a hook's playbook.
	DefaultPlaybookKey = "playbook.yml"
	// DefaultUpgradeSerial is the default of spec.upgrade.serial.
	DefaultUpgradeSerial = "20%"
	// DefaultDrainTimeout is the default of spec.upgrade.drain.timeout.
	DefaultDrainTimeout = 6 * time.Minute
	// DefaultDrainGracePeriod is the default of spec.upgrade.drain.gracePeriod.
	DefaultDrainGracePeriod = 5 * time.Minute
	// DefaultDrainRetries is the default of spec.upgrade.drain.retries.
	DefaultDrainRetries = 3
	// DefaultForks is the default of spec.job.forks.
	DefaultForks = 20
	// DefaultJobTTL is the default of spec.job.ttl.
	DefaultJobTTL = 24 * time.Hour
)

// KubesprayClusterSpec declares a Kubernetes cluster on machines that exist.
// +kubebuilder:validation:XValidation:rule="has(self.nodes) || has(self.nodesFrom)",message="at least one of nodes and nodesFrom must be set"
// +kubebuilder:validation:XValidation:rule="has(self.nodesFrom) || !has(self.nodes) || self.nodes.all(n, has(self.nodes[n].roles) && (has(self.nodes[n].ip) || has(self.nodes[n].ip6)))",message="each of nodes needs roles, and ip or ip6, unless nodesFrom adds them"
// +kubebuilder:validation:XValidation:rule="has(self.nodesFrom) || !has(self.nodes) || self.nodes.exists(n, has(self.nodes[n].roles) && 'control-plane' in self.nodes[n].roles)",message="one of nodes needs control-plane among its roles, unless nodesFrom adds it"
// +kubebuilder:validation:XValidation:rule="!(has(self.endpoint) && has(self.endpointFrom))",message="endpoint and endpointFrom exclude each other"
// +kubebuilder:validation:XValidation:rule="has(self.network) == has(oldSelf.network) && (!has(self.network) || self.network == oldSelf.network)",message="network is immutable: a cluster keeps its plugin, CIDRs, families and dnsDomain for life"
type KubesprayClusterSpec struct {
	// suspend starts no further run. A run that goes on is not interrupted, and
	// deletion goes on too.
	// +optional
	Suspend bool `json:"suspend,omitempty"`

	// interval between two observations of the cluster; the operator adds jitter.
	// At least 1s.
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s')",message="interval must be at least 1s"
	// +optional
	Interval *metav1.Duration `json:"interval,omitempty"`

	// timeout of one playbook run. Empty means a time that grows with the number of
	// nodes. Between 1s and 48h.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('48h')",message="timeout must be between 1s and 48h"
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	// kubernetesVersion is the exact version, such as 1.34.3; a leading v is
	// accepted. A higher one upgrades, minor by minor; a lower one is refused.
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^v?1\.[0-9]+\.[0-9]+$`
	// +required
	KubernetesVersion string `json:"kubernetesVersion"`

	// kubespray picks the release of Kubespray and its image.
	// +kubebuilder:default={}
	// +optional
	Kubespray Kubespray `json:"kubespray,omitzero"`

	// nodes of the cluster. The key is the identity of the node and its name in
	// Kubernetes, a DNS label; a new key adds a node, a missing key removes it.
	// A node that nodesFrom has too takes the fields given here; a different ip in
	// the two is an error.
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=1000
	// +kubebuilder:validation:XValidation:rule="self.all(n, size(n) <= 63 && n.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'))",message="the keys of nodes must be DNS labels: at most 63 lower-case letters, digits and dashes, without a dash at either end"
	// +optional
	Nodes map[string]Node `json:"nodes,omitempty"`

	// nodesFrom takes nodes from published outputs of Terraform objects. Each
	// output is a map from names to the fields of nodes. An empty or missing output
	// never removes nodes.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +listType=atomic
	// +optional
	NodesFrom []NodesFrom `json:"nodesFrom,omitempty"`

	// endpoint is the stable address of the control plane, for example that of a
	// load balancer. Without it the first control plane node cannot be replaced.
	// +optional
	Endpoint *Endpoint `json:"endpoint,omitempty"`

	// endpointFrom takes the endpoint from a published output of a Terraform
	// object: an object with the fields host, port and sans.
	// +optional
	EndpointFrom *EndpointFrom `json:"endpointFrom,omitempty"`

	// network of the cluster. Immutable.
	// +kubebuilder:default={}
	// +optional
	Network Network `json:"network,omitzero"`

	// etcd says how etcd is run.
	// +kubebuilder:default={}
	// +optional
	Etcd Etcd `json:"etcd,omitzero"`

	// vars are variables of Kubespray for all nodes, with their types. They take
	// precedence over varsFrom. Those that the operator owns, such as kube_version,
	// are refused.
	// +kubebuilder:validation:MaxProperties=512
	// +optional
	Vars map[string]apiextensionsv1.JSON `json:"vars,omitempty"`

	// varsFrom takes variables from YAML or JSON documents. A later entry takes
	// precedence over an earlier one.
	// +kubebuilder:validation:MaxItems=32
	// +listType=atomic
	// +optional
	VarsFrom []VarsFrom `json:"varsFrom,omitempty"`

	// ssh says how the machines are reached.
	// +required
	SSH SSH `json:"ssh"`

	// become says how the user becomes root on the machines.
	// +kubebuilder:default={}
	// +optional
	Become Become `json:"become,omitzero"`

	// upgrade says how gently nodes are upgraded.
	// +kubebuilder:default={}
	// +optional
	Upgrade Upgrade `json:"upgrade,omitzero"`

	// approval says which plans wait for a person.
	// +kubebuilder:default={}
	// +optional
	Approval ClusterApproval `json:"approval,omitzero"`

	// hooks run playbooks of your own before and after operations.
	// +optional
	Hooks *Hooks `json:"hooks,omitempty"`

	// kubeconfig says where the administrator's kubeconfig is written.
	// +optional
	Kubeconfig *KubeconfigTarget `json:"kubeconfig,omitempty"`

	// drift says whether the operator compares the cluster with what it applied.
	// +kubebuilder:default={}
	// +optional
	Drift ClusterDrift `json:"drift,omitzero"`

	// deletionPolicy says what happens to the machines when the object is deleted:
	// Retain leaves the cluster running, Reset removes Kubernetes from them.
	// +kubebuilder:default=Retain
	// +optional
	DeletionPolicy ClusterDeletionPolicy `json:"deletionPolicy,omitempty"`

	// job describes the Jobs that run the playbooks.
	// +kubebuilder:default={}
	// +optional
	Job Job `json:"job,omitzero"`
}

// Kubespray picks the release of Kubespray and its image.
type Kubespray struct {
	// release of Kubespray, such as v2.30.0, or auto. The release must be able to
	// install kubernetesVersion; auto picks one for each hop of an upgrade.
	// +kubebuilder:default=auto
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^(auto|v[0-9]+\.[0-9]+\.[0-9]+)$`
	// +optional
	Release string `json:"release,omitempty"`

	// image to use instead of the image that belongs to the release.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9][-a-zA-Z0-9._/:@]*$`
	// +optional
	Image string `json:"image,omitempty"`
}

// GetRelease returns the release, by default auto.
func (in Kubespray) GetRelease() string { return orDefault(in.Release, KubesprayReleaseAuto) }

// IPFamily is a version of the Internet Protocol.
// +kubebuilder:validation:Enum=IPv4;IPv6
type IPFamily string

const (
	// IPv4Family is IPv4.
	IPv4Family IPFamily = "IPv4"
	// IPv6Family is IPv6.
	IPv6Family IPFamily = "IPv6"
)

// Network is what a cluster keeps for life.
// +kubebuilder:validation:XValidation:rule="!(has(self.podCIDR6) || has(self.serviceCIDR6)) || (has(self.families) && 'IPv6' in self.families)",message="network.podCIDR6 and network.serviceCIDR6 need IPv6 in network.families"
type Network struct {
	// plugin is the network plugin as Kubespray calls it, such as calico, cilium,
	// flannel or kube-ovn.
	// +kubebuilder:default=calico
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[a-z][a-z0-9_-]*$`
	// +optional
	Plugin string `json:"plugin,omitempty"`

	// podCIDR is the range of the addresses of pods.
	// +kubebuilder:default="10.233.64.0/18"
	// +kubebuilder:validation:MaxLength=43
	// +kubebuilder:validation:XValidation:rule="isCIDR(self)",message="network.podCIDR must be an address range such as 10.233.64.0/18"
	// +optional
	PodCIDR string `json:"podCIDR,omitempty"`

	// serviceCIDR is the range of the addresses of Services.
	// +kubebuilder:default="10.233.0.0/18"
	// +kubebuilder:validation:MaxLength=43
	// +kubebuilder:validation:XValidation:rule="isCIDR(self)",message="network.serviceCIDR must be an address range such as 10.233.0.0/18"
	// +optional
	ServiceCIDR string `json:"serviceCIDR,omitempty"`

	// podCIDR6 is the range of the IPv6 addresses of pods. Empty means the default
	// of Kubespray.
	// +kubebuilder:validation:MaxLength=43
	// +kubebuilder:validation:XValidation:rule="isCIDR(self) && cidr(self).ip().family() == 6",message="network.podCIDR6 must be an IPv6 address range"
	// +optional
	PodCIDR6 string `json:"podCIDR6,omitempty"`

	// serviceCIDR6 is the range of the IPv6 addresses of Services. Empty means the
	// default of Kubespray.
	// +kubebuilder:validation:MaxLength=43
	// +kubebuilder:validation:XValidation:rule="isCIDR(self) && cidr(self).ip().family() == 6",message="network.serviceCIDR6 must be an IPv6 address range"
	// +optional
	ServiceCIDR6 string `json:"serviceCIDR6,omitempty"`

	// families of the addresses; both make a dual-stack cluster.
	// +kubebuilder:default={IPv4}
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +listType=set
	// +optional
	Families []IPFamily `json:"families,omitempty"`

	// dnsDomain of the cluster.
	// +kubebuilder:default=cluster.local
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	// +optional
	DNSDomain string `json:"dnsDomain,omitempty"`
}

// WithDefaults returns the network with every default filled in.
func (in Network) WithDefaults() Network {
	out := *in.DeepCopy()
	out.Plugin = orDefault(out.Plugin, DefaultNetworkPlugin)
	out.PodCIDR = orDefault(out.PodCIDR, DefaultPodCIDR)
	out.ServiceCIDR = orDefault(out.ServiceCIDR, DefaultServiceCIDR)
	out.DNSDomain = orDefault(out.DNSDomain, DefaultDNSDomain)
	if len(out.Families) == 0 {
		out.Families = []IPFamily{IPv4Family}
	}
	return out
}

// EtcdDeployment says how etcd is run.
// +kubebuilder:validation:Enum=host
type EtcdDeployment string

// EtcdOnHost runs etcd as a service of the machine. It is the one way that can
// be recovered when control plane nodes are lost.
const EtcdOnHost EtcdDeployment = "host"

// Etcd says how etcd is run.
type Etcd struct {
	// deployment says how etcd is run. A cluster keeps it for life.
	// +kubebuilder:default=host
	// +optional
	Deployment EtcdDeployment `json:"deployment,omitempty"`
}

// GetDeployment returns how etcd is run, by default on the host.
func (in Etcd) GetDeployment() EtcdDeployment { return orDefault(in.Deployment, EtcdOnHost) }

// VarsFrom takes variables from a YAML or JSON document.
type VarsFrom struct {
	// kind of the object.
	// +required
	Kind ConfigKind `json:"kind"`

	// name of the object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`

	// key of the document.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	// +required
	Key string `json:"key"`
}

// KubeconfigTarget says where the administrator's kubeconfig is written.
type KubeconfigTarget struct {
	// secretName is the Secret to write, with the keys value and kubeconfig. Empty
	// means the name of the object with -kubeconfig added. A Secret that the
	// operator did not make is not overwritten.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	// +optional
	SecretName string `json:"secretName,omitempty"`
}

// ClusterDriftMode says whether the operator looks for drift.
// +kubebuilder:validation:Enum=Report;Disabled
type ClusterDriftMode string

const (
	// ClusterDriftReport reports drift. It is never corrected unasked.
	ClusterDriftReport ClusterDriftMode = "Report"
	// ClusterDriftDisabled does not look for drift.
	ClusterDriftDisabled ClusterDriftMode = "Disabled"
)

// ClusterDrift says whether the operator looks for drift.
type ClusterDrift struct {
	// mode says whether drift is reported or not looked for.
	// +kubebuilder:default=Report
	// +optional
	Mode ClusterDriftMode `json:"mode,omitempty"`
}

// GetMode returns the mode, by default Report.
func (in ClusterDrift) GetMode() ClusterDriftMode { return orDefault(in.Mode, ClusterDriftReport) }

// ClusterDeletionPolicy says what happens to the machines on deletion.
// +kubebuilder:validation:Enum=Retain;Reset
type ClusterDeletionPolicy string

const (
	// ClusterDeletionRetain leaves the cluster running.
	ClusterDeletionRetain ClusterDeletionPolicy = "Retain"
	// ClusterDeletionReset removes Kubernetes from the machines.
	ClusterDeletionReset ClusterDeletionPolicy = "Reset"
)

// KubesprayCluster declares a Kubernetes cluster on machines that exist. The
// operator derives from it which of Kubespray's playbooks must run, in which
// order, and runs them one Job at a time.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=ksc,categories=terrace
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp",description=""
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].status",description=""
// +kubebuilder:printcolumn:name="Status",type="string",JSONPath=".status.conditions[?(@.type==\"Ready\")].message",description=""
// +kubebuilder:printcolumn:name="Version",type="string",JSONPath=".status.applied.version",description="",priority=1
// +kubebuilder:printcolumn:name="Plan",type="string",JSONPath=".status.plan.id",description="",priority=1
// +kubebuilder:printcolumn:name="Operation",type="string",JSONPath=".status.operation.type",description="",priority=1
// +kubebuilder:printcolumn:name="Drifted",type="string",JSONPath=".status.conditions[?(@.type==\"Drifted\")].status",description="",priority=1
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 45 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="metadata.name must be a DNS label of at most 45 characters, because it begins the names of Jobs"
type KubesprayCluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what is wanted.
	// +required
	Spec KubesprayClusterSpec `json:"spec"`

	// status is what the operator observed and did last.
	// +kubebuilder:default={"observedGeneration":-1}
	// +optional
	Status KubesprayClusterStatus `json:"status,omitempty"`
}

// KubesprayClusterList is a list of KubesprayCluster objects.
// +kubebuilder:object:root=true
type KubesprayClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	// items of the list.
	Items []KubesprayCluster `json:"items"`
}

// GetConditions returns the conditions of the object.
func (in *KubesprayCluster) GetConditions() []metav1.Condition { return in.Status.Conditions }

// SetConditions replaces the conditions of the object.
func (in *KubesprayCluster) SetConditions(conditions []metav1.Condition) {
	in.Status.Conditions = conditions
}

// GetRequeueAfter returns the time between two observations, by default 10m.
func (in *KubesprayCluster) GetRequeueAfter() time.Duration {
	return durationOr(in.Spec.Interval, DefaultClusterInterval)
}

// GetTimeout returns the timeout of one run, or zero for a time that grows with
// the number of nodes.
func (in *KubesprayCluster) GetTimeout() time.Duration { return durationOr(in.Spec.Timeout, 0) }

// GetKubernetesVersion returns the wanted version without a leading v.
func (in *KubesprayCluster) GetKubernetesVersion() string {
	return strings.TrimPrefix(in.Spec.KubernetesVersion, "v")
}

// GetKubeconfigSecretName returns the name of the Secret for the kubeconfig, by
// default the name of the object with -kubeconfig added.
func (in *KubesprayCluster) GetKubeconfigSecretName() string {
	if in.Spec.Kubeconfig != nil && in.Spec.Kubeconfig.SecretName != "" {
		return in.Spec.Kubeconfig.SecretName
	}
	return in.Name + "-kubeconfig"
}

// GetDeletionPolicy returns what happens on deletion, by default Retain.
func (in *KubesprayCluster) GetDeletionPolicy() ClusterDeletionPolicy {
	return orDefault(in.Spec.DeletionPolicy, ClusterDeletionRetain)
}

// GetLastHandledReconcileRequest returns the reconcile request handled last.
func (in *KubesprayCluster) GetLastHandledReconcileRequest() string {
	return in.Status.GetLastHandledReconcileRequest()
}

// GetLastHandledForceRequestStatus returns where the force request handled last
// is kept.
func (in *KubesprayCluster) GetLastHandledForceRequestStatus() *string {
	return &in.Status.LastHandledForceAt
}

// GetLastHandledResetRequestStatus returns where the reset request handled last
// is kept.
func (in *KubesprayCluster) GetLastHandledResetRequestStatus() *string {
	return &in.Status.LastHandledResetAt
}
