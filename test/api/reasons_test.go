package api_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// namePattern is what the API server demands of a reason and of a type, with
// less freedom: one word in PascalCase.
var namePattern = regexp.MustCompile(`^[A-Z][A-Za-z0-9]*$`)

func TestEachConditionAndReasonIsDocumented(t *testing.T) {
	t.Parallel()
	reasons, values := 0, map[string]string{}
	for name, constant := range constants(t, "condition_types.go") {
		suffix := "Condition"
		if strings.HasSuffix(name, "Reason") {
			suffix = "Reason"
			reasons++
		}
		stem, ok := strings.CutSuffix(name, suffix)
		if !ok || stem != constant.value {
			t.Errorf("%s = %q: the name must be the value with %s added", name, constant.value, suffix)
		}
		if !namePattern.MatchString(constant.value) {
			t.Errorf("%s = %q is not in PascalCase", name, constant.value)
		}
		if !strings.HasPrefix(constant.doc, name+" ") {
			t.Errorf("%s has no doc comment that starts with its name", name)
		}
		if other, taken := values[suffix+constant.value]; taken {
			t.Errorf("%s and %s have the same value", name, other)
		}
		values[suffix+constant.value] = name
	}
	if reasons == 0 {
		t.Error("found no reason at all")
	}
	t.Logf("%d reasons", reasons)
}

type constant struct{ value, doc string }

// constants returns the string constants of a file of the API package.
func constants(t *testing.T, file string) map[string]constant {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(apiDir, file), nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]constant{}
	ast.Inspect(parsed, func(node ast.Node) bool {
		spec, ok := node.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return true
		}
		literal, ok := spec.Values[0].(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING {
			return true
		}
		value, err := strconv.Unquote(literal.Value)
		if err != nil {
			t.Fatal(err)
		}
		found[spec.Names[0].Name] = constant{value: value, doc: spec.Doc.Text()}
		return true
	})
	return found
}
