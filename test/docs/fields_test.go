package docs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// field is a field of the custom resource definition.
type field struct {
	path      []string // from spec or status, without marks of lists
	byDefault string   // empty if there is none, or if it is an object
}

// fields returns all fields under spec and status, at all levels.
func fields(t *testing.T) []field {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, "config", "crd", "bases", "infra.terrace.dev_terraforms.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(content, crd); err != nil {
		t.Fatal(err)
	}
	if len(crd.Spec.Versions) != 1 {
		t.Fatalf("the definition has %d versions; this test knows one page", len(crd.Spec.Versions))
	}
	var found []field
	schema := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
	for _, part := range []string{"spec", "status"} {
		found = append(found, fieldsIn(schema.Properties[part], []string{part})...)
	}
	if len(found) < 100 {
		t.Fatalf("found %d fields only", len(found))
	}
	return found
}

func fieldsIn(schema apiextensionsv1.JSONSchemaProps, path []string) []field {
	var found []field
	for name, child := range schema.Properties {
		own := append(slices.Clone(path), name)
		f := field{path: own}
		if child.Default != nil && child.Type != "object" {
			f.byDefault = strings.Trim(string(child.Default.Raw), `"`)
		}
		found = append(found, f)
		found = append(found, fieldsIn(child, own)...)
	}
	if schema.Items != nil && schema.Items.Schema != nil {
		found = append(found, fieldsIn(*schema.Items.Schema, path)...)
	}
	if more := schema.AdditionalProperties; more != nil && more.Schema != nil {
		found = append(found, fieldsIn(*more.Schema, path)...)
	}
	return found
}

// fieldHeading is how the page names the fields that have a section: ### `.spec.interval`
var fieldHeading = regexp.MustCompile("^`\\.((?:spec|status)\\.[A-Za-z]+)`$")

// fieldSections returns the sections of the page of the kind, by field.
func fieldSections(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, s := range readPage(t, terraformPage).sections {
		if match := fieldHeading.FindStringSubmatch(s.title); match != nil && s.level == 3 {
			if _, twice := found[match[1]]; twice {
				t.Errorf("### %s stands there twice", s.title)
			}
			found[match[1]] = s.text
		}
	}
	return found
}

var code = regexp.MustCompile("`([^`]+)`")

// mentions says whether a section names a nested field in code: by its own name, or
// with some of the names before it, as in `keys[].from`.
func mentions(text string, path []string) bool {
	for _, match := range code.FindAllStringSubmatch(text, -1) {
		names := strings.Split(strings.ReplaceAll(match[1], "[]", ""), ".")
		if len(names) <= len(path) && slices.Equal(names, path[len(path)-len(names):]) {
			return true
		}
	}
	return false
}

func TestEachFieldIsOnThePageOfTheKind(t *testing.T) {
	t.Parallel()
	sections := fieldSections(t)
	known := map[string]bool{}
	for _, f := range fields(t) {
		top := strings.Join(f.path[:2], ".")
		known[top] = true
		text, ok := sections[top]
		switch {
		case len(f.path) == 2 && !ok:
			t.Errorf("the page lacks ### `.%s`", top)
		case len(f.path) > 2 && ok && !mentions(text, f.path[2:]):
			t.Errorf("### `.%s` does not mention %s", top, strings.Join(f.path[1:], "."))
		}
		if f.byDefault != "" && ok && !strings.Contains(text, f.byDefault) {
			t.Errorf("### `.%s` does not mention %s, the default of %s", top, f.byDefault, strings.Join(f.path, "."))
		}
	}
	for top := range sections {
		if !known[top] {
			t.Errorf("### `.%s`: there is no such field", top)
		}
	}
}

func TestRefusedFieldsAreMarkedOnThePageOfTheKind(t *testing.T) {
	t.Parallel()
	sections := fieldSections(t)
	validation, err := os.ReadFile(filepath.Join(root, "internal", "controller", "terraform", "validation.go"))
	if err != nil {
		t.Fatal(err)
	}
	const mark = "**Not supported yet.**"
	marked := map[string]int{}
	for _, match := range regexp.MustCompile(`\{"spec\.([A-Za-z.]+)", `).FindAllStringSubmatch(string(validation), -1) {
		names := strings.Split(match[1], ".")
		top := "spec." + names[0]
		marked[top]++
		want := mark
		if len(names) > 1 {
			want = fmt.Sprintf("| `%s` | %s", names[1], mark)
		}
		if !strings.Contains(sections[top], want) {
			t.Errorf("### `.%s` does not say %q of %s, which the controller refuses", top, mark, match[1])
		}
	}
	if len(marked) == 0 {
		t.Error("found no refused field: has the check in validation.go another form?")
	}
	for top, text := range sections {
		if count := strings.Count(text, mark); count != marked[top] {
			t.Errorf("### `.%s` says %d times %q, and the controller refuses %d fields in it", top, count, mark, marked[top])
		}
	}
}
