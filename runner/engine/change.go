package engine

import (
	"encoding/hex"
	"encoding/json"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// maxShownChanges bounds the changed resources in a result.
const maxShownChanges = 100

// planID is a keyed digest of what a plan would do: equal effects have equal
// ids, whatever revision they come from, and an id tells nothing about values.
// An approval counts once: after an apply the same effect has another id.
func (op *operation) planID(plan *tfjson.Plan, lockFile []byte) (string, error) {
	effects := map[string]any{}
	for _, change := range plan.ResourceChanges {
		if matters(change) {
			c := *change.Change
			c.GeneratedConfig = ""
			effects[change.Address+"#"+change.DeposedKey] = []any{change.PreviousAddress, change.ProviderName, providerKey(plan, change), c}
		}
	}
	outputs := map[string]*tfjson.Change{}
	for name, change := range plan.OutputChanges {
		if !change.Actions.NoOp() {
			outputs[name] = change
		}
	}
	drift := map[string]any{}
	if spec := op.object.Spec.PlanOptions; spec != nil && spec.RefreshOnly {
		for _, change := range plan.ResourceDrift {
			drift[change.Address+"#"+change.DeposedKey] = change.Change
		}
	}
	parts := []any{effects, outputs, drift, string(lockFile), op.tool.name, op.tool.version, op.statePlace(), op.object.UID, op.destroys(), op.record.Applies}
	if plan.Config != nil {
		// Where a provider works shows in its configuration only, and what an output
		// will be, while it is unknown, in its expression.
		parts = append(parts, plan.Config.ProviderConfigs, unknownOutputs(plan))
	}
	if opaque(plan) || refersToMore(plan) {
		parts = append(parts, op.basis)
	} else {
		parts = append(parts, op.providerInputs(plan))
	}
	text, err := json.Marshal(parts)
	if err != nil {
		return "", err
	}
	return "plan-" + hex.EncodeToString(op.record.digest(text)[:16]), nil
}

// providerKey names the configuration of the provider, of which there may be several.
func providerKey(plan *tfjson.Plan, change *tfjson.ResourceChange) string {
	if plan.Config == nil || plan.Config.RootModule == nil {
		return ""
	}
	if config := findResource(plan.Config.RootModule, change); config != nil {
		return config.ProviderConfigKey
	}
	return ""
}

// unknownOutputs are the expressions of changed outputs whose value is not known yet.
func unknownOutputs(plan *tfjson.Plan) map[string]*tfjson.Expression {
	found := map[string]*tfjson.Expression{}
	for name, change := range plan.OutputChanges {
		if plan.Config.RootModule == nil || change.Actions.NoOp() || !anyTrue(change.AfterUnknown) {
			continue
		}
		if config := plan.Config.RootModule.Outputs[name]; config != nil {
			found[name] = config.Expression
		}
	}
	return found
}

// providerReferences are what the configurations of providers refer to.
func providerReferences(plan *tfjson.Plan) []string {
	var found []string
	if plan.Config == nil {
		return nil
	}
	for _, provider := range plan.Config.ProviderConfigs {
		for _, expression := range provider.Expressions {
			found = append(found, references(expression)...)
		}
	}
	return found
}

func references(e *tfjson.Expression) []string {
	if e == nil || e.ExpressionData == nil {
		return nil
	}
	found := slices.Clone(e.References)
	for _, block := range e.NestedBlocks {
		for _, nested := range block {
			found = append(found, references(nested)...)
		}
	}
	return found
}

// refersToMore says whether a provider's configuration depends on more than input variables.
func refersToMore(plan *tfjson.Plan) bool {
	return slices.ContainsFunc(providerReferences(plan), func(r string) bool { return !strings.HasPrefix(r, "var.") })
}

// providerInputs are the values of the variables that the configurations of providers use.
func (op *operation) providerInputs(plan *tfjson.Plan) map[string]any {
	used := map[string]any{}
	for _, reference := range providerReferences(plan) {
		name, _, _ := strings.Cut(strings.TrimPrefix(reference, "var."), ".")
		name, _, _ = strings.Cut(name, "[")
		if v := plan.Variables[name]; v != nil {
			used[name] = v.Value
		}
	}
	return used
}

// matters says whether a change has an effect; moves and imports do without an action.
func matters(change *tfjson.ResourceChange) bool {
	return change.Change != nil && (!change.Change.Actions.NoOp() || change.PreviousAddress != "" || change.Change.Importing != nil)
}

// opaque says whether the plan's JSON leaves out a part of the effect, so that
// equal changes need not mean equal effects: provisioners, write-only
// attributes, values that the configuration sets but that are not known yet,
// reads that happen during the apply, ephemeral resources.
func opaque(plan *tfjson.Plan) bool {
	if plan.Config == nil || plan.Config.RootModule == nil {
		return true
	}
	if anyEphemeral(plan.Config.RootModule) {
		return true
	}
	for _, change := range plan.ResourceChanges {
		if !matters(change) {
			continue
		}
		if change.Mode == tfjson.DataResourceMode {
			return true
		}
		config := findResource(plan.Config.RootModule, change)
		if config != nil && len(config.Provisioners) > 0 {
			return true // those of a destruction run, too
		}
		if change.Change.Actions.Delete() {
			continue
		}
		if config == nil {
			return true
		}
		after, _ := change.Change.After.(map[string]any)
		unknown, _ := change.Change.AfterUnknown.(map[string]any)
		for name, expression := range config.Expressions {
			if anyTrue(unknown[name]) || after[name] == nil || writesOnly(expression, after[name]) {
				return true
			}
		}
	}
	return false
}

// writesOnly says whether a nested block sets something that its value does not show.
func writesOnly(expression *tfjson.Expression, value any) bool {
	if expression == nil || expression.ExpressionData == nil {
		return false
	}
	for _, block := range expression.NestedBlocks {
		for name, nested := range block {
			shown := nestedValue(value, name)
			if shown == nil || writesOnly(nested, shown) {
				return true
			}
		}
	}
	return false
}

// nestedValue finds an attribute in a block's value, which may be one of several.
func nestedValue(value any, name string) any {
	switch v := value.(type) {
	case map[string]any:
		return v[name]
	case []any:
		for _, element := range v {
			if found := nestedValue(element, name); found != nil {
				return found
			}
		}
	}
	return nil
}

func anyEphemeral(module *tfjson.ConfigModule) bool {
	for _, resource := range module.Resources {
		if resource.Mode == "ephemeral" {
			return true
		}
	}
	for _, call := range module.ModuleCalls {
		if call.Module != nil && anyEphemeral(call.Module) {
			return true
		}
	}
	return false
}

// instanceKey is the [0] or ["key"] of a module or resource instance.
var instanceKey = regexp.MustCompile(`\[("([^"\\]|\\.)*"|\d+)\]`)

// findResource finds the configuration of a changed resource.
func findResource(module *tfjson.ConfigModule, change *tfjson.ResourceChange) *tfjson.ConfigResource {
	address := instanceKey.ReplaceAllString(change.ModuleAddress, "")
	for name := range strings.SplitSeq(strings.TrimPrefix(address, "module."), ".module.") {
		if name == "" {
			break
		}
		call := module.ModuleCalls[name]
		if call == nil || call.Module == nil {
			return nil
		}
		module = call.Module
	}
	for _, resource := range module.Resources {
		if resource.Type == change.Type && resource.Name == change.Name && resource.Mode == change.Mode {
			return resource
		}
	}
	return nil
}

// anyTrue says whether a structure of marks, as for unknown and sensitive values, marks anything.
func anyTrue(marks any) bool {
	switch m := marks.(type) {
	case bool:
		return m
	case map[string]any:
		return slices.ContainsFunc(slices.Collect(maps.Values(m)), anyTrue)
	case []any:
		return slices.ContainsFunc(m, anyTrue)
	}
	return false
}

// summarize counts what the plan does.
func summarize(plan *tfjson.Plan) *runnerpb.Summary {
	s := &runnerpb.Summary{}
	for _, change := range plan.ResourceChanges {
		if change.Change == nil || change.Mode != tfjson.ManagedResourceMode {
			continue
		}
		if change.Change.Importing != nil {
			s.Import++
		}
		if change.PreviousAddress != "" {
			s.Move++
		}
		switch actions := change.Change.Actions; {
		case actions.Replace():
			s.Replace++
		case actions.Create():
			s.Add++
		case actions.Update():
			s.Change++
		case actions.Delete():
			s.Destroy++
		case slices.Contains(actions, "forget"):
			s.Forget++
		}
	}
	for _, change := range plan.OutputChanges {
		if !change.Actions.NoOp() {
			s.Outputs++
		}
	}
	return s
}

func changedResources(plan *tfjson.Plan) []*runnerpb.ResourceChange {
	drifted := map[string]bool{}
	for _, change := range plan.ResourceDrift {
		drifted[change.Address] = true
	}
	var changed []*runnerpb.ResourceChange
	for _, change := range plan.ResourceChanges {
		if !matters(change) || change.Mode != tfjson.ManagedResourceMode {
			continue
		}
		if len(changed) == maxShownChanges {
			break
		}
		entry := &runnerpb.ResourceChange{Address: change.Address, Type: change.Type, Provider: path.Base(change.ProviderName), Drift: drifted[change.Address]}
		for _, action := range change.Change.Actions {
			entry.Actions = append(entry.Actions, string(action))
		}
		changed = append(changed, entry)
	}
	return changed
}

// priorResources is the inventory of the state before the plan.
func priorResources(plan *tfjson.Plan) []*runnerpb.Resource {
	if plan.PriorState == nil || plan.PriorState.Values == nil {
		return nil
	}
	return moduleResources(plan.PriorState.Values.RootModule)
}

func moduleResources(module *tfjson.StateModule) []*runnerpb.Resource {
	if module == nil {
		return nil
	}
	var found []*runnerpb.Resource
	for _, resource := range module.Resources {
		if resource.Mode != tfjson.ManagedResourceMode {
			continue
		}
		id, _ := resource.AttributeValues["id"].(string)
		if sensitiveID(resource.SensitiveValues) {
			id = ""
		}
		found = append(found, &runnerpb.Resource{Address: resource.Address, Type: resource.Type, Provider: path.Base(resource.ProviderName), Id: id})
	}
	for _, child := range module.ChildModules {
		found = append(found, moduleResources(child)...)
	}
	return found
}

func sensitiveID(marks json.RawMessage) bool {
	var marked map[string]any
	return json.Unmarshal(marks, &marked) == nil && anyTrue(marked["id"])
}

// shownChange is one change as it is kept for readers.
type shownChange struct {
	Address         string          `json:"address"`
	PreviousAddress string          `json:"previousAddress,omitempty"`
	Type            string          `json:"type,omitempty"`
	Provider        string          `json:"provider,omitempty"`
	Actions         []tfjson.Action `json:"actions"`
	Reason          string          `json:"reason,omitempty"`
	Importing       bool            `json:"importing,omitempty"`
	Before          any             `json:"before,omitempty"`
	After           any             `json:"after,omitempty"`
	Unknown         any             `json:"unknown,omitempty"`
}

// redactedChanges lists what changes, without the values marked as sensitive.
// terraform-json's own sanitizer leaves some in (drift, prior state, defaults),
// so only what is listed here is kept at all.
func redactedChanges(plan *tfjson.Plan) map[string]any {
	resources := []shownChange{}
	for _, change := range plan.ResourceChanges {
		if !matters(change) {
			continue
		}
		shown := showChange(change.Change)
		shown.Address, shown.PreviousAddress = change.Address, change.PreviousAddress
		shown.Type, shown.Provider, shown.Reason = change.Type, change.ProviderName, string(change.ActionReason)
		resources = append(resources, shown)
	}
	outputs := []shownChange{}
	for _, name := range slices.Sorted(maps.Keys(plan.OutputChanges)) {
		if change := plan.OutputChanges[name]; !change.Actions.NoOp() {
			shown := showChange(change)
			shown.Address = "output." + name
			outputs = append(outputs, shown)
		}
	}
	return map[string]any{"resources": resources, "outputs": outputs}
}

func showChange(change *tfjson.Change) shownChange {
	return shownChange{
		Actions: change.Actions, Importing: change.Importing != nil, Unknown: change.AfterUnknown,
		Before: redactMarked(change.Before, change.BeforeSensitive),
		After:  redactMarked(change.After, change.AfterSensitive),
	}
}

// redactMarked replaces what the marks mark. A mark may be for the whole value
// or for a part; unknown shapes of marks hide everything.
func redactMarked(value, marks any) any {
	if value == nil {
		return nil
	}
	switch m := marks.(type) {
	case nil:
		return value
	case bool:
		if !m {
			return value
		}
	case map[string]any:
		if len(m) == 0 {
			return value
		}
		if v, ok := value.(map[string]any); ok {
			clean := make(map[string]any, len(v))
			for key, part := range v {
				clean[key] = redactMarked(part, m[key])
			}
			return clean
		}
	case []any:
		if len(m) == 0 {
			return value
		}
		if v, ok := value.([]any); ok {
			clean := make([]any, len(v))
			for i, part := range v {
				var mark any
				if i < len(m) {
					mark = m[i]
				}
				clean[i] = redactMarked(part, mark)
			}
			return clean
		}
	}
	return "(sensitive)"
}
