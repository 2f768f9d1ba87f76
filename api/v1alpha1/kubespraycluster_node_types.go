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

import apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

// NodeRole is what a node does.
// +kubebuilder:validation:Enum=control-plane;worker;etcd
type NodeRole string

const (
	// RoleControlPlane runs the control plane.
	RoleControlPlane NodeRole = "control-plane"
	// RoleWorker runs workloads.
	RoleWorker NodeRole = "worker"
	// RoleEtcd runs a member of etcd. When no node has this role, every control
	// plane node has it.
	RoleEtcd NodeRole = "etcd"
)

// Node is a machine. The fields may also come from a Terraform output, so all of
// them are optional here; a node needs roles, and ip or ip6, in the end.
type Node struct {
	// roles of the node.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=3
	// +listType=set
	// +optional
	Roles []NodeRole `json:"roles,omitempty"`

	// ip is the IPv4 address that Kubernetes binds to on the machine.
	// +kubebuilder:validation:Format=ipv4
	// +kubebuilder:validation:MaxLength=15
	// +optional
	IP string `json:"ip,omitempty"`

	// accessIP is the IPv4 address at which other nodes reach the machine. Empty
	// means ip.
	// +kubebuilder:validation:Format=ipv4
	// +kubebuilder:validation:MaxLength=15
	// +optional
	AccessIP string `json:"accessIP,omitempty"`

	// ip6 is the IPv6 address that Kubernetes binds to on the machine.
	// +kubebuilder:validation:Format=ipv6
	// +kubebuilder:validation:MaxLength=45
	// +optional
	IP6 string `json:"ip6,omitempty"`

	// accessIP6 is the IPv6 address at which other nodes reach the machine. Empty
	// means ip6.
	// +kubebuilder:validation:Format=ipv6
	// +kubebuilder:validation:MaxLength=45
	// +optional
	AccessIP6 string `json:"accessIP6,omitempty"`

	// ansibleHost is the name or address for ssh. Empty means accessIP, or else ip.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9:]([-a-zA-Z0-9.:]*[a-zA-Z0-9:])?$`
	// +optional
	AnsibleHost string `json:"ansibleHost,omitempty"`

	// port for ssh. Empty means ssh.port.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	Port *int32 `json:"port,omitempty"`

	// user for ssh. Empty means ssh.user.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][-A-Za-z0-9_.]*$`
	// +optional
	User string `json:"user,omitempty"`

	// labels of the node in Kubernetes.
	// +kubebuilder:validation:MaxProperties=64
	// +optional
	Labels map[string]string `json:"labels,omitempty"`

	// taints of the node in Kubernetes, as key=value:Effect or key:Effect.
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=396
	// +kubebuilder:validation:items:Pattern=`^[a-zA-Z0-9][-a-zA-Z0-9._/]*(=[-a-zA-Z0-9._]*)?:(NoSchedule|PreferNoSchedule|NoExecute)$`
	// +listType=set
	// +optional
	Taints []string `json:"taints,omitempty"`

	// vars are variables of Kubespray for this node, with their types.
	// +kubebuilder:validation:MaxProperties=128
	// +optional
	Vars map[string]apiextensionsv1.JSON `json:"vars,omitempty"`
}

// TerraformReference names a Terraform object.
type TerraformReference struct {
	// name of the Terraform object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	Name string `json:"name"`

	// namespace of the Terraform object. Empty means the namespace of the cluster
	// object; another one is refused unless the operator allows references across
	// namespaces.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// NodesFrom takes nodes from a published output of a Terraform object.
type NodesFrom struct {
	// terraformRef names the Terraform object.
	// +required
	TerraformRef TerraformReference `json:"terraformRef"`

	// output is the name of the output. The object must list it in
	// spec.publishOutputs.
	// +kubebuilder:default=nodes
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_-]*$`
	// +optional
	Output string `json:"output,omitempty"`
}

// GetOutput returns the name of the output, by default nodes.
func (in NodesFrom) GetOutput() string { return orDefault(in.Output, DefaultNodesOutput) }

// Endpoint is the stable address of the control plane.
type Endpoint struct {
	// host name or address.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9:]([-a-zA-Z0-9.:]*[a-zA-Z0-9:])?$`
	// +required
	Host string `json:"host"`

	// port of the API server.
	// +kubebuilder:default=6443
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	Port *int32 `json:"port,omitempty"`

	// sans are further names and addresses for the certificate of the API server.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[a-zA-Z0-9*:]([-a-zA-Z0-9.:]*[a-zA-Z0-9:])?$`
	// +listType=set
	// +optional
	SANs []string `json:"sans,omitempty"`
}

// GetPort returns the port of the API server, by default 6443.
func (in Endpoint) GetPort() int32 { return derefOr(in.Port, DefaultEndpointPort) }

// EndpointFrom takes the endpoint from a published output of a Terraform object.
type EndpointFrom struct {
	// terraformRef names the Terraform object.
	// +required
	TerraformRef TerraformReference `json:"terraformRef"`

	// output is the name of the output. The object must list it in
	// spec.publishOutputs.
	// +kubebuilder:default=endpoint
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_-]*$`
	// +optional
	Output string `json:"output,omitempty"`
}

// GetOutput returns the name of the output, by default endpoint.
func (in EndpointFrom) GetOutput() string { return orDefault(in.Output, DefaultEndpointOutput) }

// SSH says how the machines are reached.
type SSH struct {
	// secretRef points to the private key.
	// +required
	SecretRef SSHKeyReference `json:"secretRef"`

	// user for nodes that name none.
	// +kubebuilder:default=root
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][-A-Za-z0-9_.]*$`
	// +optional
	User string `json:"user,omitempty"`

	// port for nodes that name none.
	// +kubebuilder:default=22
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	Port *int32 `json:"port,omitempty"`

	// knownHostsRef points to the host keys of the machines, in the format of
	// known_hosts. Without it the keys are not checked.
	// +optional
	KnownHostsRef *KnownHostsReference `json:"knownHostsRef,omitempty"`

	// bastion is a machine to go through.
	// +optional
	Bastion *Bastion `json:"bastion,omitempty"`
}

// GetUser returns the user for nodes that name none, by default root.
func (in SSH) GetUser() string { return orDefault(in.User, DefaultSSHUser) }

// GetPort returns the port for nodes that name none, by default 22.
func (in SSH) GetPort() int32 { return derefOr(in.Port, DefaultSSHPort) }

// SSHKeyReference points to a private key in a Secret.
type SSHKeyReference struct {
	// name of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`

	// key inside the Secret.
	// +kubebuilder:default=ssh-privatekey
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	// +optional
	Key string `json:"key,omitempty"`
}

// GetKey returns the key inside the Secret, by default ssh-privatekey.
func (in SSHKeyReference) GetKey() string { return orDefault(in.Key, DefaultSSHKey) }

// KnownHostsReference points to host keys in a Secret or ConfigMap.
type KnownHostsReference struct {
	// kind of the object.
	// +kubebuilder:default=ConfigMap
	// +optional
	Kind ConfigKind `json:"kind,omitempty"`

	// name of the object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`

	// key inside the object.
	// +kubebuilder:default=known_hosts
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	// +optional
	Key string `json:"key,omitempty"`
}

// GetKind returns the kind of the object, by default ConfigMap.
func (in KnownHostsReference) GetKind() ConfigKind { return orDefault(in.Kind, ConfigMapKind) }

// GetKey returns the key inside the object, by default known_hosts.
func (in KnownHostsReference) GetKey() string { return orDefault(in.Key, DefaultKnownHostsKey) }

// Bastion is a machine to go through.
type Bastion struct {
	// host name or address.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9:]([-a-zA-Z0-9.:]*[a-zA-Z0-9:])?$`
	// +required
	Host string `json:"host"`

	// user for ssh. Empty means ssh.user.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][-A-Za-z0-9_.]*$`
	// +optional
	User string `json:"user,omitempty"`

	// port for ssh.
	// +kubebuilder:default=22
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	Port *int32 `json:"port,omitempty"`
}

// GetPort returns the port for ssh, by default 22.
func (in Bastion) GetPort() int32 { return derefOr(in.Port, DefaultSSHPort) }

// Become says how the user becomes root on the machines.
// +kubebuilder:validation:XValidation:rule="!has(self.passwordSecretRef) || !has(self.enabled) || self.enabled",message="become.passwordSecretRef needs become.enabled"
type Become struct {
	// enabled uses sudo. Without it the user must be root.
	// +kubebuilder:default=true
	// +optional
	Enabled *bool `json:"enabled,omitempty"`

	// passwordSecretRef points to the password for sudo. Without it none is asked.
	// +optional
	PasswordSecretRef *KeyReference `json:"passwordSecretRef,omitempty"`
}

// GetEnabled returns whether sudo is used, by default true.
func (in Become) GetEnabled() bool { return derefOr(in.Enabled, true) }
