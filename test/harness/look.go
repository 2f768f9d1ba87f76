package harness

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
)

// leaderLease is the Lease by which managers elect a leader.
const leaderLease = "terrace"

// IsReady says whether an object is, as it is specified now.
func IsReady(o *infrav1.Terraform) bool {
	return o.Status.ObservedGeneration == o.Generation && apimeta.IsStatusConditionTrue(o.Status.Conditions, meta.ReadyCondition)
}

// Results are what the history says about operations, such as "Apply Succeeded", the
// oldest first.
func Results(o *infrav1.Terraform) []string {
	var said []string
	for _, entry := range slices.Backward(o.Status.History) {
		said = append(said, string(entry.Type)+" "+string(entry.Result))
	}
	return said
}

// Leader says which manager leads, and since when. Nobody may: then the holder is empty.
func Leader(ctx context.Context, c client.Reader) (since time.Time, holder string, err error) {
	lease := &coordinationv1.Lease{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: ManagerNamespace, Name: leaderLease}, lease); err != nil {
		return since, "", err
	}
	if lease.Spec.HolderIdentity == nil || lease.Spec.AcquireTime == nil {
		return since, "", nil
	}
	return lease.Spec.AcquireTime.Time, *lease.Spec.HolderIdentity, nil
}

// ContainerProcess returns the first process of a pod's only container, which runs on
// this machine. Others of the container may have been born outside, as those of exec.
func ContainerProcess(pod *corev1.Pod) (pid int, err error) {
	if len(pod.Status.ContainerStatuses) != 1 {
		return 0, fmt.Errorf("pod %s has %d containers, want 1", pod.Name, len(pod.Status.ContainerStatuses))
	}
	_, id, found := strings.Cut(pod.Status.ContainerStatuses[0].ContainerID, "://")
	if !found {
		return 0, fmt.Errorf("the container of pod %s was not started", pod.Name)
	}
	groups, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return 0, err
	}
	for _, group := range groups {
		text, err := os.ReadFile(group)
		if err != nil || !strings.Contains(string(text), id) {
			continue // of another container, or it ended
		}
		dir := filepath.Dir(group)
		if status, err := os.ReadFile(filepath.Join(dir, "status")); err == nil && isFirst(string(status)) {
			return strconv.Atoi(filepath.Base(dir))
		}
	}
	return 0, fmt.Errorf("container %s of pod %s has no first process on this machine, which is to be the node", id, pod.Name)
}

// isFirst says of a process's status whether it is the first one of its pid namespace,
// which is not the machine's.
func isFirst(status string) bool {
	_, rest, _ := strings.Cut(status, "\nNSpid:")
	ids, _, _ := strings.Cut(rest, "\n") // one for each namespace, the innermost last
	all := strings.Fields(ids)
	return len(all) > 1 && all[len(all)-1] == "1"
}
