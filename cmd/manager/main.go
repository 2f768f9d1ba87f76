// Command manager runs Terrace's controllers.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/fluxcd/pkg/runtime/logger"
	flag "github.com/spf13/pflag"
	ctrl "sigs.k8s.io/controller-runtime"
)

// streamedLists is client-go's gate for initial lists that come over a watch. The API
// server holds each back until its cache has caught up, which takes more than a
// second where little happens (measured with Kubernetes 1.37): too long for a manager that
// takes over, and its lists are short.
const streamedLists = "KUBE_FEATURE_WatchListClient"

func main() {
	if _, chosen := os.LookupEnv(streamedLists); !chosen {
		_ = os.Setenv(streamedLists, "false") // of a valid name this cannot fail
	}
	if err := run(ctrl.SetupSignalHandler(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "manager:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	var opts options
	flags := flag.NewFlagSet("manager", flag.ContinueOnError)
	opts.bind(flags)
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	logger.SetLogger(logger.NewLogger(opts.log))
	if err := opts.complete(); err != nil {
		return err
	}
	return setup(ctx, &opts)
}
