// Package engine executes the runner's operations with OpenTofu or Terraform,
// through terraform-exec. It reads and writes the tenant's Secrets with the
// tenant's own permissions and remembers, per object, what the next operation
// needs in one record beside the state.
package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/terraform-exec/tfexec"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/runner"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// DefaultInterruptGrace is how long an interrupted tool may take to save its
// state before it is killed.
const DefaultInterruptGrace = 5 * time.Minute

const (
	// keepSources is how many source archives stay in the directory.
	keepSources = 256
	// keepObjects is how long the directory of an object stays that nothing was run for.
	keepObjects = 7 * 24 * time.Hour
)

// Options configure an Engine.
type Options struct {
	// Directory holds sources, workspaces and the journals of running
	// operations. It should outlive the process: an interrupted operation is
	// recognised by its journal.
	Directory string
	// Tools maps the name of a tool, OpenTofu or Terraform, to its program.
	Tools map[string]string
	// Config gives the API access of a namespace's runner ServiceAccount.
	Config func(ctx context.Context, namespace, serviceAccount string) (*rest.Config, error)
	// Env is what the tools see of the environment; PATH and the like.
	Env map[string]string
	// CLIConfig is the tools' configuration file for objects that name none;
	// empty means one that only turns off the tools' calls home.
	CLIConfig string
	// InterruptGrace replaces DefaultInterruptGrace.
	InterruptGrace time.Duration
	// MemoryKills counts the processes that the kernel killed because memory ran out,
	// among those that tools start; nil if nobody can tell.
	MemoryKills func() int64
	// Hostname is what the tools write into locks; empty means the system's.
	Hostname string
}

// Engine implements runner.Engine.
type Engine struct {
	*runner.SourceStore
	options Options
	tools   map[string]*tool
	started time.Time
	cache   chan struct{} // taken by who fills a provider cache that its tool does not lock
}

var _ runner.Engine = (*Engine)(nil)

// New finds out the tools' versions and prepares the directory. It fails when a
// tool that Options names does not run.
func New(ctx context.Context, options Options) (*Engine, error) {
	if options.InterruptGrace == 0 {
		options.InterruptGrace = DefaultInterruptGrace
	}
	if options.Hostname == "" {
		name, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("host name for state locks: %w", err)
		}
		options.Hostname = name
	}
	sources, err := runner.NewSourceStore(filepath.Join(options.Directory, "sources"), runner.SourceOptions{Keep: keepSources})
	if err != nil {
		return nil, err
	}
	if options.MemoryKills == nil {
		options.MemoryKills = func() int64 { return 0 }
	}
	e := &Engine{SourceStore: sources, options: options, tools: map[string]*tool{}, started: time.Now(), cache: make(chan struct{}, 1)}
	if e.options.CLIConfig == "" {
		e.options.CLIConfig = filepath.Join(options.Directory, "cli.tfrc")
		if err := os.WriteFile(e.options.CLIConfig, []byte("disable_checkpoint = true\n"), 0o644); err != nil { //nolint:gosec // holds no secret
			return nil, err
		}
	}
	if home := options.Env["HOME"]; home != "" {
		// A pod's is in a volume that begins empty. What modules run may want it; the tools do not.
		_ = os.MkdirAll(home, 0o700)
	}
	e.pruneObjects()
	for name, program := range options.Tools {
		if e.tools[name], err = e.newTool(ctx, name, program); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// FindTools returns the programs of the known tools, as Options.Tools takes them:
// those that are given, and for an empty one that on the PATH, if there is one.
func FindTools(tofu, terraform string) map[string]string {
	found := map[string]string{}
	for _, tool := range []struct {
		name           infrav1.Tool
		given, program string
	}{{infrav1.ToolOpenTofu, tofu, "tofu"}, {infrav1.ToolTerraform, terraform, "terraform"}} {
		if tool.given != "" {
			found[string(tool.name)] = tool.given
		} else if path, err := exec.LookPath(tool.program); err == nil {
			found[string(tool.name)] = path
		}
	}
	return found
}

// pruneObjects removes the directories of objects that went away without a word.
// What may be needed to find a lock or a state again stays.
func (e *Engine) pruneObjects() {
	dirs, err := filepath.Glob(filepath.Join(e.options.Directory, "objects", "*"))
	if err != nil {
		return
	}
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		if err != nil || time.Since(info.ModTime()) < keepObjects {
			continue
		}
		_, journal := os.Stat(filepath.Join(dir, "operation.json"))
		_, state := os.Stat(filepath.Join(dir, "errored.tfstate"))
		if os.IsNotExist(journal) && os.IsNotExist(state) {
			_ = os.RemoveAll(dir)
		}
	}
}

// InheritedEnv is what tools may see of the process's own environment: where
// programs, proxies and certificates are. Credentials are not among it.
func InheritedEnv() map[string]string {
	env := map[string]string{}
	for _, name := range []string{
		"PATH", "HOME", "TMPDIR", "USER",
		"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
		"SSL_CERT_FILE", "SSL_CERT_DIR",
	} {
		if value, found := os.LookupEnv(name); found {
			env[name] = value
		}
	}
	return env
}

// OwnEnv is the whole environment of the process, but for the variables that the
// engine sets itself or that would change what the tools' commands mean. It is for
// a runner pod, whose environment is the tenant's own: its template gives
// credentials to providers there.
func OwnEnv() map[string]string {
	env := map[string]string{}
	for _, entry := range os.Environ() {
		if name, value, found := strings.Cut(entry, "="); found {
			env[name] = value
		}
	}
	return tfexec.CleanEnv(env)
}

// Tools implements runner.Engine.
func (e *Engine) Tools() []*runnerpb.Tool {
	var tools []*runnerpb.Tool
	for _, t := range e.tools {
		tools = append(tools, &runnerpb.Tool{Name: t.name, Version: t.version})
	}
	return tools
}

// HasSource implements runner.Engine.
func (e *Engine) HasSource(digest string) bool { return e.SourceStore.Has(digest) }

// StoreSource implements runner.Engine.
func (e *Engine) StoreSource(ctx context.Context, digest string, archive io.Reader) (int64, error) {
	return e.SourceStore.Store(ctx, digest, archive)
}

// Run implements runner.Engine.
func (e *Engine) Run(ctx context.Context, request *runnerpb.StartOperationRequest, report runner.Reporter) *runnerpb.Result {
	op, err := e.newOperation(ctx, request, report)
	if err != nil {
		return failed(ctx, err)
	}
	defer op.finish()
	result, err := op.run(ctx)
	if op.endsWithNamespace(err) {
		err = op.terminating(err)
	} else if apierrors.IsForbidden(err) {
		err = op.denied(err)
	}
	if err != nil {
		applied := result.GetApply() // it stands, even if something failed after it
		result = failed(ctx, op.redactError(err))
		result.Apply = applied
	}
	if result.GetPlan() != nil {
		result.Plan.LastApply = op.record.lastApply()
	}
	op.redactMessage(result)
	result.Processes = op.processes
	for _, warning := range op.warnings {
		result.Warnings = append(result.Warnings, op.redact(warning))
	}
	if op.tool != nil {
		result.Tool = &runnerpb.Tool{Name: op.tool.name, Version: op.tool.version}
	}
	return result
}

// operation is one run of the engine for one object.
type operation struct {
	engine  *Engine
	request *runnerpb.StartOperationRequest
	report  runner.Reporter
	object  *infrav1.Terraform
	config  *rest.Config
	client  *access
	dir     string // everything of this object

	secrets  []string // what to hide
	redactor atomic.Pointer[redactor]

	record    *record
	inputs    *inputs
	workspace *workspace
	tool      *tool
	basis     []byte // digest of everything that shapes the plan

	journal   *journal
	processes int32
	warnings  []string
	cleaned   bool // nothing of the object is left to remember
	unlocked  bool // the tool works without the state lock, which cannot be taken any more
}

func (e *Engine) newOperation(ctx context.Context, request *runnerpb.StartOperationRequest, report runner.Reporter) (*operation, error) {
	object := &infrav1.Terraform{}
	if err := json.Unmarshal(request.GetObject(), object); err != nil {
		return nil, terminal(infrav1.InvalidSpecReason, "the object in the request is no Terraform object: %v", err)
	}
	config, err := e.options.Config(ctx, object.Namespace, object.Spec.Runner.GetServiceAccountName())
	if err != nil {
		return nil, retry(infrav1.RunnerFailedReason, err, "API access of ServiceAccount %s/%s", object.Namespace, object.Spec.Runner.GetServiceAccountName())
	}
	c, err := newAccess(config)
	if err != nil {
		return nil, retry(infrav1.RunnerFailedReason, err, "API client of ServiceAccount %s/%s", object.Namespace, object.Spec.Runner.GetServiceAccountName())
	}
	op := &operation{
		engine: e, request: request, object: object, config: config, client: c,
		dir: filepath.Join(e.options.Directory, "objects", string(object.UID)),
	}
	op.report = redactedReporter{op: op, to: report}
	return op, os.MkdirAll(op.dir, 0o700)
}

func (op *operation) run(ctx context.Context) (*runnerpb.Result, error) {
	switch op.request.GetType() {
	case runnerpb.OperationType_OPERATION_TYPE_PLAN:
		return op.plan(ctx)
	case runnerpb.OperationType_OPERATION_TYPE_APPLY:
		return op.apply(ctx)
	case runnerpb.OperationType_OPERATION_TYPE_DESTROY:
		return op.destroy(ctx)
	case runnerpb.OperationType_OPERATION_TYPE_FORCE_UNLOCK:
		return op.forceUnlock(ctx)
	case runnerpb.OperationType_OPERATION_TYPE_SHOW_PLAN:
		return op.showPlan(ctx)
	case runnerpb.OperationType_OPERATION_TYPE_FORGET:
		return succeeded(), errors.Join(release(ctx, op.client, op.object), os.RemoveAll(op.dir))
	default:
		return nil, terminal(infrav1.InvalidSpecReason, "operation type %s is not known to this runner", op.request.GetType())
	}
}

// finish ends the journal; nothing of the tools runs any more.
func (op *operation) finish() {
	reapOrphans()
	if op.journal != nil {
		_ = op.journal.close() // at worst the next operation looks for a stale lock
	}
	if op.cleaned {
		_ = os.RemoveAll(op.dir)
	}
}

func succeeded() *runnerpb.Result {
	return &runnerpb.Result{Outcome: runnerpb.Outcome_OUTCOME_SUCCEEDED}
}
