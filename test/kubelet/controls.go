package kubelet

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// rules are the troubles that a test ordered. The kubelet's lock guards them.
type rules struct {
	serial        int
	held          map[int]string // by namespace
	unschedulable map[int]trouble
	images        map[int]trouble
}

// trouble concerns a namespace or an image.
type trouble struct{ what, reason, message string }

func newRules() rules {
	return rules{held: map[int]string{}, unschedulable: map[int]trouble{}, images: map[int]trouble{}}
}

// rule adds a rule and returns what takes it back. Either has the pods look again.
func rule[T any](k *Kubelet, in map[int]T, value T) (undo func()) {
	k.mu.Lock()
	k.rules.serial++
	id := k.rules.serial
	in[id] = value
	k.mu.Unlock()
	k.wakeAll()
	return func() {
		k.mu.Lock()
		delete(in, id)
		k.mu.Unlock()
		k.wakeAll()
	}
}

func (k *Kubelet) wakeAll() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.pods {
		p.poke()
	}
}

// Hold keeps the pods of a namespace ("" is all) that have not started in
// ContainerCreating until release is called.
func (k *Kubelet) Hold(namespace string) (release func()) {
	return rule(k, k.rules.held, namespace)
}

// Unschedulable has the scheduler find no node for new pods of a namespace ("" is
// all) until the function that it returns is called. Pods whose spec.nodeSelector
// does not fit the node have none anyway.
func (k *Kubelet) Unschedulable(namespace, message string) (schedulable func()) {
	return rule(k, k.rules.unschedulable, trouble{what: namespace, message: message})
}

// FailImage has containers that are not started yet fail to pull an image until
// heal is called: for the reason ErrImagePull if it is empty, and ImagePullBackOff
// from then on. Other reasons, such as InvalidImageName, stay.
func (k *Kubelet) FailImage(image, reason, message string) (heal func()) {
	return rule(k, k.rules.images, trouble{image, cmp.Or(reason, errImagePull), message})
}

func (k *Kubelet) isHeld(namespace string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, held := range k.rules.held {
		if held == "" || held == namespace {
			return true
		}
	}
	return false
}

// unfit says why there is no node for a pod.
func (k *Kubelet) unfit(object *corev1.Pod) (message string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, t := range k.rules.unschedulable {
		if t.what == "" || t.what == object.Namespace {
			return t.message
		}
	}
	if !labels.SelectorFromSet(object.Spec.NodeSelector).Matches(nodeLabels) {
		return "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
	}
	return ""
}

// unpullable says why an image cannot be had.
func (k *Kubelet) unpullable(image string) *trouble {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, t := range k.rules.images {
		if t.what == image {
			return &t
		}
	}
	if len(k.options.Programs[image]) == 0 {
		return &trouble{image, errImagePull, fmt.Sprintf("failed to pull image %q: not found", image)}
	}
	return nil
}

// find returns the latest pod of that name.
func (k *Kubelet) find(namespace, name string) (*pod, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var found *pod
	for _, p := range k.pods {
		if p.namespace == namespace && p.name == name && (found == nil || p.serial > found.serial) {
			found = p
		}
	}
	if found == nil {
		return nil, fmt.Errorf("the kubelet has no pod %s/%s", namespace, name)
	}
	return found, nil
}

// on has the pod do something between two steps of its own.
func (k *Kubelet) on(namespace, name string, do func(*pod) error) error {
	p, err := k.find(namespace, name)
	if err != nil {
		return err
	}
	result := make(chan error, 1)
	select {
	case p.commands <- func() { result <- do(p) }:
		return <-result
	case <-p.done:
		return fmt.Errorf("pod %s/%s is gone", namespace, name)
	}
}

// Kill kills the pod's containers as the kernel does when memory runs out, and
// returns when their processes are gone. They are restarted as the pod's policy
// says, and their status says OOMKilled.
func (k *Kubelet) Kill(namespace, name string) error {
	var killed []*process
	err := k.on(namespace, name, func(p *pod) error {
		for _, c := range p.containers {
			if c.process != nil {
				c.process.killedFor(oomKilled)
				killed = append(killed, c.process)
			}
		}
		if len(killed) == 0 {
			return fmt.Errorf("pod %s/%s has no running container", namespace, name)
		}
		return nil
	})
	for _, p := range killed {
		<-p.done
	}
	return err
}

// Evict ends the pod as a node under pressure does: SIGTERM, SIGKILL soon after,
// phase Failed for the reason Evicted. The object stays. It does not wait.
func (k *Kubelet) Evict(namespace, name, message string) error {
	return k.on(namespace, name, func(p *pod) error {
		if p.status == nil || p.finished() {
			return fmt.Errorf("pod %s/%s is not running", namespace, name)
		}
		p.eviction = &message
		return nil
	})
}

// Freeze stops all processes of the pod where they are; its connections stay open
// and nobody answers. Nothing of it shows in the pod's status.
func (k *Kubelet) Freeze(namespace, name string) error {
	return k.signal(namespace, name, syscall.SIGSTOP)
}

// Thaw has them go on.
func (k *Kubelet) Thaw(namespace, name string) error {
	return k.signal(namespace, name, syscall.SIGCONT)
}

func (k *Kubelet) signal(namespace, name string, s syscall.Signal) error {
	return k.on(namespace, name, func(p *pod) error {
		for _, c := range p.containers {
			if c.process != nil {
				c.process.signalAll(s)
			}
		}
		return nil
	})
}

// PID is the process id of the pod's first container.
func (k *Kubelet) PID(namespace, name string) (pid int, err error) {
	err = k.on(namespace, name, func(p *pod) error {
		if len(p.containers) == 0 || p.containers[0].process == nil {
			return fmt.Errorf("pod %s/%s has no running container", namespace, name)
		}
		pid = p.containers[0].process.pid()
		return nil
	})
	return pid, err
}

// Started counts the containers, and their restarts, that the kubelet started for
// a pod; for a namespace if name is empty, and for all if both are. Pods that are
// gone count.
func (k *Kubelet) Started(namespace, name string) (count int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for key, n := range k.started {
		if (namespace == "" || key.Namespace == namespace) && (name == "" || key.Name == name) {
			count += n
		}
	}
	return count
}

func (k *Kubelet) countStart(key types.NamespacedName) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.started[key]++
}

// VolumeDir is where a volume of a pod is on disk, as long as the pod has not ended.
func (k *Kubelet) VolumeDir(namespace, name, volume string) (string, error) {
	p, err := k.find(namespace, name)
	if err != nil {
		return "", err
	}
	return p.volumeDir(volume), nil
}

// PodLog is the path of the file with all that the containers of a pod, and of
// former ones of that name, printed. It stays when the pod goes.
func (k *Kubelet) PodLog(namespace, name string) string {
	return filepath.Join(k.options.Dir, namespace+"_"+name+".log")
}

// LastLog returns the last lines that a pod printed.
func (k *Kubelet) LastLog(namespace, name string) string {
	text, err := os.ReadFile(k.PodLog(namespace, name))
	if err != nil {
		return err.Error()
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-30):], []byte("\n")))
}

// now is what a status says: seconds, as the API has them.
func now() time.Time { return time.Now().Truncate(time.Second) }
