package classify

import corev1 "k8s.io/api/core/v1"

// Strip takes everything out of a spec that [Uses] and [Expectation] do not look
// at, but for the node's name, so that a cache of pods stays small. Both return the
// same before and after. Nothing that was taken out is kept in memory.
func Strip(spec *corev1.PodSpec) {
	stripped := corev1.PodSpec{NodeName: spec.NodeName}
	kept := map[string]bool{}
	for i := range spec.Volumes {
		if volume, ok := stripVolume(&spec.Volumes[i]); ok {
			stripped.Volumes = append(stripped.Volumes, volume)
			kept[volume.Name] = true
		}
	}
	for i := range spec.InitContainers {
		if c, ok := stripContainer(&spec.InitContainers[i], kept); ok {
			if sidecar(&spec.InitContainers[i]) {
				c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
			}
			stripped.InitContainers = append(stripped.InitContainers, c)
		}
	}
	for i := range spec.Containers {
		if c, ok := stripContainer(&spec.Containers[i], kept); ok {
			stripped.Containers = append(stripped.Containers, c)
		}
	}
	for i := range spec.EphemeralContainers {
		c := &spec.EphemeralContainers[i]
		if mounts := stripMounts(c.VolumeMounts, kept); len(mounts) > 0 {
			stripped.EphemeralContainers = append(stripped.EphemeralContainers, corev1.EphemeralContainer{
				EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: c.Name, VolumeMounts: mounts},
			})
		}
	}
	*spec = stripped
}

func stripContainer(c *corev1.Container, kept map[string]bool) (corev1.Container, bool) {
	stripped := corev1.Container{Name: c.Name, VolumeMounts: stripMounts(c.VolumeMounts, kept)}
	for i := range c.EnvFrom {
		from := &c.EnvFrom[i]
		if from.ConfigMapRef != nil || from.SecretRef != nil {
			stripped.EnvFrom = append(stripped.EnvFrom, *from)
		}
	}
	for i := range c.Env {
		from := c.Env[i].ValueFrom
		if from == nil || from.ConfigMapKeyRef == nil && from.SecretKeyRef == nil {
			continue
		}
		stripped.Env = append(stripped.Env, corev1.EnvVar{Name: c.Env[i].Name, ValueFrom: &corev1.EnvVarSource{
			ConfigMapKeyRef: from.ConfigMapKeyRef, SecretKeyRef: from.SecretKeyRef,
		}})
	}
	return stripped, len(stripped.VolumeMounts)+len(stripped.EnvFrom)+len(stripped.Env) > 0
}

func stripMounts(mounts []corev1.VolumeMount, kept map[string]bool) []corev1.VolumeMount {
	var stripped []corev1.VolumeMount
	for i := range mounts {
		if m := &mounts[i]; kept[m.Name] {
			stripped = append(stripped, corev1.VolumeMount{Name: m.Name, SubPath: m.SubPath, SubPathExpr: m.SubPathExpr})
		}
	}
	return stripped
}

// stripVolume returns what matters of a volume, and whether anything does.
func stripVolume(volume *corev1.Volume) (corev1.Volume, bool) {
	stripped := corev1.Volume{Name: volume.Name}
	switch {
	case volume.ConfigMap != nil:
		source := volume.ConfigMap
		stripped.ConfigMap = &corev1.ConfigMapVolumeSource{
			LocalObjectReference: source.LocalObjectReference, Items: stripItems(source.Items), Optional: source.Optional,
		}
	case volume.Secret != nil:
		source := volume.Secret
		stripped.Secret = &corev1.SecretVolumeSource{
			SecretName: source.SecretName, Items: stripItems(source.Items), Optional: source.Optional,
		}
	case volume.Projected != nil:
		return stripProjected(volume)
	case volume.DownwardAPI != nil:
		// Expectation tells who put an expectation here.
		source := volume.DownwardAPI
		stripped.DownwardAPI = &corev1.DownwardAPIVolumeSource{Items: annotationItems(source.Items)}
		return stripped, len(stripped.DownwardAPI.Items) > 0
	default:
		return stripped, false
	}
	return stripped, true
}

// stripProjected keeps every source of a projected volume, if only its kind: a
// source of another kind keeps a volume from being verified.
func stripProjected(volume *corev1.Volume) (corev1.Volume, bool) {
	matters := false
	sources := make([]corev1.VolumeProjection, 0, len(volume.Projected.Sources))
	for i := range volume.Projected.Sources {
		source := &volume.Projected.Sources[i]
		matters = matters || source.ConfigMap != nil || source.Secret != nil ||
			source.DownwardAPI != nil && len(annotationItems(source.DownwardAPI.Items)) > 0
		sources = append(sources, stripSource(source))
	}
	stripped := corev1.Volume{Name: volume.Name}
	stripped.Projected = &corev1.ProjectedVolumeSource{Sources: sources}
	return stripped, matters
}

func stripSource(source *corev1.VolumeProjection) corev1.VolumeProjection {
	stripped := corev1.VolumeProjection{}
	if s := source.ConfigMap; s != nil {
		stripped.ConfigMap = &corev1.ConfigMapProjection{
			LocalObjectReference: s.LocalObjectReference, Items: stripItems(s.Items), Optional: s.Optional,
		}
	}
	if s := source.Secret; s != nil {
		stripped.Secret = &corev1.SecretProjection{
			LocalObjectReference: s.LocalObjectReference, Items: stripItems(s.Items), Optional: s.Optional,
		}
	}
	if s := source.DownwardAPI; s != nil {
		stripped.DownwardAPI = &corev1.DownwardAPIProjection{}
		for i := range s.Items {
			item := corev1.DownwardAPIVolumeFile{Path: s.Items[i].Path}
			if f := s.Items[i].FieldRef; f != nil {
				item.FieldRef = &corev1.ObjectFieldSelector{FieldPath: f.FieldPath}
			}
			stripped.DownwardAPI.Items = append(stripped.DownwardAPI.Items, item)
		}
	}
	if source.ServiceAccountToken != nil {
		stripped.ServiceAccountToken = &corev1.ServiceAccountTokenProjection{}
	}
	if source.ClusterTrustBundle != nil {
		stripped.ClusterTrustBundle = &corev1.ClusterTrustBundleProjection{}
	}
	if source.PodCertificate != nil {
		stripped.PodCertificate = &corev1.PodCertificateProjection{}
	}
	return stripped
}

// stripItems drops the modes of files.
func stripItems(items []corev1.KeyToPath) []corev1.KeyToPath {
	var stripped []corev1.KeyToPath
	for i := range items {
		stripped = append(stripped, corev1.KeyToPath{Key: items[i].Key, Path: items[i].Path})
	}
	return stripped
}

// annotationItems returns the items that show one annotation.
func annotationItems(items []corev1.DownwardAPIVolumeFile) []corev1.DownwardAPIVolumeFile {
	var kept []corev1.DownwardAPIVolumeFile
	for i := range items {
		if f := items[i].FieldRef; f != nil && isAnnotation(f.FieldPath) {
			kept = append(kept, corev1.DownwardAPIVolumeFile{Path: items[i].Path, FieldRef: &corev1.ObjectFieldSelector{FieldPath: f.FieldPath}})
		}
	}
	return kept
}
