package runners

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/reconcile"
)

// podTemplate makes a template: changes of the runner's container, of the spec
// otherwise, and of the metadata, each JSON or empty.
func podTemplate(container, spec, metadata string) *infrav1.PodTemplate {
	template := &infrav1.PodTemplate{}
	if container != "" {
		spec = `{"containers": [{"name": "runner", ` + strings.TrimPrefix(container, "{") + `]}`
	}
	if spec != "" {
		template.Spec = &apiextensionsv1.JSON{Raw: []byte(spec)}
	}
	if metadata != "" {
		template.Metadata = &apiextensionsv1.JSON{Raw: []byte(metadata)}
	}
	return template
}

func TestTemplates(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		container, spec, metadata string
		check                     func(*corev1.Pod) bool
		want                      string // part of the error
	}{
		"more memory": {
			container: `{"resources": {"limits": {"memory": "8Gi"}}}`,
			check:     func(p *corev1.Pod) bool { return p.Spec.Containers[0].Resources.Limits.Memory().String() == "8Gi" },
		},
		"another image": {
			container: `{"image": "tools:1"}`,
			check:     func(p *corev1.Pod) bool { return p.Spec.Containers[0].Image == "tools:1" },
		},
		"another variable beside those of the operator": {
			container: `{"env": [{"name": "HTTPS_PROXY", "value": "proxy:3128"}]}`,
			check:     func(p *corev1.Pod) bool { return len(p.Spec.Containers[0].Env) == len((&Pool{}).baseContainer().Env)+1 },
		},
		"a sidecar, a volume and a node selector": {
			spec: `{"nodeSelector": {"pool": "infra"}, "volumes": [{"name": "cache", "emptyDir": {}}],
			  "containers": [{"name": "proxy", "image": "proxy:1", "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]}`,
			check: func(p *corev1.Pod) bool {
				return len(p.Spec.Containers) == 2 && len(p.Spec.Volumes) == 3 && len(p.Spec.NodeSelector) == 2
			},
		},
		"labels and annotations": {
			metadata: `{"labels": {"team": "a"}, "annotations": {"b": "c"}}`,
			check: func(p *corev1.Pod) bool {
				return p.Labels["team"] == "a" && p.Annotations["b"] == "c" && p.Annotations[safeToEvict] == "false"
			},
		},
		"another grace":                {spec: `{"terminationGracePeriodSeconds": 1800}`, check: func(p *corev1.Pod) bool { return *p.Spec.TerminationGracePeriodSeconds == 1800 }},
		"a misspelt field":             {container: `{"imagee": "x"}`, want: `unknown field "spec.containers[0].imagee"`},
		"a misspelt field of the pod":  {spec: `{"nodeSelektor": {}}`, want: `unknown field "spec.nodeSelektor"`},
		"a wrong type":                 {spec: `{"hostNetwork": "yes"}`, want: "does not make a pod"},
		"a list that is none":          {spec: `{"containers": {}}`, want: "does not make a pod"},
		"an account through the back":  {spec: `{"serviceAccountName": "admin"}`, want: "use spec.runner.serviceAccountName"},
		"another command":              {container: `{"command": ["sh"]}`, want: "command, which is the operator's"},
		"other arguments":              {container: `{"args": ["--listen=0.0.0.0"]}`, want: "args, which is the operator's"},
		"a label of the operator":      {metadata: `{"labels": {"infra.terrace.dev/manager": "me"}}`, want: "infra.terrace.dev/manager"},
		"a name":                       {metadata: `{"name": "mine"}`, want: "metadata, apart from labels and annotations"},
		"another namespace":            {metadata: `{"namespace": "kube-system"}`, want: "metadata, apart from labels and annotations"},
		"an owner":                     {metadata: `{"ownerReferences": [{"kind": "Pod"}]}`, want: "metadata, apart from labels and annotations"},
		"no runner":                    {spec: `{"containers": [{"name": "runner", "$patch": "delete"}]}`, want: "containers[name=runner]"},
		"the host's network":           {spec: `{"hostNetwork": true}`, want: "hostNetwork"},
		"the host's files":             {spec: `{"volumes": [{"name": "host", "hostPath": {"path": "/"}}]}`, want: "hostPath"},
		"root":                         {container: `{"securityContext": {"runAsUser": 0}}`, want: "runAsUser=0"},
		"a privileged init container":  {spec: `{"initContainers": [{"name": "i", "image": "i", "securityContext": {"privileged": true}}]}`, want: "privileged"},
		"capabilities of the tool":     {container: `{"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}`, want: "unrestricted capabilities"},
		"restarts of what ended":       {spec: `{"restartPolicy": "Always"}`, want: "restartPolicy"},
		"another host name":            {spec: `{"hostname": "build"}`, want: "spec.hostname"},
		"a variable of the operator":   {container: `{"env": [{"name": "POD_NAME", "value": "other"}]}`, want: "env, of what the operator sets"},
		"too little time to end":       {spec: `{"terminationGracePeriodSeconds": 1}`, want: "at least 60"},
		"another port":                 {container: `{"ports": [{"containerPort": 1}]}`, want: "ports"},
		"the processes of other users": {spec: `{"hostPID": true}`, want: "hostPID"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := New(Options{Image: "runner:1", Manager: "terrace"})
			obj := &infrav1.Terraform{ObjectMeta: metav1.ObjectMeta{Namespace: "apps"}}
			obj.Spec.Runner.Template = podTemplate(test.container, test.spec, test.metadata)
			pod, _, err := pool.design(obj, "terrace-runner")
			if test.want == "" && (err != nil || !test.check(pod)) {
				t.Errorf("pod = %+v, %v", pod, err)
			}
			if test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) || reconcile.ReasonOf(err) != infrav1.PodTemplateInvalidReason) {
				t.Errorf("error = %v, want one about %q", err, test.want)
			}
		})
	}
}

func TestTheGroupIsTheWholePod(t *testing.T) {
	t.Parallel()
	group := func(image, account, metadata string) string {
		obj := &infrav1.Terraform{ObjectMeta: metav1.ObjectMeta{Namespace: "apps"}}
		if metadata != "" {
			obj.Spec.Runner.Template = podTemplate("", "", metadata)
		}
		_, group, err := New(Options{Image: image, Manager: "terrace"}).design(obj, account)
		if err != nil {
			t.Fatal(err)
		}
		return group
	}
	same := group("runner:1", "a", "")
	if group("runner:1", "a", "") != same || group("runner:1", "a", `{}`) != same {
		t.Error("equal pods are in different groups")
	}
	if group("runner:2", "a", "") == same || group("runner:1", "b", "") == same || group("runner:1", "a", `{"labels": {"x": "y"}}`) == same {
		t.Error("different pods are in one group")
	}
}
