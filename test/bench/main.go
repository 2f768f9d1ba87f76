// Command bench measures what the operator adds to the tool that it runs, with
// runners in pods: in ratios within one run where it can, since machines are noisy
// and absolute times say little.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/terrace-dev/terrace/test/bench/measure"
)

// sizes say how much is measured.
type sizes struct{ runs, objects, namespaces, secrets, pods int }

// part is a measurement. The parts run one after the other, on what those before left.
type part struct {
	name    string
	measure func(ctx context.Context, l *lab, n *sizes) ([]measure.Figure, error)
}

var parts = []part{{"empty", emptyCluster}, {"real", realTool}, {"restart", restarts}, {"stub", stubTool}, {"memory", fullCluster}}

func main() {
	n := &sizes{namespaces: 10}
	flag.IntVar(&n.runs, "runs", 7, "how often each step with the real tool is repeated; medians are shown")
	flag.IntVar(&n.objects, "objects", 1000, "how many objects the stub tool is run for")
	flag.IntVar(&n.secrets, "secrets", 10000, "how many Secrets are not ours")
	flag.IntVar(&n.pods, "pods", 2000, "how many Pods are not ours")
	only := flag.String("only", "", "the parts to run, separated by commas; nothing is saved then. Default: empty,real,restart,stub,memory")
	flag.Parse()
	log.SetLogger(logr.Discard()) // nobody asked for what clients would say
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, n, *only)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench: "+err.Error())
		os.Exit(1)
	}
}

func run(ctx context.Context, n *sizes, only string) (err error) {
	r := measure.NewReport()
	l, err := newLab(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	for _, p := range parts {
		if only != "" && !strings.Contains(","+only+",", ","+p.name+",") {
			continue
		}
		began := time.Now()
		figures, err := p.measure(ctx, l, n)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		fmt.Fprintf(os.Stderr, "measured %s in %.0f s\n", p.name, time.Since(began).Seconds())
		r.Figures = append(r.Figures, figures...)
	}
	r.Print()
	if only != "" {
		return nil
	}
	return r.Save("terraform.json")
}
