package kubelet

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// pod plays one pod, from the first sight of its object until that is gone. All
// it does it does in one goroutine: step looks at what is and does what can be done
// now, and is called again when something happened.
type pod struct {
	k               *Kubelet
	namespace, name string
	uid             types.UID
	serial          int
	ctx             context.Context // ends when the object is gone or the kubelet stops
	cancel          context.CancelFunc
	latest          atomic.Pointer[corev1.Pod]
	vanished        atomic.Bool
	wake            chan struct{}
	commands        chan func()
	done            chan struct{} // closed when everything of it is gone

	// The goroutine's own.
	object        *corev1.Pod       // as it was at the beginning of the step
	status        *corev1.PodStatus // as it should be; nil until it is bound
	published     *corev1.PodStatus // as the API server has it
	bound         bool
	unschedulable string
	dir           string
	ready         map[string]bool // volumes
	kubeconfig    string          // with the pod's token, if it has one
	ip            string
	releaseIP     func()
	containers    []*container
	eviction      *string   // its message
	ending        time.Time // when SIGTERM was sent
	removed       bool
}

func newPod(k *Kubelet, object *corev1.Pod, dir string) *pod {
	p := &pod{
		k: k, namespace: object.Namespace, name: object.Name, uid: object.UID, serial: k.serial, dir: dir,
		wake: make(chan struct{}, 1), commands: make(chan func()), done: make(chan struct{}), ready: map[string]bool{},
		releaseIP: func() {},
	}
	p.ctx, p.cancel = context.WithCancel(k.ctx)
	p.latest.Store(object)
	return p
}

// poke has the pod look again.
func (p *pod) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *pod) observe(object *corev1.Pod) {
	p.latest.Store(object)
	p.poke()
}

func (p *pod) vanish() {
	p.vanished.Store(true)
	p.cancel()
}

func (p *pod) logf(format string, args ...any) {
	p.k.logf("%s/%s: "+format, append([]any{p.namespace, p.name}, args...)...)
}

func (p *pod) run() {
	defer p.conclude()
	for p.ctx.Err() == nil {
		var timer <-chan time.Time
		if again := p.step(); again > 0 {
			timer = time.After(again)
		}
		select {
		case <-p.ctx.Done():
		case <-p.wake:
		case do := <-p.commands:
			do()
		case <-timer:
		}
	}
}

// conclude leaves nothing of the pod behind.
func (p *pod) conclude() {
	p.kill()
	for _, c := range p.containers {
		if c.process != nil {
			<-c.process.done
		}
	}
	p.tearDown()
	p.cancel()
	p.k.mu.Lock()
	delete(p.k.pods, p.uid)
	p.k.mu.Unlock()
	if p.vanished.Load() {
		p.logf("gone")
		p.k.collect(p.namespace, p.name, p.uid)
	}
	close(p.done)
}

// step does what can be done now. It is called again when something happens, and
// after the time that it returns, unless that is zero.
func (p *pod) step() (again time.Duration) {
	p.object = p.latest.Load()
	if p.object.Spec.NodeName == "" {
		return p.schedule()
	}
	if p.object.Spec.NodeName != NodeName {
		return 0
	}
	if p.status == nil {
		p.admit()
	}
	p.reap()
	switch {
	case p.finished():
	case p.object.DeletionTimestamp != nil:
		again = p.end(seconds(p.object.DeletionGracePeriodSeconds))
	case p.eviction != nil:
		again = p.end(min(p.k.options.EvictionGrace, seconds(p.object.Spec.TerminationGracePeriodSeconds)))
	default:
		again = p.advance()
	}
	p.summarize()
	if err := p.publish(); err != nil {
		p.logf("writing its status: %v", err)
		again = retryInterval
	}
	if p.finished() {
		p.tearDown()
		if p.object.DeletionTimestamp != nil {
			return p.remove()
		}
	}
	return again
}

func seconds(n *int64) time.Duration {
	if n == nil {
		return 0
	}
	return time.Duration(*n) * time.Second
}

// schedule binds the pod to the node, or says why not.
func (p *pod) schedule() (again time.Duration) {
	spec := &p.object.Spec
	if p.bound || len(spec.SchedulingGates) > 0 || spec.SchedulerName != corev1.DefaultSchedulerName || p.object.DeletionTimestamp != nil {
		return 0
	}
	message := p.k.unfit(p.object)
	var err error
	switch {
	case message == "":
		err = p.k.client.CoreV1().Pods(p.namespace).Bind(p.ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: p.name, UID: p.uid},
			Target:     corev1.ObjectReference{Kind: "Node", Name: NodeName},
		}, metav1.CreateOptions{})
		p.bound = err == nil
	case message != p.unschedulable:
		status := p.object.Status.DeepCopy()
		setCondition(status, corev1.PodScheduled, corev1.ConditionFalse, corev1.PodReasonUnschedulable, message)
		if err = p.patch(status); err == nil {
			p.unschedulable = message
		}
	}
	if err != nil && !isMoot(err) {
		p.logf("scheduling: %v", err)
		return retryInterval
	}
	return 0
}

// isMoot says whether an error means that the object is gone, or another's, or
// that this is the end: nothing to be done about it here.
func isMoot(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsConflict(err) || errors.Is(err, context.Canceled)
}

// admit prepares for a pod that is bound. One that ran already, under an earlier
// kubelet, starts again.
func (p *pod) admit() {
	p.status = p.object.Status.DeepCopy()
	p.published = p.object.Status.DeepCopy()
	if p.finished() {
		return
	}
	p.status.HostIP = "127.0.0.1"
	p.status.HostIPs = []corev1.HostIP{{IP: p.status.HostIP}}
	if p.status.StartTime == nil {
		p.status.StartTime = new(metav1.NewTime(now()))
	}
	for i := range p.object.Spec.Containers {
		p.containers = append(p.containers, newContainer(p, &p.object.Spec.Containers[i]))
	}
}

// advance brings up what is not up.
func (p *pod) advance() (again time.Duration) {
	if err := p.mount(); err != nil {
		return retryInterval // as a kubelet does, it stays in ContainerCreating
	}
	if p.k.isHeld(p.namespace) && !slices.ContainsFunc(p.containers, func(c *container) bool { return c.begun }) {
		return 0
	}
	if p.ip == "" {
		ip, release, err := p.k.addresses.take()
		if err != nil {
			p.logf("%v", err)
			return retryInterval
		}
		p.ip, p.releaseIP = ip, sync.OnceFunc(release)
	}
	for _, c := range p.containers {
		if wait := c.advance(); wait > 0 && (again == 0 || wait < again) {
			again = wait
		}
	}
	return again
}

// reap takes note of containers that ended.
func (p *pod) reap() {
	for _, c := range p.containers {
		if c.process == nil {
			continue
		}
		select {
		case <-c.process.done:
			c.ended(p.object.DeletionTimestamp == nil && p.eviction == nil)
		default:
		}
	}
}

// end asks the containers to end and, when their time is over, ends them.
func (p *pod) end(grace time.Duration) (again time.Duration) {
	if p.ending.IsZero() {
		p.ending = time.Now()
		for _, c := range p.containers {
			c.abandon()
			if c.process != nil {
				p.logf("SIGTERM, %v to end", grace)
				c.process.terminate()
			}
		}
	}
	left := time.Until(p.ending.Add(grace))
	if left <= 0 {
		p.kill()
		return 0
	}
	return left
}

func (p *pod) kill() {
	for _, c := range p.containers {
		if c.process != nil {
			c.process.killedFor("")
		}
	}
}

// tearDown removes what the pod had on the node.
func (p *pod) tearDown() {
	p.releaseIP()
	if err := os.RemoveAll(p.dir); err != nil {
		p.logf("%v", err)
	}
}

// remove removes the object of a pod that ended.
func (p *pod) remove() (again time.Duration) {
	if p.removed {
		return 0
	}
	err := p.k.client.CoreV1().Pods(p.namespace).Delete(p.ctx, p.name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64(0)), Preconditions: &metav1.Preconditions{UID: &p.uid},
	})
	if err != nil && !isMoot(err) {
		p.logf("removing its object: %v", err)
		return retryInterval
	}
	p.removed = true
	return 0
}

// containerID is unique among all containers of the pod.
func (p *pod) containerID(c *container) string {
	return "process://" + string(p.uid) + "-" + c.spec.Name + "-" + strconv.Itoa(int(c.status.RestartCount))
}
