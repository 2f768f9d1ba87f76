package engine

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

const (
	// chunkSize bounds what one Secret of a record holds, in bytes; the API
	// server takes at most 1 MiB per object.
	chunkSize = 512 << 10
	// maxRecord bounds a record when it is unpacked, maxParts when it is read.
	maxRecord, maxParts = 256 << 20, 256
	// maxKeptSource bounds the module that a record keeps for a later
	// destruction, in bytes of the compressed archive.
	maxKeptSource = 1 << 20

	recordPrefix    = "terrace-record-"
	recordKey       = "record"
	partsAnnotation = infrav1.GroupName + "/parts"
	digestAnnotaton = infrav1.GroupName + "/digest"
)

// record is what the runner remembers of one object between operations. It
// lives in Secrets of the object's namespace, compressed and in chunks.
type record struct {
	// Key makes digests of plans and inputs unguessable.
	Key []byte `json:"key"`
	// Tool that wrote the state: OpenTofu or Terraform.
	Tool string `json:"tool,omitempty"`
	// Destroyed says that nothing is left; the object is about to go.
	Destroyed bool `json:"destroyed,omitempty"`
	// State is where the state is kept; see statePlace.
	State string `json:"state,omitempty"`
	// Applies counts the plans that were applied.
	Applies int64 `json:"applies,omitempty"`
	// Planned is the basis of the last plan that needs no repetition.
	Planned []byte `json:"planned,omitempty"`
	// Settled is the basis with which the state agreed last: what changes
	// under the same basis is drift.
	Settled []byte `json:"settled,omitempty"`
	// Plan waits for its approval.
	Plan *savedPlan `json:"plan,omitempty"`
	// Outputs of the state; nil while they were never read.
	Outputs map[string]output `json:"outputs"`
	// Written are the Secrets and ConfigMaps that hold outputs.
	Written []infrav1.OutputTarget `json:"written,omitempty"`
	// Errored is a state that the tool could not store in its backend.
	Errored []byte `json:"errored,omitempty"`
	// Applied is what a destruction needs when the source or a variable is gone.
	Applied *kept `json:"applied,omitempty"`
	// Last is the last apply that succeeded.
	Last *lastApply `json:"last,omitempty"`
	// Guarded says that record and state bear infrav1.StateFinalizer.
	Guarded bool `json:"guarded,omitempty"`

	head    *corev1.Secret // as read; nil while there is none
	content []byte         // JSON as read
}

// output is one output of the state.
type output struct {
	Type      json.RawMessage `json:"type,omitempty"`
	Sensitive bool            `json:"sensitive,omitempty"`
	// Value is absent while a sensitive output was not needed yet.
	Value json.RawMessage `json:"value,omitempty"`
}

// lastApply says what was applied last.
type lastApply struct {
	PlanID     string    `json:"planID"`
	Revision   string    `json:"revision,omitempty"`
	Generation int64     `json:"generation"`
	At         time.Time `json:"at"`
}

// lastApply is what the manager is told of the last apply; nil when the record knows none.
func (r *record) lastApply() *runnerpb.LastApply {
	if r == nil || r.Last == nil {
		return nil
	}
	return &runnerpb.LastApply{PlanId: r.Last.PlanID, Revision: r.Last.Revision, Generation: r.Last.Generation, UnixSeconds: r.Last.At.Unix()}
}

// kept is the module and the inputs of the last apply.
type kept struct {
	Basis    []byte  `json:"basis"`
	Revision string  `json:"revision,omitempty"`
	Module   []byte  `json:"module,omitempty"` // tar.gz
	Inputs   *inputs `json:"inputs,omitempty"`
	// Secrets are the values among the inputs that are not to be shown.
	Secrets []string `json:"secrets,omitempty"`
}

// inputs of the last apply; nil when none are kept.
func (k *kept) inputs() *inputs {
	if k == nil || k.Inputs == nil {
		return nil
	}
	in := *k.Inputs
	in.secrets = k.Secrets
	return &in
}

func (r *record) keepsModule() bool { return r != nil && r.Applied != nil && r.Applied.Module != nil }

// savedPlan is a plan that can be applied.
type savedPlan struct {
	ID        string    `json:"id"`
	Key       []byte    `json:"key"` // the record's, for a plan whose record was not written yet
	CreatedAt time.Time `json:"createdAt"`
	Revision  string    `json:"revision,omitempty"`
	Basis     []byte    `json:"basis"`
	Workspace string    `json:"workspace"`
	Destroy   bool      `json:"destroy,omitempty"`
	// Text is the tool's own rendering for people, sensitive values redacted by the tool.
	Text string `json:"text,omitempty"`
	// Changes is the redacted JSON of what changes.
	Changes json.RawMessage `json:"changes,omitempty"`
	// SensitiveOutputs says that an output whose value the apply does not print changes.
	SensitiveOutputs bool `json:"sensitiveOutputs,omitempty"`
	// Resources of the state before the plan.
	Resources []*runnerpb.Resource `json:"resources,omitempty"`
	File      []byte               `json:"file"`
	LockFile  []byte               `json:"lockFile,omitempty"`
	Variables []byte               `json:"variables,omitempty"`
	Secrets   []string             `json:"secrets,omitempty"` // not to be shown
}

// digest covers everything that an apply of the plan uses. The manager keeps it
// where tenants cannot write, so that a plan that was swapped is noticed.
func (p *savedPlan) digest() string {
	sum := sha256.New()
	for _, part := range [][]byte{p.File, p.LockFile, p.Variables, p.Basis, []byte(p.Workspace), []byte(strconv.FormatBool(p.Destroy))} {
		fmt.Fprintf(sum, "%d:", len(part))
		sum.Write(part)
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil))
}

// workspaceKey is what a workspace's key looks like.
var workspaceKey = regexp.MustCompile("^[0-9a-f]{32}$")

// digest is keyed, so that it tells nothing about a value that could be guessed.
func (r *record) digest(parts ...[]byte) []byte {
	mac := hmac.New(sha256.New, r.Key)
	for _, part := range parts {
		fmt.Fprintf(mac, "%d:", len(part))
		mac.Write(part)
	}
	return mac.Sum(nil)
}

// RecordName is the name of the Secret that holds the record of a Terraform
// object, or its first part; long names are shortened with a digest.
func RecordName(object string) string {
	if name := recordPrefix + object; len(name) <= 240 {
		return name
	}
	sum := sha256.Sum256([]byte(object))
	return recordPrefix + object[:200] + "-" + hex.EncodeToString(sum[:8])
}

// loadRecord reads an object's record; a new one is begun where there is none.
// A damaged record is an error: it may hold the only copy of a state.
func loadRecord(ctx context.Context, c *access, namespace, name string) (*record, error) {
	head := &corev1.Secret{}
	err := c.Get(ctx, types.NamespacedName{Namespace: namespace, Name: RecordName(name)}, head)
	if apierrors.IsNotFound(err) {
		r := &record{Key: make([]byte, 32)}
		_, err := rand.Read(r.Key)
		return r, err
	}
	if err != nil {
		return nil, fmt.Errorf("reading the record: %w", err)
	}
	packed := head.Data[recordKey]
	parts, _ := strconv.Atoi(head.Annotations[partsAnnotation])
	parts = min(parts, maxParts)
	for i := 1; i < parts; i++ {
		part := &corev1.Secret{}
		if err := c.Get(ctx, types.NamespacedName{Namespace: namespace, Name: partName(head, i)}, part); err != nil {
			return nil, fmt.Errorf("reading part %d of %d of the record: %w", i+1, parts, err)
		}
		packed = append(packed, part.Data[recordKey]...)
	}
	if sum := sha256.Sum256(packed); hex.EncodeToString(sum[:]) != head.Annotations[digestAnnotaton] {
		return nil, terminal(infrav1.RecordDamagedReason, "Secret %s/%s does not match its digest; restore it from a backup, or delete it to begin anew (the state itself is not in it)", namespace, head.Name)
	}
	content, err := unpack(packed)
	if err != nil {
		return nil, terminal(infrav1.RecordDamagedReason, "Secret %s/%s cannot be read: %v", namespace, head.Name, err)
	}
	r := &record{head: head, content: content}
	if err := json.Unmarshal(content, r); err != nil {
		return nil, terminal(infrav1.RecordDamagedReason, "Secret %s/%s cannot be read: %v", namespace, head.Name, err)
	}
	return r, nil
}

// loadRecord reads the object's record. One that an earlier object of the same
// name left behind counts only for a state that it could not store.
func (op *operation) loadRecord(ctx context.Context) (*record, error) {
	r, err := loadRecord(ctx, op.client, op.object.Namespace, op.object.Name)
	if err != nil || r.head == nil || ownedBy(r.head, op.object.UID) {
		return r, err
	}
	fresh := &record{Key: r.Key, Errored: r.Errored, Applies: r.Applies, head: r.head}
	return fresh, nil
}

// ownedBy says whether a record belongs to the object: it names no other.
func ownedBy(head metav1.Object, uid types.UID) bool {
	owners := head.GetOwnerReferences()
	return len(owners) == 0 || owners[0].UID == uid
}

func partName(head *corev1.Secret, part int) string {
	return fmt.Sprintf("%s-%.10s-%d", head.Name, head.Annotations[digestAnnotaton], part)
}

// saveRecord writes the record when it changed. Parts are written first and the
// head last, so that a reader sees the old record or the new one.
func (op *operation) saveRecord(ctx context.Context) error {
	r := op.record
	content, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if r.head != nil && bytes.Equal(content, r.content) {
		return nil
	}
	packed := pack(content)
	sum := sha256.Sum256(packed)
	head := op.recordSecret(RecordName(op.object.Name))
	head.Annotations = map[string]string{digestAnnotaton: hex.EncodeToString(sum[:])}
	var chunks [][]byte
	for rest := packed; len(rest) > 0; {
		n := min(len(rest), chunkSize)
		chunks, rest = append(chunks, rest[:n]), rest[n:]
	}
	head.Annotations[partsAnnotation] = strconv.Itoa(len(chunks))
	head.Data = map[string][]byte{recordKey: chunks[0]}
	for i, chunk := range chunks[1:] {
		part := op.recordSecret(partName(head, i+1))
		part.Finalizers = r.finalizers(nil)
		part.Data = map[string][]byte{recordKey: chunk}
		if err := op.client.Create(ctx, part); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("writing the record: %w", err)
		}
	}
	old := r.head
	if err := op.writeHead(ctx, head); err != nil {
		return fmt.Errorf("writing the record: %w", err)
	}
	r.head, r.content = head, content
	return op.deleteParts(ctx, old)
}

// writeHead replaces the record's first Secret, or makes it.
func (op *operation) writeHead(ctx context.Context, head *corev1.Secret) error {
	old := op.record.head
	if old != nil && !old.DeletionTimestamp.IsZero() && !ownedBy(old, op.object.UID) {
		// An earlier object of the same name left it behind: it goes, and this object's begins.
		if err := removeFinalizer(ctx, op.client, old.DeepCopy()); err != nil {
			return err
		}
		old = nil
	}
	head.Finalizers = op.record.finalizers(old)
	if old == nil {
		return op.client.Create(ctx, head)
	}
	head.ResourceVersion = old.ResourceVersion // nobody else may have written meanwhile
	return op.client.Update(ctx, head)
}

// finalizers of the record, those of others among them. A Secret that is being
// deleted takes no new one, and without the last one it would be gone.
func (r *record) finalizers(old *corev1.Secret) []string {
	secret := &corev1.Secret{}
	if old != nil {
		secret.Finalizers = slices.Clone(old.Finalizers)
		if !old.DeletionTimestamp.IsZero() {
			return secret.Finalizers
		}
	}
	if r.Guarded && !r.Destroyed {
		addFinalizer(secret)
	} else {
		dropFinalizer(secret)
	}
	return secret.Finalizers
}

func (op *operation) deleteParts(ctx context.Context, head *corev1.Secret) error {
	if head == nil {
		return nil
	}
	parts, _ := strconv.Atoi(head.Annotations[partsAnnotation])
	var errs []error
	for i := 1; i < parts; i++ {
		if name := partName(head, i); op.record.head == nil || name != partName(op.record.head, i) {
			errs = append(errs, op.deletePart(ctx, head, name))
		}
	}
	return errors.Join(errs...)
}

// deletePart removes a part of an earlier record; no finalizer of it is anybody else's.
func (op *operation) deletePart(ctx context.Context, head *corev1.Secret, name string) error {
	part := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: head.Namespace, Name: name}}
	if hasFinalizer(head) {
		err := op.client.Patch(ctx, part, map[string]any{"metadata": map[string]any{"finalizers": nil}})
		if err != nil {
			return ignoreNotFound(err)
		}
	}
	return op.client.Delete(ctx, part, "")
}

// recordSecret is owned by the object, so that it goes when the object goes;
// except while it holds the only copy of a state.
func (op *operation) recordSecret(name string) *corev1.Secret {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: op.object.Namespace, Name: name, Labels: recordLabels(op.object),
	}}
	if op.record.Errored == nil {
		secret.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: infrav1.GroupVersion.String(), Kind: infrav1.TerraformKind,
			Name: op.object.Name, UID: op.object.UID,
		}}
	}
	return secret
}

// labels of everything that the runner writes for the object.
func (op *operation) labels(component string) map[string]string {
	return labels(op.object, component)
}

func labels(object *infrav1.Terraform, component string) map[string]string {
	return map[string]string{
		"app.kubernetes.io/managed-by": "terrace",
		"app.kubernetes.io/component":  component,
		infrav1.TerraformLabel:         labelValue(object.Name),
	}
}

func recordLabels(object *infrav1.Terraform) map[string]string { return labels(object, "record") }

// labelValue shortens a name to the 63 characters of a label's value.
func labelValue(name string) string {
	if len(name) <= 63 {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return name[:46] + "-" + hex.EncodeToString(sum[:8])
}

func pack(content []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write(content) // a bytes.Buffer takes everything
	_ = w.Close()
	return b.Bytes()
}

func unpack(packed []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(r, maxRecord+1))
	if len(content) > maxRecord {
		return nil, errors.New("it is larger than any record that was ever written")
	}
	return content, err
}

// Plan is what a record shows of a plan that waits for its approval.
type Plan struct {
	ID        string
	Revision  string
	CreatedAt time.Time
	// Text is for people, Changes for programs; both are redacted.
	Text    string
	Changes json.RawMessage
}

// LoadPlan reads the plan that waits for the approval of a Terraform object; nil when none does.
func LoadPlan(ctx context.Context, config *rest.Config, namespace, name string) (*Plan, error) {
	c, err := newAccess(config)
	if err != nil {
		return nil, err
	}
	return loadPlan(ctx, c, namespace, name)
}

func loadPlan(ctx context.Context, c *access, namespace, name string) (*Plan, error) {
	r, err := loadRecord(ctx, c, namespace, name)
	if err != nil || r.Plan == nil {
		return nil, err
	}
	return &Plan{ID: r.Plan.ID, Revision: r.Plan.Revision, CreatedAt: r.Plan.CreatedAt, Text: r.Plan.Text, Changes: r.Plan.Changes}, nil
}

func (op *operation) showPlan(ctx context.Context) (*runnerpb.Result, error) {
	plan, err := loadPlan(ctx, op.client, op.object.Namespace, op.object.Name)
	if err != nil {
		return nil, err
	}
	if plan == nil {
		return nil, stale("no plan waits for an approval")
	}
	result := succeeded()
	result.Shown = &runnerpb.ShownPlan{Id: plan.ID, Text: truncate(plan.Text, 1<<20), Json: truncate(string(plan.Changes), 1<<20)}
	return result, nil
}
