// Command runner is what a runner pod runs: it executes the operations that the
// manager sends to it, with OpenTofu or Terraform.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	flag "github.com/spf13/pflag"
)

func main() {
	// The signals stay caught to the end: only the first one counts, so that an
	// impatient second one does not keep a tool from saving its state.
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	if err := run(ctx, os.Args[1:], os.Getenv); err != nil {
		fmt.Fprintln(os.Stderr, "runner:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, getenv func(string) string) error {
	opts := options{idleTimeout: defaultIdleTimeout}
	flags := flag.NewFlagSet("runner", flag.ContinueOnError)
	opts.bind(flags)
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	if err := opts.complete(flags.Args(), getenv); err != nil {
		return err
	}
	err := setup(ctx, &opts)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil // it was told to end before it had begun
	}
	return err
}
