package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
)

// inputs is what the object refers to, resolved. Values are secret.
type inputs struct {
	Variables map[string]json.RawMessage `json:"variables,omitempty"`
	Files     []inputFile                `json:"files,omitempty"`
	Backend   map[string]string          `json:"backend,omitempty"`
	CLIConfig []byte                     `json:"cliConfig,omitempty"`

	secrets []string // values not to be shown
}

type inputFile struct {
	Path string      `json:"path"`
	Mode fs.FileMode `json:"mode"`
	Data []byte      `json:"data"`
}

// variablesJSON is the content of the variable file.
func (in *inputs) variablesJSON() []byte {
	if len(in.Variables) == 0 {
		return []byte("{}")
	}
	text, _ := json.Marshal(in.Variables) // of valid JSON
	return text
}

// backendConfig renders the backend's settings; %q of a string is valid HCL
// once template sequences are escaped.
func (in *inputs) backendConfig() []byte {
	var b bytes.Buffer
	for _, key := range slices.Sorted(maps.Keys(in.Backend)) {
		value, _ := json.Marshal(in.Backend[key])
		fmt.Fprintf(&b, "%s = %s\n", key, strings.NewReplacer("${", "$${", "%{", "%%{").Replace(string(value)))
	}
	return b.Bytes()
}

// loadInputs resolves the inputs. For a destruction what the record keeps stands in for what is gone.
func (op *operation) loadInputs(ctx context.Context, use keptUse) error {
	kept := op.record.Applied.inputs()
	if use != keptNever && kept != nil {
		op.hide(kept.secrets...)
	}
	if use == keptOnly && kept != nil {
		op.inputs = kept
		return nil
	}
	r := &resolver{op: op, inputs: &inputs{}}
	err := r.resolve(ctx)
	if use == keptIfMissing && kept != nil && isKind(err, kindWaiting) {
		op.warnings = append(op.warnings, err.Error()+"; the values of the last apply are used")
		op.inputs = kept
		return nil
	}
	op.inputs = r.inputs
	return err
}

// resolver reads the Secrets and ConfigMaps that the object refers to, each once.
type resolver struct {
	op     *operation
	inputs *inputs
	read   map[string]map[string][]byte
}

func (r *resolver) resolve(ctx context.Context) error {
	spec := &r.op.object.Spec
	r.read = map[string]map[string][]byte{}
	r.inputs.Variables = map[string]json.RawMessage{}
	for i, from := range spec.VariablesFrom {
		if err := r.variablesFrom(ctx, fmt.Sprintf("spec.variablesFrom[%d]", i), from); err != nil {
			return err
		}
	}
	for _, v := range spec.Variables {
		if err := r.variable(ctx, v); err != nil {
			return err
		}
	}
	for i, f := range spec.Files {
		if err := r.file(ctx, fmt.Sprintf("spec.files[%d]", i), f); err != nil {
			return err
		}
	}
	if ref := spec.CLIConfigSecretRef; ref != nil {
		value, err := r.key(ctx, "spec.cliConfigSecretRef", infrav1.SecretKind, ref.Name, ref.Key)
		if err != nil {
			return err
		}
		r.inputs.CLIConfig = value
	}
	return r.backend(ctx)
}

func (r *resolver) variable(ctx context.Context, v infrav1.Variable) error {
	field := "spec.variables[" + v.Name + "]"
	if v.Value != nil {
		r.inputs.Variables[v.Name] = v.Value.Raw
		return nil
	}
	from := v.ValueFrom
	switch {
	case from == nil:
		return terminal(infrav1.InvalidSpecReason, "%s has neither value nor valueFrom", field)
	case from.SecretKeyRef != nil:
		return r.stringFrom(ctx, v.Name, field, infrav1.SecretKind, from.SecretKeyRef)
	case from.ConfigMapKeyRef != nil:
		return r.stringFrom(ctx, v.Name, field, infrav1.ConfigMapKind, from.ConfigMapKeyRef)
	case from.TerraformOutput != nil:
		value, err := r.terraformOutput(ctx, field, from.TerraformOutput)
		r.inputs.Variables[v.Name] = value
		return err
	}
	return terminal(infrav1.InvalidSpecReason, "%s.valueFrom names no source", field)
}

func (r *resolver) stringFrom(ctx context.Context, name, field string, kind infrav1.ConfigKind, ref *infrav1.KeyReference) error {
	value, err := r.key(ctx, field, kind, ref.Name, ref.Key)
	if err != nil {
		return err
	}
	r.inputs.Variables[name], err = asVariable(field, value, infrav1.VariableFormatString)
	return err
}

func (r *resolver) variablesFrom(ctx context.Context, field string, from infrav1.VariablesFrom) error {
	data, err := r.object(ctx, field, from.Kind, from.Name)
	if err != nil {
		if from.Optional && isKind(err, kindWaiting) {
			return nil
		}
		return err
	}
	keys := from.Keys
	if len(keys) == 0 {
		for _, key := range slices.Sorted(maps.Keys(data)) {
			keys = append(keys, infrav1.VariableKey{From: key})
		}
	}
	for _, key := range keys {
		value, found := data[key.From]
		if !found && from.Optional {
			continue
		}
		if !found {
			return waiting("%s %s/%s has no key %q (%s)", from.Kind, r.op.object.Namespace, from.Name, key.From, field)
		}
		variable, err := asVariable(field+" key "+key.From, value, from.GetFormat())
		if err != nil {
			return err
		}
		r.inputs.Variables[from.Prefix+key.GetTo()] = variable
	}
	return nil
}

// asVariable makes a variable's JSON of a key's bytes. The value is never part of the error.
func asVariable(field string, value []byte, format infrav1.VariableFormat) (json.RawMessage, error) {
	if format == infrav1.VariableFormatJSON {
		if !json.Valid(value) {
			return nil, terminal(infrav1.InputInvalidReason, "%s: the value is not JSON, as format JSON asks for", field)
		}
		return value, nil
	}
	return json.Marshal(string(value))
}

func (r *resolver) file(ctx context.Context, field string, f infrav1.File) error {
	kind, ref := infrav1.SecretKind, f.SecretKeyRef
	if ref == nil {
		kind, ref = infrav1.ConfigMapKind, f.ConfigMapKeyRef
	}
	if ref == nil {
		return terminal(infrav1.InvalidSpecReason, "%s has neither secretKeyRef nor configMapKeyRef", field)
	}
	data, err := r.key(ctx, field, kind, ref.Name, ref.Key)
	if err != nil {
		return err
	}
	mode := fs.FileMode(f.GetMode()).Perm() //nolint:gosec // the schema bounds it to 0777
	r.inputs.Files = append(r.inputs.Files, inputFile{Path: f.Path, Mode: mode, Data: data})
	return nil
}

func (r *resolver) backend(ctx context.Context) error {
	if r.op.object.Spec.Backend == nil {
		return nil
	}
	for i, from := range r.op.object.Spec.Backend.ConfigFrom {
		field := fmt.Sprintf("spec.backend.configFrom[%d]", i)
		data, err := r.object(ctx, field, from.Kind, from.Name)
		if err != nil {
			return err
		}
		keys := from.Keys
		if len(keys) == 0 {
			keys = slices.Sorted(maps.Keys(data))
		}
		for _, key := range keys {
			value, found := data[key]
			if !found {
				return waiting("%s %s/%s has no key %q (%s)", from.Kind, r.op.object.Namespace, from.Name, key, field)
			}
			if r.inputs.Backend == nil {
				r.inputs.Backend = map[string]string{}
			}
			r.inputs.Backend[key] = string(value)
		}
	}
	return nil
}

func (r *resolver) key(ctx context.Context, field string, kind infrav1.ConfigKind, name, key string) ([]byte, error) {
	data, err := r.object(ctx, field, kind, name)
	if err != nil {
		return nil, err
	}
	value, found := data[key]
	if !found {
		return nil, waiting("%s %s/%s has no key %q (%s)", kind, r.op.object.Namespace, name, key, field)
	}
	return value, nil
}

// object reads a Secret or ConfigMap.
func (r *resolver) object(ctx context.Context, field string, kind infrav1.ConfigKind, name string) (map[string][]byte, error) {
	id := string(kind) + "/" + name
	if data, found := r.read[id]; found {
		return data, nil
	}
	key := types.NamespacedName{Namespace: r.op.object.Namespace, Name: name}
	data := map[string][]byte{}
	var err error
	if kind == infrav1.SecretKind {
		secret := &corev1.Secret{}
		err = r.op.client.Get(ctx, key, secret)
		for _, name := range slices.Sorted(maps.Keys(secret.Data)) { // sorted, so that the record stays equal
			data[name] = secret.Data[name]
			r.inputs.secrets = append(r.inputs.secrets, string(secret.Data[name]))
			r.op.hide(string(secret.Data[name]))
		}
	} else {
		configMap := &corev1.ConfigMap{}
		err = r.op.client.Get(ctx, key, configMap)
		for name, value := range configMap.Data {
			data[name] = []byte(value)
		}
		maps.Copy(data, configMap.BinaryData)
	}
	switch {
	case apierrors.IsNotFound(err):
		return nil, waiting("%s %q not found in namespace %s (%s)", kind, name, key.Namespace, field)
	case err != nil:
		return nil, retry(infrav1.InputNotFoundReason, err, "%s", field)
	}
	r.read[id] = data
	return data, nil
}

// terraformOutput reads an output of another Terraform object of the same
// namespace: its published value, else its output Secret.
func (r *resolver) terraformOutput(ctx context.Context, field string, ref *infrav1.TerraformOutputReference) (json.RawMessage, error) {
	from := &infrav1.Terraform{}
	err := r.op.client.Get(ctx, types.NamespacedName{Namespace: r.op.object.Namespace, Name: ref.Name}, from)
	if apierrors.IsNotFound(err) {
		return nil, waiting("Terraform %s/%s not found (%s)", r.op.object.Namespace, ref.Name, field)
	}
	if err != nil {
		return nil, retry(infrav1.InputNotFoundReason, err, "%s", field)
	}
	i := slices.IndexFunc(from.Status.Outputs, func(o infrav1.OutputStatus) bool { return o.Name == ref.Output })
	if i < 0 {
		return nil, waiting("Terraform %s/%s has no output %q yet (%s)", from.Namespace, from.Name, ref.Output, field)
	}
	if value := from.Status.Outputs[i].Value; value != nil {
		return value.Raw, nil
	}
	for _, target := range from.Spec.Outputs {
		key, found := targetKey(target, ref.Output)
		if !found {
			continue
		}
		value, err := r.key(ctx, field, target.Kind, target.Name, key)
		if err != nil {
			return nil, err
		}
		if from.Status.Outputs[i].Type == "string" {
			return json.Marshal(string(value))
		}
		return asVariable(field, value, infrav1.VariableFormatJSON)
	}
	return nil, terminal(infrav1.InputInvalidReason, "output %q of Terraform %s/%s is neither in its spec.publishOutputs nor in one of its spec.outputs (%s)", ref.Output, from.Namespace, from.Name, field)
}

// targetKey is the key under which a target holds an output.
func targetKey(target infrav1.OutputTarget, output string) (string, bool) {
	if len(target.Keys) == 0 {
		return output, true
	}
	for _, key := range target.Keys {
		if key.From == output {
			return key.GetTo(), true
		}
	}
	return "", false
}

// redactError redacts what goes into a condition.
func (op *operation) redactError(err error) error {
	var f *failure
	if !errors.As(err, &f) {
		return errors.New(oneLine(op.redact(err.Error())))
	}
	clean := *f
	clean.message, clean.cause = oneLine(op.redact(f.Error())), nil
	return &clean
}
