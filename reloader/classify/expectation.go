package classify

import (
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// ExpectationVolume is a projected volume that shows, besides ConfigMaps and
// Secrets, the annotation that says what they should be. The kubelet swaps all of
// it at once, so that a reader who finds that the two disagree knows that the
// content is old.
type ExpectationVolume struct {
	// Name of the volume.
	Name string
	// Path of the file with the annotation, in the volume.
	Path string
	// Files are the other files. Of two with the same path the later one is there.
	Files []ExpectedFile
}

// ExpectedFile is a file of a volume, or each key of an object as one.
type ExpectedFile struct {
	// Kind of the object, KindConfigMap or KindSecret.
	Kind string
	// Name of the object.
	Name string
	// Key of the object; empty means every key there is.
	Key string
	// Path of the file in the volume; empty if each key is a file of its own name.
	Path string
	// Optional says that the volume is made without the object or key.
	Optional bool
}

// Expectation returns the volumes of a pod that show the annotation with this key
// beside content, and so allow to verify the content from within the pod. Whether
// the objects in them are of interest is for the caller to say. The annotation is
// one, so that of several volumes each has the same files.
//
// The problem says, in a clause, why a volume that shows the annotation is not in
// the answer; it is empty if there is none.
func Expectation(spec *corev1.PodSpec, annotationKey string) (volumes []ExpectationVolume, problem string) {
	field := "metadata.annotations['" + annotationKey + "']"
	for i := range spec.Volumes {
		volume := &spec.Volumes[i]
		if !shows(volume, field) {
			continue
		}
		found, why := expectation(volume, field)
		if why == "" && !mountedWhole(spec, volume.Name) {
			why = "no running container mounts it whole"
		}
		if why != "" {
			problem = fmt.Sprintf("volume %s cannot be verified: %s", volume.Name, why)
			continue
		}
		volumes = append(volumes, found)
	}
	for _, other := range volumes[min(1, len(volumes)):] {
		if !slices.Equal(other.Files, volumes[0].Files) || other.Path != volumes[0].Path {
			return nil, fmt.Sprintf("volumes %s and %s show the same annotation and differ in their files: only one of them could be verified",
				volumes[0].Name, other.Name)
		}
	}
	return volumes, problem
}

// isAnnotation says whether a field is one annotation.
func isAnnotation(field string) bool { return strings.HasPrefix(field, "metadata.annotations[") }

// shows says whether the field is a file of the volume.
func shows(volume *corev1.Volume, field string) bool {
	is := func(item corev1.DownwardAPIVolumeFile) bool {
		return item.FieldRef != nil && item.FieldRef.FieldPath == field
	}
	switch {
	case volume.DownwardAPI != nil:
		return slices.ContainsFunc(volume.DownwardAPI.Items, is)
	case volume.Projected != nil:
		return slices.ContainsFunc(volume.Projected.Sources, func(source corev1.VolumeProjection) bool {
			return source.DownwardAPI != nil && slices.ContainsFunc(source.DownwardAPI.Items, is)
		})
	}
	return false
}

// expectation reads a volume that shows the field, or says why it cannot be
// verified.
func expectation(volume *corev1.Volume, field string) (ExpectationVolume, string) {
	if volume.Projected == nil {
		return ExpectationVolume{}, "the annotation must be in the projected volume that has the content, because only then both change at once"
	}
	found := ExpectationVolume{Name: volume.Name}
	for i := range volume.Projected.Sources {
		source := &volume.Projected.Sources[i]
		if source.ServiceAccountToken != nil || source.ClusterTrustBundle != nil || source.PodCertificate != nil {
			return found, "it also holds a token or certificates, which change at other times"
		}
		for _, ref := range projected(source) {
			found.Files = append(found.Files, ExpectedFile{Kind: ref.kind, Name: ref.name, Key: ref.key, Path: ref.path, Optional: ref.optional})
		}
		if source.DownwardAPI == nil {
			continue
		}
		for _, item := range source.DownwardAPI.Items {
			if item.FieldRef == nil || item.FieldRef.FieldPath != field || found.Path != "" {
				return found, "it also holds another field of the pod, at " + item.Path
			}
			found.Path = path.Clean(item.Path)
		}
	}
	if len(found.Files) == 0 {
		return found, "it holds no ConfigMap or Secret"
	}
	return found, ""
}

// mountedWhole says whether a running container sees all of a volume.
func mountedWhole(spec *corev1.PodSpec, volume string) bool {
	in := func(mounts []corev1.VolumeMount) bool {
		return slices.ContainsFunc(mounts, func(m corev1.VolumeMount) bool { return m.Name == volume && subPath(&m) == whole })
	}
	return slices.ContainsFunc(spec.Containers, func(c corev1.Container) bool { return in(c.VolumeMounts) }) ||
		slices.ContainsFunc(spec.InitContainers, func(c corev1.Container) bool { return sidecar(&c) && in(c.VolumeMounts) }) ||
		slices.ContainsFunc(spec.EphemeralContainers, func(c corev1.EphemeralContainer) bool { return in(c.VolumeMounts) })
}
