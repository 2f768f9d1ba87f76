package engine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/tar"
	"github.com/hashicorp/terraform-exec/tfexec"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
)

// maxSourceSize bounds an extracted source, in bytes.
const maxSourceSize = 2 << 30

// workspace is an initialised copy of the object's module. It is addressed by
// its content, so that a commit that does not touch the module reuses it.
type workspace struct {
	key          string // digest of everything that an initialisation depends on
	dir          string
	tree         string // the source
	module       string // the root module in it; the tool's working directory
	data         string // TF_DATA_DIR
	moduleDigest string
}

func (op *operation) newWorkspace(key string) (*workspace, error) {
	dir := filepath.Join(op.dir, "work", key)
	w := &workspace{key: key, dir: dir, tree: filepath.Join(dir, "tree"), data: filepath.Join(dir, "data")}
	var err error
	w.module, err = securejoin.SecureJoin(w.tree, op.object.GetPath())
	return w, err
}

func (w *workspace) exists() bool {
	_, err := os.Stat(filepath.Join(w.dir, "module"))
	return err == nil
}

func (w *workspace) initialised() bool {
	_, err := os.Stat(filepath.Join(w.dir, "initialised"))
	return err == nil
}

func (w *workspace) planFile() string      { return filepath.Join(w.dir, "plan") }
func (w *workspace) variablesFile() string { return filepath.Join(w.dir, "variables.tfvars.json") }
func (w *workspace) lockFile() string      { return filepath.Join(w.module, ".terraform.lock.hcl") }

// cliConfig is the tool's configuration file: the object's own or the given one.
func (w *workspace) cliConfig(fallback string) string {
	own := filepath.Join(w.dir, "cli.tfrc")
	if _, err := os.Stat(own); err == nil {
		return own
	}
	return fallback
}

// openWorkspace finds the workspace for the source and the inputs, or makes it.
func (op *operation) openWorkspace(ctx context.Context, kept bool) error {
	surroundings, err := json.Marshal([]any{
		op.object.GetPath(), op.object.GetWorkspace(), op.object.Spec.Backend, op.inputs.Backend,
		op.inputs.Files, op.inputs.CLIConfig, op.tool.name, op.tool.version,
	})
	if err != nil {
		return err
	}
	index := indexPath(op.dir, op.sourceID(kept), surroundings)
	if found, err := op.indexed(index); found || err != nil {
		return err
	}
	temp, err := os.MkdirTemp(op.dir, "new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	tree := filepath.Join(temp, "tree")
	if err := op.extract(ctx, tree, kept); err != nil {
		return err
	}
	module, err := securejoin.SecureJoin(tree, op.object.GetPath())
	if err != nil {
		return err
	}
	if info, err := os.Stat(module); err != nil || !info.IsDir() {
		return terminal(infrav1.PathNotFoundReason, "spec.path %q is no directory of the source at %s", op.object.GetPath(), op.revision())
	}
	relative, err := filepath.Rel(tree, module)
	if err != nil {
		return err
	}
	files, err := findModule(tree, relative)
	if err != nil {
		return err
	}
	digest, err := files.digest()
	if err != nil {
		return err
	}
	sum := sha256.Sum256(append([]byte(digest), surroundings...))
	if err := op.placeWorkspace(hex.EncodeToString(sum[:16]), temp, digest); err != nil {
		return err
	}
	return writeIndex(index, op.workspace.key)
}

// maxIndex bounds the index; a source that drops out of it is extracted once more.
const maxIndex = 128

func writeIndex(path, key string) error {
	dir := filepath.Dir(path)
	if entries, err := os.ReadDir(dir); err == nil && len(entries) >= maxIndex {
		_ = os.RemoveAll(dir)
	}
	return errors.Join(os.MkdirAll(dir, 0o700), writeFile(path, []byte(key)))
}

// indexPath names the file that says which workspace a whole source leads to,
// so that an unchanged source need not be extracted to find out.
func indexPath(dir, source string, surroundings []byte) string {
	sum := sha256.Sum256(append([]byte(source+"\n"), surroundings...))
	return filepath.Join(dir, "index", hex.EncodeToString(sum[:16]))
}

func (op *operation) indexed(index string) (bool, error) {
	key, err := os.ReadFile(index)
	if err != nil {
		return false, nil //nolint:nilerr // not there or not readable: extract
	}
	w, err := op.newWorkspace(string(key))
	if err != nil || !w.exists() {
		return false, err
	}
	return true, op.useWorkspace(w)
}

// useWorkspace completes what is known of an existing workspace.
func (op *operation) useWorkspace(w *workspace) error {
	digest, err := os.ReadFile(filepath.Join(w.dir, "module"))
	if err != nil {
		return err
	}
	w.moduleDigest = string(digest)
	op.workspace = w
	return nil
}

// placeWorkspace moves an extracted source to its place, unless an equal one is there.
func (op *operation) placeWorkspace(key, temp, moduleDigest string) error {
	w, err := op.newWorkspace(key)
	if err != nil {
		return err
	}
	if w.exists() {
		return op.useWorkspace(w)
	}
	if err := errors.Join(os.RemoveAll(w.dir), os.MkdirAll(filepath.Dir(w.dir), 0o700)); err != nil {
		return err
	}
	if err := os.Rename(temp, w.dir); err != nil {
		return err
	}
	if err := errors.Join(os.MkdirAll(w.data, 0o700), op.furnish(w)); err != nil {
		return err
	}
	// Last, since it says that the workspace is whole.
	if err := writeFile(filepath.Join(w.dir, "module"), []byte(moduleDigest)); err != nil {
		return err
	}
	op.pruneWorkspaces(w)
	return op.useWorkspace(w)
}

// furnish writes what the object adds to the module.
func (op *operation) furnish(w *workspace) error {
	if op.inputs.CLIConfig != nil {
		if err := writeFile(filepath.Join(w.dir, "cli.tfrc"), op.inputs.CLIConfig); err != nil {
			return err
		}
	}
	for _, f := range op.inputs.Files {
		name, err := securejoin.SecureJoin(w.module, f.Path)
		if err != nil {
			return err
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, f.Data, f.Mode)); err != nil {
			return err
		}
	}
	return op.writeBackend(w)
}

// pruneWorkspaces removes what neither this operation nor a saved plan uses.
func (op *operation) pruneWorkspaces(current *workspace) {
	entries, err := os.ReadDir(filepath.Join(op.dir, "work"))
	if err != nil {
		return
	}
	plan := op.findPlan("")
	for _, entry := range entries {
		if name := entry.Name(); name != current.key && (plan == nil || name != plan.Workspace) {
			_ = os.RemoveAll(filepath.Join(op.dir, "work", name))
		}
	}
	_ = os.RemoveAll(filepath.Join(op.dir, "index"))
}

// sourceID names the whole source for the index.
func (op *operation) sourceID(kept bool) string {
	switch {
	case kept:
		sum := sha256.Sum256(op.record.Applied.Module)
		return "kept:" + hex.EncodeToString(sum[:])
	case op.object.Spec.SourceRef == nil:
		text, _ := json.Marshal(op.object.Spec.Inline) // a map of strings
		return "inline:" + string(text)
	default:
		return op.request.GetSource().GetDigest()
	}
}

func (op *operation) revision() string {
	if r := op.request.GetSource().GetRevision(); r != "" {
		return r
	}
	return "generation " + fmt.Sprint(op.object.Generation)
}

// extract puts the source into a new directory.
func (op *operation) extract(ctx context.Context, tree string, kept bool) error {
	if err := os.Mkdir(tree, 0o700); err != nil {
		return err
	}
	if op.object.Spec.SourceRef == nil && !kept {
		for name, text := range op.object.Spec.Inline {
			path, err := securejoin.SecureJoin(tree, filepath.Join(op.object.GetPath(), name))
			if err != nil {
				return err
			}
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
				return terminal(infrav1.InvalidSpecReason, "spec.inline: file %q cannot be written beside the others", name)
			}
		}
		return nil
	}
	var archive io.Reader
	if kept {
		archive = bytes.NewReader(op.record.Applied.Module)
	} else {
		f, err := op.engine.SourceStore.Open(op.request.GetSource().GetDigest())
		if err != nil {
			return retry(meta.ArtifactFailedReason, err, "reading the source archive")
		}
		defer f.Close()
		archive = f
	}
	op.report.Phase("extract")
	if err := tar.Untar(readerContext{ctx, archive}, tree, tar.WithMaxUntarSize(maxSourceSize)); err != nil {
		return terminal(meta.ArtifactFailedReason, "the source archive at %s cannot be extracted: %v", op.revision(), err)
	}
	return nil
}

// readerContext ends reading when the operation is cancelled.
type readerContext struct {
	ctx context.Context
	io.Reader
}

func (r readerContext) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

// initialise runs init once per workspace.
func (op *operation) initialise(ctx context.Context) error {
	w := op.workspace
	if w.initialised() {
		return nil
	}
	options := []tfexec.InitOption{tfexec.Upgrade(false)}
	if op.inputs.Backend != nil {
		name := filepath.Join(w.dir, "backend.tfbackend")
		if err := writeFile(name, op.inputs.backendConfig()); err != nil {
			return err
		}
		options = append(options, tfexec.BackendConfig(name))
	}
	err := op.withLock(ctx, w, false, func() error {
		release, err := op.holdCache(ctx, w)
		if err != nil {
			return err
		}
		defer release()
		m := op.newMessages()
		return op.exec(ctx, w, "init", m, func(ctx context.Context, tf *tfexec.Terraform) error {
			return tf.InitJSON(ctx, m, options...)
		})
	})
	if err != nil {
		return op.classify(ctx, infrav1.InitFailedReason, err)
	}
	if err := op.checkBackend(w); err != nil {
		return err
	}
	return writeFile(filepath.Join(w.dir, "initialised"), nil)
}

// cacheSetting finds a provider cache in a tool's configuration file.
var cacheSetting = regexp.MustCompile(`(?m)^\s*plugin_cache_dir\s*=`)

// holdCache makes inits that share a provider cache wait for one another where the
// tool does not lock it: Terraform writes wrong hashes then.
func (op *operation) holdCache(ctx context.Context, w *workspace) (release func(), err error) {
	shared := op.engine.options.Env["TF_PLUGIN_CACHE_DIR"] != ""
	if text, err := os.ReadFile(w.cliConfig(op.engine.options.CLIConfig)); err == nil {
		shared = shared || cacheSetting.Match(text)
	}
	if !shared || op.tool.name != string(infrav1.ToolTerraform) {
		return func() {}, nil
	}
	select {
	case op.engine.cache <- struct{}{}:
		return func() { <-op.engine.cache }, nil
	case <-ctx.Done():
		return nil, errInterrupted
	}
}

// savedBackend is the backend as init left it in the workspace.
type savedBackend struct {
	Type   string         `json:"type"`
	Config map[string]any `json:"config"`
}

func (w *workspace) backend() (savedBackend, error) {
	var saved struct {
		Backend savedBackend `json:"backend"`
	}
	data, err := os.ReadFile(filepath.Join(w.data, "terraform.tfstate"))
	if errors.Is(err, fs.ErrNotExist) {
		return saved.Backend, nil
	}
	if err != nil {
		return saved.Backend, err
	}
	err = json.Unmarshal(data, &saved)
	return saved.Backend, err
}

// checkBackend refuses a state that would live in the workspace and go with it.
func (op *operation) checkBackend(w *workspace) error {
	saved, err := w.backend()
	if err != nil {
		return err
	}
	if op.object.UsesKubernetesBackend() && (saved.Type != "kubernetes" || saved.Config["secret_suffix"] != op.object.GetSecretSuffix()) {
		return terminal(infrav1.BackendInvalidReason, "a file of the module overrides the backend that spec.backend asks for; remove it, or set spec.backend.none")
	}
	path, _ := saved.Config["path"].(string)
	if (saved.Type == "" || saved.Type == "local") && !filepath.IsAbs(path) {
		return terminal(infrav1.BackendInvalidReason, "the state would be kept in the runner's working directory and lost with it: declare a remote backend in the module, or use spec.backend.kubernetes or spec.backend.custom")
	}
	return nil
}

// classify decides whether a tool's failure is the configuration's: an error
// that validate finds as well will not go away by itself.
func (op *operation) classify(ctx context.Context, reason string, err error) error {
	if op.endsWithNamespace(err) {
		return op.terminating(err)
	}
	var tool *toolError
	if !errors.As(err, &tool) || len(tool.errors) == 0 {
		var f *failure
		if errors.As(err, &f) || errors.Is(err, errInterrupted) {
			return err
		}
		return retry(reason, err, "%s", tool.describe())
	}
	first := tool.errors[0]
	if first.Summary == "No value for required variable" { // validate does not look at values
		return terminal(reason, "%s failed: %s", tool.command, first.line())
	}
	var found []diagnostic
	_ = op.exec(ctx, op.workspace, "validate", nil, func(ctx context.Context, tf *tfexec.Terraform) error {
		output, err := tf.Validate(ctx)
		if err != nil {
			return err
		}
		text, err := json.Marshal(output.Diagnostics)
		if err != nil {
			return err
		}
		return json.Unmarshal(text, &found)
	})
	for _, d := range found {
		d = op.redactDiagnostic(d)
		if d.Severity == "error" && d.same(first) {
			return terminal(reason, "%s failed: %s", tool.command, first.line())
		}
	}
	return &failure{kind: kindRetry, reason: reason, message: tool.command + " failed: " + tool.Error()}
}

func (e *toolError) describe() string {
	if e == nil {
		return "running the tool"
	}
	return e.command + " failed"
}

// variableFiles returns the -var-file arguments in order of precedence, lowest first.
func (op *operation) variableFiles(w *workspace) ([]string, error) {
	var names []string
	for _, name := range op.object.Spec.VariableFiles {
		path, err := securejoin.SecureJoin(w.tree, filepath.Join(op.object.GetPath(), name))
		if err != nil {
			return nil, err
		}
		if _, err := os.Stat(path); err != nil {
			return nil, terminal(infrav1.PathNotFoundReason, "spec.variableFiles: %q is not in the source at %s", name, op.revision())
		}
		names = append(names, path)
	}
	return append(names, w.variablesFile()), nil
}

// oneLine keeps text from a tool or an API on one line.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
