package classify_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/terrace-dev/terrace/reloader/classify"
)

// parse reads a spec as people write it.
func parse(t testing.TB, text string) *corev1.PodSpec {
	t.Helper()
	spec := &corev1.PodSpec{}
	if err := yaml.UnmarshalStrict([]byte(strings.ReplaceAll(text, "\t", "  ")), spec); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return spec
}

func TestSpecialCases(t *testing.T) {
	t.Parallel()
	type change = classify.Change
	secret := func(keys ...string) change { return change{Kind: "Secret", Name: "db", Keys: keys} }
	gone := func(keys ...string) change { return change{Kind: "Secret", Name: "db", Keys: keys, Gone: keys} }

	for name, test := range map[string]struct {
		spec   string
		change change
		want   classify.Class
		reason string
	}{
		"a volume mounted whole and by subPath in two containers restarts": {
			spec: `
volumes: [{name: v, secret: {secretName: db}}]
containers:
- {name: a, volumeMounts: [{name: v, mountPath: /v}]}
- {name: b, volumeMounts: [{name: v, mountPath: /v/user, subPath: user}]}`,
			change: secret("user"), want: classify.Restart, reason: "key user of Secret db is mounted by subPath in container b",
		},
		"but only for the key that the subPath is": {
			spec: `
volumes: [{name: v, secret: {secretName: db}}]
containers:
- {name: a, volumeMounts: [{name: v, mountPath: /v}]}
- {name: b, volumeMounts: [{name: v, mountPath: /v/user, subPath: user}]}`,
			change: secret("password"), want: classify.Refresh, reason: "key password of Secret db is a file in volume v of container a",
		},
		"a subPath that is a directory of items takes what is below": {
			spec: `
volumes: [{name: v, secret: {secretName: db, items: [{key: user, path: conf.d/user}, {key: password, path: conf.dir}]}}]
containers: [{name: a, volumeMounts: [{name: v, mountPath: /v, subPath: ./conf.d/}]}]`,
			change: secret("user"), want: classify.Restart,
		},
		"and nothing beside it": {
			spec: `
volumes: [{name: v, secret: {secretName: db, items: [{key: user, path: conf.d/user}, {key: password, path: conf.dir}]}}]
containers: [{name: a, volumeMounts: [{name: v, mountPath: /v, subPath: ./conf.d/}]}]`,
			change: secret("password"), want: classify.None,
		},
		"a subPath that no key can be is no use": {
			spec: `
volumes: [{name: v, secret: {secretName: db}}]
containers: [{name: a, volumeMounts: [{name: v, mountPath: /v, subPath: user/name}]}]`,
			change: secret("user"), want: classify.None, reason: "the pod does not consume what changed in Secret db",
		},
		"a subPath through the kubelet's own link is one too": {
			spec: `
volumes: [{name: v, secret: {secretName: db}}]
containers: [{name: a, volumeMounts: [{name: v, mountPath: /v, subPath: ..data/user}, {name: v, mountPath: /w, subPath: ..data}]}]`,
			change: secret("password"), want: classify.Restart,
		},
		"a key that is a file here and a variable there restarts": {
			spec: `
volumes: [{name: v, secret: {secretName: db}}]
containers:
- {name: a, volumeMounts: [{name: v, mountPath: /v}]}
- {name: b, env: [{name: USER, valueFrom: {secretKeyRef: {name: db, key: user}}}]}`,
			change: secret("user", "password"), want: classify.Restart, reason: "key user of Secret db is in the environment of container b",
		},
		"a key that is only a file does not restart who has another key in a variable": {
			spec: `
volumes: [{name: v, secret: {secretName: db}}]
containers:
- {name: a, volumeMounts: [{name: v, mountPath: /v}]}
- {name: b, env: [{name: USER, valueFrom: {secretKeyRef: {name: db, key: user}}}]}`,
			change: secret("password"), want: classify.Refresh,
		},
		"files of an init container restart": {
			spec: `
volumes: [{name: v, secret: {secretName: db}}]
initContainers: [{name: copy, volumeMounts: [{name: v, mountPath: /v}]}]
containers: [{name: a}]`,
			change: secret("user"), want: classify.Restart, reason: "key user of Secret db is a file of init container copy only",
		},
		"unless a running container has the same key from another volume": {
			spec: `
volumes:
- {name: v, secret: {secretName: db}}
- {name: w, projected: {sources: [{secret: {name: db, items: [{key: user, path: u}]}}]}}
initContainers: [{name: copy, volumeMounts: [{name: v, mountPath: /v}]}]
containers: [{name: a, volumeMounts: [{name: w, mountPath: /w}]}]`,
			change: secret("user"), want: classify.Refresh,
		},
		"which it does not have if its key is another": {
			spec: `
volumes:
- {name: v, secret: {secretName: db}}
- {name: w, projected: {sources: [{secret: {name: db, items: [{key: user, path: u}]}}]}}
initContainers: [{name: copy, volumeMounts: [{name: v, mountPath: /v}]}]
containers: [{name: a, volumeMounts: [{name: w, mountPath: /w}]}]`,
			change: secret("user", "password"), want: classify.Restart,
		},
		"a variable of an init container restarts even so": {
			spec: `
volumes: [{name: v, secret: {secretName: db}}]
initContainers: [{name: migrate, env: [{name: U, valueFrom: {secretKeyRef: {name: db, key: user}}}]}]
containers: [{name: a, volumeMounts: [{name: v, mountPath: /v}]}]`,
			change: secret("user"), want: classify.Restart,
		},
		"a native sidecar sees its files change": {
			spec: `
volumes: [{name: v, secret: {secretName: db}}]
initContainers: [{name: proxy, restartPolicy: Always, volumeMounts: [{name: v, mountPath: /v}]}]
containers: [{name: a}]`,
			change: secret("user"), want: classify.Refresh,
		},
		"a debug container is not ended because of its variables": {
			spec: `
containers: [{name: a}]
ephemeralContainers: [{name: debug, envFrom: [{secretRef: {name: db}}]}]`,
			change: secret("user"), want: classify.None,
		},
		"a volume that nobody mounts is no use": {
			spec:   `{volumes: [{name: v, secret: {secretName: db}}], containers: [{name: a}]}`,
			change: secret("user"), want: classify.None,
		},
		"pull secrets and secrets of drivers are no use": {
			spec: `
imagePullSecrets: [{name: db}]
volumes:
- {name: v, csi: {driver: d, nodePublishSecretRef: {name: db}}}
- {name: w, projected: {sources: [{serviceAccountToken: {path: db}}]}}
- {name: x, rbd: {monitors: [m], image: i, secretRef: {name: db}}}
containers: [{name: a, volumeMounts: [{name: v, mountPath: /v}, {name: w, mountPath: /w}, {name: x, mountPath: /x}]}]`,
			change: secret("user"), want: classify.None,
		},
		"a ConfigMap of the name of a Secret is another object": {
			spec: `
volumes: [{name: v, configMap: {name: db}}]
containers: [{name: a, volumeMounts: [{name: v, mountPath: /v}]}]`,
			change: secret("user"), want: classify.None,
		},
		"a required key that is gone would keep a new pod from starting": {
			spec:   `{containers: [{name: a, env: [{name: U, valueFrom: {secretKeyRef: {name: db, key: user}}}]}]}`,
			change: gone("user"), want: classify.None, reason: "key user of Secret db is gone and required: the pod keeps what it has, and a new one would not run",
		},
		"an optional one restarts": {
			spec:   `{containers: [{name: a, env: [{name: U, valueFrom: {secretKeyRef: {name: db, key: user, optional: true}}}]}]}`,
			change: gone("user"), want: classify.Restart,
		},
		"a required key that is gone blocks its own volume": {
			spec: `
volumes: [{name: v, projected: {sources: [{secret: {name: db, items: [{key: user, path: u}]}}, {secret: {name: db}}]}}]
containers: [{name: a, volumeMounts: [{name: v, mountPath: /v}]}]`,
			change: gone("user"), want: classify.None,
		},
		"but no other volume": {
			spec: `
volumes: [{name: v, secret: {secretName: db, items: [{key: user, path: u}]}}, {name: w, secret: {secretName: db}}]
containers: [{name: a, volumeMounts: [{name: v, mountPath: /v}, {name: w, mountPath: /w}]}]`,
			change: gone("user"), want: classify.Refresh, reason: "key user of Secret db is a file in volume w of container a",
		},
		"an object that was replaced is renewed as if it had been changed": {
			spec: `
volumes: [{name: v, secret: {secretName: db}}]
containers: [{name: a, volumeMounts: [{name: v, mountPath: /v}]}]`,
			change: change{Kind: "Secret", Name: "db", Keys: []string{"user"}, Recreated: true}, want: classify.Refresh,
		},
		"an immutable one that was replaced is not even renewed by a restart": {
			spec: `
volumes: [{name: v, secret: {secretName: db}}]
containers: [{name: a, volumeMounts: [{name: v, mountPath: /v}]}]`,
			change: change{Kind: "Secret", Name: "db", Keys: []string{"user"}, Recreated: true, Immutable: true}, want: classify.Restart,
			reason: "Secret db is immutable and was replaced: kubelets keep the old content while a pod on their node refers to it, " +
				"so that even a new pod can get it; give the new content a new name",
		},
		"an object replaced by the same content is no change": {
			spec:   `{containers: [{name: a, envFrom: [{secretRef: {name: db}}]}]}`,
			change: change{Kind: "Secret", Name: "db", Recreated: true, Immutable: true}, want: classify.None,
		},
		"a pod without containers consumes nothing": {spec: `{}`, change: secret("user"), want: classify.None},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := classify.Classify(classify.Uses(parse(t, test.spec)), test.change)
			if got.Class != test.want {
				t.Errorf("got %s (%s), want %s", got.Class, got.Reason, test.want)
			}
			if test.reason != "" && got.Reason != test.reason {
				t.Errorf("got the reason %q, want %q", got.Reason, test.reason)
			}
		})
	}
}

const richSpec = `
nodeName: node
imagePullSecrets: [{name: pull}]
volumes:
- {name: cm, configMap: {name: settings, defaultMode: 420, items: [{key: b, path: etc/b, mode: 256}, {key: a, path: a}]}}
- {name: all, projected: {sources: [{configMap: {name: settings}}, {secret: {name: db, optional: true}}, {downwardAPI: {items: [{path: l, fieldRef: {fieldPath: metadata.labels}}]}}]}}
- {name: tmp, emptyDir: {}}
- {name: unused, secret: {secretName: never}}
initContainers:
- {name: once, volumeMounts: [{name: cm, mountPath: /cm}]}
- {name: proxy, restartPolicy: Always, volumeMounts: [{name: all, mountPath: /all, subPathExpr: $(X)}], env: [{name: X, value: a}]}
containers:
- name: app
  image: app
  env: [{name: P, value: plain}, {name: PW, valueFrom: {secretKeyRef: {name: db, key: pw}}}, {name: N, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
  envFrom: [{prefix: S_, configMapRef: {name: settings, optional: true}}]
  volumeMounts: [{name: all, mountPath: /all}, {name: all, mountPath: /again}, {name: tmp, mountPath: /tmp}, {name: cm, mountPath: /b, subPath: etc}]
ephemeralContainers:
- {name: debug, volumeMounts: [{name: cm, mountPath: /cm}, {name: all, mountPath: /x, subPath: x}], env: [{name: PW, valueFrom: {secretKeyRef: {name: db, key: pw}}}]}
`

func TestUsesAreCompleteAndInOrder(t *testing.T) {
	t.Parallel()
	const cm, secret = "ConfigMap", "Secret"
	want := []classify.Use{
		{cm, "settings", "", "all", "", classify.File, false, "app"},
		{cm, "settings", "", "all", "", classify.SubPath, false, "proxy"},
		{cm, "settings", "a", "cm", "a", classify.File, false, "debug"},
		{cm, "settings", "a", "cm", "a", classify.Init, false, "once"},
		{cm, "settings", "b", "cm", "etc/b", classify.File, false, "debug"},
		{cm, "settings", "b", "cm", "etc/b", classify.Init, false, "once"},
		{cm, "settings", "b", "cm", "etc/b", classify.SubPath, false, "app"},
		{secret, "db", "", "all", "", classify.File, true, "app"},
		{secret, "db", "", "all", "", classify.SubPath, true, "proxy"},
		{secret, "db", "pw", "", "PW", classify.Env, false, "app"},
	}
	// envFrom sorts by How, Env before File.
	want = slices.Insert(want, 0, classify.Use{Kind: cm, Name: "settings", Path: "S_", How: classify.Env, Optional: true, Container: "app"})
	got := classify.Uses(parse(t, richSpec))
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", lines(got), lines(want))
	}

	// The order of what the pod has makes no difference.
	shuffled := parse(t, richSpec)
	slices.Reverse(shuffled.Volumes)
	slices.Reverse(shuffled.InitContainers)
	for i := range shuffled.Containers {
		slices.Reverse(shuffled.Containers[i].VolumeMounts)
	}
	if again := classify.Uses(shuffled); !slices.Equal(again, want) {
		t.Errorf("in another order got\n%s", lines(again))
	}
}

func TestStripKeepsNothingElse(t *testing.T) {
	t.Parallel()
	spec := parse(t, richSpec)
	classify.Strip(spec)
	want := parse(t, `
nodeName: node
volumes:
- {name: cm, configMap: {name: settings, items: [{key: b, path: etc/b}, {key: a, path: a}]}}
- {name: all, projected: {sources: [{configMap: {name: settings}}, {secret: {name: db, optional: true}}, {downwardAPI: {items: [{path: l, fieldRef: {fieldPath: metadata.labels}}]}}]}}
- {name: unused, secret: {secretName: never}}
initContainers:
- {name: once, volumeMounts: [{name: cm, mountPath: ""}]}
- {name: proxy, restartPolicy: Always, volumeMounts: [{name: all, mountPath: "", subPathExpr: $(X)}]}
containers:
- name: app
  env: [{name: PW, valueFrom: {secretKeyRef: {name: db, key: pw}}}]
  envFrom: [{prefix: S_, configMapRef: {name: settings, optional: true}}]
  volumeMounts: [{name: all, mountPath: ""}, {name: all, mountPath: ""}, {name: cm, mountPath: "", subPath: etc}]
ephemeralContainers:
- {name: debug, volumeMounts: [{name: cm, mountPath: ""}, {name: all, mountPath: "", subPath: x}]}
`)
	// Who wrote neither sources nor projections has the zero mode.
	if !reflect.DeepEqual(spec, want) {
		got, _ := yaml.Marshal(spec)
		t.Errorf("got\n%s", got)
	}
}

func lines(uses []classify.Use) string {
	text := strings.Builder{}
	for _, use := range uses {
		out, _ := yaml.Marshal(use)
		text.WriteString(strings.ReplaceAll(strings.TrimSpace(string(out)), "\n", ", ") + "\n")
	}
	return text.String()
}
