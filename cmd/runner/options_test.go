package main

import (
	"strings"
	"testing"

	flag "github.com/spf13/pflag"
)

var podEnv = map[string]string{envPodName: "terrace-runner-abc", envPodNamespace: "apps"}

func parse(t *testing.T, env map[string]string, args ...string) (*options, error) {
	t.Helper()
	opts := &options{}
	flags := flag.NewFlagSet("runner", flag.ContinueOnError)
	opts.bind(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return opts, opts.complete(flags.Args(), func(name string) string { return env[name] })
}

func with(name, value string) map[string]string {
	env := map[string]string{name: value}
	for other, standard := range podEnv {
		if other != name {
			env[other] = standard
		}
	}
	return env
}

func TestOptions(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		env  map[string]string
		args []string
		want string // in the error
	}{
		"the pod's address is enough":       {env: podEnv, args: []string{"--listen=10.0.0.7"}},
		"addresses may be of IPv6":          {env: podEnv, args: []string{"--listen=fd00::7"}},
		"an address is required":            {env: podEnv, want: "--listen is required"},
		"a host name is no address":         {env: podEnv, args: []string{"--listen=localhost"}, want: "no IP address"},
		"there are only flags":              {env: podEnv, args: []string{"--listen=10.0.0.7", "serve"}, want: `"serve"`},
		"a capacity is not negative":        {env: podEnv, args: []string{"--listen=10.0.0.7", "--capacity=-1"}, want: "--capacity=-1"},
		"log levels are known":              {env: podEnv, args: []string{"--listen=10.0.0.7", "--log-level=loud"}, want: "--log-level=loud"},
		"the pod has a name":                {env: with(envPodName, ""), args: []string{"--listen=10.0.0.7"}, want: envPodName},
		"the pod has a namespace":           {env: with(envPodNamespace, ""), args: []string{"--listen=10.0.0.7"}, want: envPodNamespace},
		"the memory limit is in bytes":      {env: with(envMemoryLimit, "512Mi"), args: []string{"--listen=10.0.0.7"}, want: "512Mi"},
		"the memory limit is not negative":  {env: with(envMemoryLimit, "-1"), args: []string{"--listen=10.0.0.7"}, want: envMemoryLimit},
		"the memory limit may be a big one": {env: with(envMemoryLimit, "1099511627776"), args: []string{"--listen=10.0.0.7"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts, err := parse(t, test.env, test.args...)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want an error about %q", err, test.want)
			}
			if err == nil && opts.name() != "terrace-runner-abc.apps" {
				t.Errorf("the runner's name is %s", opts.name())
			}
		})
	}
}

func TestHelpIsNoError(t *testing.T) {
	t.Parallel()
	if err := run(t.Context(), []string{"--help"}, func(string) string { return "" }); err != nil {
		t.Error(err)
	}
}
