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

// Variable is one variable of the root module.
// The field value has no type, so CEL sees it only through dyn.
// +kubebuilder:validation:XValidation:rule="has(dyn(self).value) != has(self.valueFrom)",message="exactly one of variables[].value and variables[].valueFrom must be set (leave the variable out for null)"
// +kubebuilder:validation:XValidation:rule="!(self.name in ['source', 'version', 'providers', 'count', 'for_each', 'lifecycle', 'depends_on', 'locals'])",message="variables[].name must not be one of the tool's reserved names: source, version, providers, count, for_each, lifecycle, depends_on, locals"
type Variable struct {
	// name of the variable, an HCL identifier.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_-]*$`
	// +required
	Name string `json:"name"`

	// value of the variable: any JSON, which keeps its type.
	// +optional
	Value *apiextensionsv1.JSON `json:"value,omitempty"`

	// valueFrom takes the value from elsewhere when the plan is made.
	// +optional
	ValueFrom *VariableSource `json:"valueFrom,omitempty"`
}

// VariableSource says where the value of a variable comes from.
// +kubebuilder:validation:XValidation:rule="(has(self.secretKeyRef) ? 1 : 0) + (has(self.configMapKeyRef) ? 1 : 0) + (has(self.terraformOutput) ? 1 : 0) == 1",message="exactly one of valueFrom.secretKeyRef, valueFrom.configMapKeyRef and valueFrom.terraformOutput must be set"
type VariableSource struct {
	// secretKeyRef takes the string under a key of a Secret.
	// +optional
	SecretKeyRef *KeyReference `json:"secretKeyRef,omitempty"`

	// configMapKeyRef takes the string under a key of a ConfigMap.
	// +optional
	ConfigMapKeyRef *KeyReference `json:"configMapKeyRef,omitempty"`

	// terraformOutput takes an output of another Terraform object in the same
	// namespace, with its type: a published one from its status, any other from
	// the Secret that it writes its outputs to.
	// +optional
	TerraformOutput *TerraformOutputReference `json:"terraformOutput,omitempty"`
}

// TerraformOutputReference names an output of a Terraform object in the same
// namespace.
type TerraformOutputReference struct {
	// name of the Terraform object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	Name string `json:"name"`

	// output is the name of the output.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_-]*$`
	// +required
	Output string `json:"output"`
}

// VariableFormat says how the text under a key becomes a value.
// +kubebuilder:validation:Enum=String;JSON
type VariableFormat string

const (
	// VariableFormatString takes the text as a string.
	VariableFormatString VariableFormat = "String"
	// VariableFormatJSON parses the text as JSON.
	VariableFormatJSON VariableFormat = "JSON"
)

// VariablesFrom takes variables from the keys of a Secret or ConfigMap.
type VariablesFrom struct {
	// kind of the object.
	// +required
	Kind ConfigKind `json:"kind"`

	// name of the object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`

	// prefix is put in front of the names of the variables.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_-]*$`
	// +optional
	Prefix string `json:"prefix,omitempty"`

	// keys to take. Empty means all of them, each as a variable of its name.
	// +kubebuilder:validation:MaxItems=128
	// +listType=map
	// +listMapKey=from
	// +optional
	Keys []VariableKey `json:"keys,omitempty"`

	// optional tolerates that the object, or one of the keys, does not exist. Any
	// other failure to read it still counts.
	// +optional
	Optional bool `json:"optional,omitempty"`

	// format says how the text under a key becomes a value.
	// +kubebuilder:default=String
	// +optional
	Format VariableFormat `json:"format,omitempty"`
}

// GetFormat returns the format, by default String.
func (in VariablesFrom) GetFormat() VariableFormat {
	return orDefault(in.Format, VariableFormatString)
}

// VariableKey makes a variable of a key.
type VariableKey struct {
	// from is the key in the Secret or ConfigMap.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	// +required
	From string `json:"from"`

	// to is the name of the variable, before the prefix. Empty means the key.
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_-]*$`
	// +optional
	To string `json:"to,omitempty"`
}

// GetTo returns the name of the variable, by default the key.
func (in VariableKey) GetTo() string { return orDefault(in.To, in.From) }

// File is written into the module directory before the tool starts.
// +kubebuilder:validation:XValidation:rule="has(self.secretKeyRef) != has(self.configMapKeyRef)",message="exactly one of files[].secretKeyRef and files[].configMapKeyRef must be set"
type File struct {
	// path of the file, relative to the directory of the module.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('/') && !self.endsWith('/') && !self.split('/').exists(s, s == '..')",message="files[].path must be a relative path of a file and must not contain '..'"
	// +required
	Path string `json:"path"`

	// secretKeyRef points to the content in a Secret.
	// +optional
	SecretKeyRef *KeyReference `json:"secretKeyRef,omitempty"`

	// configMapKeyRef points to the content in a ConfigMap.
	// +optional
	ConfigMapKeyRef *KeyReference `json:"configMapKeyRef,omitempty"`

	// mode of the file, as the permission bits of a volume: 384 is 0600. Between 0
	// and 511 (0777).
	// +kubebuilder:default=384
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=511
	// +optional
	Mode *int32 `json:"mode,omitempty"`
}

// GetMode returns the permission bits of the file, by default 0600.
func (in File) GetMode() int32 { return derefOr(in.Mode, 0o600) }
