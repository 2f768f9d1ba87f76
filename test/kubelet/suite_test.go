package kubelet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/terrace-dev/terrace/test/controlplane"
)

const (
	patience = time.Minute
	// shellImage runs the container's first argument as a script.
	shellImage = "shell"
	account    = "runner"
	// forever waits for SIGTERM.
	forever = "\ntrap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done"
	// byKubelet is the label that says which kubelet a pod is for.
	byKubelet = "kubelet"
)

// suite is what the tests share: a control plane and a kubelet.
var suite struct {
	dir     string
	audit   string
	plane   *controlplane.ControlPlane
	client  kubernetes.Interface
	kubelet *Kubelet

	mu   sync.Mutex
	pods []string // the UIDs of all that there ever were
}

func TestMain(m *testing.M) {
	if os.Getenv(helperVariable) != "" {
		helper()
	}
	code, err := runSuite(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runSuite(m *testing.M) (code int, err error) {
	if suite.dir, err = os.MkdirTemp("", "kubelet-test-"); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(suite.dir)) }()
	suite.audit = filepath.Join(suite.dir, "audit.log")
	suite.plane, err = controlplane.Start(controlplane.Options{ServiceAccountAdmission: true, AuditLog: suite.audit})
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, suite.plane.Stop()) }()
	if suite.client, err = kubernetes.NewForConfig(suite.plane.Config); err != nil {
		return 1, err
	}
	if suite.kubelet, err = startKubelet("shared"); err != nil {
		return 1, err
	}
	code = m.Run()
	suite.kubelet.Stop()
	for _, uid := range suite.pods { // others run kubelets on this machine, too
		if left := processesOf(Mark + "=" + uid); len(left) > 0 {
			return 1, fmt.Errorf("processes of pod %s outlive the kubelet: %v", uid, left)
		}
	}
	return code, nil
}

func startKubelet(name string, edit ...func(*Options)) (*Kubelet, error) {
	options := Options{
		Config: suite.plane.Config, Dir: filepath.Join(suite.dir, name), LabelSelector: byKubelet + "=" + name,
		Programs: map[string][]string{shellImage: {"/bin/sh", "-c"}}, Env: map[string]string{"OF_IMAGE": "/tmp", "GREETING": "image"},
	}
	for _, f := range edit {
		f(&options)
	}
	return Start(context.Background(), options)
}

// lab is a test's namespace.
type lab struct {
	t         *testing.T
	ctx       context.Context
	namespace string
	kubelet   *Kubelet
	label     string
}

func newLab(t *testing.T) *lab {
	t.Helper()
	t.Parallel()
	return openLab(t)
}

func openLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{t: t, ctx: t.Context(), namespace: suite.plane.Namespace(t), kubelet: suite.kubelet, label: "shared"}
	object := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}
	if _, err := suite.client.CoreV1().ServiceAccounts(l.namespace).Create(l.ctx, object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return l
}

// own gives the test a kubelet of its own.
func (l *lab) own(edit ...func(*Options)) {
	l.t.Helper()
	k, err := startKubelet(l.namespace, edit...)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(k.Stop)
	l.kubelet, l.label = k, l.namespace
}

// run creates a pod named "pod" that runs a script; edit completes it.
func (l *lab) run(script string, edit ...func(*corev1.Pod)) *corev1.Pod {
	l.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pod", Labels: map[string]string{byKubelet: l.label}},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyOnFailure, ServiceAccountName: account,
			Containers: []corev1.Container{{
				Name: "main", Image: shellImage, Args: []string{strings.ReplaceAll(script, "$", "$$")}, // $$ is $
				Resources:    corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}},
				VolumeMounts: []corev1.VolumeMount{{Name: "tmp", MountPath: "/tmp"}},
			}},
			Volumes: []corev1.Volume{{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
		},
	}
	for _, f := range edit {
		f(pod)
	}
	pod, err := suite.client.CoreV1().Pods(l.namespace).Create(l.ctx, pod, metav1.CreateOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
	suite.mu.Lock()
	defer suite.mu.Unlock()
	suite.pods = append(suite.pods, string(pod.UID))
	return pod
}

func withSecret(pod *corev1.Pod) {
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{
		Name: "tls", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: pod.Name}},
	})
	c := &pod.Spec.Containers[0]
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "tls", MountPath: "/etc/tls"})
}

func withGrace(seconds int64) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.TerminationGracePeriodSeconds = &seconds }
}

// secret creates a Secret named as the pod, owned by it if there is one.
func (l *lab) secret(owner *corev1.Pod) {
	l.t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "pod"}, StringData: map[string]string{"key": "value"}}
	if owner != nil {
		secret.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: owner.Name, UID: owner.UID}}
	}
	if _, err := suite.client.CoreV1().Secrets(l.namespace).Create(l.ctx, secret, metav1.CreateOptions{}); err != nil {
		l.t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for %s", patience, what)
		}
	}
}

// await waits until the pod is as wanted; nil stands for a pod that is gone.
func (l *lab) await(what string, wanted func(*corev1.Pod) bool) *corev1.Pod {
	l.t.Helper()
	var pod *corev1.Pod
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		found, err := suite.client.CoreV1().Pods(l.namespace).Get(l.ctx, "pod", metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			found = nil
		case err != nil:
			l.t.Fatal(err)
		default:
			pod = found
		}
		if wanted(found) {
			return found
		}
	}
	l.t.Fatalf("waited %v for %s; its status is %+v, it said %q", patience, what, pod.Status, l.log())
	return nil
}

func (l *lab) awaitRunning() *corev1.Pod {
	l.t.Helper()
	return l.await("the pod to run", func(p *corev1.Pod) bool {
		return p != nil && p.Status.Phase == corev1.PodRunning && isTrue(p, corev1.PodReady)
	})
}

func (l *lab) awaitPhase(phase corev1.PodPhase) *corev1.Pod {
	l.t.Helper()
	return l.await(string(phase), func(p *corev1.Pod) bool { return p != nil && p.Status.Phase == phase })
}

func (l *lab) awaitWaiting(reason string) *corev1.Pod {
	l.t.Helper()
	return l.await(reason, func(p *corev1.Pod) bool {
		return p != nil && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting != nil &&
			p.Status.ContainerStatuses[0].State.Waiting.Reason == reason
	})
}

func (l *lab) awaitGone() {
	l.t.Helper()
	l.await("the pod to go", func(p *corev1.Pod) bool { return p == nil })
}

func (l *lab) awaitLog(text string) {
	l.t.Helper()
	eventually(l.t, "the pod to say "+text, func() bool { return strings.Contains(l.log(), text) })
}

func (l *lab) delete(options metav1.DeleteOptions) {
	l.t.Helper()
	if err := suite.client.CoreV1().Pods(l.namespace).Delete(l.ctx, "pod", options); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) log() string {
	text, _ := os.ReadFile(l.kubelet.PodLog(l.namespace, "pod"))
	return string(text)
}

func (l *lab) wantLog(want ...string) {
	l.t.Helper()
	for _, line := range want {
		if !strings.Contains("\n"+l.log(), "\n"+line+"\n") {
			l.t.Errorf("the pod did not say %q, but:\n%s", line, l.log())
		}
	}
}

func condition(pod *corev1.Pod, kind corev1.PodConditionType) corev1.PodCondition {
	for _, c := range pod.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return corev1.PodCondition{}
}

func isTrue(pod *corev1.Pod, kind corev1.PodConditionType) bool {
	return condition(pod, kind).Status == corev1.ConditionTrue
}

// processesOf returns the processes with such a variable in their environment.
func processesOf(variable string) (pids []string) {
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range files {
		environ, _ := os.ReadFile(file)
		for one := range bytes.SplitSeq(environ, []byte{0}) {
			if bytes.HasPrefix(one, []byte(variable)) {
				pids = append(pids, filepath.Base(filepath.Dir(file)))
			}
		}
	}
	return pids
}
