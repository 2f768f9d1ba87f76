package docs_test

import (
	"go/ast"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fluxcd/pkg/runtime/acl"
	runtimeclient "github.com/fluxcd/pkg/runtime/client"
	runtimectrl "github.com/fluxcd/pkg/runtime/controller"
	"github.com/fluxcd/pkg/runtime/features"
	"github.com/fluxcd/pkg/runtime/jitter"
	"github.com/fluxcd/pkg/runtime/leaderelection"
	"github.com/fluxcd/pkg/runtime/logger"
	flag "github.com/spf13/pflag"
)

// binder is an options type of a library that brings its own flags.
type binder interface{ BindFlags(set *flag.FlagSet) }

const fluxRuntime = "github.com/fluxcd/pkg/runtime/"

// binders are those that the manager may use, by import path and name.
var binders = map[string]func() binder{
	fluxRuntime + "acl.Options":                   func() binder { return &acl.Options{} },
	fluxRuntime + "client.Options":                func() binder { return &runtimeclient.Options{} },
	fluxRuntime + "controller.RateLimiterOptions": func() binder { return &runtimectrl.RateLimiterOptions{} },
	fluxRuntime + "controller.WatchOptions":       func() binder { return &runtimectrl.WatchOptions{} },
	fluxRuntime + "features.FeatureGates":         func() binder { return &features.FeatureGates{} },
	fluxRuntime + "jitter.IntervalOptions":        func() binder { return &jitter.IntervalOptions{} },
	fluxRuntime + "leaderelection.Options":        func() binder { return &leaderelection.Options{} },
	fluxRuntime + "logger.Options":                func() binder { return &logger.Options{} },
}

// flagReader finds the flags of a program in its source: building the program only to
// ask for its help would take longer than all other tests of this package. It knows
// the three ways in which they make flags: flags.StringVar and its like,
// BindFlags of a library's options, and flags.AddFlag(other.Lookup("name")).
type flagReader struct {
	t      *testing.T
	fields map[string]string // import path and name of a library's type, by the name of the field of that type
	found  map[string]bool
}

// mainSet is the name of the flag set that a program parses.
const mainSet = "flags"

// Programs in cmd whose flags have a page, and the section that has those of the runner.
const (
	managerProgram = "manager"
	runnerProgram  = "runner"
	runnerSection  = "The runner's flags"
)

func flagsOf(t *testing.T, program string) map[string]bool {
	t.Helper()
	r := &flagReader{t: t, fields: map[string]string{}, found: map[string]bool{}}
	files := parseDir(t, filepath.Join(root, "cmd", program))
	for _, file := range files {
		imports := importsOf(file)
		ast.Inspect(file, func(node ast.Node) bool {
			if f, ok := node.(*ast.Field); ok {
				r.field(f, imports)
			}
			return true
		})
	}
	for _, file := range files {
		ast.Inspect(file, func(node ast.Node) bool {
			if call, ok := node.(*ast.CallExpr); ok {
				r.call(call)
			}
			return true
		})
	}
	return r.found
}

// field notes a field whose type is another package's.
func (r *flagReader) field(f *ast.Field, imports map[string]string) {
	selector, ok := f.Type.(*ast.SelectorExpr)
	if !ok {
		return
	}
	if pkg, ok := selector.X.(*ast.Ident); ok {
		for _, name := range f.Names {
			r.fields[name.Name] = imports[pkg.Name] + "." + selector.Sel.Name
		}
	}
}

func (r *flagReader) call(call *ast.CallExpr) {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return
	}
	switch name := method.Sel.Name; {
	case name == "BindFlags":
		r.bind(method.X, call.Args)
	case !isIdent(method.X, mainSet):
	case name == "AddFlag":
		if lookup, ok := call.Args[0].(*ast.CallExpr); ok {
			r.found[firstString(lookup.Args)] = true
		}
	case strings.HasSuffix(name, "Var"), strings.HasSuffix(name, "VarP"):
		r.found[firstString(call.Args)] = true
	}
}

// bind adds the flags of a library's options, unless they go into a set from which
// the manager takes some by name.
func (r *flagReader) bind(receiver ast.Expr, args []ast.Expr) {
	if len(args) != 1 || !isIdent(args[0], mainSet) {
		return
	}
	selector, ok := receiver.(*ast.SelectorExpr)
	if !ok {
		r.t.Errorf("a program calls BindFlags in a way that this test does not know")
		return
	}
	options, ok := binders[r.fields[selector.Sel.Name]]
	if !ok {
		r.t.Errorf("a program binds the flags of %s (%s): add the type to this test", selector.Sel.Name, r.fields[selector.Sel.Name])
		return
	}
	set := flag.NewFlagSet("", flag.ContinueOnError)
	options().BindFlags(set)
	set.VisitAll(func(f *flag.Flag) { r.found[f.Name] = true })
}

func isIdent(expr ast.Expr, name string) bool {
	ident, ok := expr.(*ast.Ident)
	return ok && ident.Name == name
}

func firstString(args []ast.Expr) string {
	for _, arg := range args {
		if literal, ok := arg.(*ast.BasicLit); ok && literal.Kind == token.STRING {
			if text, err := strconv.Unquote(literal.Value); err == nil {
				return text
			}
		}
	}
	return ""
}

func TestEachFlagIsOnItsPage(t *testing.T) {
	t.Parallel()
	documented := map[string]map[string]bool{managerProgram: {}, runnerProgram: {}}
	row := regexp.MustCompile("(?m)^\\| `--([a-z0-9-]+)` \\|")
	for _, s := range readPage(t, flagsPage).sections {
		program := managerProgram
		if s.title == runnerSection {
			program = runnerProgram
		}
		for _, match := range row.FindAllStringSubmatch(s.text, -1) {
			if documented[program][match[1]] {
				t.Errorf("--%s of the %s stands there twice", match[1], program)
			}
			documented[program][match[1]] = true
		}
	}
	for program, least := range map[string]int{managerProgram: 20, runnerProgram: 5} {
		known := flagsOf(t, program)
		if len(known) < least {
			t.Fatalf("found %d flags of the %s only: %v", len(known), program, known)
		}
		for _, name := range slices.Sorted(maps.Keys(known)) {
			if !documented[program][name] {
				t.Errorf("docs/flags.md lacks --%s of the %s", name, program)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(documented[program])) {
			if !known[name] {
				t.Errorf("docs/flags.md has --%s, which the %s does not", name, program)
			}
		}
	}
}

// flagInText finds flags of the programs in the prose of other pages.
var flagInText = regexp.MustCompile("`--([a-z0-9-]+)")

func TestFlagsThatOtherPagesNameExist(t *testing.T) {
	t.Parallel()
	known := flagsOf(t, managerProgram)
	maps.Copy(known, flagsOf(t, runnerProgram))
	for _, p := range pages(t) {
		for _, s := range p.sections {
			for _, match := range flagInText.FindAllStringSubmatch(s.text, -1) {
				if !known[match[1]] {
					t.Errorf("%s: under %q: no program has a flag --%s", p.path, s.title, match[1])
				}
			}
		}
	}
}
