package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// configuration uses everything that the provider has.
const configuration = `
terraform {
  required_providers {
    testing = { source = "terrace-dev/testing" }
  }
}

variable "fail" { default = false }

ephemeral "testing_token" "token" {}

resource "testing_file" "a" {
  path              = "${path.module}/a"
  content           = "content"
  secret            = "secret-value"
  secret_wo         = ephemeral.testing_token.token.value
  secret_wo_version = 1
  fail              = var.fail
}
`

// TestProvider runs the provider that `make tools` built under OpenTofu.
func TestProvider(t *testing.T) {
	t.Parallel()
	module := newModule(t)
	module.write("main.tf", configuration)
	module.tofu(0, "init")

	if out := module.tofu(1, "apply", "-auto-approve", "-var=fail=true"); !strings.Contains(out, "Asked to fail") {
		t.Errorf("fail = true does not say so:\n%s", out)
	}
	out := module.tofu(0, "apply", "-auto-approve")
	if got := module.read("a"); got != "content" {
		t.Errorf("the file has %q", got)
	}
	token := module.read("a.secret")
	if !strings.HasPrefix(token, "ephemeral-") {
		t.Errorf("the write-only value is %q, want an ephemeral token", token)
	}
	if state := module.read("terraform.tfstate"); strings.Contains(state, token) || strings.Contains(out, token) {
		t.Error("the ephemeral value is in the state or in the output")
	}

	module.tofu(0, "plan", "-detailed-exitcode")
	module.write("a", "edited")
	if changes := module.plan(); len(changes) != 1 || changes[0] != "update" {
		t.Errorf("an edited file leads to %v, want one update", changes)
	}
	module.remove("a")
	if changes := module.plan(); len(changes) != 1 || changes[0] != "create" {
		t.Errorf("a removed file leads to %v, want one create", changes)
	}

	module.tofu(0, "apply", "-auto-approve")
	module.tofu(0, "destroy", "-auto-approve")
	for _, name := range []string{"a", "a.secret"} {
		if _, err := os.Stat(filepath.Join(module.dir, name)); err == nil {
			t.Errorf("%s outlives its destruction", name)
		}
	}
}

func TestImport(t *testing.T) {
	t.Parallel()
	module := newModule(t)
	module.write("main.tf", configuration)
	module.write("a", "content")
	module.tofu(0, "init")
	module.tofu(0, "import", "testing_file.a", module.dir+"/a")
	if state := module.read("terraform.tfstate"); !strings.Contains(state, "ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73") {
		t.Errorf("the digest of the imported file is not in the state:\n%s", state)
	}
}

// module is a directory that OpenTofu works in.
type module struct {
	t    *testing.T
	dir  string
	root string
}

func newModule(t *testing.T) *module {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return &module{t: t, dir: t.TempDir(), root: root}
}

// tofu runs OpenTofu, wants the exit code and returns the output.
func (m *module) tofu(code int, args ...string) string {
	m.t.Helper()
	cmd := exec.CommandContext(m.t.Context(), filepath.Join(m.root, "bin", "tofu"), append(args, "-no-color")...)
	cmd.Dir = m.dir
	cmd.Env = append(os.Environ(), "TF_INPUT=0", "TF_CLI_CONFIG_FILE="+filepath.Join(m.root, "bin", "providers", "cli.tfrc"))
	out, err := cmd.CombinedOutput()
	if got := cmd.ProcessState.ExitCode(); got != code {
		m.t.Fatalf("tofu %s: %v, want exit code %d:\n%s", strings.Join(args, " "), err, code, out)
	}
	return string(out)
}

// plan returns the first action of each resource that a new plan changes.
func (m *module) plan() (actions []string) {
	m.t.Helper()
	m.tofu(2, "plan", "-detailed-exitcode", "-out=plan")
	var plan struct {
		Changes []struct {
			Change struct{ Actions []string }
		} `json:"resource_changes"`
	}
	out := m.tofu(0, "show", "-json", "plan")
	if err := json.NewDecoder(bytes.NewBufferString(out)).Decode(&plan); err != nil {
		m.t.Fatal(err)
	}
	for _, c := range plan.Changes {
		actions = append(actions, c.Change.Actions[0])
	}
	return actions
}

func (m *module) write(name, content string) {
	m.t.Helper()
	if err := os.WriteFile(filepath.Join(m.dir, name), []byte(content), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

func (m *module) read(name string) string {
	m.t.Helper()
	content, err := os.ReadFile(filepath.Join(m.dir, name))
	if err != nil {
		m.t.Fatal(err)
	}
	return string(content)
}

func (m *module) remove(name string) {
	m.t.Helper()
	if err := os.Remove(filepath.Join(m.dir, name)); err != nil {
		m.t.Fatal(err)
	}
}
