// Command bench measures what the operator adds to the tool that it runs, with
// runners in pods: in ratios within one run where it can, since machines are noisy
// and absolute times say little.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/terrace-dev/terrace/test/controlplane"
)

// figure is one line of the table.
type figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	// Goal is what the figure should not exceed; 0 means there is none.
	Goal float64 `json:"goal,omitempty"`
	Note string  `json:"note,omitempty"`
}

// report is what is written to bench/.
type report struct {
	Time    time.Time `json:"time"`
	Go      string    `json:"go"`
	CPUs    int       `json:"cpus"`
	Figures []figure  `json:"figures"`
}

// sizes say how much is measured.
type sizes struct{ runs, objects, namespaces, secrets, pods int }

// part is a measurement. The parts run one after the other, on what those before left.
type part struct {
	name    string
	measure func(ctx context.Context, l *lab, n *sizes) ([]figure, error)
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
	r := &report{Time: time.Now().UTC().Truncate(time.Second), Go: runtime.Version(), CPUs: runtime.NumCPU()}
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
	r.print()
	if only != "" {
		return nil
	}
	return r.save()
}

func (r *report) print() {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "figure\tvalue\tgoal\t")
	for _, f := range r.Figures {
		goal := ""
		if f.Goal > 0 {
			goal = fmt.Sprintf("≤ %g", f.Goal)
			if f.Value > f.Goal {
				goal += "  MISSED"
			}
		}
		fmt.Fprintf(w, "%s\t%.3g %s\t%s\t%s\n", f.Name, f.Value, f.Unit, goal, f.Note)
	}
	_ = w.Flush()
}

func (r *report) save() error {
	root, err := controlplane.ModuleRoot()
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(root, "bench", "terraform.json")
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	fmt.Println("\nwritten to bench/terraform.json")
	return os.WriteFile(path, append(text, '\n'), 0o600)
}
