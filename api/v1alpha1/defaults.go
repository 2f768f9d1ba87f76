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

// orDefault returns the value, or the default when the value is the zero value.
func orDefault[T comparable](value, byDefault T) T {
	var zero T
	if value == zero {
		return byDefault
	}
	return value
}

// derefOr returns what the pointer points to, or the default for nil.
func derefOr[T any](value *T, byDefault T) T {
	if value == nil {
		return byDefault
	}
	return *value
}

// durationOr returns the duration, or the default for nil.
func durationOr(value *metav1.Duration, byDefault time.Duration) time.Duration {
	if value == nil {
		return byDefault
	}
	return value.Duration
}
