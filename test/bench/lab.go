package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/test/controlplane"
	"github.com/terrace-dev/terrace/test/harness"
)

// lab is the API server that all measurements share.
type lab struct {
	dir    string
	audit  string
	plane  *controlplane.ControlPlane
	client client.WithWatch
	sites  []*site
}

func newLab(ctx context.Context) (*lab, error) {
	dir, err := os.MkdirTemp("", "terrace-bench-")
	if err != nil {
		return nil, err
	}
	l := &lab{dir: dir, audit: filepath.Join(dir, "audit.log")}
	if l.plane, err = controlplane.Start(controlplane.Options{CRDs: []string{"config/crd/bases"}, AuditLog: l.audit}); err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), infrav1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	if l.client, err = client.NewWithWatch(l.plane.Config, client.Options{Scheme: scheme}); err != nil {
		return nil, err
	}
	return l, ctx.Err()
}

// close ends everything that a measurement started, also one that failed.
func (l *lab) close() error {
	var errs []error
	for _, s := range l.sites {
		errs = append(errs, s.manager.Stop())
	}
	return errors.Join(append(errs, l.plane.Stop(), os.RemoveAll(l.dir))...)
}

// site is a namespace with a manager of its own, whose tool processes are counted.
type site struct {
	*lab
	namespace string
	calls     string
	manager   *harness.Manager
	seen      int // audit events
}

func (l *lab) newSite(ctx context.Context, namespace, tool string) (*site, error) {
	s := &site{lab: l, namespace: namespace, calls: filepath.Join(l.dir, namespace+".calls")}
	if err := l.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		return nil, err
	}
	if _, err := harness.OpenNamespace(ctx, l.client, namespace); err != nil {
		return nil, err
	}
	counted := filepath.Join(l.dir, namespace+".tool")
	if err := harness.CountTool(counted, tool, s.calls); err != nil {
		return nil, err
	}
	dir := filepath.Join(l.dir, namespace)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	var err error
	s.manager, err = harness.StartManager(ctx, harness.ManagerOptions{
		Kubeconfig: l.plane.Kubeconfig, Dir: dir, Tofu: counted, Namespace: namespace,
		Args: []string{"--watch-all-namespaces=false", "--log-level=debug"},
	})
	if err == nil {
		l.sites = append(l.sites, s)
	}
	return s, err
}

// object makes an object that is applied without an approval.
func (s *site) object(name, module string) *infrav1.Terraform {
	o := &infrav1.Terraform{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}}
	o.Spec.Interval = metav1.Duration{Duration: time.Hour}
	o.Spec.Approval.Mode = infrav1.ApprovalAuto
	o.Spec.Inline = map[string]string{"main.tf": module}
	return o
}

// watched is what await looks at: the latest version of each object of the site.
func (s *site) await(ctx context.Context, names []string, done func(*infrav1.Terraform) bool, start func() error) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	w, err := s.client.Watch(ctx, &infrav1.TerraformList{}, client.InNamespace(s.namespace))
	if err != nil {
		return 0, err
	}
	defer w.Stop()
	left := map[string]bool{}
	for _, name := range names {
		left[name] = true
	}
	began := time.Now()
	if err := start(); err != nil {
		return 0, err
	}
	for len(left) > 0 {
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("%d objects are not done\n%s", len(left), s.manager.LastLog())
		case <-s.manager.Ended():
			return 0, fmt.Errorf("the manager ended\n%s", s.manager.LastLog())
		case event := <-w.ResultChan():
			o, ok := event.Object.(*infrav1.Terraform)
			if !ok {
				continue
			}
			if stalled := apimeta.FindStatusCondition(o.Status.Conditions, meta.StalledCondition); stalled != nil {
				return 0, fmt.Errorf("object %s is stalled: %s", o.Name, stalled.Message)
			}
			if done(o) {
				delete(left, o.Name)
			}
		}
	}
	return time.Since(began), nil
}

func isReady(o *infrav1.Terraform) bool {
	return o.Status.ObservedGeneration == o.Generation && apimeta.IsStatusConditionTrue(o.Status.Conditions, meta.ReadyCondition)
}

// request asks for a reconciliation of each object and waits until all are handled.
func (s *site) request(ctx context.Context, names []string) (time.Duration, error) {
	token := time.Now().Format(time.RFC3339Nano)
	return s.await(ctx, names, func(o *infrav1.Terraform) bool {
		return o.Status.LastHandledReconcileAt == token && isReady(o)
	}, func() error {
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, meta.ReconcileRequestAnnotation, token)
		for _, name := range names {
			o := &infrav1.Terraform{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}}
			if err := s.client.Patch(ctx, o, client.RawPatch("application/merge-patch+json", patch)); err != nil {
				return err
			}
		}
		return nil
	})
}

// processes counts the tool's processes since the last call.
func (s *site) processes() (int, error) {
	text, err := os.ReadFile(s.calls)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0, err
	}
	return bytes.Count(text, []byte("\n")), errors.Join(os.RemoveAll(s.calls))
}

// writes counts the writes since the last call: the manager's own, and those of
// the runner and its tools, which act as the namespace's ServiceAccount.
func (s *site) writes() (manager, runner int, err error) {
	events, err := controlplane.ReadAuditLog(s.audit)
	if err != nil {
		return 0, 0, err
	}
	for _, e := range events[s.seen:] {
		if !e.IsWrite() || e.ObjectRef == nil || e.ObjectRef.Namespace != s.namespace {
			continue
		}
		switch {
		case e.ImpersonatedUser != nil:
			runner++
		case strings.HasPrefix(e.UserAgent, "manager/"):
			manager++
		}
	}
	s.seen = len(events)
	return manager, runner, nil
}

// cycles are the times from the decision to plan to the decision that nothing is
// to be done, of requested cycles, as the manager's log tells them: what a cycle
// takes without the request and the answer, as at the end of an interval.
func (s *site) cycles() ([]time.Duration, error) {
	text, err := os.ReadFile(s.manager.Log)
	if err != nil {
		return nil, err
	}
	var times []time.Duration
	began := map[string]time.Time{}
	for line := range bytes.Lines(text) {
		var entry struct {
			Time                     time.Time `json:"ts"`
			Msg, Name, Action, Cause string
		}
		if json.Unmarshal(line, &entry) != nil || entry.Msg != "decided" {
			continue
		}
		if at, found := began[entry.Name]; found {
			times = append(times, entry.Time.Sub(at))
			delete(began, entry.Name)
		}
		if entry.Action == "Plan" && entry.Cause == "Requested" {
			began[entry.Name] = entry.Time
		}
	}
	if len(times) == 0 {
		return nil, errors.New("the manager's log tells of no requested cycle")
	}
	return times, nil
}

// cpu is the processor time that the manager used itself, without its tools.
func (s *site) cpu() (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.manager.PID()))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	user, err1 := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	const tick = 10 * time.Millisecond // USER_HZ is 100 on Linux
	return time.Duration(user+system) * tick, errors.Join(err1, err2)
}

// memory is the manager's resident size in MiB.
func (s *site) memory() (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.manager.PID()))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	return float64(kib) / 1024, err
}

func median(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)/2]
}

// timed runs a program and says how long it took; an exit code of 2 says that a plan has changes.
func timed(cmd *exec.Cmd) (time.Duration, error) {
	began := time.Now()
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !(errors.As(err, &exit) && exit.ExitCode() == 2) {
		return 0, fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return time.Since(began), nil
}
