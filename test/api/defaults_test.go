package api_test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/terrace-dev/terrace/api/v1alpha1"
)

// defaults is what the API server makes of the minimal samples, without the
// fields that the samples set themselves.
var defaults = map[string]string{
	"Terraform": `
retryInterval: 30s
maxRetryInterval: 1h
timeout: 1h
path: ./
tool: OpenTofu
workspace: default
approval: {mode: Manual, destroy: NotRequired}
drift: {mode: Correct}
inventory: true
deletionPolicy: Orphan
stateLock: {forceUnlock: Stale}
runner: {serviceAccountName: terrace-runner, idleTimeout: 10m}
historyLimit: 10
`,
	"KubesprayCluster": `
interval: 10m
kubespray: {release: auto}
network: {plugin: calico, podCIDR: 10.233.64.0/18, serviceCIDR: 10.233.0.0/18, families: [IPv4], dnsDomain: cluster.local}
etcd: {deployment: host}
ssh: {secretRef: {key: ssh-privatekey}, user: root, port: 22}
become: {enabled: true}
upgrade: {serial: 20%, drain: {timeout: 6m, gracePeriod: 5m, retries: 3}}
approval: {mode: Destructive}
drift: {mode: Report}
deletionPolicy: Retain
job: {forks: 20, historyLimit: 10, ttl: 24h}
`,
	"ConfigReload": `
strategy: Auto
refresh: {rebumpAfter: 2s, attempts: 3, verify: None}
restart: {method: Rollout, when: Always}
debounce: {quiet: 50ms, spacing: 5s}
limits: {podsPerSecond: 100, maxConcurrentRestarts: 1, minInterval: 30s, flapThreshold: 6/h}
`,
}

func TestMinimalObjectsGetTheDefaults(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			sent := minimal(t, kind)
			stored := sent.DeepCopy()
			if err := server.Create(t.Context(), stored, client.DryRunAll); err != nil {
				t.Fatal(err)
			}
			want := map[string]any{}
			if err := yaml.Unmarshal([]byte(defaults[kind]), &want); err != nil {
				t.Fatal(err)
			}
			given, _, _ := unstructured.NestedMap(sent.Object, "spec")
			want = mergePatch(want, given)
			if got, expected := toYAML(t, stored.Object["spec"]), toYAML(t, want); got != expected {
				t.Errorf("the spec is\n%s\nand should be\n%s", got, expected)
			}
			if generation, _, _ := unstructured.NestedInt64(stored.Object, "status", "observedGeneration"); generation != -1 {
				t.Errorf("status.observedGeneration is %d, and should be -1 until the operator was there", generation)
			}
		})
	}
}

func toYAML(t *testing.T, value any) string {
	t.Helper()
	text, err := yaml.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// bare are objects made in Go that set what is required and nothing else, but
// have one of everything that has defaults of its own.
func bare() []client.Object {
	key := v1alpha1.KeyReference{Name: "s", Key: "k"}
	meta := metav1.ObjectMeta{Name: "bare", Namespace: metav1.NamespaceDefault}
	return []client.Object{
		&v1alpha1.Terraform{ObjectMeta: meta, Spec: v1alpha1.TerraformSpec{
			Interval:      metav1.Duration{Duration: time.Minute},
			SourceRef:     &v1alpha1.SourceReference{Kind: "Bucket", Name: "b"},
			VariablesFrom: []v1alpha1.VariablesFrom{{Kind: v1alpha1.SecretKind, Name: "s", Keys: []v1alpha1.VariableKey{{From: "a"}}}},
			Files:         []v1alpha1.File{{Path: "a", SecretKeyRef: &key}},
			Policies:      []v1alpha1.Policy{{Name: "p", Expression: "true"}},
			PlanOptions:   &v1alpha1.PlanOptions{},
			Outputs:       []v1alpha1.OutputTarget{{Kind: v1alpha1.SecretKind, Name: "s", Keys: []v1alpha1.OutputKey{{From: "a"}}}},
			HealthChecks: []v1alpha1.HealthCheck{
				{Name: "tcp", TCP: &v1alpha1.TCPHealthCheck{Address: "host:22"}},
				{Name: "http", HTTP: &v1alpha1.HTTPHealthCheck{URL: "https://host"}},
			},
			DependsOn: []v1alpha1.DependencyReference{{Name: "d"}},
		}},
		&v1alpha1.KubesprayCluster{ObjectMeta: meta, Spec: v1alpha1.KubesprayClusterSpec{
			KubernetesVersion: "1.34.3",
			NodesFrom:         []v1alpha1.NodesFrom{{TerraformRef: v1alpha1.TerraformReference{Name: "t"}}},
			EndpointFrom:      &v1alpha1.EndpointFrom{TerraformRef: v1alpha1.TerraformReference{Name: "t"}},
			SSH: v1alpha1.SSH{
				SecretRef:     v1alpha1.SSHKeyReference{Name: "s"},
				KnownHostsRef: &v1alpha1.KnownHostsReference{Name: "c"},
				Bastion:       &v1alpha1.Bastion{Host: "bastion"},
			},
			Hooks: &v1alpha1.Hooks{Before: []v1alpha1.Hook{{
				Operation: v1alpha1.ClusterUpgrade,
				Playbook:  v1alpha1.HookPlaybook{ConfigMapRef: v1alpha1.PlaybookReference{Name: "c"}},
			}}},
		}},
		&v1alpha1.KubesprayCluster{ObjectMeta: meta, Spec: v1alpha1.KubesprayClusterSpec{
			KubernetesVersion: "1.34.3",
			NodesFrom:         []v1alpha1.NodesFrom{{TerraformRef: v1alpha1.TerraformReference{Name: "t"}}},
			Endpoint:          &v1alpha1.Endpoint{Host: "api"},
			SSH:               v1alpha1.SSH{SecretRef: v1alpha1.SSHKeyReference{Name: "s"}},
		}},
		&v1alpha1.ConfigReload{ObjectMeta: meta, Spec: v1alpha1.ConfigReloadSpec{
			Targets: []v1alpha1.ReloadTarget{{WorkloadRef: &v1alpha1.WorkloadReference{Kind: "Deployment", Name: "d"}}},
			Notify:  &v1alpha1.Notify{HTTP: v1alpha1.HTTPNotify{Port: 80}},
			Windows: []v1alpha1.Window{{Schedule: "@daily", Duration: metav1.Duration{Duration: time.Hour}}},
		}},
	}
}

// TestAccessorsKnowTheDefaults compares what the methods of an object made in Go
// return with what they return after the API server filled in the defaults.
func TestAccessorsKnowTheDefaults(t *testing.T) {
	t.Parallel()
	for _, obj := range bare() {
		t.Run(fmt.Sprintf("%T", obj), func(t *testing.T) {
			t.Parallel()
			before := accessors(obj)
			if err := server.Create(t.Context(), obj, client.DryRunAll); err != nil {
				t.Fatal(err)
			}
			after := accessors(obj)
			for _, path := range slices.Sorted(maps.Keys(before)) {
				if !reflect.DeepEqual(before[path], after[path]) {
					t.Errorf("%s returns %v without an API server and %v with one", path, before[path], after[path])
				}
			}
			t.Logf("compared %d accessors", len(before))
		})
	}
}

// accessors returns the results of all methods Get… and WithDefaults of the
// object itself and of everything in its spec, by path.
func accessors(obj client.Object) map[string]any {
	results := map[string]any{}
	value := reflect.ValueOf(obj)
	for _, name := range []string{
		"GetRequeueAfter", "GetRetryInterval", "GetMaxRetryInterval", "GetTimeout", "GetPath", "GetTool", "GetWorkspace",
		"GetSecretSuffix", "UsesKubernetesBackend", "GetInventory", "GetDeletionPolicy", "GetHistoryLimit", "GetSourceNamespace",
		"GetDependsOn", "GetKubernetesVersion", "GetKubeconfigSecretName", "GetStrategy",
	} {
		if method := value.MethodByName(name); method.IsValid() {
			results[name] = call(method)
		}
	}
	collect(value.Elem().FieldByName("Spec").Addr(), "spec", results)
	return results
}

func collect(value reflect.Value, path string, results map[string]any) {
	switch value.Kind() {
	case reflect.Pointer:
		if value.IsNil() || value.Elem().Kind() != reflect.Struct || !ours(value.Elem().Type()) {
			return
		}
		for i := range value.NumMethod() {
			method := value.Type().Method(i)
			if isAccessor(method) {
				results[path+"."+method.Name] = call(value.Method(i))
			}
		}
		for i := range value.Elem().NumField() {
			field := value.Elem().Type().Field(i)
			collect(addressOf(value.Elem().Field(i)), path+"."+field.Name, results)
		}
	case reflect.Slice:
		for i := range value.Len() {
			collect(addressOf(value.Index(i)), fmt.Sprintf("%s[%d]", path, i), results)
		}
	default: // values have no accessors
	}
}

func isAccessor(method reflect.Method) bool {
	return method.Type.NumIn() == 1 && (strings.HasPrefix(method.Name, "Get") || method.Name == "WithDefaults")
}

func ours(typ reflect.Type) bool { return strings.HasSuffix(typ.PkgPath(), "/api/v1alpha1") }

// addressOf returns a pointer to a struct, and pointers and slices as they are.
func addressOf(value reflect.Value) reflect.Value {
	if value.Kind() == reflect.Struct {
		return value.Addr()
	}
	return value
}

func call(method reflect.Value) any {
	results := method.Call(nil)
	values := make([]any, len(results))
	for i, result := range results {
		values[i] = result.Interface()
	}
	return values
}
