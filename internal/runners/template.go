package runners

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	kjson "sigs.k8s.io/json"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/reconcile"
	"github.com/terrace-dev/terrace/runner"
)

const (
	// container is the name of the runner's container, by which templates change it.
	container = "runner"
	// tlsDir and dataDir are where the runner finds its certificate and keeps its files.
	tlsDir  = "/etc/terrace/tls"
	dataDir = "/var/lib/terrace"
	// grace is the seconds that a runner has to end: a tool that is interrupted has
	// 5 minutes to save its state, and what follows needs some too.
	grace = 600
	// minGrace is the least that a template may leave of it.
	minGrace = 60
	// user is the id that the processes of a runner have unless a template says otherwise.
	user = 65532

	// safeToEvict keeps the cluster autoscaler from removing a node under a running
	// apply (FAQ of the cluster autoscaler 1.35). Runners go away by themselves when idle.
	safeToEvict = "cluster-autoscaler.kubernetes.io/safe-to-evict"
)

// basePod is the pod of a runner before a template is merged into it. It has no name yet.
func (p *Pool) basePod(namespace, serviceAccount string) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   namespace,
			Labels:      p.labels(),
			Annotations: map[string]string{safeToEvict: "false", "kubectl.kubernetes.io/default-container": container},
		},
		Spec: corev1.PodSpec{
			ServiceAccountName:           serviceAccount,
			AutomountServiceAccountToken: new(true),
			// A runner that crashes comes back beside its files, by which it recognises
			// what it left unfinished; one that ends by itself stays away.
			RestartPolicy:                 corev1.RestartPolicyOnFailure,
			TerminationGracePeriodSeconds: new(int64(grace)),
			EnableServiceLinks:            new(false),
			NodeSelector:                  map[string]string{corev1.LabelOSStable: "linux"},
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: new(true), RunAsUser: new(int64(user)), RunAsGroup: new(int64(user)), FSGroup: new(int64(user)),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{p.baseContainer()},
			Volumes: []corev1.Volume{
				{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			},
		},
	}
}

func (p *Pool) baseContainer() corev1.Container {
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}}}
	}
	return corev1.Container{
		Name:  container,
		Image: p.options.Image,
		Args:  []string{"--listen=$(POD_IP)", "--tls-dir=" + tlsDir, "--data-dir=" + dataDir},
		Env: []corev1.EnvVar{
			field("POD_IP", "status.podIP"), field("POD_NAME", "metadata.name"), field("POD_NAMESPACE", "metadata.namespace"),
			field("POD_SERVICE_ACCOUNT", "spec.serviceAccountName"),
			{Name: "MEMORY_LIMIT", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.memory"}}},
			{Name: "HOME", Value: dataDir + "/home"}, {Name: "TMPDIR", Value: "/tmp"},
		},
		Ports: []corev1.ContainerPort{{Name: "grpc", ContainerPort: runner.Port, Protocol: corev1.ProtocolTCP}},
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("256Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("2Gi")},
		},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true), RunAsNonRoot: new(true),
			Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		VolumeMounts: []corev1.VolumeMount{
			{Name: "data", MountPath: dataDir}, {Name: "tmp", MountPath: "/tmp"},
		},
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
}

// design is the pod that an object asks for, and the digest by which objects that
// ask for the same share one.
func (p *Pool) design(obj *infrav1.Terraform, serviceAccount string) (pod *corev1.Pod, group string, err error) {
	pod = p.basePod(obj.Namespace, serviceAccount)
	if template := obj.Spec.Runner.Template; template != nil {
		if pod, err = merge(pod, template); err != nil {
			return nil, "", reconcile.Terminalf(infrav1.PodTemplateInvalidReason, "spec.runner.template: %v", err)
		}
	}
	if !p.options.AllowUnrestricted {
		if err := p.restricted(pod); err != nil {
			return nil, "", err
		}
	}
	text, err := json.Marshal(pod)
	if err != nil {
		return nil, "", err
	}
	sum := sha256.Sum256(text)
	group = hex.EncodeToString(sum[:10])
	pod.Labels[groupLabel] = group
	return pod, group, nil
}

// merge merges a template into the pod and refuses what is not a pod afterwards, or
// what takes from the operator that by which it finds and reaches the runner.
func merge(base *corev1.Pod, template *infrav1.PodTemplate) (*corev1.Pod, error) {
	patch := map[string]json.RawMessage{}
	if template.Metadata != nil {
		patch["metadata"] = template.Metadata.Raw
	}
	if template.Spec != nil {
		patch["spec"] = template.Spec.Raw
	}
	original, err := json.Marshal(base)
	if err != nil {
		return nil, err
	}
	change, err := json.Marshal(patch)
	if err != nil {
		return nil, err
	}
	merged, err := strategicpatch.StrategicMergePatch(original, change, corev1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("it cannot be merged: %w", err)
	}
	pod := &corev1.Pod{}
	strict, err := kjson.UnmarshalStrict(merged, pod)
	if err := errors.Join(append(strict, err)...); err != nil {
		return nil, fmt.Errorf("it does not make a pod: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	if field := ours(base, pod); field != "" {
		return nil, fmt.Errorf("it changes %s, which is the operator's", field)
	}
	if seconds := pod.Spec.TerminationGracePeriodSeconds; seconds != nil && *seconds < minGrace {
		return nil, fmt.Errorf("spec.terminationGracePeriodSeconds is %d; a tool that is interrupted needs at least %d to save its state", *seconds, minGrace)
	}
	return pod, nil
}

// ours names the first field that a template must not have changed.
func ours(base, pod *corev1.Pod) string {
	for key, value := range base.Labels {
		if pod.Labels[key] != value {
			return "metadata.labels[" + key + "]"
		}
	}
	metadata := pod.ObjectMeta
	metadata.Labels, metadata.Annotations = nil, nil
	var index = -1
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == container {
			index = i
		}
	}
	if index < 0 {
		return "spec.containers[name=" + container + "]"
	}
	before, after := &base.Spec.Containers[0], &pod.Spec.Containers[index]
	for _, field := range []struct {
		name          string
		before, after any
	}{
		{"metadata, apart from labels and annotations", metav1.ObjectMeta{Namespace: base.Namespace}, metadata},
		{"spec.serviceAccountName (use spec.runner.serviceAccountName)", base.Spec.ServiceAccountName, pod.Spec.ServiceAccountName},
		{"spec.restartPolicy", base.Spec.RestartPolicy, pod.Spec.RestartPolicy},
		// A runner's locks are recognised by its host name, which is that of its pod.
		{"spec.hostname", base.Spec.Hostname, pod.Spec.Hostname},
		{"spec.setHostnameAsFQDN", base.Spec.SetHostnameAsFQDN, pod.Spec.SetHostnameAsFQDN},
		{"spec.hostNetwork", base.Spec.HostNetwork, pod.Spec.HostNetwork},
		{"spec.containers[name=runner].env, of what the operator sets", before.Env, sameNames(before.Env, after.Env)},
		{"spec.containers[name=runner].command", before.Command, after.Command},
		{"spec.containers[name=runner].args", before.Args, after.Args},
		{"spec.containers[name=runner].ports", before.Ports, after.Ports},
	} {
		was, _ := json.Marshal(field.before)
		is, _ := json.Marshal(field.after)
		if string(was) != string(is) {
			return field.name
		}
	}
	return ""
}

// sameNames are the variables among all whose names are those of some.
func sameNames(some, all []corev1.EnvVar) []corev1.EnvVar {
	var found []corev1.EnvVar
	for _, one := range some {
		for _, other := range all {
			if other.Name == one.Name {
				found = append(found, other)
			}
		}
	}
	return found
}

// named completes a design: the name is also that of the Secret with the certificate.
func named(pod *corev1.Pod, name string, annotations map[string]string) *corev1.Pod {
	pod.Name = name
	for key, value := range annotations {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, key, value)
	}
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{
		Name: tlsVolume, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name, DefaultMode: new(int32(0o440))}},
	})
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; c.Name == container {
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: tlsVolume, MountPath: tlsDir, ReadOnly: true})
		}
	}
	return pod
}

// tlsVolume is the volume with the certificate. Templates cannot know its Secret.
const tlsVolume = "terrace-tls"
