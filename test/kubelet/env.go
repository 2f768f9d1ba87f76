package kubelet

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// node is what the limits of a container without limits are.
var node = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi")}

// command is the container's program with arguments and environment, with paths
// of mounts turned into those on disk.
func (c *container) command() (*exec.Cmd, error) {
	env, err := c.environment()
	if err != nil {
		return nil, err
	}
	paths, err := c.paths()
	if err != nil {
		return nil, err
	}
	lookup := func(name string) (string, bool) { value, found := env[name]; return value, found }
	program := slices.Clone(c.pod.k.options.Programs[c.spec.Image])
	if len(c.spec.Command) > 0 {
		program = nil
	}
	for _, arg := range append(slices.Clone(c.spec.Command), c.spec.Args...) {
		program = append(program, paths.translate(expand(arg, lookup)))
	}
	cmd := exec.Command(program[0], program[1:]...)
	cmd.Dir = c.pod.dir
	if c.spec.WorkingDir != "" {
		cmd.Dir = paths.translate(c.spec.WorkingDir)
	}
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + c.pod.dir, "HOSTNAME=" + c.pod.hostname()}
	if c.pod.kubeconfig != "" {
		cmd.Env = append(cmd.Env, "KUBECONFIG="+c.pod.kubeconfig)
	}
	for _, name := range slices.Sorted(maps.Keys(c.pod.k.options.Env)) {
		cmd.Env = append(cmd.Env, name+"="+c.pod.k.options.Env[name])
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		cmd.Env = append(cmd.Env, name+"="+paths.translate(env[name]))
	}
	return cmd, cmd.Err
}

// hostname is the pod's name, as far as the kernel takes it.
func (p *pod) hostname() string {
	name := p.name
	if p.object != nil && p.object.Spec.Hostname != "" {
		name = p.object.Spec.Hostname
	}
	return strings.TrimRight(name[:min(len(name), 63)], "-.")
}

// environment is what the pod says about the container's environment.
func (c *container) environment() (map[string]string, error) {
	env := map[string]string{}
	for _, from := range c.spec.EnvFrom {
		data, err := c.pod.envFrom(from)
		if err != nil {
			return nil, err
		}
		for name, value := range data {
			env[from.Prefix+name] = value
		}
	}
	lookup := func(name string) (string, bool) { value, found := env[name]; return value, found }
	for _, v := range c.spec.Env {
		if v.ValueFrom == nil {
			env[v.Name] = expand(v.Value, lookup)
			continue
		}
		value, found, err := c.valueFrom(v.ValueFrom)
		if err != nil {
			return nil, fmt.Errorf("env %s: %w", v.Name, err)
		}
		if found {
			env[v.Name] = value
		}
	}
	return env, nil
}

func (p *pod) envFrom(from corev1.EnvFromSource) (map[string]string, error) {
	var data map[string][]byte
	var err error
	switch {
	case from.SecretRef != nil:
		data, err = p.secret(from.SecretRef.Name, from.SecretRef.Optional)
	case from.ConfigMapRef != nil:
		data, err = p.configMap(from.ConfigMapRef.Name, from.ConfigMapRef.Optional)
	}
	env := map[string]string{}
	for name, value := range data {
		env[name] = string(value)
	}
	return env, err
}

func (c *container) valueFrom(from *corev1.EnvVarSource) (value string, found bool, err error) {
	var data map[string][]byte
	var key string
	var optional *bool
	switch {
	case from.FieldRef != nil:
		value, err = c.pod.field(from.FieldRef.FieldPath)
		return value, err == nil, err
	case from.ResourceFieldRef != nil:
		value, err = c.resource(from.ResourceFieldRef)
		return value, err == nil, err
	case from.SecretKeyRef != nil:
		key, optional = from.SecretKeyRef.Key, from.SecretKeyRef.Optional
		data, err = c.pod.secret(from.SecretKeyRef.Name, optional)
	case from.ConfigMapKeyRef != nil:
		key, optional = from.ConfigMapKeyRef.Key, from.ConfigMapKeyRef.Optional
		data, err = c.pod.configMap(from.ConfigMapKeyRef.Name, optional)
	default:
		return "", false, fmt.Errorf("the test kubelet does not know this source: %v", from)
	}
	content, found := data[key]
	if err == nil && !found && (optional == nil || !*optional) {
		err = fmt.Errorf("there is no key %q", key)
	}
	return string(content), found, err
}

// field is the value of a field that the downward API offers.
func (p *pod) field(path string) (string, error) {
	if name, key, found := strings.Cut(strings.TrimSuffix(path, "']"), "['"); found {
		switch name {
		case "metadata.labels":
			return p.object.Labels[key], nil
		case "metadata.annotations":
			return p.object.Annotations[key], nil
		}
	}
	fields := map[string]string{
		"metadata.name": p.name, "metadata.namespace": p.namespace, "metadata.uid": string(p.uid),
		"status.podIP": p.ip, "status.podIPs": p.ip, "status.hostIP": p.status.HostIP, "status.hostIPs": p.status.HostIP,
		"spec.nodeName": p.object.Spec.NodeName, "spec.serviceAccountName": p.object.Spec.ServiceAccountName,
	}
	value, found := fields[path]
	if !found {
		return "", fmt.Errorf("the test kubelet does not know the field %q", path)
	}
	return value, nil
}

// resource is a limit or request of the container, in units of the divisor,
// rounded up.
func (c *container) resource(from *corev1.ResourceFieldSelector) (string, error) {
	kind, name, _ := strings.Cut(from.Resource, ".")
	list := map[string]corev1.ResourceList{"limits": c.spec.Resources.Limits, "requests": c.spec.Resources.Requests}[kind]
	quantity, found := list[corev1.ResourceName(name)]
	if !found && kind == "limits" {
		quantity, found = node[corev1.ResourceName(name)]
	}
	if !found && kind != "requests" {
		return "", fmt.Errorf("the test kubelet does not know the resource %q", from.Resource)
	}
	divisor := from.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	if name == string(corev1.ResourceCPU) {
		return strconv.FormatInt((quantity.MilliValue()+divisor.MilliValue()-1)/divisor.MilliValue(), 10), nil
	}
	return strconv.FormatInt((quantity.Value()+divisor.Value()-1)/divisor.Value(), 10), nil
}

// secret returns a Secret's data; nothing if it is optional and missing.
func (p *pod) secret(name string, optional *bool) (map[string][]byte, error) {
	secret, err := p.k.client.CoreV1().Secrets(p.namespace).Get(p.ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, unlessOptional(err, optional)
	}
	return secret.Data, nil
}

// configMap returns a ConfigMap's data likewise.
func (p *pod) configMap(name string, optional *bool) (map[string][]byte, error) {
	if name == rootCA {
		return map[string][]byte{"ca.crt": p.k.authorities}, nil
	}
	object, err := p.k.client.CoreV1().ConfigMaps(p.namespace).Get(p.ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, unlessOptional(err, optional)
	}
	data := map[string][]byte{}
	for key, value := range object.Data {
		data[key] = []byte(value)
	}
	maps.Copy(data, object.BinaryData)
	return data, nil
}

// expand replaces $(NAME) by the variable's value, as Kubernetes does: unknown
// names stay as they are, and $$ is a $ that means nothing.
func expand(text string, lookup func(string) (string, bool)) string {
	var out strings.Builder
	for {
		before, after, found := strings.Cut(text, "$")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		text = after
		if rest, escaped := strings.CutPrefix(text, "$"); escaped {
			out.WriteByte('$')
			text = rest
			continue
		}
		name, rest, closed := strings.Cut(text, ")")
		name, reference := strings.CutPrefix(name, "(")
		if !closed || !reference {
			out.WriteByte('$')
			continue
		}
		value, known := lookup(name)
		if !known {
			value = "$(" + name + ")"
		}
		out.WriteString(value)
		text = rest
	}
}

// pathMap says where mounted paths are on disk.
type pathMap []struct{ mounted, disk string }

func (c *container) paths() (pathMap, error) {
	var paths pathMap
	for _, m := range c.spec.VolumeMounts {
		disk := filepath.Join(c.pod.volumeDir(m.Name), m.SubPath)
		if m.SubPath != "" {
			if err := os.MkdirAll(disk, 0o700); err != nil && !os.IsExist(err) {
				return nil, err
			}
		}
		paths = append(paths, struct{ mounted, disk string }{strings.TrimSuffix(m.MountPath, "/"), disk})
	}
	sort.Slice(paths, func(i, j int) bool { return len(paths[i].mounted) > len(paths[j].mounted) })
	return paths, nil
}

// translate replaces the mounted paths in a text by those on disk, where they
// stand as whole elements of a path: not /tmp in /var/tmp or /tmpfile.
func (m pathMap) translate(text string) string {
	var out strings.Builder
next:
	for i := 0; i < len(text); {
		if i == 0 || !partOfPath(text[i-1]) {
			for _, p := range m {
				if rest, found := strings.CutPrefix(text[i:], p.mounted); found && (rest == "" || rest[0] == '/' || !partOfPath(rest[0])) {
					out.WriteString(p.disk)
					i += len(p.mounted)
					continue next
				}
			}
		}
		out.WriteByte(text[i])
		i++
	}
	return out.String()
}

func partOfPath(c byte) bool {
	return c == '/' || c == '.' || c == '-' || c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}
