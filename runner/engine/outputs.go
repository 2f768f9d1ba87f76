package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/terraform-exec/tfexec"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// takeOutputs takes over what an apply printed. It does not print sensitive
// values: those are read only when somebody wants them.
func (op *operation) takeOutputs(printed map[string]outputMessage, sensitiveChanged bool) {
	old := op.record.Outputs
	op.record.Outputs = map[string]output{}
	for name, o := range printed {
		value := o.Value
		if o.Sensitive && !sensitiveChanged {
			value = old[name].Value
		}
		op.record.Outputs[name] = output{Type: compact(o.Type), Sensitive: o.Sensitive, Value: compact(value)}
	}
}

// refreshOutputs brings the outputs that the object asks for up to date. It says whether it asks for any.
func (op *operation) refreshOutputs(ctx context.Context, force bool) (bool, error) {
	if err := op.readOutputs(ctx, force); err != nil {
		return false, err
	}
	return op.writeOutputs(ctx)
}

// readOutputs asks the tool for the outputs when the record lacks one that is wanted.
func (op *operation) readOutputs(ctx context.Context, force bool) error {
	missing := op.record.Outputs == nil
	if len(op.object.Spec.Outputs) > 0 {
		for _, o := range op.record.Outputs {
			missing = missing || o.Value == nil
		}
	}
	if !missing && !force {
		return nil
	}
	if err := op.initialise(ctx); err != nil {
		return err
	}
	err := op.withLock(ctx, op.workspace, false, func() error {
		return op.exec(ctx, op.workspace, "output", nil, func(ctx context.Context, tf *tfexec.Terraform) error {
			read, err := tf.Output(ctx)
			if err != nil {
				return err
			}
			op.record.Outputs = map[string]output{}
			for name, o := range read {
				op.record.Outputs[name] = output{Type: compact(o.Type), Sensitive: o.Sensitive, Value: compact(o.Value)}
			}
			return nil
		})
	})
	if err != nil {
		return op.classify(ctx, infrav1.OutputsFailedReason, err)
	}
	return nil
}

// compact makes equal JSON equal in bytes.
func compact(text json.RawMessage) json.RawMessage {
	var b bytes.Buffer
	if len(text) == 0 || json.Compact(&b, text) != nil {
		return nil
	}
	return b.Bytes()
}

// isSensitive says whether an output must not be shown: the module marks it, or it
// holds the value of a Secret that is among the inputs.
func (op *operation) isSensitive(o output) bool {
	return o.Sensitive || op.redactor.Load().holds(string(o.Value))
}

// shownOutputs is what the status may show: values of published outputs only.
func (op *operation) shownOutputs() []*runnerpb.Output {
	var shown []*runnerpb.Output
	for _, name := range slices.Sorted(maps.Keys(op.record.Outputs)) {
		o := op.record.Outputs[name]
		entry := &runnerpb.Output{Name: name, Type: string(o.Type), Sensitive: o.Sensitive}
		if !op.isSensitive(o) && slices.Contains(op.object.Spec.PublishOutputs, name) {
			entry.Value = string(o.Value)
		}
		shown = append(shown, entry)
	}
	return shown
}

// noteTargets adds what is about to be written, so that it is known whatever happens then.
func (op *operation) noteTargets() {
	for _, t := range op.object.Spec.Outputs {
		target := infrav1.OutputTarget{Kind: t.Kind, Name: t.Name}
		if !slices.ContainsFunc(op.record.Written, func(w infrav1.OutputTarget) bool { return w.Kind == t.Kind && w.Name == t.Name }) {
			op.record.Written = append(op.record.Written, target)
		}
	}
}

// writeOutputs brings the Secrets and ConfigMaps that the object names up to
// date and removes those it no longer names. It says whether any are asked for.
func (op *operation) writeOutputs(ctx context.Context) (bool, error) {
	targets := op.object.Spec.Outputs
	for i := range targets {
		if err := op.writeTarget(ctx, &targets[i]); err != nil {
			return false, err
		}
	}
	for _, old := range op.record.Written {
		gone := !slices.ContainsFunc(targets, func(t infrav1.OutputTarget) bool { return t.Kind == old.Kind && t.Name == old.Name })
		if gone {
			if err := op.deleteTarget(ctx, old); err != nil {
				return false, err
			}
		}
	}
	op.record.Written = nil
	for _, t := range targets {
		op.record.Written = append(op.record.Written, infrav1.OutputTarget{Kind: t.Kind, Name: t.Name})
	}
	return len(targets) > 0, nil
}

// targetData collects the values for a target: strings as they are, all else as JSON.
func (op *operation) targetData(target *infrav1.OutputTarget) (map[string][]byte, error) {
	keys := target.Keys
	if len(keys) == 0 {
		for _, name := range slices.Sorted(maps.Keys(op.record.Outputs)) {
			if target.Kind == infrav1.SecretKind || !op.isSensitive(op.record.Outputs[name]) {
				keys = append(keys, infrav1.OutputKey{From: name})
			}
		}
	}
	data := map[string][]byte{}
	for _, key := range keys {
		o, found := op.record.Outputs[key.From]
		if !found {
			return nil, terminal(infrav1.OutputNotFoundReason, "spec.outputs: the module has no output %q for %s %q", key.From, target.Kind, target.Name)
		}
		if op.isSensitive(o) && target.Kind == infrav1.ConfigMapKind {
			return nil, terminal(infrav1.OutputSensitiveReason, "spec.outputs: output %q is sensitive and cannot go into ConfigMap %q; use a Secret", key.From, target.Name)
		}
		var text string
		if json.Unmarshal(o.Value, &text) == nil && !bytes.Equal(o.Value, []byte("null")) {
			data[key.GetTo()] = []byte(text)
		} else {
			data[key.GetTo()] = o.Value
		}
	}
	return data, nil
}

// newTarget makes the object for a target.
func (op *operation) newTarget(target infrav1.OutputTarget) object {
	m := metav1.ObjectMeta{Namespace: op.object.Namespace, Name: target.Name}
	if target.Kind == infrav1.ConfigMapKind {
		return &corev1.ConfigMap{ObjectMeta: m}
	}
	return &corev1.Secret{ObjectMeta: m}
}

func setData(object object, data map[string][]byte) {
	switch o := object.(type) {
	case *corev1.Secret:
		o.Data = data
	case *corev1.ConfigMap:
		o.BinaryData, o.Data = nil, map[string]string{}
		for key, value := range data {
			o.Data[key] = string(value)
		}
	}
}

func (op *operation) writeTarget(ctx context.Context, target *infrav1.OutputTarget) error {
	if strings.HasPrefix(target.Name, "tfstate-") || strings.HasPrefix(target.Name, recordPrefix) {
		return terminal(infrav1.OutputConflictReason, "spec.outputs: names that begin with tfstate- or %s are kept for states and records; choose another one than %q", recordPrefix, target.Name)
	}
	data, err := op.targetData(target)
	if err != nil {
		return err
	}
	object := op.newTarget(*target)
	err = op.client.Get(ctx, keyOf(object), object)
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return retry(infrav1.OutputsFailedReason, err, "spec.outputs: %s %q", target.Kind, target.Name)
	}
	if !missing && !op.owns(object) {
		return terminal(infrav1.OutputConflictReason, "spec.outputs: %s %s/%s exists and was not made for this object; choose another name or remove it", target.Kind, object.GetNamespace(), object.GetName())
	}
	before := op.newTarget(*target)
	setData(before, getData(object))
	before.SetLabels(object.GetLabels())
	before.SetAnnotations(object.GetAnnotations())
	setData(object, data)
	labels := maps.Clone(target.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, op.labels("outputs"))
	object.SetLabels(labels)
	object.SetAnnotations(maps.Clone(target.Annotations))
	switch {
	case missing:
		err = op.client.Create(ctx, object)
	case sameOutputs(before, object):
		return nil
	default:
		err = op.client.Update(ctx, object)
	}
	if err != nil {
		return retry(infrav1.OutputsFailedReason, err, "spec.outputs: writing %s %q", target.Kind, target.Name)
	}
	return nil
}

// sameOutputs compares what we write, so that nothing is written twice.
func sameOutputs(before, after object) bool {
	if !maps.Equal(before.GetLabels(), after.GetLabels()) || !maps.Equal(before.GetAnnotations(), after.GetAnnotations()) {
		return false
	}
	return maps.EqualFunc(getData(before), getData(after), bytes.Equal)
}

func getData(object object) map[string][]byte {
	switch o := object.(type) {
	case *corev1.Secret:
		return o.Data
	case *corev1.ConfigMap:
		data := maps.Clone(o.BinaryData)
		if data == nil {
			data = map[string][]byte{}
		}
		for key, value := range o.Data {
			data[key] = []byte(value)
		}
		return data
	}
	return nil
}

// owns says whether the runner made that Secret or ConfigMap for this object.
func (op *operation) owns(object object) bool {
	for key, value := range op.labels("outputs") {
		if object.GetLabels()[key] != value {
			return false
		}
	}
	return true
}

func (op *operation) deleteTarget(ctx context.Context, target infrav1.OutputTarget) error {
	object := op.newTarget(target)
	err := op.client.Get(ctx, keyOf(object), object)
	if apierrors.IsNotFound(err) || err == nil && !op.owns(object) {
		return nil
	}
	if err != nil {
		return err
	}
	uid := object.GetUID()
	err = op.client.Delete(ctx, object, uid)
	return ignoreNotFound(err)
}

// cleanUp removes what the runner made for an object whose resources are
// destroyed. The record goes with the object; until then it says that nothing is
// left, so that a repetition needs neither source nor tool. One that is being
// deleted is let go at the very end.
func (op *operation) cleanUp(ctx context.Context) error {
	op.cleaned = true
	r := op.record
	*r = record{Key: r.Key, Applies: r.Applies, Written: r.Written, Destroyed: true, head: r.head, content: r.content}
	if r.head != nil {
		if err := op.saveRecord(ctx); err != nil {
			return err
		}
	}
	for _, target := range op.record.Written {
		if err := op.deleteTarget(ctx, target); err != nil {
			return err
		}
	}
	if op.object.UsesKubernetesBackend() {
		if err := op.deleteState(ctx); err != nil {
			return err
		}
	}
	if r.head == nil || r.head.DeletionTimestamp.IsZero() {
		return nil
	}
	return removeFinalizer(ctx, op.client, r.head)
}

// deleteState removes the empty state and its lock from the kubernetes backend.
// Terraform splits large states, so that there may be several Secrets.
func (op *operation) deleteState(ctx context.Context) error {
	state := secretMeta(op.object.Namespace, op.stateSecret())
	if err := op.client.Get(ctx, keyOf(state), state); ignoreNotFound(err) != nil {
		return err
	}
	if owner, err := op.otherOwner(ctx, state); owner != "" || err != nil {
		return err // another object's state, and its lock
	}
	secrets, err := listSecrets(ctx, op.client, op.object.Namespace, map[string]string{
		"tfstate": "true", "tfstateSecretSuffix": op.object.GetSecretSuffix(), "tfstateWorkspace": op.object.GetWorkspace(),
	})
	if err != nil {
		return err
	}
	for i := range secrets.Items {
		secret := &secrets.Items[i]
		err := errors.Join(removeFinalizer(ctx, op.client, secret), op.client.Delete(ctx, secret, ""))
		if err != nil {
			return err
		}
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: op.object.Namespace, Name: op.lease().Name}}
	return op.client.Delete(ctx, lease, "")
}
