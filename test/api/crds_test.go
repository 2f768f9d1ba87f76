package api_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// readCRDs returns the generated definitions by kind.
func readCRDs(t *testing.T) map[string]*apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(crdDir, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	crds := map[string]*apiextensionsv1.CustomResourceDefinition{}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(content, crd); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		crds[crd.Spec.Names.Kind] = crd
	}
	if len(crds) != len(kinds) {
		t.Fatalf("found %d definitions in %s, want %d", len(crds), crdDir, len(kinds))
	}
	return crds
}

func rootSchema(crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.JSONSchemaProps {
	return crd.Spec.Versions[0].Schema.OpenAPIV3Schema
}

// walk visits a schema and everything inside it.
func walk(schema *apiextensionsv1.JSONSchemaProps, path string, visit func(string, *apiextensionsv1.JSONSchemaProps)) {
	visit(path, schema)
	for name := range schema.Properties {
		property := schema.Properties[name]
		walk(&property, path+"."+name, visit)
	}
	if schema.Items != nil && schema.Items.Schema != nil {
		walk(schema.Items.Schema, path+"[]", visit)
	}
	if schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil {
		walk(schema.AdditionalProperties.Schema, path+"{}", visit)
	}
}

func TestDefinitionsAreSmallEnoughForClientSideApply(t *testing.T) {
	t.Parallel()
	const (
		maxFile       = 250_000
		maxAnnotation = 262_144 // of all annotations of an object together
	)
	for kind, crd := range readCRDs(t) {
		applied, err := json.Marshal(crd)
		if err != nil {
			t.Fatal(err)
		}
		if len(applied) >= maxAnnotation {
			t.Errorf("%s: kubectl apply would write an annotation of %d bytes, and at most %d fit", kind, len(applied), maxAnnotation)
		}
		file := filepath.Join(crdDir, crd.Spec.Group+"_"+crd.Spec.Names.Plural+".yaml")
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() >= maxFile {
			t.Errorf("%s has %d bytes, and should have less than %d", file, info.Size(), maxFile)
		}
		t.Logf("%s: file %d bytes, annotation %d bytes", kind, info.Size(), len(applied))
	}
}

func TestDefinitionsFollowFluxConventions(t *testing.T) {
	t.Parallel()
	shortNames := map[string]string{"Terraform": "tf", "KubesprayCluster": "ksc", "ConfigReload": "cfr"}
	for kind, crd := range readCRDs(t) {
		names := crd.Spec.Names
		if !slices.Equal(names.ShortNames, []string{shortNames[kind]}) || !slices.Equal(names.Categories, []string{"terrace"}) {
			t.Errorf("%s: short names %v, categories %v", kind, names.ShortNames, names.Categories)
		}
		version := crd.Spec.Versions[0]
		if crd.Spec.Scope != apiextensionsv1.NamespaceScoped || version.Subresources == nil || version.Subresources.Status == nil {
			t.Errorf("%s must be namespaced and have the subresource status", kind)
		}
		status := rootSchema(crd).Properties["status"]
		if status.Default == nil || string(status.Default.Raw) != `{"observedGeneration":-1}` {
			t.Errorf("%s: the default of status is %v", kind, status.Default)
		}
		checkColumns(t, kind, version.AdditionalPrinterColumns)
	}
}

func checkColumns(t *testing.T, kind string, columns []apiextensionsv1.CustomResourceColumnDefinition) {
	t.Helper()
	want := []apiextensionsv1.CustomResourceColumnDefinition{
		{Name: "Age", Type: "date", JSONPath: ".metadata.creationTimestamp"},
		{Name: "Ready", Type: "string", JSONPath: `.status.conditions[?(@.type=="Ready")].status`},
		{Name: "Status", Type: "string", JSONPath: `.status.conditions[?(@.type=="Ready")].message`},
	}
	if len(columns) <= len(want) || !slices.Equal(columns[:len(want)], want) {
		t.Errorf("%s: the columns are %v, and should begin with %v", kind, columns, want)
		return
	}
	for _, column := range columns[len(want):] {
		if column.Priority != 1 {
			t.Errorf("%s: the column %s must have priority 1", kind, column.Name)
		}
	}
}

// imported are parts of the schema that come from other modules, with their own
// habits.
var imported = []string{
	".metadata", ".status.conditions[]", ".selector", ".podSelector", ".exclude.pods",
	".status.lastHandledReconcileAt", ".status.lastHandledForceAt",
}

func isImported(path string) bool {
	return slices.ContainsFunc(imported, func(part string) bool { return strings.Contains(path, part) })
}

func TestEachFieldIsDocumented(t *testing.T) {
	t.Parallel()
	for kind, crd := range readCRDs(t) {
		walk(rootSchema(crd), "", func(path string, schema *apiextensionsv1.JSONSchemaProps) {
			for name := range schema.Properties {
				property := schema.Properties[name]
				field := path + "." + name
				if field == ".apiVersion" || field == ".kind" || isImported(field) {
					continue
				}
				if first, _, _ := strings.Cut(property.Description, " "); first != name {
					t.Errorf("%s %s: the description must start with the name of the field: %q", kind, field, property.Description)
				}
			}
		})
	}
}

func TestEachFieldOfTheSpecIsBounded(t *testing.T) {
	t.Parallel()
	for kind, crd := range readCRDs(t) {
		spec := rootSchema(crd).Properties["spec"]
		walk(&spec, ".spec", func(path string, schema *apiextensionsv1.JSONSchemaProps) {
			if isImported(path) {
				return
			}
			if missing := missingBound(schema); missing != "" && !valueOfMap(path) {
				t.Errorf("%s %s has no %s", kind, path, missing)
			}
		})
	}
}

// valueOfMap says whether the path is that of the values of a map of strings,
// for which the generator knows no bound; the size of the object is theirs.
func valueOfMap(path string) bool { return strings.HasSuffix(path, "{}") }

func missingBound(schema *apiextensionsv1.JSONSchemaProps) string {
	switch {
	case schema.XIntOrString:
		return ""
	case schema.Type == "string" && len(schema.Enum) == 0 && schema.MaxLength == nil:
		return "maxLength"
	case schema.Type == "integer" && (schema.Minimum == nil || schema.Maximum == nil):
		return "minimum and maximum"
	case schema.Type == "array" && schema.MaxItems == nil:
		return "maxItems"
	case schema.Type == "array" && schema.XListType == nil:
		return "listType"
	case schema.Type == "object" && schema.AdditionalProperties != nil && schema.MaxProperties == nil:
		return "maxProperties"
	}
	return ""
}

func TestEachListInTheStatusIsBounded(t *testing.T) {
	t.Parallel()
	for kind, crd := range readCRDs(t) {
		status := rootSchema(crd).Properties["status"]
		walk(&status, ".status", func(path string, schema *apiextensionsv1.JSONSchemaProps) {
			if isImported(path) || (schema.Type != "array" && schema.Type != "object") {
				return
			}
			if missing := missingBound(schema); missing != "" {
				t.Errorf("%s %s has no %s", kind, path, missing)
			}
		})
	}
}
