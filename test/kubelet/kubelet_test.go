package kubelet

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/terrace-dev/terrace/test/controlplane"
)

func field(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
}

func TestAPodHasWhatItsSpecSays(t *testing.T) {
	l := newLab(t)
	created := l.run(`echo "ip=$POD_IP name=$POD_NAME namespace=$POD_NAMESPACE account=$ACCOUNT memory=$MEMORY hello=$GREETING of=$OF_IMAGE"
		echo "arg=$0 secret=$(cat "$1/key") host=$(hostname) label=$LABEL env=$FROM_SECRET"; echo here >"$TMPDIR/file"`+forever,
		withSecret, func(pod *corev1.Pod) {
			c := &pod.Spec.Containers[0]
			c.Args = append(c.Args, "--listen=$(POD_IP)", "/etc/tls")
			c.Env = []corev1.EnvVar{
				field("POD_IP", "status.podIP"), field("POD_NAME", "metadata.name"), field("POD_NAMESPACE", "metadata.namespace"),
				field("ACCOUNT", "spec.serviceAccountName"), field("LABEL", "metadata.labels['kubelet']"),
				{Name: "MEMORY", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.memory"}}},
				{Name: "GREETING", Value: "hello $(POD_NAME)"}, {Name: "TMPDIR", Value: "/tmp"},
				{Name: "FROM_SECRET", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
					LocalObjectReference: corev1.LocalObjectReference{Name: "pod"}, Key: "key",
				}}},
			}
		})

	l.awaitWaiting("ContainerCreating") // the Secret is missing
	l.secret(created)
	pod := l.awaitRunning()
	l.awaitLog("up\n")

	ip := pod.Status.PodIP
	if !strings.HasPrefix(ip, "127.10.") || pod.Spec.NodeName != NodeName {
		t.Errorf("the pod is at %q on node %q", ip, pod.Spec.NodeName)
	}
	for _, kind := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		if !isTrue(pod, kind) {
			t.Errorf("condition %s is %+v", kind, condition(pod, kind))
		}
	}
	if c := pod.Status.ContainerStatuses[0]; c.State.Running == nil || !c.Ready || c.RestartCount != 0 {
		t.Errorf("the container's status is %+v", c)
	}
	host := "pod"
	if !suite.kubelet.isolation.works() {
		host, _ = os.Hostname()
	}
	l.wantLog(
		fmt.Sprintf("ip=%s name=pod namespace=%s account=%s memory=%d hello=hello pod of=/tmp", ip, l.namespace, account, 1<<30),
		fmt.Sprintf("arg=--listen=%s secret=value host=%s label=shared env=value", ip, host),
	)
	dir, err := l.kubelet.VolumeDir(l.namespace, "pod", "tmp")
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(dir + "/file"); string(text) != "here\n" {
		t.Errorf("the volume has %q, %v", text, err)
	}
	if got := l.kubelet.Started(l.namespace, "pod"); got != 1 {
		t.Errorf("%d containers were started, want 1", got)
	}
}

func TestAPodActsAsItsServiceAccount(t *testing.T) {
	l := newLab(t)
	pod := l.run(`echo "kubeconfig=$KUBECONFIG"` + forever)
	l.awaitRunning()
	l.awaitLog("up\n")
	_, path, _ := strings.Cut(l.log(), "kubeconfig=")
	path, _, _ = strings.Cut(path, "\n")
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(l.ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	user := review.Status.UserInfo
	if want := "system:serviceaccount:" + l.namespace + ":" + account; user.Username != want {
		t.Errorf("the pod acts as %s, want %s", user.Username, want)
	}
	if uid := user.Extra["authentication.kubernetes.io/pod-uid"]; !slices.Equal(uid, []string{string(pod.UID)}) {
		t.Errorf("its token is bound to %v, want %s", uid, pod.UID)
	}
}

func TestAPodWithoutTokenHasNoKubeconfig(t *testing.T) {
	l := newLab(t)
	l.run(`echo "kubeconfig=${KUBECONFIG-none}"`+forever, func(pod *corev1.Pod) { pod.Spec.AutomountServiceAccountToken = new(false) })
	l.awaitLog("kubeconfig=none\n")
}

func TestPodsHaveAddressesOfTheirOwn(t *testing.T) {
	l := newLab(t)
	l.run(forever)
	l.run(forever, func(pod *corev1.Pod) { pod.Name = "other" })
	first := l.awaitRunning().Status.PodIP
	eventually(t, "the other pod", func() bool {
		pod, err := suite.client.CoreV1().Pods(l.namespace).Get(l.ctx, "other", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if pod.Status.PodIP == first {
			t.Fatalf("both pods are at %s", first)
		}
		return pod.Status.PodIP != ""
	})
}

func TestAContainerThatEndsFollowsThePolicy(t *testing.T) {
	for name, test := range map[string]struct {
		policy   corev1.RestartPolicy
		script   string
		phase    corev1.PodPhase
		started  int
		exitCode int32
		reason   string
	}{
		"exit 0 succeeds":                                 {corev1.RestartPolicyOnFailure, "exit 0", corev1.PodSucceeded, 1, 0, "Completed"},
		"a failure is restarted beside its files":         {corev1.RestartPolicyOnFailure, "echo x >>$TMPDIR/x; [ $(wc -l <$TMPDIR/x) = 3 ]", corev1.PodSucceeded, 3, 0, "Completed"},
		"a failure that is not to be restarted stays one": {corev1.RestartPolicyNever, "exit 3", corev1.PodFailed, 1, 3, "Error"},
		"a signal is a failure":                           {corev1.RestartPolicyNever, "kill -9 $$", corev1.PodFailed, 1, 137, "Error"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.run(test.script, func(pod *corev1.Pod) {
				pod.Spec.RestartPolicy = test.policy
				pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "TMPDIR", Value: "/tmp"}}
			})
			pod := l.awaitPhase(test.phase)
			c := pod.Status.ContainerStatuses[0]
			if end := c.State.Terminated; end == nil || end.ExitCode != test.exitCode || end.Reason != test.reason {
				t.Errorf("the container's state is %+v", c.State)
			}
			if got := l.kubelet.Started(l.namespace, "pod"); got != test.started || int(c.RestartCount) != got-1 {
				t.Errorf("started %d times with %d restarts, want %d", got, c.RestartCount, test.started)
			}
			if isTrue(pod, corev1.PodReady) {
				t.Error("a pod that ended is ready")
			}
		})
	}
}

func TestAKilledContainerIsRestartedAndSaysWhy(t *testing.T) {
	l := newLab(t)
	l.run(forever, func(pod *corev1.Pod) {
		pod.Spec.Containers[0].TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
	})
	before := l.awaitRunning()
	l.awaitLog("up\n")
	if err := l.kubelet.Kill(l.namespace, "pod"); err != nil {
		t.Fatal(err)
	}
	after := l.await("a restart", func(p *corev1.Pod) bool {
		return p.Status.ContainerStatuses[0].RestartCount == 1 && isTrue(p, corev1.PodReady)
	})
	last := after.Status.ContainerStatuses[0].LastTerminationState.Terminated
	if last == nil || last.Reason != "OOMKilled" || last.ExitCode != 137 || last.Message != "up\n" {
		t.Errorf("the last state is %+v", last)
	}
	if before.Status.PodIP != after.Status.PodIP {
		t.Error("the pod's address changed")
	}
	if got := l.kubelet.Started(l.namespace, ""); got != 2 {
		t.Errorf("%d containers were started, want 2", got)
	}
}

// escape starts a process that leaves the group and the environment.
const escape = `setsid env -i sh -c 'echo child=$$; exec sleep 1000' & sleep 1000 &`

func (l *lab) awaitChild() (pid int) {
	l.t.Helper()
	eventually(l.t, "the child", func() bool {
		_, after, found := strings.Cut(l.log(), "child=")
		number, _, complete := strings.Cut(after, "\n")
		pid, _ = strconv.Atoi(number)
		return found && complete
	})
	return pid
}

func (l *lab) wantNothingLeft(pod *corev1.Pod, child int) {
	l.t.Helper()
	if left := processesOf(Mark + "=" + string(pod.UID)); len(left) > 0 {
		l.t.Errorf("processes %v outlive their pod", left)
	}
	if child != 0 {
		eventually(l.t, "the child's end", func() bool { return !lives(child) })
	}
}

// lives says whether a process is more than a zombie.
func lives(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

func TestADeletedPodEndsInPeace(t *testing.T) {
	l := newLab(t)
	pod := l.run(escape + forever)
	l.secret(pod)
	l.awaitLog("up\n")
	child := l.awaitChild()
	l.delete(metav1.DeleteOptions{})
	l.awaitGone()
	l.wantLog("bye")
	l.wantNothingLeft(pod, child)
	eventually(t, "the pod's Secret to go", func() bool {
		_, err := suite.client.CoreV1().Secrets(l.namespace).Get(l.ctx, "pod", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

func TestASecretOfNobodyStays(t *testing.T) {
	l := newLab(t)
	l.secret(nil)
	l.run("exit 0", withSecret)
	l.awaitPhase(corev1.PodSucceeded)
	l.delete(metav1.DeleteOptions{})
	l.awaitGone()
	eventually(t, "the kubelet to let go", func() bool { _, err := l.kubelet.find(l.namespace, "pod"); return err != nil })
	if _, err := suite.client.CoreV1().Secrets(l.namespace).Get(l.ctx, "pod", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

func TestAPodThatDoesNotEndIsKilled(t *testing.T) {
	for name, end := range map[string]func(*lab){
		"when its grace is over":      func(l *lab) { l.delete(metav1.DeleteOptions{}) },
		"when it is deleted by force": func(l *lab) { l.delete(metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}) },
		"when it is frozen": func(l *lab) {
			if err := l.kubelet.Freeze(l.namespace, "pod"); err != nil {
				l.t.Fatal(err)
			}
			l.delete(metav1.DeleteOptions{})
		},
		"when its grace becomes shorter": func(l *lab) {
			l.delete(metav1.DeleteOptions{GracePeriodSeconds: new(int64(3600))})
			l.delete(metav1.DeleteOptions{GracePeriodSeconds: new(int64(1))})
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			pod := l.run("trap '' TERM; "+escape+"echo up; while :; do sleep 0.05; done", withGrace(1))
			l.awaitLog("up\n")
			child := l.awaitChild()
			end(l)
			l.awaitGone()
			eventually(t, "the kubelet to be done with it", func() bool { _, err := l.kubelet.find(l.namespace, "pod"); return err != nil })
			l.wantNothingLeft(pod, child)
		})
	}
}

func TestAPodWithAFinalizerIsEndedOnce(t *testing.T) {
	l := newLab(t)
	l.run(forever, func(pod *corev1.Pod) { pod.Finalizers = []string{"test.terrace.dev/wait"} })
	l.awaitLog("up\n")
	l.delete(metav1.DeleteOptions{})
	l.awaitLog("bye\n")
	l.await("the kubelet to be done", func(p *corev1.Pod) bool {
		return p.DeletionGracePeriodSeconds != nil && *p.DeletionGracePeriodSeconds == 0
	})
	patch := []byte(`{"metadata":{"finalizers":null}}`)
	if _, err := suite.client.CoreV1().Pods(l.namespace).Patch(l.ctx, "pod", "application/merge-patch+json", patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	l.awaitGone()
	if got := l.writes("delete pods/"); got != 2 {
		t.Errorf("the pod was deleted %d times, want once by the test and once by the kubelet", got)
	}
}

// writes counts writes of a kind in the test's namespace; "" counts the kubelet's.
func (l *lab) writes(kind string) (count int) {
	l.t.Helper()
	events, err := controlplane.ReadAuditLog(suite.audit)
	if err != nil {
		l.t.Fatal(err)
	}
	for _, e := range events {
		if e.IsWrite() && e.ObjectRef != nil && e.ObjectRef.Namespace == l.namespace &&
			(kind == e.Verb+" "+e.ObjectRef.Resource+"/"+e.ObjectRef.Subresource || kind == "" && e.UserAgent == "test-kubelet") {
			count++
		}
	}
	return count
}

func TestAnIdlePodCostsNoWrites(t *testing.T) {
	l := newLab(t)
	l.run(forever, func(pod *corev1.Pod) { pod.Spec.AutomountServiceAccountToken = new(false) })
	l.awaitRunning()
	// A change of the pod that is none of the kubelet's business.
	patch := []byte(`{"metadata":{"annotations":{"a":"b"}}}`)
	if _, err := suite.client.CoreV1().Pods(l.namespace).Patch(l.ctx, "pod", "application/merge-patch+json", patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	k := l.kubelet
	eventually(t, "the kubelet to see it", func() bool {
		p, err := k.find(l.namespace, "pod")
		return err == nil && p.latest.Load().Annotations["a"] == "b"
	})
	if _, err := k.PID(l.namespace, "pod"); err != nil { // between two steps
		t.Fatal(err)
	}
	if got := l.writes(""); got != 2 {
		t.Errorf("the kubelet wrote %d times, want 2: the binding and the status", got)
	}
}

func TestAFrozenPodThaws(t *testing.T) {
	l := newLab(t)
	l.run(`while :; do echo tick; sleep 0.02; done`)
	l.awaitLog("tick\n")
	pid, err := l.kubelet.PID(l.namespace, "pod")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.kubelet.Freeze(l.namespace, "pod"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the process to stand still", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err == nil && strings.Contains(string(stat), ") T ")
	})
	length := len(l.log())
	if pod := l.awaitRunning(); pod.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Error("a frozen pod was restarted")
	}
	if err := l.kubelet.Thaw(l.namespace, "pod"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it to go on", func() bool { return len(l.log()) > length })
}

func TestAnEvictedPodStaysAsAFailure(t *testing.T) {
	l := newLab(t)
	created := l.run(escape+forever, withGrace(3600))
	l.awaitLog("up\n")
	child := l.awaitChild()
	if err := l.kubelet.Evict(l.namespace, "pod", "The node was low on resource: memory."); err != nil {
		t.Fatal(err)
	}
	pod := l.awaitPhase(corev1.PodFailed)
	if pod.Status.Reason != "Evicted" || !strings.Contains(pod.Status.Message, "memory") || !isTrue(pod, corev1.DisruptionTarget) {
		t.Errorf("its status is %+v", pod.Status)
	}
	if pod.DeletionTimestamp != nil || pod.Status.ContainerStatuses[0].State.Terminated == nil {
		t.Errorf("it is deleted at %v, its container is %+v", pod.DeletionTimestamp, pod.Status.ContainerStatuses[0].State)
	}
	l.wantLog("bye")
	l.wantNothingLeft(created, child)
	if err := l.kubelet.Evict(l.namespace, "pod", "again"); err == nil {
		t.Error("a pod that ended can be evicted")
	}
	l.delete(metav1.DeleteOptions{})
	l.awaitGone()
}

func TestAPodThatCannotBeScheduledSaysWhy(t *testing.T) {
	l := newLab(t)
	schedulable := l.kubelet.Unschedulable(l.namespace, "0/1 nodes are available: 1 Insufficient memory.")
	l.run(forever)
	pod := l.await("the condition", func(p *corev1.Pod) bool { return condition(p, corev1.PodScheduled).Status == corev1.ConditionFalse })
	c := condition(pod, corev1.PodScheduled)
	if c.Reason != corev1.PodReasonUnschedulable || !strings.Contains(c.Message, "Insufficient memory") || pod.Status.Phase != corev1.PodPending {
		t.Errorf("the condition is %+v in phase %s", c, pod.Status.Phase)
	}
	schedulable()
	if pod := l.awaitRunning(); !isTrue(pod, corev1.PodScheduled) {
		t.Error("a running pod is not scheduled")
	}
}

func TestANodeSelectorChoosesTheNode(t *testing.T) {
	l := newLab(t)
	l.run(forever, func(pod *corev1.Pod) { pod.Spec.NodeSelector = map[string]string{"disk": "fast"} })
	l.await("the condition", func(p *corev1.Pod) bool {
		return condition(p, corev1.PodScheduled).Reason == corev1.PodReasonUnschedulable
	})
	l.delete(metav1.DeleteOptions{})
	l.awaitGone()
	l.run(forever, func(pod *corev1.Pod) { pod.Spec.NodeSelector = map[string]string{corev1.LabelOSStable: "linux"} })
	l.awaitRunning()
}

func TestAnImageThatCannotBePulledSaysWhy(t *testing.T) {
	l := newLab(t)
	image := "image-of-" + l.namespace
	l.own(func(o *Options) { o.Programs[image] = o.Programs[shellImage] })
	heal := l.kubelet.FailImage(image, "", "pull access denied")
	l.run(forever, func(pod *corev1.Pod) { pod.Spec.Containers[0].Image = image })
	pod := l.awaitWaiting("ImagePullBackOff")
	if c := pod.Status.ContainerStatuses[0]; !strings.Contains(c.State.Waiting.Message, "pull access denied") || pod.Status.Phase != corev1.PodPending {
		t.Errorf("the container's state is %+v in phase %s", c.State.Waiting, pod.Status.Phase)
	}
	heal()
	l.awaitRunning()
}

func TestAnImageThatNobodyKnowsCannotBePulled(t *testing.T) {
	l := newLab(t)
	l.run(forever, func(pod *corev1.Pod) { pod.Spec.Containers[0].Image = "unknown" })
	l.awaitWaiting("ImagePullBackOff")
}

func TestAHeldPodStartsWhenItIsReleased(t *testing.T) {
	l := newLab(t)
	release := l.kubelet.Hold(l.namespace)
	l.run(forever)
	l.awaitWaiting("ContainerCreating")
	if got := l.kubelet.Started(l.namespace, ""); got != 0 {
		t.Errorf("%d containers were started, want none", got)
	}
	release()
	l.awaitRunning()
}

func TestAPodThatIsDeletedBeforeItStartedGoes(t *testing.T) {
	l := newLab(t)
	l.run(forever, withSecret)
	l.awaitWaiting("ContainerCreating")
	l.delete(metav1.DeleteOptions{})
	l.awaitGone()
	if got := l.kubelet.Started(l.namespace, ""); got != 0 {
		t.Errorf("%d containers were started, want none", got)
	}
}

func TestAProgramThatDoesNotExistIsAFailure(t *testing.T) {
	l := newLab(t)
	l.run(forever, func(pod *corev1.Pod) { pod.Spec.Containers[0].Command = []string{"/no/such/program"} })
	l.await("a failed start", func(p *corev1.Pod) bool {
		return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting != nil &&
			p.Status.ContainerStatuses[0].State.Waiting.Reason != "ContainerCreating"
	})
}

func TestAPodMayHaveSeveralContainers(t *testing.T) {
	l := newLab(t)
	l.run("exit 0", func(pod *corev1.Pod) {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "side", Image: shellImage, Args: []string{forever}})
	})
	seen := l.await("one container to end", func(p *corev1.Pod) bool {
		return len(p.Status.ContainerStatuses) == 2 && p.Status.ContainerStatuses[0].State.Terminated != nil && p.Status.ContainerStatuses[1].Ready
	})
	if seen.Status.Phase != corev1.PodRunning || isTrue(seen, corev1.PodReady) {
		t.Errorf("the phase is %s, Ready is %+v", seen.Status.Phase, condition(seen, corev1.PodReady))
	}
	var side int
	if err := l.kubelet.on(l.namespace, "pod", func(p *pod) error { side = p.containers[1].process.pid(); return nil }); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(side, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	l.awaitPhase(corev1.PodSucceeded)
}
