// Package measure is what the benchmarks share: figures and how they are printed and
// kept, and the ways to get them from a cluster.
package measure

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/terrace-dev/terrace/test/controlplane"
)

// Figure is one line of the table.
type Figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	// Goal is what the figure should not exceed; 0 means there is none.
	Goal float64 `json:"goal,omitempty"`
	// Peer is the same figure of the program that Report.Peer names, in words.
	Peer string `json:"peer,omitempty"`
	Note string `json:"note,omitempty"`
}

// Report is what is written to bench/.
type Report struct {
	Time time.Time `json:"time"`
	Go   string    `json:"go"`
	CPUs int       `json:"cpus"`
	// Peer says whose the figures beside ours are, and where they are from.
	Peer    string   `json:"peer,omitempty"`
	Figures []Figure `json:"figures"`
}

// NewReport returns one without figures, of this machine and this moment.
func NewReport() *Report {
	return &Report{Time: time.Now().UTC().Truncate(time.Second), Go: runtime.Version(), CPUs: runtime.NumCPU()}
}

// Print writes the table to standard output.
func (r *Report) Print() {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	peer := func(text string) string {
		if r.Peer == "" {
			return "" // no column
		}
		return text + "\t"
	}
	fmt.Fprintln(w, "figure\tvalue\t"+peer("peer")+"goal\t")
	for _, f := range r.Figures {
		goal := ""
		if f.Goal > 0 {
			goal = fmt.Sprintf("≤ %g", f.Goal)
			if f.Value > f.Goal {
				goal += "  MISSED"
			}
		}
		fmt.Fprintf(w, "%s\t%.3g %s\t%s%s\t%s\n", f.Name, f.Value, f.Unit, peer(f.Peer), goal, f.Note)
	}
	_ = w.Flush()
	if r.Peer != "" {
		fmt.Println("\npeer: " + r.Peer)
	}
}

// Save writes the report to a file of bench/.
func (r *Report) Save(name string) error {
	root, err := controlplane.ModuleRoot()
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(root, "bench", name)
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	fmt.Println("\nwritten to bench/" + name)
	return os.WriteFile(path, append(text, '\n'), 0o600)
}

// Median returns the middle value. It sorts them.
func Median[T int | float64 | time.Duration](values []T) T {
	slices.Sort(values)
	return values[len(values)/2]
}

// MS returns a duration in milliseconds.
func MS(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Spread is a note that says between what the values are, in milliseconds.
func Spread(times []time.Duration) string {
	return fmt.Sprintf("%.3g to %.3g, %d times", MS(slices.Min(times)), MS(slices.Max(times)), len(times))
}
