package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/terrace-dev/terrace/test/harness"
)

// module has 20 resources of the built-in provider.
const module = `
resource "terraform_data" "a" {
  count = 20
  input = "value ${count.index}"
}
output "first" { value = terraform_data.a[0].output }
`

// raw are the times of the tool alone, with the same backend and arguments.
type raw struct{ init, plan, show, apply, again []time.Duration }

// realTool compares the controller with the tool on the same module, turn by turn.
func realTool(ctx context.Context, l *lab, runs int) ([]figure, error) {
	tofu, err := harness.Bin("tofu")
	if err != nil {
		return nil, err
	}
	s, err := l.newSite(ctx, "bench-real", tofu)
	if err != nil {
		return nil, err
	}
	var r raw
	var first, again []time.Duration
	var counts [6]int // processes, manager and runner writes of the first apply and of unchanged cycles
	for i := range runs {
		if err := r.measure(ctx, l, tofu, i); err != nil {
			return nil, err
		}
		name := fmt.Sprintf("o%d", i)
		took, err := s.await(ctx, []string{name}, isReady, func() error { return s.client.Create(ctx, s.object(name, module)) })
		if err != nil {
			return nil, err
		}
		first = append(first, took)
		if err := s.count(counts[:3]); err != nil {
			return nil, err
		}
		for range 3 {
			if took, err = s.request(ctx, []string{name}); err != nil {
				return nil, err
			}
			again = append(again, took)
			if err := s.count(counts[3:]); err != nil {
				return nil, err
			}
		}
	}
	cycles, err := s.cycles()
	if err != nil {
		return nil, err
	}
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	rawFirst, rawAgain := median(r.init)+median(r.plan)+median(r.show)+median(r.apply), median(r.again)
	per := func(count, n int) float64 { return float64(count) / float64(n) }
	return []figure{
		{Name: "raw tool: init + plan + show + apply", Value: ms(rawFirst), Unit: "ms", Note: "20 resources, kubernetes backend"},
		{Name: "raw tool: plan, unchanged", Value: ms(rawAgain), Unit: "ms"},
		{Name: "first apply: created to Ready", Value: ms(median(first)), Unit: "ms"},
		{Name: "  over the raw tool", Value: float64(median(first)) / float64(rawFirst), Unit: "x"},
		{Name: "warm unchanged cycle: request to handled", Value: ms(median(again)), Unit: "ms"},
		{Name: "  over the raw plan", Value: float64(median(again)) / float64(rawAgain), Unit: "x", Note: "two API writes among it: the request and the answer"},
		{Name: "warm unchanged cycle itself, as on interval", Value: ms(median(cycles)), Unit: "ms"},
		{Name: "  over the raw plan", Value: float64(median(cycles)) / float64(rawAgain), Unit: "x", Goal: 1.3},
		{Name: "tool processes: first apply", Value: per(counts[0], len(first)), Goal: 4},
		{Name: "tool processes: unchanged cycle", Value: per(counts[3], len(again)), Goal: 1},
		{Name: "writes of the manager: first apply", Value: per(counts[1], len(first)), Goal: 8},
		{Name: "writes of the manager: requested unchanged cycle", Value: per(counts[4], len(again)), Goal: 2},
		{Name: "writes of runner and tool: first apply", Value: per(counts[2], len(first)), Note: "the tool's lock and state among them"},
		{Name: "writes of runner and tool: unchanged cycle", Value: per(counts[5], len(again)), Goal: 2, Note: "the tool's lock"},
	}, s.manager.Stop()
}

// count adds processes, manager writes and runner writes since the last call.
func (s *site) count(sums []int) error {
	processes, err := s.processes()
	if err != nil {
		return err
	}
	manager, runner, err := s.writes()
	sums[0], sums[1], sums[2] = sums[0]+processes, sums[1]+manager, sums[2]+runner
	return err
}

// measure runs the tool by hand once.
func (r *raw) measure(ctx context.Context, l *lab, tofu string, turn int) error {
	dir := filepath.Join(l.dir, fmt.Sprintf("raw%d", turn))
	backend := fmt.Sprintf(`terraform {
  backend "kubernetes" {
    namespace     = "default"
    secret_suffix = "raw%d"
  }
}
`, turn)
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "main.tf"), []byte(backend+module), 0o600)); err != nil {
		return err
	}
	tool := func(into *[]time.Duration, args ...string) error {
		cmd := exec.CommandContext(ctx, tofu, args...)
		cmd.Dir = dir
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + l.dir, "KUBE_CONFIG_PATH=" + l.plane.Kubeconfig, "CHECKPOINT_DISABLE=1", "TF_IN_AUTOMATION=1"}
		took, err := timed(cmd)
		*into = append(*into, took)
		return err
	}
	plan := []string{"plan", "-json", "-input=false", "-detailed-exitcode", "-out=plan"}
	errs := errors.Join(
		tool(&r.init, "init", "-json", "-input=false"),
		tool(&r.plan, plan...),
		tool(&r.show, "show", "-json", "plan"),
		tool(&r.apply, "apply", "-json", "-input=false", "plan"))
	for range 3 {
		errs = errors.Join(errs, tool(&r.again, plan...))
	}
	return errs
}

// stubTool measures everything but the tool, with many objects.
func stubTool(ctx context.Context, l *lab, objects int) ([]figure, error) {
	stub := filepath.Join(l.dir, "stub")
	build := exec.CommandContext(ctx, "go", "build", "-o", stub, "github.com/terrace-dev/terrace/test/bench/stub")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building the stub tool: %w\n%s", err, out)
	}
	s, err := l.newSite(ctx, "bench-stub", stub)
	if err != nil {
		return nil, err
	}
	var names []string
	for i := range objects {
		names = append(names, fmt.Sprintf("o%d", i))
	}
	first, err := s.await(ctx, names, isReady, func() error {
		for _, name := range names {
			if err := s.client.Create(ctx, s.object(name, module)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var counts [6]int
	if err := s.count(counts[:3]); err != nil {
		return nil, err
	}
	before, err := s.cpu()
	if err != nil {
		return nil, err
	}
	sweep, err := s.request(ctx, names)
	if err != nil {
		return nil, err
	}
	after, err := s.cpu()
	if err != nil {
		return nil, err
	}
	if err := s.count(counts[3:]); err != nil {
		return nil, err
	}
	rss, err := s.memory()
	if err != nil {
		return nil, err
	}
	n := float64(objects)
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) / n }
	note := fmt.Sprintf("%d objects, stub tool", objects)
	return []figure{
		{Name: "stub: first applies, wall time per object", Value: ms(first), Unit: "ms", Note: note},
		{Name: "stub: unchanged sweep, wall time per object", Value: ms(sweep), Unit: "ms", Note: note},
		{Name: "stub: unchanged sweep, CPU of manager and runner per object", Value: ms(after - before), Unit: "ms", Note: note},
		{Name: "stub: tool processes per first apply", Value: float64(counts[0]) / n, Goal: 4, Note: "the stub's outputs are read at once"},
		{Name: "stub: tool processes per unchanged cycle", Value: float64(counts[3]) / n, Goal: 1},
		{Name: "stub: writes of the manager per first apply", Value: float64(counts[1]) / n, Goal: 8},
		{Name: "stub: writes of the manager per requested cycle", Value: float64(counts[4]) / n, Goal: 2},
		{Name: "manager's memory after it, embedded runner included", Value: rss, Unit: "MiB", Note: note},
	}, s.manager.Stop()
}
