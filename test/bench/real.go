package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terrace-dev/terrace/test/bench/measure"
	"github.com/terrace-dev/terrace/test/harness"
)

// warmCycles is how often an object is asked for an unchanged cycle.
const warmCycles = 3

// samples are what the turns with the real tool measured. Cold objects are the
// first of their namespace, so that they need a pod; for warm ones it is there.
type samples struct {
	init, plan, show, apply, replan []time.Duration // the tool alone
	cold, warm, cycle               []time.Duration
	ofCold, ofWarm, ofCycle         counts
}

// realTool compares the operator with the tool on the same module, turn by turn.
func realTool(ctx context.Context, l *lab, n *sizes) ([]measure.Figure, error) {
	if err := l.start(ctx, realImage); err != nil {
		return nil, err
	}
	var s samples
	for i := range n.runs {
		if err := errors.Join(s.tool(ctx, l, i), s.turn(ctx, l, realNamespace(i))); err != nil {
			return nil, err
		}
	}
	cycles, err := l.cycles()
	if err != nil {
		return nil, err
	}
	starts, err := l.starts()
	if err != nil {
		return nil, err
	}
	interval, err := l.onInterval(ctx)
	if err != nil {
		return nil, err
	}
	pids, err := l.runners(ctx, realNamespace(0))
	if err != nil {
		return nil, err
	}
	idle, err := measure.Settled(ctx, pids[0])
	if err != nil {
		return nil, err
	}
	rawFirst, rawAgain := measure.Median(s.init)+measure.Median(s.plan)+measure.Median(s.show)+measure.Median(s.apply), measure.Median(s.replan)
	over := func(d, raw time.Duration) float64 { return float64(d) / float64(raw) }
	per := func(count, of int) float64 { return float64(count) / float64(of) }
	return []measure.Figure{
		{Name: "raw tool: init + plan + show + apply", Value: measure.MS(rawFirst), Unit: "ms", Note: "20 resources, kubernetes backend"},
		{Name: "raw tool: plan, unchanged", Value: measure.MS(rawAgain), Unit: "ms"},
		{Name: "first apply in a warm pod: created to Ready", Value: measure.MS(measure.Median(s.warm)), Unit: "ms", Note: measure.Spread(s.warm)},
		{Name: "  over the raw tool", Value: over(measure.Median(s.warm), rawFirst), Unit: "x"},
		{Name: "first apply in a new pod: created to Ready", Value: measure.MS(measure.Median(s.cold)), Unit: "ms", Note: measure.Spread(s.cold)},
		{Name: "  more than in a warm pod", Value: measure.MS(measure.Median(s.cold) - measure.Median(s.warm)), Unit: "ms", Goal: 1000, Note: "what a cold start costs, without scheduler, image and container engine"},
		{Name: "  of it: pod created to its runner's first answer", Value: measure.MS(measure.Median(starts)), Unit: "ms", Note: measure.Spread(starts)},
		{Name: "warm unchanged cycle: request to handled", Value: measure.MS(measure.Median(s.cycle)), Unit: "ms", Note: measure.Spread(s.cycle)},
		{Name: "  over the raw plan", Value: over(measure.Median(s.cycle), rawAgain), Unit: "x", Note: "two API writes among it: the request and the answer"},
		{Name: "warm unchanged cycle itself, as on interval", Value: measure.MS(measure.Median(cycles)), Unit: "ms", Note: measure.Spread(cycles)},
		{Name: "  over the raw plan", Value: over(measure.Median(cycles), rawAgain), Unit: "x", Goal: 1.3},
		{Name: "tool processes: first apply", Value: per(s.ofWarm.processes, n.runs), Goal: 4},
		{Name: "tool processes: unchanged cycle", Value: per(s.ofCycle.processes, len(s.cycle)), Goal: 1},
		{Name: "writes of the manager: first apply, new pod and its Secret among them", Value: per(s.ofCold.manager, n.runs), Goal: 8},
		{Name: "writes of the manager: first apply in a warm pod", Value: per(s.ofWarm.manager, n.runs)},
		{Name: "writes of the manager: requested unchanged cycle", Value: per(s.ofCycle.manager, len(s.cycle)), Goal: 2},
		{Name: "writes of the manager: unchanged cycle on interval", Value: per(interval.manager, interval.processes), Note: fmt.Sprintf("the goal is none; %d cycles", interval.processes)},
		{Name: "writes of runner and tool: first apply", Value: per(s.ofCold.runner, n.runs), Goal: 10, Note: "the tool's lock and state among them"},
		{Name: "writes of runner and tool: unchanged cycle", Value: per(s.ofCycle.runner, len(s.cycle)), Goal: 2, Note: "the tool's lock"},
		{Name: "memory of an idle runner", Value: idle.Resident, Unit: "MiB", Goal: 25, Note: idle.Note()},
	}, nil
}

func realNamespace(turn int) string { return fmt.Sprintf("bench-real-%d", turn) }

// turn measures an object in a new pod, one in the pod that is there then, and
// unchanged cycles of the latter.
func (s *samples) turn(ctx context.Context, l *lab, namespace string) error {
	if err := l.Open(ctx, namespace, nil); err != nil {
		return err
	}
	step := func(times *[]time.Duration, of *counts, do func() (time.Duration, error)) error {
		if _, err := l.count(); err != nil { // what belongs to nobody
			return err
		}
		took, err := do()
		if err != nil {
			return err
		}
		*times = append(*times, took)
		c, err := l.count()
		of.add(c)
		return err
	}
	cold, warm := client.ObjectKey{Namespace: namespace, Name: namespace + "-cold"}, client.ObjectKey{Namespace: namespace, Name: namespace + "-warm"}
	if err := step(&s.cold, &s.ofCold, func() (time.Duration, error) { return l.Create(ctx, measure.Object(cold, measure.Module)) }); err != nil {
		return err
	}
	if err := step(&s.warm, &s.ofWarm, func() (time.Duration, error) { return l.Create(ctx, measure.Object(warm, measure.Module)) }); err != nil {
		return err
	}
	for range warmCycles {
		if err := step(&s.cycle, &s.ofCycle, func() (time.Duration, error) { return l.Request(ctx, warm) }); err != nil {
			return err
		}
	}
	return nil
}

// onInterval counts what unchanged cycles do that nobody asked for.
func (l *lab) onInterval(ctx context.Context) (sum counts, err error) {
	const namespace, cycles = "bench-interval", 3
	if err := l.Open(ctx, namespace, nil); err != nil {
		return sum, err
	}
	o := measure.Object(client.ObjectKey{Namespace: namespace, Name: namespace}, measure.Module)
	o.Spec.Interval.Duration = time.Second
	if _, err := l.Create(ctx, o); err != nil {
		return sum, err
	}
	if _, err := l.count(); err != nil {
		return sum, err
	}
	for sum.processes < cycles {
		select {
		case <-ctx.Done():
			return sum, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
		c, err := l.count()
		if err != nil {
			return sum, err
		}
		sum.add(c)
	}
	o.Spec.Interval = metav1.Duration{Duration: time.Hour}
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"interval":"1h"}}`))
	_, err = l.Await(ctx, []client.ObjectKey{client.ObjectKeyFromObject(o)}, harness.IsReady, func() error { return l.Client.Patch(ctx, o, patch) })
	return sum, err
}

// tool runs the tool by hand once.
func (s *samples) tool(ctx context.Context, l *lab, turn int) error {
	dir := filepath.Join(l.dir, fmt.Sprintf("raw%d", turn))
	backend := fmt.Sprintf(`terraform {
  backend "kubernetes" {
    namespace     = "default"
    secret_suffix = "raw%d"
  }
}
`, turn)
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "main.tf"), []byte(backend+measure.Module), 0o600)); err != nil {
		return err
	}
	run := func(into *[]time.Duration, args ...string) error {
		cmd := exec.CommandContext(ctx, l.tofu, args...)
		cmd.Dir = dir
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + l.dir, "KUBE_CONFIG_PATH=" + l.plane.Kubeconfig, "CHECKPOINT_DISABLE=1", "TF_IN_AUTOMATION=1"}
		took, err := timed(cmd)
		*into = append(*into, took)
		return err
	}
	plan := []string{"plan", "-json", "-input=false", "-detailed-exitcode", "-out=plan"}
	errs := errors.Join(
		run(&s.init, "init", "-json", "-input=false"),
		run(&s.plan, plan...),
		run(&s.show, "show", "-json", "plan"),
		run(&s.apply, "apply", "-json", "-input=false", "plan"))
	for range warmCycles {
		errs = errors.Join(errs, run(&s.replan, plan...))
	}
	return errs
}

// timed runs a program and says how long it took; an exit code of 2 says that a plan has changes.
func timed(cmd *exec.Cmd) (time.Duration, error) {
	began := time.Now()
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !(errors.As(err, &exit) && exit.ExitCode() == 2) {
		return 0, fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return time.Since(began), nil
}
