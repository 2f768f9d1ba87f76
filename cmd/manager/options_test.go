package main

import (
	"strings"
	"testing"

	flag "github.com/spf13/pflag"
)

func parse(t *testing.T, args ...string) (*options, error) {
	t.Helper()
	opts := &options{}
	flags := flag.NewFlagSet("manager", flag.ContinueOnError)
	opts.bind(flags)
	return opts, flags.Parse(args)
}

func TestReferencesAcrossNamespacesAreDeniedByDefault(t *testing.T) {
	t.Parallel()
	opts, err := parse(t)
	if err != nil || !opts.acl.NoCrossNamespaceRefs {
		t.Errorf("denied = %v, %v, want true", opts.acl.NoCrossNamespaceRefs, err)
	}
	opts, err = parse(t, "--no-cross-namespace-refs=false")
	if err != nil || opts.acl.NoCrossNamespaceRefs {
		t.Errorf("denied = %v, %v, want false", opts.acl.NoCrossNamespaceRefs, err)
	}
}

func TestTheRunnerModeHasNoDefault(t *testing.T) {
	t.Parallel()
	opts, err := parse(t)
	if err != nil {
		t.Fatal(err)
	}
	err = opts.complete()
	if err == nil || !strings.Contains(err.Error(), "--runner-mode is required") || !strings.Contains(err.Error(), "does not isolate tenants") {
		t.Errorf("error = %v, want one that says what embedded is for", err)
	}
}

func TestUnknownRunnerModeIsRefused(t *testing.T) {
	t.Parallel()
	opts, err := parse(t, "--runner-mode=somewhere")
	if err != nil {
		t.Fatal(err)
	}
	if err := opts.complete(); err == nil || !strings.Contains(err.Error(), "--runner-mode=somewhere") {
		t.Errorf("error = %v, want one that names the flag", err)
	}
}

func TestHelpIsNoError(t *testing.T) {
	t.Parallel()
	if err := run(t.Context(), []string{"--help"}); err != nil {
		t.Error(err)
	}
}
