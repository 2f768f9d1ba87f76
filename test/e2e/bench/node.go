//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terrace-dev/terrace/test/harness"
)

// patience bounds the wait for anything; it is never waited for when all is well.
const patience = 3 * time.Minute

// until returns when the condition holds.
func until(ctx context.Context, what string, condition wait.ConditionWithContextFunc) error {
	if err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, patience, true, condition); err != nil {
		return fmt.Errorf("waiting for %s: %w", what, err)
	}
	return nil
}

// stop ends the manager, and returns when its pod is gone.
func (l *lab) stop(ctx context.Context) error { return l.scale(ctx, 0) }

// start starts the manager, and returns when it is ready.
func (l *lab) start(ctx context.Context) error { return l.scale(ctx, 1) }

func (l *lab) scale(ctx context.Context, replicas int) error {
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: harness.ManagerNamespace, Name: "terrace-manager"}}
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas))
	if err := l.Client.Patch(ctx, deployment, patch); err != nil {
		return err
	}
	return until(ctx, "the manager", func(ctx context.Context) (bool, error) {
		pods, err := l.pods(ctx, harness.ManagerNamespace, "manager")
		if err != nil || len(pods) != replicas {
			return false, err
		}
		for i := range pods {
			if statuses := pods[i].Status.ContainerStatuses; len(statuses) != 1 || !statuses[0].Ready {
				return false, nil
			}
		}
		return true, nil
	})
}

// pods returns ours of a namespace.
func (l *lab) pods(ctx context.Context, namespace, component string) ([]corev1.Pod, error) {
	pods := &corev1.PodList{}
	labels := client.MatchingLabels{"app.kubernetes.io/name": "terrace", "app.kubernetes.io/component": component}
	err := l.Client.List(ctx, pods, client.InNamespace(namespace), labels)
	return pods.Items, err
}

// container is a container of the node, as the node's machine sees it.
type container struct {
	pod   *corev1.Pod
	group string // its control group
	pid   int    // of its first process
}

func (l *lab) manager(ctx context.Context) (*container, error) {
	return l.container(ctx, harness.ManagerNamespace, "manager")
}

func (l *lab) runner(ctx context.Context, namespace string) (*container, error) {
	return l.container(ctx, namespace, "runner")
}

// container finds the container of the only pod.
func (l *lab) container(ctx context.Context, namespace, component string) (*container, error) {
	pods, err := l.pods(ctx, namespace, component)
	if err != nil {
		return nil, err
	}
	if len(pods) != 1 || len(pods[0].Status.ContainerStatuses) != 1 {
		return nil, fmt.Errorf("namespace %s has %d pods of the %s", namespace, len(pods), component)
	}
	_, id, _ := strings.Cut(pods[0].Status.ContainerStatuses[0].ContainerID, "://")
	c := &container{pod: &pods[0]}
	// Control groups of version 1 have a hierarchy for processor time, those of version 2 have one.
	for _, hierarchy := range []string{"/sys/fs/cgroup/cpuacct", "/sys/fs/cgroup"} {
		found, err := filepath.Glob(filepath.Join(hierarchy, "*", "kubepods", "*", "pod"+string(pods[0].UID), id))
		if err != nil {
			return nil, err
		}
		if len(found) == 1 {
			c.group = found[0]
			c.pid, err = harness.ContainerProcess(c.pod)
			return c, err
		}
	}
	return nil, fmt.Errorf("container %s of pod %s has no control group on this machine", id, pods[0].Name)
}

// cpu is the processor time that all processes of the container have used.
func (c *container) cpu() (time.Duration, error) {
	text, err := os.ReadFile(filepath.Join(c.group, "cpuacct.usage"))
	if err == nil {
		used, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		return time.Duration(used), err
	}
	if text, err = os.ReadFile(filepath.Join(c.group, "cpu.stat")); err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), "usage_usec ")
	line, _, _ := strings.Cut(rest, "\n")
	used, err := strconv.ParseInt(line, 10, 64)
	return time.Duration(used) * time.Microsecond, err
}

// kill ends the first process of the container without a warning.
func (c *container) kill() error { return syscall.Kill(c.pid, syscall.SIGKILL) }

// exec runs a script in the container, and returns what it prints.
func (l *lab) exec(ctx context.Context, c *container, script string) (string, error) {
	return l.command(ctx, "exec", "-n", c.pod.Namespace, c.pod.Name, "--", "sh", "-euc", script)
}

// command runs kubectl, and returns what it prints.
func (l *lab) command(ctx context.Context, args ...string) (string, error) {
	kubectl, err := harness.Bin("kubectl")
	if err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, kubectl, append([]string{"--kubeconfig=" + l.kubeconfig}, args...)...).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return "", fmt.Errorf("kubectl %s: %w\n%s%s", args[0], err, out, exit.Stderr)
	}
	return string(out), err
}
