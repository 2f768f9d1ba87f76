package api_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ruleCase shows one rule at work: objects that it lets pass and objects that it
// refuses. They are patches, in YAML, of the minimal sample's spec.
type ruleCase struct {
	accept []string
	refuse []string

	// acceptName and refuseName replace the object's name.
	acceptName, refuseName string

	// message must be part of the refusal. For a rule in CEL it is the message of
	// the rule, word for word, and stands in the key of the table as well.
	message string

	// update applies accept and refuse as updates of an object made of this patch.
	update string
}

// celCases show the rules written in CEL, by kind and by the rule's message.
var celCases = map[string]map[string]ruleCase{
	"Terraform":        terraformRules,
	"KubesprayCluster": clusterRules,
	"ConfigReload":     reloadRules,
}

// boundCases show bounds in the schema, by kind and by what they forbid.
var boundCases = map[string]map[string]ruleCase{
	"Terraform":        terraformBounds,
	"KubesprayCluster": clusterBounds,
	"ConfigReload":     reloadBounds,
}

func TestEachRuleAcceptsAndRefuses(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		for message, tc := range celCases[kind] {
			tc.message = message
			t.Run(kind+"/"+message, func(t *testing.T) { checkRule(t, kind, tc) })
		}
		for name, tc := range boundCases[kind] {
			t.Run(kind+"/"+name, func(t *testing.T) { checkRule(t, kind, tc) })
		}
	}
}

func checkRule(t *testing.T, kind string, tc ruleCase) {
	t.Helper()
	t.Parallel()
	if len(tc.accept) == 0 || len(tc.refuse) == 0 || tc.message == "" {
		t.Fatal("a case needs something to accept, something to refuse, and a message")
	}
	attempt := creator(t, kind)
	if tc.update != "" {
		attempt = updater(t, kind, tc.update)
	}
	for _, patch := range tc.accept {
		if err := attempt(tc.acceptName, patch); err != nil {
			t.Errorf("refused what the rule allows:\n%s\n%v", patch, err)
		}
	}
	for _, patch := range tc.refuse {
		err := attempt(tc.refuseName, patch)
		if err == nil {
			t.Errorf("accepted what the rule forbids:\n%s", patch)
		} else if !strings.Contains(err.Error(), tc.message) {
			t.Errorf("the refusal of\n%s\nsays\n%v\nand should say\n%s", patch, err, tc.message)
		}
	}
}

// creator returns a function that tries to create an object.
func creator(t *testing.T, kind string) func(name, patch string) error {
	t.Helper()
	return func(name, patch string) error {
		obj := variant(t, kind, patch)
		if name != "" {
			obj.SetName(name)
		}
		return try(t.Context(), obj)
	}
}

// updater stores an object and returns a function that tries to update it.
func updater(t *testing.T, kind, before string) func(name, patch string) error {
	t.Helper()
	stored := variant(t, kind, before)
	stored.SetNamespace(cluster.Namespace(t))
	if err := server.Create(t.Context(), stored); err != nil {
		t.Fatal(err)
	}
	return func(_, patch string) error {
		obj := variant(t, kind, patch)
		obj.SetNamespace(stored.GetNamespace())
		obj.SetResourceVersion(stored.GetResourceVersion())
		return server.Update(t.Context(), obj, client.DryRunAll)
	}
}

func TestEachRuleInTheSchemaHasACase(t *testing.T) {
	t.Parallel()
	for kind, crd := range readCRDs(t) {
		rules := map[string]int{}
		walk(rootSchema(crd), "", func(path string, schema *apiextensionsv1.JSONSchemaProps) {
			for _, rule := range schema.XValidations {
				if rule.Message == "" {
					t.Errorf("%s %s: the rule %s has no message", kind, path, rule.Rule)
				}
				rules[rule.Message]++
			}
		})
		for _, message := range slices.Sorted(maps.Keys(rules)) {
			if _, shown := celCases[kind][message]; !shown {
				t.Errorf("%s: no case shows the rule %q", kind, message)
			}
			if rules[message] > 1 {
				t.Errorf("%s: %d rules have the message %q, so that one case cannot show them all", kind, rules[message], message)
			}
		}
		for message := range celCases[kind] {
			if rules[message] == 0 {
				t.Errorf("%s: a case shows the rule %q, which does not exist", kind, message)
			}
		}
		t.Logf("%s: %d rules", kind, len(rules))
	}
}
