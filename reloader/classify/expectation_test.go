package classify_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/terrace-dev/terrace/reloader/classify"
)

const annotation = "reload.infra.terrace.dev/app"

func TestExpectation(t *testing.T) {
	t.Parallel()
	const (
		content  = `{configMap: {name: settings}}, {secret: {name: tls, items: [{key: tls.crt, path: tls/crt}], optional: true}}`
		expected = `{downwardAPI: {items: [{path: expected, fieldRef: {fieldPath: "metadata.annotations['` + annotation + `']"}}]}}`
		mounted  = "\ncontainers: [{name: app, volumeMounts: [{name: v, mountPath: /v}]}]"
	)
	volume := func(sources string) string { return "volumes: [{name: v, projected: {sources: [" + sources + "]}}]" }
	files := []classify.ExpectedFile{
		{Kind: "ConfigMap", Name: "settings"},
		{Kind: "Secret", Name: "tls", Key: "tls.crt", Path: "tls/crt", Optional: true},
	}
	found := []classify.ExpectationVolume{{Name: "v", Path: "expected", Files: files}}

	for name, test := range map[string]struct {
		spec    string
		want    []classify.ExpectationVolume
		problem string
	}{
		"content and annotation in one volume":      {spec: volume(content+", "+expected) + mounted, want: found},
		"a pod without the annotation expects none": {spec: volume(content) + mounted},
		"another annotation is another expectation": {spec: volume(content+", "+strings.Replace(expected, "/app", "/other", 1)) + mounted},
		"all annotations are not this one":          {spec: volume(content+", {downwardAPI: {items: [{path: expected, fieldRef: {fieldPath: metadata.annotations}}]}}") + mounted},
		"the path is free": {
			spec: volume(content+", "+strings.Replace(expected, "path: expected", "path: .meta/what", 1)) + mounted,
			want: []classify.ExpectationVolume{{Name: "v", Path: ".meta/what", Files: files}},
		},
		"a native sidecar may be the one who reads": {
			spec: volume(content+", "+expected) + "\ninitContainers: [{name: agent, restartPolicy: Always, volumeMounts: [{name: v, mountPath: /v}]}]\ncontainers: [{name: app}]",
			want: found,
		},
		"a token changes at other times": {
			spec:    volume(content+", "+expected+", {serviceAccountToken: {path: token}}") + mounted,
			problem: "volume v cannot be verified: it also holds a token or certificates, which change at other times",
		},
		"trust bundles do too": {
			spec:    volume(content+", "+expected+", {clusterTrustBundle: {name: b, path: ca}}") + mounted,
			problem: "volume v cannot be verified: it also holds a token or certificates, which change at other times",
		},
		"another field of the pod is not the content's": {
			spec:    volume(content+", "+expected+", {downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}") + mounted,
			problem: "volume v cannot be verified: it also holds another field of the pod, at labels",
		},
		"neither is a resource": {
			spec:    volume(content+", "+expected+", {downwardAPI: {items: [{path: cpu, resourceFieldRef: {containerName: app, resource: limits.cpu}}]}}") + mounted,
			problem: "volume v cannot be verified: it also holds another field of the pod, at cpu",
		},
		"the annotation alone says nothing": {
			spec:    volume(expected) + mounted,
			problem: "volume v cannot be verified: it holds no ConfigMap or Secret",
		},
		"a volume of its own changes at its own time": {
			spec:    `volumes: [{name: v, downwardAPI: {items: [{path: expected, fieldRef: {fieldPath: "metadata.annotations['` + annotation + `']"}}]}}]` + mounted,
			problem: "volume v cannot be verified: the annotation must be in the projected volume that has the content, because only then both change at once",
		},
		"a part of the volume is bound to the old content": {
			spec:    volume(content+", "+expected) + "\ncontainers: [{name: app, volumeMounts: [{name: v, mountPath: /v, subPath: expected}]}]",
			problem: "volume v cannot be verified: no running container mounts it whole",
		},
		"an init container reads no later than its end": {
			spec:    volume(content+", "+expected) + "\ninitContainers: [{name: once, volumeMounts: [{name: v, mountPath: /v}]}]",
			problem: "volume v cannot be verified: no running container mounts it whole",
		},
		"two volumes with the same files are both verified": {
			spec: "volumes: [{name: v, projected: {sources: [" + content + ", " + expected + "]}}, {name: w, projected: {sources: [" + expected + ", " + content + "]}}]" +
				"\ncontainers: [{name: app, volumeMounts: [{name: v, mountPath: /v}, {name: w, mountPath: /w}]}]",
			want: []classify.ExpectationVolume{found[0], {Name: "w", Path: "expected", Files: files}},
		},
		"two volumes with different files cannot share an annotation": {
			spec: "volumes: [{name: v, projected: {sources: [" + content + ", " + expected + "]}}, {name: w, projected: {sources: [" + expected + ", {configMap: {name: x}}]}}]" +
				"\ncontainers: [{name: app, volumeMounts: [{name: v, mountPath: /v}, {name: w, mountPath: /w}]}]",
			problem: "volumes v and w show the same annotation and differ in their files: only one of them could be verified",
		},
		"a volume that cannot be verified leaves the other one": {
			spec: "volumes: [{name: v, projected: {sources: [" + content + ", " + expected + "]}}, {name: w, projected: {sources: [" + expected + "]}}]" +
				"\ncontainers: [{name: app, volumeMounts: [{name: v, mountPath: /v}, {name: w, mountPath: /w}]}]",
			want: found, problem: "volume w cannot be verified: it holds no ConfigMap or Secret",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := parse(t, test.spec)
			for _, stripped := range []bool{false, true} {
				if stripped {
					classify.Strip(spec)
				}
				got, problem := classify.Expectation(spec, annotation)
				if !reflect.DeepEqual(got, test.want) || problem != test.problem {
					t.Errorf("stripped %t: got %+v, %q, want %+v, %q", stripped, got, problem, test.want, test.problem)
				}
			}
		})
	}
}
