package classify_test

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/terrace-dev/terrace/reloader/classify"
)

// One pod of the cross product: one reference to the object "app", made by one
// container in one way.
type oneUse struct {
	kind      string // of the object
	ref       string // how the pod refers to it
	container string // which kind of container does
	mount     string // how a volume is mounted
	optional  string // "", "false", "true"
}

var (
	allKinds      = []string{"ConfigMap", "Secret"}
	allRefs       = []string{"volume", "volume items", "projected", "projected items", "key", "envFrom", "envFrom prefix", "imagePullSecret", "csi", "token"}
	allContainers = []string{"app", "sidecar", "init", "init OnFailure", "ephemeral", "none"}
	allMounts     = []string{"plain", "subPath of a", "subPath of b", "subPathExpr literal a", "subPathExpr"}
	allOptional   = []string{"", "false", "true"}
)

func (u oneUse) opt() *bool {
	switch u.optional {
	case "true":
		return new(true)
	case "false":
		return new(false)
	}
	return nil
}

// spec builds the pod. References by key are to key "a", in a file "a".
func (u oneUse) spec() *corev1.PodSpec {
	spec := &corev1.PodSpec{NodeName: "node"}
	volume := u.volume(spec)
	c := corev1.Container{Name: "it", Image: "image"}
	if volume != nil {
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: "v", VolumeSource: *volume})
		mount := corev1.VolumeMount{Name: "v", MountPath: "/v"}
		switch u.mount {
		case "subPath of a":
			mount.SubPath = "a"
		case "subPath of b":
			mount.SubPath = "b"
		case "subPathExpr literal a":
			mount.SubPathExpr = "a"
		case "subPathExpr":
			mount.SubPathExpr = "$(WHICH)"
		}
		c.VolumeMounts = []corev1.VolumeMount{mount}
	}
	u.environment(&c)
	switch u.container {
	case "app":
		spec.Containers = append(spec.Containers, c)
	case "sidecar":
		c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		spec.InitContainers = append(spec.InitContainers, c)
	case "init":
		spec.InitContainers = append(spec.InitContainers, c)
	case "init OnFailure":
		c.RestartPolicy = new(corev1.ContainerRestartPolicyOnFailure)
		spec.InitContainers = append(spec.InitContainers, c)
	case "ephemeral":
		spec.EphemeralContainers = append(spec.EphemeralContainers, corev1.EphemeralContainer{
			EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: c.Name, Env: c.Env, EnvFrom: c.EnvFrom, VolumeMounts: c.VolumeMounts},
		})
	}
	return spec
}

func (u oneUse) volume(spec *corev1.PodSpec) *corev1.VolumeSource {
	object := corev1.LocalObjectReference{Name: "app"}
	var items []corev1.KeyToPath
	if u.ref == "volume items" || u.ref == "projected items" {
		items = []corev1.KeyToPath{{Key: "a", Path: "a"}}
	}
	switch u.ref {
	case "volume", "volume items":
		if u.kind == "Secret" {
			return &corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "app", Items: items, Optional: u.opt()}}
		}
		return &corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: object, Items: items, Optional: u.opt()}}
	case "projected", "projected items":
		source := corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: object, Items: items, Optional: u.opt()}}
		if u.kind == "Secret" {
			source = corev1.VolumeProjection{Secret: &corev1.SecretProjection{LocalObjectReference: object, Items: items, Optional: u.opt()}}
		}
		return &corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}, source,
		}}}
	case "csi":
		return &corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "d", NodePublishSecretRef: &object}}
	case "token":
		return &corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "app"}},
		}}}
	case "imagePullSecret":
		spec.ImagePullSecrets = []corev1.LocalObjectReference{object}
	}
	return nil
}

func (u oneUse) environment(c *corev1.Container) {
	object := corev1.LocalObjectReference{Name: "app"}
	prefix := ""
	switch u.ref {
	case "key":
		source := &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: object, Key: "a", Optional: u.opt()}}
		if u.kind == "Secret" {
			source = &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: object, Key: "a", Optional: u.opt()}}
		}
		c.Env = []corev1.EnvVar{{Name: "PLAIN", Value: "app"}, {Name: "A", ValueFrom: source}}
	case "envFrom prefix":
		prefix = "PRE_"
		fallthrough
	case "envFrom":
		source := corev1.EnvFromSource{Prefix: prefix, ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: object, Optional: u.opt()}}
		if u.kind == "Secret" {
			source = corev1.EnvFromSource{Prefix: prefix, SecretRef: &corev1.SecretEnvSource{LocalObjectReference: object, Optional: u.opt()}}
		}
		c.EnvFrom = []corev1.EnvFromSource{source}
	}
}

// The rule, stated without a look at the implementation.
//
// reaches: does the content of the key get into a container at all?
func (u oneUse) reaches(key string) bool {
	if u.container == "none" {
		return false
	}
	named := u.ref == "key" || u.ref == "volume items" || u.ref == "projected items"
	if named && key != "a" {
		return false
	}
	if u.isEnv() {
		return true
	}
	if !u.isFile() {
		return false
	}
	switch u.mount {
	case "subPath of a", "subPathExpr literal a":
		return key == "a"
	case "subPath of b":
		return key == "b"
	}
	return true
}

func (u oneUse) isEnv() bool {
	return slices.Contains([]string{"key", "envFrom", "envFrom prefix"}, u.ref)
}
func (u oneUse) isFile() bool {
	return slices.Contains([]string{"volume", "volume items", "projected", "projected items"}, u.ref)
}

// one: is it one key that is asked for by name? Without it neither the variable nor
// the volume can be made, or a directory takes the file's place.
func (u oneUse) one() bool {
	return u.isEnv() && u.ref == "key" || u.isFile() &&
		(u.ref == "volume items" || u.ref == "projected items" || u.mount != "plain" && u.mount != "subPathExpr")
}

// live: does the kubelet renew it in the running container?
func (u oneUse) live() bool {
	runs := u.container == "app" || u.container == "sidecar" || u.container == "ephemeral"
	return runs && u.isFile() && u.mount == "plain"
}

func (u oneUse) want(change classify.Change) classify.Class {
	if change.Kind != u.kind || change.Name != "app" {
		return classify.None
	}
	reached := slices.DeleteFunc(slices.Clone(change.Keys), func(key string) bool { return !u.reaches(key) })
	switch {
	case len(reached) == 0:
		return classify.None
	case u.container == "ephemeral" && !u.live():
		return classify.None // a restart would end the container
	case change.Deleted && u.optional != "true":
		return classify.None // nothing would start
	case len(change.Gone) > 0 && u.optional != "true" && u.one():
		return classify.None
	case u.live() && !change.Immutable:
		return classify.Refresh
	}
	return classify.Restart
}

func crossProduct() []oneUse {
	var all []oneUse
	for _, kind := range allKinds {
		for _, ref := range allRefs {
			for _, container := range allContainers {
				for _, mount := range allMounts {
					for _, optional := range allOptional {
						all = append(all, oneUse{kind, ref, container, mount, optional})
					}
				}
			}
		}
	}
	return all
}

// changes are the changes that every pod is tested with.
func changes() []classify.Change {
	var all []classify.Change
	for _, kind := range allKinds {
		for _, name := range []string{"app", "other"} {
			for _, keys := range [][]string{nil, {"a"}, {"b"}, {"a", "b"}} {
				for bits := range 4 {
					if bits > 0 && name == "other" {
						break
					}
					change := classify.Change{Kind: kind, Name: name, Keys: keys, Immutable: bits&1 != 0, Recreated: bits&2 != 0}
					all = append(all, change)
					change.Gone = keys
					all = append(all, change)
					change.Deleted = true
					all = append(all, change)
				}
			}
		}
	}
	return all
}

func TestEveryReferenceIsClassifiedByTheRule(t *testing.T) {
	t.Parallel()
	counts := map[classify.Class]int{}
	for _, use := range crossProduct() {
		uses := classify.Uses(use.spec())
		for _, change := range changes() {
			verdict := classify.Classify(uses, change)
			want := use.want(change)
			if verdict.Class != want {
				t.Fatalf("%+v, %+v: got %s (%s), want %s", use, change, verdict.Class, verdict.Reason, want)
			}
			if verdict.Reason == "" {
				t.Errorf("%+v, %+v: no reason", use, change)
			}
			if want != classify.None && len(verdict.Uses) == 0 {
				t.Errorf("%+v, %+v: a verdict that nothing decides", use, change)
			}
			counts[want]++
		}
	}
	for _, class := range []classify.Class{classify.None, classify.Refresh, classify.Restart} {
		if counts[class] == 0 {
			t.Errorf("the cross product has nothing of class %s", class)
		}
	}
	t.Log(fmt.Sprint(counts))
}

func TestTwoUsesAreClassifiedAsTheStrongerOne(t *testing.T) {
	t.Parallel()
	// One of the two is in a pod with the other; both keep their own volumes.
	all := slices.DeleteFunc(crossProduct(), func(u oneUse) bool { return u.kind == "Secret" || u.optional != "true" })
	for i, one := range all {
		for j, two := range all {
			if (i+j)%3 != 0 { // a third of the pairs is every combination of two dimensions
				continue
			}
			uses := classify.Uses(join(one.spec(), two.spec()))
			for _, keys := range [][]string{{"a"}, {"b"}} {
				change := classify.Change{Kind: "ConfigMap", Name: "app", Keys: keys}
				got, want := classify.Classify(uses, change).Class, stronger(one, two, change)
				if got != want {
					t.Fatalf("%+v with %+v, %v: got %s, want %s", one, two, keys, got, want)
				}
			}
		}
	}
}

// stronger is the rule for two uses in a pod: restart before refresh before
// nothing, but files of an init container do not count beside live ones.
func stronger(one, two oneUse, change classify.Change) classify.Class {
	copied := func(u oneUse) bool { return u.isFile() && (u.container == "init" || u.container == "init OnFailure") }
	live := func(u oneUse) bool { return u.want(change) == classify.Refresh }
	classes := []classify.Class{}
	if !copied(one) || !live(two) {
		classes = append(classes, one.want(change))
	}
	if !copied(two) || !live(one) {
		classes = append(classes, two.want(change))
	}
	for _, class := range []classify.Class{classify.Restart, classify.Refresh} {
		if slices.Contains(classes, class) {
			return class
		}
	}
	return classify.None
}

// join puts two pods into one, the second with names of its own.
func join(one, two *corev1.PodSpec) *corev1.PodSpec {
	rename := func(c *corev1.Container) {
		c.Name = "second"
		for i := range c.VolumeMounts {
			c.VolumeMounts[i].Name = "w"
		}
	}
	for i := range two.Volumes {
		two.Volumes[i].Name = "w"
	}
	for i := range two.Containers {
		rename(&two.Containers[i])
	}
	for i := range two.InitContainers {
		rename(&two.InitContainers[i])
	}
	for i := range two.EphemeralContainers {
		common := corev1.Container(two.EphemeralContainers[i].EphemeralContainerCommon)
		rename(&common)
		two.EphemeralContainers[i].EphemeralContainerCommon = corev1.EphemeralContainerCommon(common)
	}
	one.Volumes = append(one.Volumes, two.Volumes...)
	one.Containers = append(one.Containers, two.Containers...)
	one.InitContainers = append(one.InitContainers, two.InitContainers...)
	one.EphemeralContainers = append(one.EphemeralContainers, two.EphemeralContainers...)
	one.ImagePullSecrets = append(one.ImagePullSecrets, two.ImagePullSecrets...)
	return one
}
