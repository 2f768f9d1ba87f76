package docs_test

import (
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Packages whose constants are reasons.
const (
	apiPackage    = "github.com/terrace-dev/terrace/api/v1alpha1"
	runnerPackage = "github.com/terrace-dev/terrace/runner"
	metaPackage   = "github.com/fluxcd/pkg/apis/meta"
)

func parseDir(t *testing.T, dir string) []*ast.File {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	if len(files) == 0 {
		t.Fatalf("found no Go files in %s", dir)
	}
	return files
}

// isReason says whether a name is that of a reason: SomethingReason in the API,
// ReasonSomething in the runner.
func isReason(name string) bool {
	return ast.IsExported(name) && (strings.HasSuffix(name, "Reason") || strings.HasPrefix(name, "Reason"))
}

// reasonsIn returns the values of a package's reasons by the constants' names.
func reasonsIn(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, file := range parseDir(t, dir) {
		ast.Inspect(file, func(node ast.Node) bool {
			spec, ok := node.(*ast.ValueSpec)
			if !ok || len(spec.Names) != 1 || len(spec.Values) != 1 || !isReason(spec.Names[0].Name) {
				return true
			}
			if literal, ok := spec.Values[0].(*ast.BasicLit); ok && literal.Kind == token.STRING {
				value, err := strconv.Unquote(literal.Value)
				if err != nil {
					t.Fatal(err)
				}
				found[spec.Names[0].Name] = value
			}
			return true
		})
	}
	if len(found) == 0 {
		t.Fatalf("found no reason in %s", dir)
	}
	return found
}

// used returns the names of reasons that the code refers to, by package. In a
// package of its own a reason's name has no qualifier.
func used(t *testing.T) map[string]map[string]bool {
	t.Helper()
	found := map[string]map[string]bool{apiPackage: {}, runnerPackage: {}, metaPackage: {}}
	for _, top := range []string{"cmd", "internal", "runner"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			own := filepath.Dir(path) == filepath.Join(root, "runner")
			noteReasons(file, own, found)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}

func noteReasons(file *ast.File, own bool, found map[string]map[string]bool) {
	imports := importsOf(file)
	ast.Inspect(file, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.SelectorExpr:
			pkg, ok := n.X.(*ast.Ident)
			if ok && isReason(n.Sel.Name) && found[imports[pkg.Name]] != nil {
				found[imports[pkg.Name]][n.Sel.Name] = true
			}
		case *ast.ValueSpec:
			return !own || !isReason(n.Names[0].Name) // a declaration is no use
		case *ast.Ident:
			if own && isReason(n.Name) {
				found[runnerPackage][n.Name] = true
			}
		}
		return true
	})
}

// importsOf returns the import paths of a file by the names that it uses.
func importsOf(file *ast.File) map[string]string {
	found := map[string]string{}
	for _, spec := range file.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue
		}
		name := path[strings.LastIndex(path, "/")+1:]
		if spec.Name != nil {
			name = spec.Name.Name
		}
		found[name] = path
	}
	return found
}

// reasons returns every reason that a reader may meet, and whether the code reports it.
func reasons(t *testing.T) map[string]bool {
	t.Helper()
	inUse := used(t)
	found := map[string]bool{}
	for pkg, dir := range map[string]string{apiPackage: filepath.Join(root, "api", "v1alpha1"), runnerPackage: filepath.Join(root, "runner")} {
		for name, value := range reasonsIn(t, dir) {
			found[value] = found[value] || inUse[pkg][name]
		}
	}
	flux, err := build.Import(metaPackage, root, build.FindOnly)
	if err != nil {
		t.Fatal(err)
	}
	values := reasonsIn(t, flux.Dir)
	for name := range inUse[metaPackage] {
		found[values[name]] = true
	}
	return found
}

func TestEachReasonHasItsSectionInTroubleshooting(t *testing.T) {
	t.Parallel()
	known := reasons(t)
	documented := map[string]bool{}
	for _, s := range readPage(t, troubleshooting).sections {
		if s.level != 3 {
			continue
		}
		if _, ok := known[s.title]; !ok {
			t.Errorf("### %s: there is no such reason", s.title)
		}
		if documented[s.title] {
			t.Errorf("### %s stands there twice", s.title)
		}
		documented[s.title] = true
	}
	for _, reason := range slices.Sorted(maps.Keys(known)) {
		if !documented[reason] {
			t.Errorf("docs/troubleshooting.md lacks ### %s", reason)
		}
	}
	t.Logf("%d reasons", len(known))
}

func TestReportedReasonsSayWhyAndWhatNextAndWhatToDo(t *testing.T) {
	t.Parallel()
	const later = "not reported yet"
	known := reasons(t)
	var group section
	for _, s := range readPage(t, troubleshooting).sections {
		switch {
		case s.level == 2:
			group = s
		case s.level == 3 && known[s.title]:
			if strings.Contains(group.text, later) || strings.Contains(group.title, later) {
				t.Errorf("### %s is reported, but stands in a group of reasons that are %s", s.title, later)
			}
			for _, part := range []string{"\n- **Why:** ", "\n- **Next:** ", "\n- **Do:** "} {
				if strings.Count(s.text, part) != 1 {
					t.Errorf("### %s lacks %q", s.title, strings.TrimSpace(part))
				}
			}
		case s.level == 3:
			if !strings.Contains(group.text, later) && !strings.Contains(group.title, later) {
				t.Errorf("### %s: no code reports it, so it belongs in a group of reasons that are %s", s.title, later)
			}
		}
	}
}
