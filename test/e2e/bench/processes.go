//go:build linux

package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/test/bench/measure"
	"github.com/terrace-dev/terrace/test/harness"
)

// counter stands before the tool on the PATH and leaves a line for each process.
const counter = `#!/bin/sh
[ "$1" = version ] || echo "$1" >>/tmp/calls
exec /usr/local/bin/tofu "$@"
`

// counted gives a runner's pod the ConfigMap counter.
const counted = `{
  "containers": [{
    "name": "runner",
    "env": [{"name": "PATH", "value": "/counter:/usr/local/bin:/usr/bin:/bin"}],
    "volumeMounts": [{"name": "counter", "mountPath": "/counter"}]
  }],
  "volumes": [{"name": "counter", "configMap": {"name": "counter", "defaultMode": 365}}]
}`

// processes counts those of the tool, and what cycles write that nobody asked for. No
// times are taken here.
func processes(ctx context.Context, l *lab, _ *sizes) ([]measure.Figure, error) {
	namespace, err := l.open(ctx, "processes")
	if err != nil {
		return nil, err
	}
	program := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "counter"}, Data: map[string]string{"tofu": counter}}
	if err := l.Client.Create(ctx, program); err != nil {
		return nil, err
	}
	o := measure.Object(client.ObjectKey{Namespace: namespace, Name: "counted"}, measure.Module)
	o.Spec.Runner.Template = &infrav1.PodTemplate{Spec: &apiextensionsv1.JSON{Raw: []byte(counted)}}
	if _, err := l.Create(ctx, o); err != nil {
		return nil, err
	}
	first, err := l.calls(ctx, namespace)
	if err != nil {
		return nil, err
	}
	if _, err := l.Request(ctx, client.ObjectKeyFromObject(o)); err != nil {
		return nil, err
	}
	again, err := l.calls(ctx, namespace)
	if err != nil {
		return nil, err
	}
	cycles, writes, err := l.onInterval(ctx, o)
	if err != nil {
		return nil, err
	}
	note := fmt.Sprintf("in %d cycles", cycles)
	return []measure.Figure{
		{Name: "tool processes: first apply", Value: float64(first), Peer: "6", Goal: 4},
		{Name: "tool processes: unchanged cycle", Value: float64(again - first), Peer: "4", Goal: 1},
		{Name: "writes: unchanged cycle on interval, by the manager", Value: float64(writes.manager) / float64(cycles), Note: "the goal is none; " + note},
		{Name: "writes: unchanged cycle on interval, by runner and tool", Value: float64(writes.runner) / float64(cycles), Goal: 2, Note: note},
	}, nil
}

// calls returns how many processes of the tool the counter saw in a namespace.
func (l *lab) calls(ctx context.Context, namespace string) (int, error) {
	runner, err := l.runner(ctx, namespace)
	if err != nil {
		return 0, err
	}
	out, err := l.exec(ctx, runner, "wc -l </tmp/calls")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(out))
}

// onInterval has an object checked every two seconds for some time, and returns how
// often it was, and what was written meanwhile.
func (l *lab) onInterval(ctx context.Context, o *infrav1.Terraform) (cycles int, writes counts, err error) {
	const enough = 3
	interval := func(d time.Duration) error {
		patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"interval":%q}}`, d))
		_, err := l.Await(ctx, []client.ObjectKey{client.ObjectKeyFromObject(o)}, harness.IsReady, func() error { return l.Client.Patch(ctx, o, patch) })
		return err
	}
	if err := interval(2 * time.Second); err != nil {
		return 0, writes, err
	}
	// The first one also puts into the status that the object as changed was checked.
	before, first := 0, counts{}
	for range 2 {
		before, err = l.after(ctx, o.Namespace, before, &first)
		if err != nil {
			return 0, writes, err
		}
	}
	now := before
	for now < before+enough {
		if now, err = l.after(ctx, o.Namespace, now, &writes); err != nil {
			return 0, writes, err
		}
	}
	cycles = now - before
	return cycles, writes, interval(time.Hour)
}

// after returns calls between two cycles, when there are more than before and nothing
// is written and no process begins. It counts what was written until then.
func (l *lab) after(ctx context.Context, namespace string, before int, writes *counts) (calls int, err error) {
	last, lastWrites := -1, counts{}
	err = until(ctx, "a pause between cycles", func(ctx context.Context) (bool, error) {
		if calls, err = l.calls(ctx, namespace); err != nil {
			return false, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(400 * time.Millisecond):
		}
		if err := l.count(writes); err != nil {
			return false, err
		}
		quiet := calls > before && calls == last && *writes == lastWrites
		last, lastWrites = calls, *writes
		return quiet, nil
	})
	return calls, err
}
