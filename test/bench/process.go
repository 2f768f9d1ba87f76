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

// memory is what a process has in main memory, in MiB: all of it, and without what
// it shares with its file.
type memory struct{ resident, anonymous, peak float64 }

func memoryOf(pid int) (m memory, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return m, err
	}
	for name, value := range map[string]*float64{"VmRSS:": &m.resident, "RssAnon:": &m.anonymous, "VmHWM:": &m.peak} {
		_, rest, found := strings.Cut(string(text), name)
		if !found {
			return m, fmt.Errorf("process %d has no %s", pid, name)
		}
		kib, err := strconv.Atoi(strings.Fields(rest)[0])
		if err != nil {
			return m, err
		}
		*value = float64(kib) / 1024
	}
	return m, nil
}

// settled is the memory of a process once it has changed by no more than half a MiB
// for ten seconds, or after a minute.
func settled(ctx context.Context, pid int) (m memory, err error) {
	var since, began = time.Now(), time.Now()
	var level float64
	for time.Since(since) < 10*time.Second && time.Since(began) < time.Minute {
		if m, err = memoryOf(pid); err != nil {
			return m, err
		}
		if m.resident > level+0.5 || m.resident < level-0.5 {
			since, level = time.Now(), m.resident
		}
		select {
		case <-ctx.Done():
			return m, ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
	return m, nil
}

func (m memory) note() string {
	return fmt.Sprintf("%.3g anonymous; %.3g at its peak", m.anonymous, m.peak)
}

// runners are the process ids of the runner pods of a namespace.
func (l *lab) runners(ctx context.Context, namespace string) (pids []int, err error) {
	pods := &corev1.PodList{}
	if err := l.client.List(ctx, pods, client.InNamespace(namespace), client.MatchingLabels{"app.kubernetes.io/component": "runner"}); err != nil {
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
