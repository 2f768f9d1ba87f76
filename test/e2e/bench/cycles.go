//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terrace-dev/terrace/test/bench/measure"
	"github.com/terrace-dev/terrace/test/controlplane"
)

// warmCycles is how often an object is asked for an unchanged cycle.
const warmCycles = 3

// samples are what the turns measured. Cold objects are the first of their namespace,
// so that they need a pod; for warm ones it is there. Raw is the tool in the same pod.
type samples struct {
	rawFirst, rawPlan []time.Duration
	cold, warm, cycle []time.Duration
	pod               []time.Duration // until the kubelet says that it runs
	more              []time.Duration // a cold object takes than raw tool and pod
	ofCold, ofCycle   counts
	cpu               struct{ raw, runner, manager time.Duration }
}

// counts are requests that change something.
type counts struct{ manager, runner int }

func (l *lab) count(into *counts) error {
	manager, runner, err := l.audit.Writes()
	into.manager, into.runner = into.manager+manager, into.runner+runner
	return err
}

// countRest counts what the manager does in the background, its events, until there
// was nothing more for a second.
func (l *lab) countRest(ctx context.Context, into *counts) error {
	for last := time.Now(); time.Since(last) < time.Second; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
		before := *into
		if err := l.count(into); err != nil {
			return err
		}
		if *into != before {
			last = time.Now()
		}
	}
	return nil
}

// cycles compares the operator with the tool on the same module, turn by turn.
func cycles(ctx context.Context, l *lab, n *sizes) ([]measure.Figure, error) {
	var s samples
	var namespace string
	for i := range n.runs {
		var err error
		if namespace, err = l.open(ctx, fmt.Sprintf("cycles-%d", i)); err != nil {
			return nil, err
		}
		if err := s.turn(ctx, l, namespace); err != nil {
			return nil, err
		}
	}
	events, err := controlplane.ReadAuditLog(l.audit.Path)
	if err != nil {
		return nil, err
	}
	answers, err := l.answers(ctx, events)
	if err != nil {
		return nil, err
	}
	inside, err := l.inside(events)
	if err != nil {
		return nil, err
	}
	manager, err := l.manager(ctx)
	if err != nil {
		return nil, err
	}
	after, err := measure.MemoryOf(manager.pid)
	if err != nil {
		return nil, err
	}
	runner, err := l.runner(ctx, namespace)
	if err != nil {
		return nil, err
	}
	idle, err := measure.Settled(ctx, runner.pid)
	if err != nil {
		return nil, err
	}
	figures := s.figures(n, answers, inside)
	return append(figures,
		measure.Figure{Name: "memory of the manager after this", Value: after.Resident, Unit: "MiB", Peer: "59", Goal: 50, Note: after.Note()},
		measure.Figure{Name: "memory of an idle warm runner", Value: idle.Resident, Unit: "MiB", Peer: "41", Goal: 25, Note: idle.Note()},
	), nil
}

func (s *samples) figures(n *sizes, answers, inside []time.Duration) []measure.Figure {
	first, plan := measure.Median(s.rawFirst), measure.Median(s.rawPlan)
	cold, cycle := measure.Median(s.cold), measure.Median(s.cycle)
	each := func(d time.Duration) float64 { return d.Seconds() / float64(len(s.cycle)) }
	per := func(count, of int) float64 { return float64(count) / float64(of) }
	return []measure.Figure{
		{Name: "raw tool in a runner's pod: init, plan, show, apply", Value: first.Seconds(), Unit: "s", Peer: "0.69", Note: "the peer's without show; ms: " + measure.Spread(s.rawFirst)},
		{Name: "raw tool in a runner's pod: plan, unchanged", Value: plan.Seconds(), Unit: "s", Peer: "0.24", Note: "ms: " + measure.Spread(s.rawPlan)},
		{Name: "first apply in a new pod: created to Ready", Value: cold.Seconds(), Unit: "s", Peer: "3.77", Goal: 2.3, Note: "ms: " + measure.Spread(s.cold)},
		{Name: "  over the raw tool", Value: cold.Seconds() / first.Seconds(), Unit: "x", Peer: "5.5"},
		{Name: "  until the pod runs", Value: measure.Median(s.pod).Seconds(), Unit: "s", Peer: "1.05", Note: "scheduler, kubelet and container engine; ms: " + measure.Spread(s.pod)},
		{Name: "  until its runner answers", Value: measure.Median(answers).Seconds(), Unit: "s", Note: "from the pod's creation; ms: " + measure.Spread(answers)},
		{Name: "  more than raw tool and pod", Value: measure.Median(s.more).Seconds(), Unit: "s", Peer: "2.03", Goal: 0.5, Note: "ms: " + measure.Spread(s.more)},
		{Name: "first apply in a warm pod: created to Ready", Value: measure.Median(s.warm).Seconds(), Unit: "s", Note: "ms: " + measure.Spread(s.warm)},
		{Name: "warm unchanged cycle: request to handled and Ready", Value: cycle.Seconds(), Unit: "s", Peer: "0.90", Goal: 0.32, Note: "ms: " + measure.Spread(s.cycle)},
		{Name: "  over the raw plan", Value: cycle.Seconds() / plan.Seconds(), Unit: "x", Peer: "3.75", Goal: 1.3, Note: "two API writes among it: the request and the answer"},
		{Name: "  between the two writes, as on interval", Value: measure.Median(inside).Seconds(), Unit: "s", Note: "ms: " + measure.Spread(inside)},
		{Name: "  over the raw plan", Value: measure.Median(inside).Seconds() / plan.Seconds(), Unit: "x", Goal: 1.3},
		{Name: "  processor time of runner and tool", Value: each(s.cpu.runner), Unit: "s", Peer: "0.99"},
		{Name: "  of it more than the raw plan", Value: each(s.cpu.runner - s.cpu.raw), Unit: "s", Goal: 0.05},
		{Name: "  processor time of the manager", Value: each(s.cpu.manager), Unit: "s", Peer: "0.06"},
		{Name: "writes: first apply, by the manager", Value: per(s.ofCold.manager, n.runs), Peer: "22 to 23", Goal: 8},
		{Name: "writes: first apply, by runner and tool", Value: per(s.ofCold.runner, n.runs), Peer: "10", Goal: 10},
		{Name: "writes: requested unchanged cycle, by the manager", Value: per(s.ofCycle.manager, len(s.cycle)), Peer: "9", Goal: 2},
		{Name: "writes: requested unchanged cycle, by runner and tool", Value: per(s.ofCycle.runner, len(s.cycle)), Peer: "2", Goal: 2},
	}
}

// turn measures an object in a new pod, one in the pod that is there then, and
// unchanged cycles and the tool alone by turns.
func (s *samples) turn(ctx context.Context, l *lab, namespace string) error {
	if err := l.count(&counts{}); err != nil { // what belongs to nobody
		return err
	}
	pod, err := l.podRuns(ctx, namespace)
	if err != nil {
		return err
	}
	cold, err := l.Create(ctx, measure.Object(client.ObjectKey{Namespace: namespace, Name: "cold"}, measure.Module))
	if err != nil {
		return err
	}
	if err := l.countRest(ctx, &s.ofCold); err != nil {
		return err
	}
	runner, err := l.runner(ctx, namespace)
	if err != nil {
		return err
	}
	raw, err := l.raw(ctx, runner, "init -json -input=false", rawPlan, "show -json plan", "apply -json -input=false plan")
	if err != nil {
		return err
	}
	key := client.ObjectKey{Namespace: namespace, Name: "warm"}
	warm, err := l.Create(ctx, measure.Object(key, measure.Module))
	if err != nil {
		return err
	}
	if err := l.countRest(ctx, &counts{}); err != nil {
		return err
	}
	first, took := raw[0]+raw[1]+raw[2]+raw[3], <-pod
	s.cold, s.warm, s.rawFirst = append(s.cold, cold), append(s.warm, warm), append(s.rawFirst, first)
	s.pod, s.more = append(s.pod, took), append(s.more, cold-first-took)
	for range warmCycles {
		if err := s.again(ctx, l, runner, key); err != nil {
			return err
		}
	}
	var events counts
	err = l.countRest(ctx, &events)
	s.ofCycle.manager += events.manager
	return err
}

// again measures an unchanged cycle, and then an unchanged plan of the tool alone.
func (s *samples) again(ctx context.Context, l *lab, runner *container, key client.ObjectKey) error {
	manager, err := l.manager(ctx)
	if err != nil {
		return err
	}
	managerBefore, err1 := manager.cpu()
	before, err2 := runner.cpu()
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	took, err := l.Request(ctx, key)
	if err != nil {
		return err
	}
	between, err1 := runner.cpu()
	managerAfter, err2 := manager.cpu()
	if err := errors.Join(err1, err2, l.count(&s.ofCycle)); err != nil {
		return err
	}
	raw, err := l.raw(ctx, runner, rawPlan)
	if err != nil {
		return err
	}
	after, err := runner.cpu()
	if err != nil {
		return err
	}
	s.cycle, s.rawPlan = append(s.cycle, took), append(s.rawPlan, raw[0])
	s.cpu.manager += managerAfter - managerBefore
	s.cpu.runner += between - before
	s.cpu.raw += after - between
	var ofRaw counts
	err = l.count(&ofRaw)
	s.ofCycle.manager += ofRaw.manager // an event that came late
	return err
}

const rawPlan = "plan -json -input=false -detailed-exitcode -out=plan"

// raw runs commands of the tool in a runner's pod, and says how long each took.
func (l *lab) raw(ctx context.Context, runner *container, commands ...string) ([]time.Duration, error) {
	script := `
mkdir -p /tmp/raw
cd /tmp/raw
export CHECKPOINT_DISABLE=1
cat >main.tf <<'END'
terraform {
  backend "kubernetes" {
    in_cluster_config = true
    namespace         = "` + runner.pod.Namespace + `"
    secret_suffix     = "raw"
  }
}
` + measure.Module + `
END
run() {
  begin=$(date +%s%N)
  rc=0; tofu "$@" >log 2>&1 || rc=$?
  end=$(date +%s%N)
  [ $rc = 0 ] || [ $rc = 2 ] || { cat log >&2; exit $rc; } # 2 says that a plan has changes
  echo $((end - begin))
}
`
	out, err := l.exec(ctx, runner, script+"run "+strings.Join(commands, "\nrun "))
	if err != nil {
		return nil, err
	}
	var times []time.Duration
	for line := range strings.FieldsSeq(out) {
		took, err := strconv.ParseInt(line, 10, 64)
		if err != nil {
			return nil, err
		}
		times = append(times, time.Duration(took))
	}
	return times, nil
}

// podRuns returns how long after its creation the first pod of a namespace was seen
// running, once it is.
func (l *lab) podRuns(ctx context.Context, namespace string) (<-chan time.Duration, error) {
	w, err := l.Client.Watch(ctx, &corev1.PodList{}, client.InNamespace(namespace))
	if err != nil {
		return nil, err
	}
	took := make(chan time.Duration, 1)
	go func() {
		defer w.Stop()
		defer close(took)
		var created time.Time
		for event := range w.ResultChan() {
			pod, ok := event.Object.(*corev1.Pod)
			if !ok {
				continue
			}
			if created.IsZero() {
				created = time.Now()
			}
			if pod.Status.Phase == corev1.PodRunning {
				took <- time.Since(created)
				return
			}
		}
	}()
	return took, nil
}
