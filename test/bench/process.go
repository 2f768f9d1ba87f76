package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// cpu is the processor time that a process used itself, without its children.
func cpu(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	user, err1 := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	const tick = 10 * time.Millisecond // USER_HZ is 100 on Linux
	return time.Duration(user+system) * tick, errors.Join(err1, err2)
}

// runners are the process ids of the runner pods of a namespace.
func (l *lab) runners(ctx context.Context, namespace string) (pids []int, err error) {
	pods := &corev1.PodList{}
	if err := l.Client.List(ctx, pods, client.InNamespace(namespace), client.MatchingLabels{"app.kubernetes.io/component": "runner"}); err != nil {
		return nil, err
	}
	for i := range pods.Items {
		pid, err := l.kubelet.PID(namespace, pods.Items[i].Name)
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	if len(pids) == 0 {
		return nil, fmt.Errorf("namespace %s has no runner", namespace)
	}
	return pids, nil
}
