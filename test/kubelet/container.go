package kubelet

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	errImagePull     = "ErrImagePull"
	imagePullBackOff = "ImagePullBackOff"
	oomKilled        = "OOMKilled"

	// maxBackoff bounds the delay of restarts.
	maxBackoff = 5 * time.Second
	// maxMessage bounds what of a container's log is its termination message.
	maxMessage = 2048
)

// container is one container of a pod; the pod's goroutine owns it.
type container struct {
	pod     *pod
	spec    *corev1.Container
	status  corev1.ContainerStatus
	process *process // nil when it does not run
	begun   bool     // it ran once
	over    bool     // it will not run again
	backoff time.Duration
	due     time.Time
	logged  int64 // length of the log when the container started
}

func newContainer(p *pod, spec *corev1.Container) *container {
	c := &container{pod: p, spec: spec, backoff: p.k.options.Backoff}
	for _, before := range p.status.ContainerStatuses {
		if before.Name == spec.Name && (before.State.Running != nil || before.RestartCount > 0) {
			c.begun, c.status.RestartCount = true, before.RestartCount
		}
	}
	c.status.Name, c.status.Image, c.status.ImageID = spec.Name, spec.Image, ""
	c.waits("ContainerCreating", "")
	return c
}

func (c *container) waits(reason, message string) {
	c.status.Ready, c.status.Started = false, new(false)
	c.status.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
}

// advance starts the container if it is time to, and returns when to look again.
func (c *container) advance() (again time.Duration) {
	if c.over || c.process != nil {
		return 0
	}
	if wait := time.Until(c.due); wait > 0 {
		return wait
	}
	if t := c.pod.k.unpullable(c.spec.Image); t != nil {
		return c.unpulled(t)
	}
	command, err := c.command()
	if err != nil {
		c.waits("CreateContainerConfigError", err.Error())
		return retryInterval
	}
	if err := c.start(command); err != nil {
		c.begun = true
		c.stopped(corev1.ContainerStateTerminated{
			ExitCode: 128, Reason: "StartError", Message: err.Error(), StartedAt: metav1.NewTime(now()), FinishedAt: metav1.NewTime(now()),
		}, true)
		return time.Until(c.due)
	}
	return 0
}

// unpulled shows that an image cannot be pulled, first as it is and then as a
// kubelet shows it between two attempts.
func (c *container) unpulled(t *trouble) (again time.Duration) {
	waiting := c.status.State.Waiting
	if t.reason == errImagePull && waiting != nil && (waiting.Reason == errImagePull || waiting.Reason == imagePullBackOff) {
		c.waits(imagePullBackOff, fmt.Sprintf("Back-off pulling image %q: %s: %s", c.spec.Image, errImagePull, t.message))
		return 0
	}
	c.waits(t.reason, t.message)
	if t.reason != errImagePull {
		return 0
	}
	return c.backoff
}

// start starts the process. The container's number among its pod's is the count
// of restarts.
func (c *container) start(command *exec.Cmd) error {
	p := c.pod
	log, err := os.OpenFile(p.k.PodLog(p.namespace, p.name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	if info, err := log.Stat(); err == nil {
		c.logged = info.Size()
	}
	command.Stdout, command.Stderr = log, log
	if c.process, err = p.k.startProcess(command, p, p.poke); err != nil {
		p.logf("starting %s: %v", c.spec.Name, err)
		return err
	}
	if c.begun {
		c.status.RestartCount++
	}
	c.begun = true
	c.status.Ready, c.status.Started = true, new(true)
	c.status.ImageID, c.status.ContainerID = c.spec.Image, p.containerID(c)
	c.status.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(now())}}
	p.k.countStart(types.NamespacedName{Namespace: p.namespace, Name: p.name})
	p.logf("started %s as process %d at %s", c.spec.Name, c.process.pid(), p.ip)
	return nil
}

// ended takes note of the end of the process; it may be restarted.
func (c *container) ended(mayRestart bool) {
	state, reason := c.process.state()
	c.process = nil
	t := corev1.ContainerStateTerminated{
		ExitCode: int32(state.ExitCode()), StartedAt: c.status.State.Running.StartedAt, FinishedAt: metav1.NewTime(now()),
		ContainerID: c.status.ContainerID, Reason: "Error",
	}
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		t.ExitCode = 128 + int32(status.Signal())
	}
	switch {
	case t.ExitCode == 0:
		t.Reason = "Completed"
	case reason != "":
		t.Reason = reason
	}
	if t.ExitCode != 0 && c.spec.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError {
		t.Message = c.lastWords()
	}
	c.pod.logf("%s ended: %s, exit code %d", c.spec.Name, t.Reason, t.ExitCode)
	c.stopped(t, mayRestart)
}

// stopped decides what follows the end of a container.
func (c *container) stopped(t corev1.ContainerStateTerminated, mayRestart bool) {
	policy := c.pod.object.Spec.RestartPolicy
	terminated := corev1.ContainerState{Terminated: &t}
	if !mayRestart || policy == corev1.RestartPolicyNever || policy == corev1.RestartPolicyOnFailure && t.ExitCode == 0 {
		c.over = true
		c.status.Ready, c.status.Started, c.status.State = false, new(false), terminated
		return
	}
	c.status.LastTerminationState = terminated
	c.waits("CrashLoopBackOff", fmt.Sprintf("back-off %v restarting failed container=%s pod=%s_%s(%s)",
		c.backoff, c.spec.Name, c.pod.name, c.pod.namespace, c.pod.uid))
	c.due = time.Now().Add(c.backoff)
	c.backoff = min(2*c.backoff, maxBackoff)
}

// abandon gives up a container that does not run at the moment.
func (c *container) abandon() {
	if c.process != nil || c.over {
		return
	}
	c.over = true
	if last := c.status.LastTerminationState; last.Terminated != nil {
		c.status.State = last
	}
}

// lastWords returns the end of what the container printed.
func (c *container) lastWords() string {
	log, err := os.Open(c.pod.k.PodLog(c.pod.namespace, c.pod.name))
	if err != nil {
		return ""
	}
	defer log.Close()
	info, err := log.Stat()
	if err != nil {
		return ""
	}
	begin := max(c.logged, info.Size()-maxMessage)
	text, _ := io.ReadAll(io.NewSectionReader(log, begin, info.Size()-begin))
	return string(text)
}
