package engine_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/runner/engine"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

func TestInitsThatShareACacheWaitForOneAnotherIfTheToolDoesNotLockIt(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		tool  infrav1.Tool
		cache bool
		apart bool // at no time two of them
	}{
		"Terraform with a cache":    {tool: infrav1.ToolTerraform, cache: true, apart: true},
		"Terraform without a cache": {tool: infrav1.ToolTerraform},
		"OpenTofu locks its own":    {tool: infrav1.ToolOpenTofu, cache: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			// An init waits until there are two, but not for ever; and says whether there were.
			tool := filepath.Join(l.dir, "tool")
			script := strings.Join([]string{
				"#!/bin/sh",
				`case "$1" in init) touch "` + l.dir + `/init-$$"`,
				`i=0; while [ $i -lt 40 ]; do [ "$(ls "` + l.dir + `" | grep -c '^init-')" -lt 2 ] || touch "` + l.dir + `/together"; [ ! -e "` + l.dir + `/together" ] || break; i=$((i+1)); sleep 0.05; done`,
				`rm "` + l.dir + `/init-$$";; esac`,
				`exec "` + binary(t, "tofu") + `" "$@"`,
			}, "\n")
			if err := os.WriteFile(tool, []byte(script), 0o700); err != nil {
				t.Fatal(err)
			}
			env := map[string]string{"PATH": os.Getenv("PATH"), "HOME": filepath.Join(l.dir, "home")}
			if test.cache {
				env["TF_PLUGIN_CACHE_DIR"] = t.TempDir()
			}
			e, err := engine.New(t.Context(), engine.Options{
				Directory: l.dir, Tools: map[string]string{string(test.tool): tool}, Env: env, CLIConfig: binary(t, "providers/cli.tfrc"),
				Config: func(context.Context, string, string) (*rest.Config, error) { return l.config, nil },
			})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(env["HOME"]); err != nil {
				t.Error("the tools have no home")
			}
			var both sync.WaitGroup
			for _, name := range []string{"one", "two"} {
				object := l.object(name, greeting)
				object.Spec.Tool = test.tool
				request := l.planRequest(object, &runnerpb.PlanOptions{})
				both.Go(func() {
					if result := e.Run(t.Context(), request, &transcript{}); result.GetPlan() == nil {
						t.Errorf("result = %v", result)
					}
				})
			}
			both.Wait()
			if _, err := os.Stat(filepath.Join(l.dir, "together")); os.IsNotExist(err) != test.apart {
				t.Errorf("two inits at a time: %v, want %v", err == nil, !test.apart)
			}
		})
	}
}

func TestWhatToolsLeaveBehindIsCollected(t *testing.T) {
	t.Parallel()
	const setChildSubreaper = 36 // as if the tests were the first process of a pod
	if _, _, errno := syscall.Syscall(syscall.SYS_PRCTL, setChildSubreaper, 1, 0); errno != 0 {
		t.Fatal(errno)
	}
	l := newLab(t)
	object := l.object("orphans", `
resource "terraform_data" "a" {
  provisioner "local-exec" { command = "(sh -c 'echo $$ >`+l.dir+`/orphan; sleep 0.1' >/dev/null 2>&1 &)" }
}`)
	l.settle(object)
	orphan, err := strconv.Atoi(strings.TrimSpace(l.readFile(l.dir + "/orphan")))
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); syscall.Kill(orphan, 0) == nil; {
		if time.Now().After(deadline) {
			t.Fatal("the orphan is still there")
		}
		l.plan(object, &runnerpb.PlanOptions{})
	}
}

func TestAPodsOwnEnvironmentReachesItsTools(t *testing.T) {
	for name, value := range map[string]string{"AWS_REGION": "north", "TF_VAR_x": "1", "TF_CLI_ARGS_plan": "-destroy", "TF_WORKSPACE": "other"} {
		t.Setenv(name, value)
	}
	env := engine.OwnEnv()
	if env["AWS_REGION"] != "north" || env["PATH"] == "" {
		t.Errorf("environment = %q, want the pod's own", env)
	}
	for _, name := range []string{"TF_VAR_x", "TF_CLI_ARGS_plan", "TF_WORKSPACE"} {
		if _, found := env[name]; found {
			t.Errorf("%s is among it, although it would change what the tool does", name)
		}
	}
}
