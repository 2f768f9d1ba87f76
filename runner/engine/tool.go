package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
)

// tool is one program, started through a launcher.
type tool struct {
	name     string
	version  string
	launcher string
}

// launcherScript stands between terraform-exec and the tool, and becomes the
// tool: it leaves the process id, which terraform-exec keeps to itself, where we
// find it, answers "version", which terraform-exec asks before most commands,
// without a process of the tool, and sets the variable that selects and creates
// a workspace, which terraform-exec refuses to pass on.
const launcherScript = `#!/bin/sh
case "$1" in version) printf '%%s\n' %[1]s; exit;; esac
echo $$ >"$TF_DATA_DIR/pid"
[ -z "$TERRACE_WORKSPACE" ] || export TF_WORKSPACE="$TERRACE_WORKSPACE"
exec %[2]s "$@"
`

// newTool asks the program's version once and writes its launcher.
func (e *Engine) newTool(ctx context.Context, name, program string) (*tool, error) {
	program, err := filepath.Abs(program)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "version", "-json")
	// The tools warn on stdout, before the JSON, about a configuration file
	// that the environment names and that is not there.
	cmd.Env = append(os.Environ(), "TF_CLI_CONFIG_FILE="+e.options.CLIConfig, "CHECKPOINT_DISABLE=1")
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %s version -json: %w", name, program, err)
	}
	var version struct {
		Version string `json:"terraform_version"`
	}
	if err := json.Unmarshal(out, &version); err != nil {
		return nil, fmt.Errorf("%s: the answer of %s version -json is not JSON: %w", name, program, err)
	}
	launcher := filepath.Join(e.options.Directory, "launch-"+filepath.Base(program))
	if err := writeProgram(launcher, fmt.Sprintf(launcherScript, shellQuote(string(bytes.TrimSpace(out))), shellQuote(program))); err != nil {
		return nil, err
	}
	return &tool{name: name, version: version.Version, launcher: launcher}, nil
}

// shellQuote makes one word of a text for a shell.
func shellQuote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// writeProgram writes a file that is executed later. No process may be forked
// while it is open for writing: the child would hold it open and the first
// execution could fail with "text file busy".
func writeProgram(path, text string) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, []byte(text), 0o700) //nolint:gosec // has to be executable
}

// bind chooses the tool and checks that tool and state are those that the object
// is bound to. A forced plan ends the bond; the next apply makes a new one.
func (op *operation) bind(ctx context.Context) error {
	r := op.record
	if op.request.GetPlan().GetForce() && (r.Tool != "" || r.State != "") {
		if r.Errored != nil && r.State != op.statePlace() {
			return terminal(infrav1.StateSaveFailedReason, "a state that could not be stored is still kept for %s; let it be stored there before you move on", r.State)
		}
		if err := op.leaveOldState(ctx); err != nil {
			return err
		}
		r.Tool, r.State = "", ""
		if err := op.saveRecord(ctx); err != nil {
			return err
		}
	}
	if err := op.selectTool(); err != nil {
		return err
	}
	if op.object.UsesKubernetesBackend() { // the place of any other state is known after init
		return op.checkState()
	}
	return nil
}

// selectTool finds the object's tool and checks that the state was not written
// by the other one: Terraform reads OpenTofu's state without complaint.
func (op *operation) selectTool() error {
	name := string(op.object.GetTool())
	t, ok := op.engine.tools[name]
	if !ok {
		return terminal(infrav1.ToolUnavailableReason, "spec.tool is %s, which this runner does not have; choose another tool or a runner image that has it", name)
	}
	if bound := op.record.Tool; bound != "" && bound != name {
		return terminal(infrav1.ToolChangedReason, "spec.tool is %s but the state was written by %s; set the annotation reconcile.fluxcd.io/forceAt to move it over", name, bound)
	}
	op.tool = t
	return nil
}
