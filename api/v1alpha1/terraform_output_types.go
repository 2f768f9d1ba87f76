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

// OutputTarget is a Secret or ConfigMap that outputs are written to. Sensitive
// outputs go to Secrets only.
type OutputTarget struct {
	// kind of the object to write.
	// +required
	Kind ConfigKind `json:"kind"`

	// name of the object to write. An object that the operator did not make is
	// not overwritten.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	// +required
	Name string `json:"name"`

	// keys to write. Empty means every output under its own name; a ConfigMap then
	// takes those that are not sensitive.
	// +kubebuilder:validation:MaxItems=128
	// +listType=atomic
	// +optional
	Keys []OutputKey `json:"keys,omitempty"`

	// labels of the object to write.
	// +kubebuilder:validation:MaxProperties=32
	// +optional
	Labels map[string]string `json:"labels,omitempty"`

	// annotations of the object to write.
	// +kubebuilder:validation:MaxProperties=32
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// OutputKey writes an output under a key.
type OutputKey struct {
	// from is the name of the output.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_-]*$`
	// +required
	From string `json:"from"`

	// to is the key in the Secret or ConfigMap. Empty means the name of the output.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	// +optional
	To string `json:"to,omitempty"`
}

// GetTo returns the key to write, by default the name of the output.
func (in OutputKey) GetTo() string { return orDefault(in.To, in.From) }

// HealthCheck asks whether what was applied works. In tcp.address and http.url
// the text ${outputs.NAME} stands for the value of an output.
// +kubebuilder:validation:XValidation:rule="has(self.tcp) != has(self.http)",message="exactly one of healthChecks[].tcp and healthChecks[].http must be set"
type HealthCheck struct {
	// name of the check, shown when it fails.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +required
	Name string `json:"name"`

	// tcp passes when a connection can be opened.
	// +optional
	TCP *TCPHealthCheck `json:"tcp,omitempty"`

	// http passes when a request is answered with a status from 200 to 299, or as
	// expression demands.
	// +optional
	HTTP *HTTPHealthCheck `json:"http,omitempty"`

	// timeout of the check. Between 1s and 10m.
	// +kubebuilder:default="20s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('10m')",message="healthChecks[].timeout must be between 1s and 10m"
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	// expression is CEL that must be true for the check to pass. It sees the
	// non-sensitive `outputs`, and after a request `status` (a number), `headers`
	// and `body`.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	Expression string `json:"expression,omitempty"`
}

// GetTimeout returns the timeout of the check, by default 20s.
func (in HealthCheck) GetTimeout() time.Duration {
	return durationOr(in.Timeout, DefaultHealthCheckTimeout)
}

// TCPHealthCheck opens a connection.
type TCPHealthCheck struct {
	// address is host:port; an IPv6 host stands in brackets.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +required
	Address string `json:"address"`
}

// HTTPHealthCheck makes a request.
type HTTPHealthCheck struct {
	// url to ask, with scheme.
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:Pattern=`^(https?://|\$\{)`
	// +required
	URL string `json:"url"`

	// method of the request.
	// +kubebuilder:default=GET
	// +kubebuilder:validation:Enum=GET;HEAD;POST
	// +optional
	Method string `json:"method,omitempty"`
}

// GetMethod returns the method of the request, by default GET.
func (in HTTPHealthCheck) GetMethod() string { return orDefault(in.Method, "GET") }
