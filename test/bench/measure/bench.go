package measure

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// Bench measures a lab L, as much of it as the sizes N say.
type Bench[L, N any] struct {
	// File of bench/ that the figures are kept in.
	File string
	// Peer is Report.Peer.
	Peer string
	// Open makes the lab, and Close removes it again.
	Open  func(ctx context.Context) (L, error)
	Close func(ctx context.Context, l L) error
	// Parts run one after the other, on what those before left.
	Parts []Part[L, N]
}

// Part is one measurement.
type Part[L, N any] struct {
	Name    string
	Measure func(ctx context.Context, l L, n N) ([]Figure, error)
}

// Main is that of a program whose flags, but for -only, are the sizes. It prints the
// figures and, if all parts ran, keeps them.
func (b Bench[L, N]) Main(n N) {
	var names []string
	for _, p := range b.Parts {
		names = append(names, p.Name)
	}
	only := flag.String("only", "", "the parts to run, separated by commas; nothing is saved then. Default: "+strings.Join(names, ","))
	flag.Parse()
	log.SetLogger(logr.Discard()) // nobody asked for what clients would say
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := b.run(ctx, n, *only)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench: "+err.Error())
		os.Exit(1)
	}
}

func (b Bench[L, N]) run(ctx context.Context, n N, only string) (err error) {
	report := NewReport()
	report.Peer = b.Peer
	l, err := b.Open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close(context.WithoutCancel(ctx), l)) }()
	for _, p := range b.Parts {
		if only != "" && !slices.Contains(strings.Split(only, ","), p.Name) {
			continue
		}
		began := time.Now()
		figures, err := p.Measure(ctx, l, n)
		if err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
		fmt.Fprintf(os.Stderr, "measured %s in %.0f s\n", p.Name, time.Since(began).Seconds())
		report.Figures = append(report.Figures, figures...)
	}
	report.Print()
	if only != "" {
		return nil
	}
	return report.Save(b.File)
}
