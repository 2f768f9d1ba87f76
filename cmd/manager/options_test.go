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

func TestRunnerFlags(t *testing.T) {
	for name, test := range map[string]struct {
		args      []string
		namespace string
		want      string // part of the error; empty: none
	}{
		"pods are the default and need an image":  {namespace: "terrace-system", want: "--runner-mode=pod needs --runner-image"},
		"pods need to know the manager's own":     {args: []string{"--runner-image=r:1"}, want: "RUNTIME_NAMESPACE"},
		"pods":                                    {args: []string{"--runner-image=r:1"}, namespace: "terrace-system"},
		"the embedded runner needs neither":       {args: []string{"--runner-mode=embedded"}},
		"an unknown mode":                         {args: []string{"--runner-mode=somewhere"}, want: "--runner-mode=somewhere"},
		"certificates that outlive the authority": {args: []string{"--runner-image=r:1", "--certificate-lifetime=24h", "--ca-lifetime=25h"}, namespace: "terrace-system", want: "--ca-lifetime"},
		"no time to start":                        {args: []string{"--runner-image=r:1", "--runner-start-timeout=0s"}, namespace: "terrace-system", want: "--runner-start-timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("RUNTIME_NAMESPACE", test.namespace)
			opts, err := parse(t, test.args...)
			if err != nil {
				t.Fatal(err)
			}
			err = opts.complete()
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("error = %v, want one about %q", err, test.want)
			}
		})
	}
}

func TestHelpIsNoError(t *testing.T) {
	t.Parallel()
	if err := run(t.Context(), []string{"--help"}); err != nil {
		t.Error(err)
	}
}
