package engine_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/runner/engine"
	"github.com/terrace-dev/terrace/runner/runnerpb"
	"github.com/terrace-dev/terrace/test/controlplane"
	"github.com/terrace-dev/terrace/test/harness"
)

var (
	cluster  *controlplane.ControlPlane
	auditLog string
)

func TestMain(m *testing.M) {
	if job := os.Getenv(jobVariable); job != "" {
		os.Exit(runJob(job))
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "engine-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	auditLog = filepath.Join(dir, "audit.log")
	if cluster, err = controlplane.Start(controlplane.Options{CRDs: []string{"config/crd/bases"}, AuditLog: auditLog}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := cluster.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// lab is an engine with a namespace of its own, whose tool processes are counted.
type lab struct {
	t         *testing.T
	dir       string
	namespace string
	client    client.Client
	engine    *engine.Engine
	calls     string // file with one line per process of the tool
	config    *rest.Config
	sequence  atomic.Int64
	audited   int          // writes seen so far
	hostname  string       // that the engine is told; empty means the system's
	starved   atomic.Int64 // processes that the kernel is said to have killed
}

// labAgent is what the tests' own client calls itself.
const labAgent = "lab"

// writes returns what engine and tool wrote since the last call, as "verb resource/name".
func (l *lab) writes() []string {
	l.t.Helper()
	events, err := controlplane.ReadAuditLog(auditLog)
	if err != nil {
		l.t.Fatal(err)
	}
	var all []string
	for _, e := range events {
		if e.IsWrite() && e.ObjectRef != nil && e.ObjectRef.Namespace == l.namespace && e.UserAgent != labAgent {
			all = append(all, e.Verb+" "+e.ObjectRef.Resource+"/"+e.ObjectRef.Name)
		}
	}
	news := all[l.audited:]
	l.audited = len(all)
	return news
}

func binary(t *testing.T, name string) string {
	t.Helper()
	root, err := controlplane.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(root, "bin", name)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%s is missing: run make tools", path)
	}
	return path
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{t: t, dir: t.TempDir(), namespace: cluster.Namespace(t), config: cluster.Config}
	l.calls = filepath.Join(l.dir, "calls")
	config := rest.CopyConfig(cluster.Config)
	config.UserAgent = labAgent
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), infrav1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	l.client = c
	l.restart(filepath.Join(l.dir, "runner"))
	return l
}

// restart makes a new engine, as a new runner process would.
func (l *lab) restart(dir string) {
	l.t.Helper()
	// The tool is the real one; the script only counts.
	tool := filepath.Join(l.dir, "tofu-counted")
	if err := harness.CountTool(tool, binary(l.t, "tofu"), l.calls); err != nil {
		l.t.Fatal(err)
	}
	l.restartWith(dir, tool, 20*time.Second)
}

// restartWith makes a new engine with another tool.
func (l *lab) restartWith(dir, tool string, grace time.Duration) {
	l.t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		l.t.Fatal(err)
	}
	e, err := engine.New(l.t.Context(), engine.Options{
		Directory:      dir,
		Tools:          map[string]string{"OpenTofu": tool},
		Config:         func(context.Context, string, string) (*rest.Config, error) { return l.config, nil },
		Env:            map[string]string{"PATH": os.Getenv("PATH"), "HOME": l.dir},
		CLIConfig:      binary(l.t, "providers/cli.tfrc"),
		InterruptGrace: grace,
		Hostname:       l.hostname,
		MemoryKills:    l.starved.Load,
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.engine = e
}

func hostname(t *testing.T) string {
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// processes returns the tool processes since the last call.
func (l *lab) processes() []string {
	l.t.Helper()
	text, err := os.ReadFile(l.calls)
	if err != nil && !os.IsNotExist(err) {
		l.t.Fatal(err)
	}
	_ = os.Remove(l.calls)
	var commands []string
	for line := range strings.Lines(string(text)) {
		_, command, _ := strings.Cut(strings.TrimSpace(line), " ")
		commands = append(commands, command)
	}
	return commands
}

func (l *lab) wantProcesses(want ...string) {
	l.t.Helper()
	if got := l.processes(); !slices.Equal(got, want) {
		l.t.Errorf("tool processes = %q, want %q", got, want)
	}
}

// object makes a Terraform object with an inline module.
func (l *lab) object(name, module string) *infrav1.Terraform {
	object := &infrav1.Terraform{ObjectMeta: metav1.ObjectMeta{
		Namespace: l.namespace, Name: name, UID: types.UID("uid-" + name), Generation: 1,
	}}
	object.Spec.Inline = map[string]string{"main.tf": module}
	return object
}

// transcript records what an operation reports.
type transcript struct {
	mu     sync.Mutex
	lines  []string
	onLine func(string)
}

func (r *transcript) add(line string) {
	r.mu.Lock()
	r.lines = append(r.lines, line)
	on := r.onLine
	r.mu.Unlock()
	if on != nil {
		on(line)
	}
}

func (r *transcript) Phase(name string)      { r.add("phase " + name) }
func (r *transcript) Log(level, text string) { r.add("log " + level + " " + text) }
func (r *transcript) Progress(address, action string, done bool) {
	r.add(fmt.Sprintf("progress %s %s %v", address, action, done))
}

func (r *transcript) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.lines, "\n")
}

func (l *lab) request(object *infrav1.Terraform) *runnerpb.StartOperationRequest {
	l.t.Helper()
	text, err := json.Marshal(object)
	if err != nil {
		l.t.Fatal(err)
	}
	return &runnerpb.StartOperationRequest{Id: fmt.Sprintf("op-%d", l.sequence.Add(1)), Object: text}
}

func (l *lab) run(request *runnerpb.StartOperationRequest) (*runnerpb.Result, *transcript) {
	l.t.Helper()
	return l.runContext(l.t.Context(), request, &transcript{})
}

func (l *lab) runContext(ctx context.Context, request *runnerpb.StartOperationRequest, report *transcript) (*runnerpb.Result, *transcript) {
	l.t.Helper()
	result := l.engine.Run(ctx, request, report)
	if result.GetOutcome() != runnerpb.Outcome_OUTCOME_SUCCEEDED {
		l.t.Logf("operation %s: %v", request.GetType(), result)
	}
	return result, report
}

func (l *lab) planRequest(object *infrav1.Terraform, options *runnerpb.PlanOptions) *runnerpb.StartOperationRequest {
	request := l.request(object)
	request.Type = runnerpb.OperationType_OPERATION_TYPE_PLAN
	request.Options = &runnerpb.StartOperationRequest_Plan{Plan: options}
	return request
}

func (l *lab) applyRequest(object *infrav1.Terraform, id string) *runnerpb.StartOperationRequest {
	request := l.request(object)
	request.Type = runnerpb.OperationType_OPERATION_TYPE_APPLY
	request.Options = &runnerpb.StartOperationRequest_Apply{Apply: &runnerpb.ApplyOptions{PlanId: id}}
	return request
}

func (l *lab) plan(object *infrav1.Terraform, options *runnerpb.PlanOptions) *runnerpb.PlanResult {
	l.t.Helper()
	result, report := l.run(l.planRequest(object, options))
	if result.GetPlan() == nil {
		l.t.Fatalf("plan failed: %v\n%s", result.GetFailure(), report)
	}
	return result.GetPlan()
}

func (l *lab) apply(object *infrav1.Terraform, id string) *runnerpb.ApplyResult {
	l.t.Helper()
	result, report := l.run(l.applyRequest(object, id))
	if result.GetApply() == nil {
		l.t.Fatalf("apply failed: %v\n%s", result.GetFailure(), report)
	}
	return result.GetApply()
}

// settle plans and applies until nothing is left to do.
func (l *lab) settle(object *infrav1.Terraform) {
	l.t.Helper()
	if plan := l.plan(object, &runnerpb.PlanOptions{}); plan.GetChanges() {
		l.apply(object, plan.GetId())
	}
	l.processes()
}

func (l *lab) destroy(object *infrav1.Terraform) *runnerpb.Result {
	l.t.Helper()
	now := metav1.Now()
	object.DeletionTimestamp = &now
	request := l.request(object)
	request.Type = runnerpb.OperationType_OPERATION_TYPE_DESTROY
	result, _ := l.run(request)
	return result
}

// wantNoSecrets checks that nothing is left but records that nothing holds.
func (l *lab) wantNoSecrets() {
	l.t.Helper()
	secrets := &corev1.SecretList{}
	if err := l.client.List(l.t.Context(), secrets, client.InNamespace(l.namespace)); err != nil {
		l.t.Fatal(err)
	}
	for _, secret := range secrets.Items {
		if !strings.HasPrefix(secret.Name, "terrace-record-") || len(secret.Finalizers) > 0 {
			l.t.Errorf("Secret %s is still there, with the finalizers %q", secret.Name, secret.Finalizers)
		}
	}
}

func (l *lab) create(object client.Object) {
	l.t.Helper()
	object.SetNamespace(l.namespace)
	if err := l.client.Create(l.t.Context(), object); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) secret(name string, data map[string]string) *corev1.Secret {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: data}
	l.create(secret)
	return secret
}

func (l *lab) getSecret(name string) *corev1.Secret {
	l.t.Helper()
	secret := &corev1.Secret{}
	if err := l.client.Get(l.t.Context(), client.ObjectKey{Namespace: l.namespace, Name: name}, secret); err != nil {
		l.t.Fatal(err)
	}
	return secret
}

func value(v any) *apiextensionsv1.JSON {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return &apiextensionsv1.JSON{Raw: text}
}

// upload stores an archive of the files and returns the source to name in a request.
func (l *lab) upload(revision string, files map[string]string) *runnerpb.Source {
	l.t.Helper()
	archive := pack(l.t, files)
	sum := sha256.Sum256(archive)
	digest := "sha256:" + hex.EncodeToString(sum[:])
	if _, err := l.engine.StoreSource(l.t.Context(), digest, bytes.NewReader(archive)); err != nil {
		l.t.Fatal(err)
	}
	return &runnerpb.Source{Digest: digest, Revision: revision}
}

func pack(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	zw := gzip.NewWriter(&b)
	tw := tar.NewWriter(zw)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		header := &tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name]))}
		if target, isLink := strings.CutPrefix(files[name], "symlink:"); isLink {
			header.Typeflag, header.Linkname, header.Size = tar.TypeSymlink, target, 0
		}
		if err := tw.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if header.Size > 0 {
			if _, err := tw.Write([]byte(files[name])); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
