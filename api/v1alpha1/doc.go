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

// Package v1alpha1 holds the kinds of the API group infra.terrace.dev:
// Terraform, KubesprayCluster and ConfigReload.
//
// The package imports apimachinery, fluxcd/pkg/apis and the JSON type of
// apiextensions only, so that a program which reads or writes these objects does
// not inherit the dependencies of the operator.
//
// +kubebuilder:object:generate=true
// +groupName=infra.terrace.dev
package v1alpha1
