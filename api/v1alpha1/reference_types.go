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
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// SourceReference points to a Flux source whose artifact holds the files.
type SourceReference struct {
	// apiVersion of the source. Empty means the version the cluster prefers.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	APIVersion string `json:"apiVersion,omitempty"`

	// kind of the source.
	// +kubebuilder:validation:Enum=GitRepository;OCIRepository;Bucket;ExternalArtifact
	// +required
	Kind string `json:"kind"`

	// name of the source.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`

	// namespace of the source. Empty means the namespace of the object; another
	// namespace is refused unless the operator allows references across namespaces.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// String returns the reference as kind/namespace/name, without the namespace
// when it is empty.
func (in SourceReference) String() string {
	if in.Namespace == "" {
		return in.Kind + "/" + in.Name
	}
	return in.Kind + "/" + in.Namespace + "/" + in.Name
}

// KeyReference points to one key of a Secret or ConfigMap in the namespace of
// the object. Which of the two it is, the name of the referring field says.
type KeyReference struct {
	// name of the Secret or ConfigMap.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`

	// key inside the Secret or ConfigMap.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	// +required
	Key string `json:"key"`
}

// LocalReference points to an object in the namespace of the referring object.
type LocalReference struct {
	// name of the object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
}

// ConfigKind is the kind of an object that holds configuration.
// +kubebuilder:validation:Enum=Secret;ConfigMap
type ConfigKind string

const (
	// SecretKind says that the configuration stands in a Secret.
	SecretKind ConfigKind = "Secret"
	// ConfigMapKind says that the configuration stands in a ConfigMap.
	ConfigMapKind ConfigKind = "ConfigMap"
)

// DependencyReference names an object that must be ready first.
type DependencyReference struct {
	// apiVersion of the dependency.
	// +kubebuilder:default="infra.terrace.dev/v1alpha1"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +optional
	APIVersion string `json:"apiVersion,omitempty"`

	// kind of the dependency.
	// +kubebuilder:default=Terraform
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Kind string `json:"kind,omitempty"`

	// name of the dependency.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`

	// namespace of the dependency. Empty means the namespace of the object.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Namespace string `json:"namespace,omitempty"`

	// readyExpr is a CEL expression that replaces the built-in check of the Ready
	// condition. It sees the object as `self` and the dependency as `dep`.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	ReadyExpr string `json:"readyExpr,omitempty"`
}

// GetAPIVersion returns the API version of the dependency, by default that of
// this package.
func (in DependencyReference) GetAPIVersion() string {
	if in.APIVersion == "" {
		return GroupVersion.String()
	}
	return in.APIVersion
}

// GetKind returns the kind of the dependency, by default Terraform.
func (in DependencyReference) GetKind() string {
	if in.Kind == "" {
		return TerraformKind
	}
	return in.Kind
}

// String returns the reference as kind/namespace/name, without the namespace
// when it is empty.
func (in DependencyReference) String() string {
	if in.Namespace == "" {
		return in.GetKind() + "/" + in.Name
	}
	return in.GetKind() + "/" + in.Namespace + "/" + in.Name
}

// fluxDependency drops what Flux's reference cannot carry.
func (in DependencyReference) fluxDependency() meta.DependencyReference {
	return meta.DependencyReference{Name: in.Name, Namespace: in.Namespace, ReadyExpr: in.ReadyExpr}
}

// PodTemplate changes the pod that the operator would make on its own. Both
// parts are raw JSON, because the schema of a pod would multiply the size of the
// CRD; they are merged by strategic merge patch and the result is decoded
// strictly, so that a misspelt field is reported and not ignored.
type PodTemplate struct {
	// metadata to merge into that of the pod: labels and annotations.
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	Metadata *apiextensionsv1.JSON `json:"metadata,omitempty"`

	// spec to merge into the spec of the pod (a core/v1 PodSpec).
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	Spec *apiextensionsv1.JSON `json:"spec,omitempty"`
}
