package classify

import (
	"cmp"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Kinds of the objects that pods consume.
const (
	KindConfigMap = "ConfigMap"
	KindSecret    = "Secret"
)

// How says through what a container consumes an object.
type How string

const (
	// File is a volume that a running container mounts whole. The kubelet renews it.
	File How = "File"
	// SubPath is a part of a volume, mounted by a running container. It is renewed
	// when the container starts again.
	SubPath How = "SubPath"
	// Env is a variable, of a running or an init container.
	Env How = "Env"
	// Init is a volume, mounted whole or by subPath, of an init container that runs
	// once.
	Init How = "Init"
)

// Use is one way in which a container consumes an object in its namespace.
type Use struct {
	// Kind of the object, KindConfigMap or KindSecret.
	Kind string
	// Name of the object.
	Name string
	// Key that is consumed; empty means every key there is.
	Key string
	// Volume is the name of the volume; empty for a variable.
	Volume string
	// Path is the file's path in the volume, with / between its elements; empty if
	// each key is a file of its own name. For a variable it is the variable's name,
	// and for envFrom the prefix.
	Path string
	// How the object is consumed.
	How How
	// Optional says that the container starts without the object or key.
	Optional bool
	// Container that consumes the object.
	Container string
}

// consumes says whether a change of the key is a change of what is used.
func (u Use) consumes(key string) bool { return u.Key == "" || u.Key == key }

// Uses returns all that the containers of a pod consume, in an order that depends
// on nothing but the result, without duplicates. The package's comment says what
// counts.
func Uses(spec *corev1.PodSpec) []Use {
	volumes := make(map[string][]reference, len(spec.Volumes))
	for i := range spec.Volumes {
		volumes[spec.Volumes[i].Name] = references(&spec.Volumes[i])
	}
	var uses []Use
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		if sidecar(c) {
			uses = append(uses, mounted(volumes, c.Name, c.VolumeMounts, false)...)
		} else {
			uses = append(uses, mounted(volumes, c.Name, c.VolumeMounts, true)...)
		}
		uses = append(uses, variables(c)...)
	}
	for i := range spec.Containers {
		c := &spec.Containers[i]
		uses = append(uses, mounted(volumes, c.Name, c.VolumeMounts, false)...)
		uses = append(uses, variables(c)...)
	}
	for i := range spec.EphemeralContainers {
		c := &spec.EphemeralContainers[i]
		for _, use := range mounted(volumes, c.Name, c.VolumeMounts, false) {
			if use.How == File {
				uses = append(uses, use)
			}
		}
	}
	slices.SortFunc(uses, compare)
	return slices.Compact(uses)
}

// sidecar says whether an init container runs as long as the pod.
func sidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

func compare(a, b Use) int {
	optional := func(u Use) int {
		if u.Optional {
			return 1
		}
		return 0
	}
	return cmp.Or(
		cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Key, b.Key),
		cmp.Compare(a.How, b.How), cmp.Compare(a.Container, b.Container), cmp.Compare(a.Volume, b.Volume),
		cmp.Compare(a.Path, b.Path), cmp.Compare(optional(a), optional(b)),
	)
}

// reference is a key, or all of them, of an object that is in a volume.
type reference struct {
	kind, name, key, path string
	optional              bool
}

// references returns what is in a volume, in the volume's order. Of two that make
// the same file the kubelet takes the later.
func references(volume *corev1.Volume) []reference {
	switch {
	case volume.ConfigMap != nil:
		source := volume.ConfigMap
		return items(KindConfigMap, source.Name, source.Items, source.Optional)
	case volume.Secret != nil:
		source := volume.Secret
		return items(KindSecret, source.SecretName, source.Items, source.Optional)
	case volume.Projected != nil:
		var all []reference
		for i := range volume.Projected.Sources {
			all = append(all, projected(&volume.Projected.Sources[i])...)
		}
		return all
	}
	return nil
}

// projected returns what a source brings into a projected volume; nothing if it is
// neither a ConfigMap nor a Secret.
func projected(source *corev1.VolumeProjection) []reference {
	var all []reference
	if s := source.ConfigMap; s != nil {
		all = append(all, items(KindConfigMap, s.Name, s.Items, s.Optional)...)
	}
	if s := source.Secret; s != nil {
		all = append(all, items(KindSecret, s.Name, s.Items, s.Optional)...)
	}
	return all
}

func items(kind, name string, items []corev1.KeyToPath, optional *bool) []reference {
	if name == "" {
		return nil
	}
	whole := reference{kind: kind, name: name, optional: optional != nil && *optional}
	if len(items) == 0 {
		return []reference{whole}
	}
	all := make([]reference, 0, len(items))
	for _, item := range items {
		one := whole
		one.key, one.path = item.Key, path.Clean(item.Path)
		all = append(all, one)
	}
	return all
}

// mounted returns what a container consumes through its mounts.
func mounted(volumes map[string][]reference, container string, mounts []corev1.VolumeMount, initial bool) []Use {
	var uses []Use
	for i := range mounts {
		part, how := subPath(&mounts[i]), File
		if part != whole {
			how = SubPath
		}
		if initial {
			how = Init
		}
		for _, ref := range volumes[mounts[i].Name] {
			key, file, ok := ref.under(part)
			if !ok {
				continue
			}
			uses = append(uses, Use{
				Kind: ref.kind, Name: ref.name, Key: key, Volume: mounts[i].Name, Path: file,
				How: how, Optional: ref.optional, Container: container,
			})
		}
	}
	return uses
}

const (
	whole   = "."  // the subPath of a mount that has none
	unknown = "$(" // the subPath of a mount whose subPath depends on variables
)

// subPath returns what part of the volume is mounted.
func subPath(mount *corev1.VolumeMount) string {
	if mount.SubPathExpr == "" {
		return clean(mount.SubPath)
	}
	if strings.Contains(mount.SubPathExpr, "$") {
		return unknown
	}
	return clean(mount.SubPathExpr)
}

// clean returns a path in a volume without the ..data link, which some write to
// mount what is behind it.
func clean(p string) string {
	cleaned := path.Clean(p)
	if cleaned == dataLink {
		// Behind the link, all of the volume, but bound for good.
		return unknown
	}
	return strings.TrimPrefix(cleaned, dataLink+"/")
}

// dataLink is the name under which the kubelet swaps the content of a volume.
const dataLink = "..data"

// under returns the key and path of a reference as far as they are below a part
// of the volume.
func (r reference) under(part string) (key, file string, ok bool) {
	switch {
	case part == whole || part == unknown:
		return r.key, r.path, true
	case r.key != "":
		return r.key, r.path, r.path == part || strings.HasPrefix(r.path, part+"/")
	default:
		// Each key is a file at the top. Keys have no slash.
		return part, part, !strings.Contains(part, "/")
	}
}

// variables returns what a container consumes through its environment.
func variables(c *corev1.Container) []Use {
	var uses []Use
	add := func(kind, name, key, variable string, optional *bool) {
		if name == "" {
			return
		}
		uses = append(uses, Use{
			Kind: kind, Name: name, Key: key, Path: variable,
			How: Env, Optional: optional != nil && *optional, Container: c.Name,
		})
	}
	for i := range c.EnvFrom {
		from := &c.EnvFrom[i]
		if ref := from.ConfigMapRef; ref != nil {
			add(KindConfigMap, ref.Name, "", from.Prefix, ref.Optional)
		}
		if ref := from.SecretRef; ref != nil {
			add(KindSecret, ref.Name, "", from.Prefix, ref.Optional)
		}
	}
	for i := range c.Env {
		from := c.Env[i].ValueFrom
		if from == nil {
			continue
		}
		if ref := from.ConfigMapKeyRef; ref != nil {
			add(KindConfigMap, ref.Name, ref.Key, c.Env[i].Name, ref.Optional)
		}
		if ref := from.SecretKeyRef; ref != nil {
			add(KindSecret, ref.Name, ref.Key, c.Env[i].Name, ref.Optional)
		}
	}
	return uses
}
