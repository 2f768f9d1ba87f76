// Command bench measures what the controller adds to the tool that it runs, in
// ratios within one run: machines are noisy, so absolute times say little.
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
	"text/tabwriter"
	"time"

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

func main() {
	runs := flag.Int("runs", 7, "how often each step is repeated; medians are shown")
	objects := flag.Int("objects", 200, "how many objects the stub tool is run for")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, *runs, *objects)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench: "+err.Error())
		os.Exit(1)
	}
}

func run(ctx context.Context, runs, objects int) (err error) {
	l, err := newLab(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	r := &report{Time: time.Now().UTC().Truncate(time.Second), Go: runtime.Version(), CPUs: runtime.NumCPU()}
	for _, measure := range []func(context.Context, *lab) ([]figure, error){
		func(ctx context.Context, l *lab) ([]figure, error) { return realTool(ctx, l, runs) },
		func(ctx context.Context, l *lab) ([]figure, error) { return stubTool(ctx, l, objects) },
	} {
		figures, err := measure(ctx, l)
		if err != nil {
			return err
		}
		r.Figures = append(r.Figures, figures...)
	}
	r.print()
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
