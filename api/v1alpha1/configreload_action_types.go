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
	"fmt"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RefreshVerify says who looks whether the content arrived.
// +kubebuilder:validation:Enum=None;Agent
type RefreshVerify string

const (
	// VerifyNone has nobody look: a pod is bumped once more and then counts as
	// delivered.
	VerifyNone RefreshVerify = "None"
	// VerifyAgent asks the agent in the pod.
	VerifyAgent RefreshVerify = "Agent"
)

// Refresh says how kubelets are made to update volumes.
type Refresh struct {
	// rebumpAfter is the wait before a pod is bumped again. Between 100ms and 5m.
	// +kubebuilder:default="2s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('100ms') && duration(self) <= duration('5m')",message="refresh.rebumpAfter must be between 100ms and 5m"
	// +optional
	RebumpAfter *metav1.Duration `json:"rebumpAfter,omitempty"`

	// attempts is how often a pod is bumped for one change while its agent does not
	// see the content. With verify None it is bumped exactly twice. Between 1 and
	// 20.
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=20
	// +optional
	Attempts *int32 `json:"attempts,omitempty"`

	// verify says who looks whether the content arrived.
	// +kubebuilder:default=None
	// +optional
	Verify RefreshVerify `json:"verify,omitempty"`
}

// GetRebumpAfter returns the wait before a pod is bumped again, by default 2s.
func (in Refresh) GetRebumpAfter() time.Duration {
	return durationOr(in.RebumpAfter, DefaultRebumpAfter)
}

// GetAttempts returns how often a pod is bumped for one change, by default 3.
func (in Refresh) GetAttempts() int32 { return derefOr(in.Attempts, DefaultRefreshAttempts) }

// GetVerify returns who looks whether the content arrived, by default nobody.
func (in Refresh) GetVerify() RefreshVerify { return orDefault(in.Verify, VerifyNone) }

// RestartMethod says how a pod is restarted.
// +kubebuilder:validation:Enum=Rollout;Evict
type RestartMethod string

const (
	// RestartRollout changes the pod template of the workload, which then replaces
	// its pods as its own strategy says.
	RestartRollout RestartMethod = "Rollout"
	// RestartEvict evicts the pods one after the other.
	RestartEvict RestartMethod = "Evict"
)

// RestartWhen says when restarts are allowed.
// +kubebuilder:validation:Enum=Always;InWindow
type RestartWhen string

const (
	// RestartAlways allows restarts at any time.
	RestartAlways RestartWhen = "Always"
	// RestartInWindow allows restarts in spec.windows only.
	RestartInWindow RestartWhen = "InWindow"
)

// Restart says how workloads are restarted.
type Restart struct {
	// method says how a pod is restarted.
	// +kubebuilder:default=Rollout
	// +optional
	Method RestartMethod `json:"method,omitempty"`

	// when says when restarts are allowed.
	// +kubebuilder:default=Always
	// +optional
	When RestartWhen `json:"when,omitempty"`
}

// GetMethod returns how a pod is restarted, by default by rollout.
func (in Restart) GetMethod() RestartMethod { return orDefault(in.Method, RestartRollout) }

// GetWhen returns when restarts are allowed, by default always.
func (in Restart) GetWhen() RestartWhen { return orDefault(in.When, RestartAlways) }

// Notify tells the application after the content is in the pod.
type Notify struct {
	// http makes a request to each pod.
	// +required
	HTTP HTTPNotify `json:"http"`
}

// HTTPNotify makes a request to a pod.
type HTTPNotify struct {
	// port of the pod.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +required
	Port int32 `json:"port"`

	// path of the request.
	// +kubebuilder:default="/-/reload"
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^/[^\s]*$`
	// +optional
	Path string `json:"path,omitempty"`

	// scheme of the request. The certificate of a pod is not checked, since it can
	// hardly bear the pod's address.
	// +kubebuilder:default=HTTP
	// +kubebuilder:validation:Enum=HTTP;HTTPS
	// +optional
	Scheme string `json:"scheme,omitempty"`

	// method of the request.
	// +kubebuilder:default=POST
	// +kubebuilder:validation:Enum=GET;POST;PUT
	// +optional
	Method string `json:"method,omitempty"`

	// expectedStatus of the answer. Empty means any from 200 to 299.
	// +kubebuilder:validation:Minimum=100
	// +kubebuilder:validation:Maximum=599
	// +optional
	ExpectedStatus *int32 `json:"expectedStatus,omitempty"`

	// timeout of the request. Between 100ms and 1m.
	// +kubebuilder:default="5s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('100ms') && duration(self) <= duration('1m')",message="notify.http.timeout must be between 100ms and 1m"
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`
}

// GetPath returns the path of the request, by default /-/reload.
func (in HTTPNotify) GetPath() string { return orDefault(in.Path, DefaultNotifyPath) }

// GetScheme returns the scheme of the request, by default HTTP.
func (in HTTPNotify) GetScheme() string { return orDefault(in.Scheme, "HTTP") }

// GetMethod returns the method of the request, by default POST.
func (in HTTPNotify) GetMethod() string { return orDefault(in.Method, "POST") }

// GetTimeout returns the timeout of the request, by default 5s.
func (in HTTPNotify) GetTimeout() time.Duration {
	return durationOr(in.Timeout, DefaultNotifyTimeout)
}

// Expects says whether a status code is the expected one.
func (in HTTPNotify) Expects(status int) bool {
	if in.ExpectedStatus == nil {
		return status >= 200 && status <= 299
	}
	return status == int(*in.ExpectedStatus)
}

// Debounce makes one action of several changes.
type Debounce struct {
	// quiet is how long nothing may change before the first action. At most 1m.
	// +kubebuilder:default="50ms"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('1m')",message="debounce.quiet must be at most 1m"
	// +optional
	Quiet *metav1.Duration `json:"quiet,omitempty"`

	// spacing is the least time between two actions; what changes meanwhile becomes
	// one action. At most 1h.
	// +kubebuilder:default="5s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('1h')",message="debounce.spacing must be at most 1h"
	// +optional
	Spacing *metav1.Duration `json:"spacing,omitempty"`
}

// GetQuiet returns how long nothing may change before the first action, by
// default 50ms.
func (in Debounce) GetQuiet() time.Duration { return durationOr(in.Quiet, DefaultDebounceQuiet) }

// GetSpacing returns the least time between two actions, by default 5s.
func (in Debounce) GetSpacing() time.Duration {
	return durationOr(in.Spacing, DefaultDebounceSpacing)
}

// Limits bound what one change, or many, can do.
type Limits struct {
	// podsPerSecond is how many pods are annotated per second. Between 1 and 1000.
	// +kubebuilder:default=100
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	// +optional
	PodsPerSecond *int32 `json:"podsPerSecond,omitempty"`

	// maxConcurrentRestarts is how many workloads restart at a time. Between 1 and
	// 100.
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +optional
	MaxConcurrentRestarts *int32 `json:"maxConcurrentRestarts,omitempty"`

	// minInterval is the least time between two restarts of a workload. At most 24h.
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('24h')",message="limits.minInterval must be at most 24h"
	// +optional
	MinInterval *metav1.Duration `json:"minInterval,omitempty"`

	// flapThreshold is how many restarts of a workload are allowed per minute (m),
	// hour (h) or day (d), such as 6/h. Past it, restarts are withheld.
	// +kubebuilder:default="6/h"
	// +kubebuilder:validation:MaxLength=8
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{0,3}/[mhd]$`
	// +optional
	FlapThreshold string `json:"flapThreshold,omitempty"`
}

// GetPodsPerSecond returns how many pods are annotated per second, by default
// 100.
func (in Limits) GetPodsPerSecond() int32 { return derefOr(in.PodsPerSecond, DefaultPodsPerSecond) }

// GetMaxConcurrentRestarts returns how many workloads restart at a time, by
// default 1.
func (in Limits) GetMaxConcurrentRestarts() int32 {
	return derefOr(in.MaxConcurrentRestarts, DefaultMaxConcurrentRestarts)
}

// GetMinInterval returns the least time between two restarts of a workload, by
// default 30s.
func (in Limits) GetMinInterval() time.Duration {
	return durationOr(in.MinInterval, DefaultMinRestartInterval)
}

// GetFlapThreshold returns how many restarts are allowed in which time, by
// default 6 in an hour. The error names a value that the API server would have
// refused.
func (in Limits) GetFlapThreshold() (restarts int, per time.Duration, err error) {
	text := orDefault(in.FlapThreshold, DefaultFlapThreshold)
	count, unit, _ := strings.Cut(text, "/")
	units := map[string]time.Duration{"m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}
	restarts, err = strconv.Atoi(count)
	per, known := units[unit]
	if err != nil || !known || restarts < 1 {
		return 0, 0, fmt.Errorf("limits.flapThreshold %q is not a number per m, h or d, such as %s", text, DefaultFlapThreshold)
	}
	return restarts, per, nil
}

// Window is a time that comes again.
type Window struct {
	// schedule is the start of the window, in the five fields of cron or as a macro
	// such as @daily.
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^(@(yearly|annually|monthly|weekly|daily|midnight|hourly)|\S+( +\S+){4})$`
	// +required
	Schedule string `json:"schedule"`

	// duration of the window. Between 1m and 168h.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m') && duration(self) <= duration('168h')",message="windows[].duration must be between 1m and 168h"
	// +required
	Duration metav1.Duration `json:"duration"`

	// timeZone of the schedule, a name of the IANA database.
	// +kubebuilder:default=UTC
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z][-+A-Za-z0-9_/]*$`
	// +optional
	TimeZone string `json:"timeZone,omitempty"`
}

// GetTimeZone returns the time zone of the schedule, by default UTC.
func (in Window) GetTimeZone() string { return orDefault(in.TimeZone, "UTC") }
