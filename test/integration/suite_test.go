// Package integration_test runs the real manager, as a process and under the roles
// that it ships with, real runners in the pods of a test kubelet, and real OpenTofu,
// against a real API server. The core of it also runs with the embedded runner.
package integration_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"github.com/fluxcd/pkg/runtime/conditions/check"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/test/controlplane"
	"github.com/terrace-dev/terrace/test/harness"
	"github.com/terrace-dev/terrace/test/kubelet"
)

const (
	// patience bounds the wait for anything; it is never waited for when all is well.
	patience = 2 * time.Minute
	// ownLabel marks objects that the shared manager leaves to a test's own, or to
	// the one with the embedded runner.
	ownLabel = "test.terrace.dev/manager"
	// shared and embedded are the managers that tests share.
	shared   = "shared"
	embedded = "embedded"
)

// suite is what all tests share.
var suite struct {
	dir        string
	audit      string
	manager    string // the program, built with the race detector
	runner     string // likewise
	plane      *controlplane.ControlPlane
	kubeconfig string // with the manager's rights
	client     client.WithWatch
	sources    *harness.ArtifactServer
	kubelet    *kubelet.Kubelet
}

func TestMain(m *testing.M) {
	code, err := runSuite(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runSuite(m *testing.M) (code int, err error) {
	if suite.dir, err = os.MkdirTemp("", "terrace-integration-"); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(suite.dir)) }()
	suite.audit = filepath.Join(suite.dir, "audit.log")
	suite.plane, err = controlplane.Start(controlplane.Options{
		CRDs: []string{"config/crd/bases"}, FluxCRDs: true, ServiceAccountAdmission: true, AuditLog: suite.audit,
	})
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, suite.plane.Stop()) }()
	if suite.kubeconfig, err = harness.InstallManager(context.Background(), suite.plane); err != nil {
		return 1, err
	}
	if suite.client, err = harness.NewClient(suite.plane.Config); err != nil {
		return 1, err
	}
	if suite.sources, err = harness.NewArtifactServer(); err != nil {
		return 1, err
	}
	defer suite.sources.Stop()
	if suite.manager, err = build("manager", "-race"); err != nil {
		return 1, err
	}
	if suite.runner, err = build("runner", "-race"); err != nil {
		return 1, err
	}
	counted, err := countTofu(suite.dir)
	if err != nil {
		return 1, err
	}
	suite.kubelet, err = harness.StartKubelet(context.Background(), suite.plane, filepath.Join(suite.dir, "pods"), suite.runner, counted, func(o *kubelet.Options) {
		o.Programs[harness.RunnerImage] = append(o.Programs[harness.RunnerImage], "--log-level=debug")
	})
	if err != nil {
		return 1, err
	}
	defer suite.kubelet.Stop()
	var managers []*harness.Manager
	for _, start := range []struct{ name, mode, selector string }{
		{shared, harness.ModePod, "!" + ownLabel}, {embedded, harness.ModeEmbedded, ownLabel + "=" + embedded},
	} {
		m, err := startManager(context.Background(), managerOptions{name: start.name, mode: start.mode, selector: start.selector})
		if err != nil {
			return 1, err
		}
		defer func() { err = errors.Join(err, m.Stop()) }()
		managers = append(managers, m)
	}
	code = m.Run()
	if err := judge(context.Background()); err != nil {
		fmt.Fprintf(os.Stderr, "--- FAIL: what was found when all tests had ended\n%v\n", err)
		code = 1
	}
	if code != 0 {
		for _, m := range managers {
			fmt.Fprintln(os.Stderr, "a shared manager's log ends:\n"+m.LastLog())
		}
	}
	return code, nil
}

// build builds a program from the tree that is tested.
func build(name string, flags ...string) (string, error) {
	return harness.Build(filepath.Join(suite.dir, fmt.Sprintf("%s-%d", name, len(flags))), "./cmd/"+name, flags...)
}

// countTofu returns a program that is OpenTofu and writes down each process.
func countTofu(dir string) (string, error) {
	tofu, err := harness.Bin("tofu")
	if err != nil {
		return "", err
	}
	counted := filepath.Join(dir, "tofu")
	return counted, harness.CountTool(counted, tofu, filepath.Join(dir, "calls"))
}

// managerOptions say which manager is started: for which objects, and with which runners.
type managerOptions struct {
	name, mode, selector string
	program              string // default: that of the suite
	home                 string // its namespace; default harness.ManagerNamespace
	args                 []string
}

func startManager(ctx context.Context, o managerOptions) (*harness.Manager, error) {
	dir := filepath.Join(suite.dir, o.name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	options := harness.ManagerOptions{
		Program: cmp.Or(o.program, suite.manager), Kubeconfig: suite.kubeconfig, Dir: dir, Mode: o.mode, Namespace: o.home,
		Args: append([]string{"--watch-label-selector=" + o.selector, "--requeue-dependency=1s", "--log-level=debug", "--http-retry=1"}, o.args...),
	}
	if o.mode == harness.ModeEmbedded {
		var err error
		if options.Tofu, err = countTofu(dir); err != nil {
			return nil, err
		}
		options.Kubeconfig, options.Args = suite.plane.Kubeconfig, append(options.Args, "--runner-capacity=8")
	}
	return harness.StartManager(ctx, options)
}

// lab is one test's namespace and object.
type lab struct {
	t         *testing.T
	ctx       context.Context
	namespace string
	manager   string // that looks after the test
	calls     string // where its tool processes are written down
	object    *infrav1.Terraform
	seen      int // tool processes that were asked about
}

// newLab opens a namespace, for objects whose runners are pods. The object of every
// test is called "tf".
func newLab(t *testing.T) *lab {
	t.Helper()
	l := unopened(t)
	if _, err := harness.OpenNamespace(l.ctx, suite.client, l.namespace); err != nil {
		t.Fatal(err)
	}
	return l
}

// unopened is a lab whose namespace runners cannot work in.
func unopened(t *testing.T) *lab {
	t.Helper()
	return &lab{
		t: t, ctx: t.Context(), namespace: suite.plane.Namespace(t), manager: shared, calls: filepath.Join(suite.dir, "calls"),
	}
}

// inBothModes runs a test with runners in pods and with the embedded one.
func inBothModes(t *testing.T, test func(t *testing.T, l *lab)) {
	t.Helper()
	t.Run("pods", func(t *testing.T) {
		t.Parallel()
		test(t, newLab(t))
	})
	t.Run(embedded, func(t *testing.T) {
		t.Parallel()
		l := newLab(t)
		l.manager, l.calls = embedded, filepath.Join(suite.dir, embedded, "calls")
		test(t, l)
	})
}

// own gives the test a manager of its own, which it may kill.
func (l *lab) own(args ...string) *harness.Manager {
	l.t.Helper()
	return l.start(managerOptions{mode: harness.ModePod, args: args})
}

// ownEmbedded is own, with the runner inside the manager.
func (l *lab) ownEmbedded() *harness.Manager {
	l.t.Helper()
	l.calls = filepath.Join(suite.dir, l.namespace, "calls")
	return l.start(managerOptions{mode: harness.ModeEmbedded})
}

func (l *lab) start(o managerOptions) *harness.Manager {
	l.t.Helper()
	l.manager, o.name, o.selector = l.namespace, l.namespace, ownLabel+"="+l.namespace
	m, err := startManager(l.ctx, o)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		if err := m.Stop(); err != nil {
			l.t.Error(err)
		}
		if l.t.Failed() {
			l.t.Log(m.LastLog())
		}
	})
	return m
}

// create creates the object; edit completes it. By default it is inline, Auto, and destroyed with its object.
func (l *lab) create(module string, edit func(*infrav1.Terraform)) {
	l.t.Helper()
	o := &infrav1.Terraform{ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: "tf"}}
	o.Spec.Interval = metav1.Duration{Duration: time.Hour}
	o.Spec.RetryInterval = &metav1.Duration{Duration: time.Second}
	o.Spec.Approval.Mode = infrav1.ApprovalAuto
	if module != "" {
		o.Spec.Inline = map[string]string{"main.tf": module}
	}
	if edit != nil {
		edit(o)
	}
	if l.manager != shared {
		o.Labels = map[string]string{ownLabel: l.manager}
	}
	if err := suite.client.Create(l.ctx, o); err != nil {
		l.t.Fatal(err)
	}
	l.object = o
	l.t.Cleanup(l.conclude)
}

// conclude checks at the end of every test that the status keeps the contract.
func (l *lab) conclude() {
	o := &infrav1.Terraform{}
	err := suite.client.Get(context.Background(), client.ObjectKeyFromObject(l.object), o)
	if apierrors.IsNotFound(err) {
		return
	}
	if err != nil {
		l.t.Error(err)
		return
	}
	check.NewChecker(suite.client, &check.Conditions{
		NegativePolarity: []string{meta.StalledCondition, meta.ReconcilingCondition},
	}).WithT(gomega.NewWithT(l.t)).CheckErr(context.Background(), o)
}

// change edits the object as a user does.
func (l *lab) change(edit func(*infrav1.Terraform)) {
	l.t.Helper()
	o := l.get()
	before := o.DeepCopy()
	edit(o)
	if err := suite.client.Patch(l.ctx, o, client.MergeFrom(before)); err != nil {
		l.t.Fatal(err)
	}
	l.object = o
}

func (l *lab) annotate(key, value string) {
	l.t.Helper()
	l.change(func(o *infrav1.Terraform) { metav1.SetMetaDataAnnotation(&o.ObjectMeta, key, value) })
}

// request asks for a reconciliation and waits until it was handled.
func (l *lab) request() *infrav1.Terraform {
	l.t.Helper()
	token := time.Now().Format(time.RFC3339Nano)
	l.annotate(meta.ReconcileRequestAnnotation, token)
	return l.await("the request to be handled", func(o *infrav1.Terraform) bool {
		return o.Status.LastHandledReconcileAt == token && conditions.Get(o, meta.ReconcilingCondition) == nil
	})
}

func (l *lab) get() *infrav1.Terraform {
	l.t.Helper()
	o := &infrav1.Terraform{}
	if err := suite.client.Get(l.ctx, client.ObjectKeyFromObject(l.object), o); err != nil {
		l.t.Fatal(err)
	}
	return o
}

// await waits until the object is as wanted; nil stands for an object that is gone.
func (l *lab) await(what string, wanted func(*infrav1.Terraform) bool) *infrav1.Terraform {
	l.t.Helper()
	var last *infrav1.Terraform
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		o := &infrav1.Terraform{}
		err := suite.client.Get(l.ctx, client.ObjectKeyFromObject(l.object), o)
		switch {
		case apierrors.IsNotFound(err):
			o = nil
		case err != nil:
			l.t.Fatal(err)
		default:
			last = o
		}
		if o == nil && what != gone {
			l.t.Fatalf("waiting for %s: the object is gone", what)
		}
		if wanted(o) {
			return o
		}
	}
	status, _ := json.MarshalIndent(last.Status, "", " ")
	l.t.Fatalf("waited %v for %s; the status is %s", patience, what, status)
	return nil
}

const gone = "the object to go"

func (l *lab) awaitGone() {
	l.t.Helper()
	l.await(gone, func(o *infrav1.Terraform) bool { return o == nil })
}

func (l *lab) awaitReady() *infrav1.Terraform {
	l.t.Helper()
	return l.await("the object to be ready", harness.IsReady)
}

// awaitReason waits until Ready is false for that reason and returns the message.
func (l *lab) awaitReason(reason string) (*infrav1.Terraform, string) {
	l.t.Helper()
	o := l.await("reason "+reason, func(o *infrav1.Terraform) bool { return readyReason(o) == reason })
	return o, conditions.GetMessage(o, meta.ReadyCondition)
}

func readyReason(o *infrav1.Terraform) string { return conditions.GetReason(o, meta.ReadyCondition) }

func (l *lab) wantMessage(message string, want ...string) {
	l.t.Helper()
	for _, part := range want {
		if !strings.Contains(message, part) {
			l.t.Errorf("message %q does not contain %q", message, part)
		}
	}
}

// processes returns the object's tool processes since the last call.
func (l *lab) processes() []string {
	l.t.Helper()
	text, err := os.ReadFile(l.calls)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		l.t.Fatal(err)
	}
	var calls []string
	for line := range bytes.Lines(text) {
		dir, command, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
		if strings.Contains(dir, string(l.object.UID)) {
			calls = append(calls, command)
		}
	}
	fresh := calls[l.seen:]
	l.seen = len(calls)
	return fresh
}

func (l *lab) wantProcesses(want ...string) {
	l.t.Helper()
	if got := l.processes(); !slices.Equal(got, want) {
		l.t.Errorf("tool processes = %q, want %q", got, want)
	}
}

// writes are the manager's own writes in the test's namespace, as the API server
// recorded them; what it does on behalf of a runner's ServiceAccount is not among them.
func (l *lab) writes() []string {
	l.t.Helper()
	events, err := controlplane.ReadAuditLog(suite.audit)
	if err != nil {
		l.t.Fatal(err)
	}
	var found []string
	for _, e := range events {
		if e.IsWrite() && e.ImpersonatedUser == nil && e.ObjectRef != nil && e.ObjectRef.Namespace == l.namespace &&
			strings.HasPrefix(e.UserAgent, "manager/") {
			found = append(found, e.Verb+" "+e.ObjectRef.Resource+"/"+e.ObjectRef.Subresource)
		}
	}
	return found
}

// awaitEvent waits for an event of that reason, which is sent in the background,
// and returns the notes of all of them.
func (l *lab) awaitEvent(reason string) []string {
	l.t.Helper()
	var notes []string
	l.await("event "+reason, func(*infrav1.Terraform) bool {
		list := &corev1.EventList{}
		if err := suite.client.List(l.ctx, list, client.InNamespace(l.namespace)); err != nil {
			l.t.Fatal(err)
		}
		notes = nil
		for _, e := range list.Items {
			if e.Reason == reason {
				notes = append(notes, e.Message)
			}
		}
		return len(notes) > 0
	})
	return notes
}
