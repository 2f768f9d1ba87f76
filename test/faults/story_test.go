package faults_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/test/harness"
)

// story is one run: a namespace, an object and a manager of its own.
type story struct {
	t         *testing.T
	ctx       context.Context
	namespace string
	own       string // the manager's namespace
	dir       string
	file      string
	orders    string // of the runner
	proxy     *proxy
	options   harness.ManagerOptions
	object    *infrav1.Terraform
	approved  []string // ids of plans, in their order
	told      outcome
	messages  []string // of the runner's protocol, in their order

	mu      sync.Mutex
	manager *harness.Manager
	killed  int
}

// tell tells the story, with blows at some of the manager's writes, and returns
// what came of it.
func tell(t *testing.T, at func(point) blow, order func(*story)) *story {
	t.Helper()
	s := &story{t: t, ctx: t.Context(), namespace: suite.plane.Namespace(t), dir: t.TempDir()}
	s.own, s.file = s.namespace+"-m", filepath.Join(s.dir, "file")
	s.orders = filepath.Join(suite.orders, s.namespace)
	if err := os.MkdirAll(s.orders, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := harness.OpenNamespace(s.ctx, suite.client, s.namespace); err != nil {
		t.Fatal(err)
	}
	s.lockForeign()
	s.installManager()
	s.proxy = newProxy(t, s.own, s.crash, at)
	s.options.Kubeconfig = s.kubeconfig()
	if order != nil {
		order(s)
	}
	s.manager = s.launch()
	t.Cleanup(s.stop)
	t.Cleanup(s.clear)

	s.create()
	s.settle("the creation", infrav1.PlanSummary{Add: 2, Outputs: 2})
	s.drift()
	s.settle("the drift", infrav1.PlanSummary{Add: 1, Change: 1})
	if err := suite.client.Delete(s.ctx, s.object); err != nil {
		t.Fatal(err)
	}
	s.await("the object to go", func(o *infrav1.Terraform) bool { return o == nil })
	s.end()
	return s
}

// lockForeign leaves a lock of somebody else in the namespace. It must stay.
func (s *story) lockForeign() {
	s.t.Helper()
	foreign := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "lock-tfstate-default-foreign"},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("somebody@else")},
	}
	if err := suite.client.Create(s.ctx, foreign); err != nil {
		s.t.Fatal(err)
	}
}

// installManager gives the manager a namespace of its own, with the roles that it
// ships with, so that it also begins without a certificate authority.
func (s *story) installManager() {
	s.t.Helper()
	if err := suite.client.Create(s.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.own}}); err != nil {
		s.t.Fatal(err)
	}
	if _, err := harness.Apply(s.ctx, suite.client, filepath.Join("config", "rbac"), s.own); err != nil {
		s.t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", suite.kubeconfig)
	if err != nil {
		s.t.Fatal(err)
	}
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		s.t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		review, err := clients.AuthorizationV1().SelfSubjectAccessReviews().Create(s.ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: "get", Resource: "secrets", Namespace: s.own, Name: "terrace-ca",
			}},
		}, metav1.CreateOptions{})
		if err == nil && review.Status.Allowed {
			break
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("the manager's roles do not take effect: %v", err)
		}
	}
	s.options = harness.ManagerOptions{
		Program: suite.manager, Dir: s.dir, Namespace: s.own,
		Args: []string{"--watch-label-selector=test.terrace.dev/story=" + s.namespace, "--requeue-dependency=1s", "--log-level=debug"},
	}
}

// kubeconfig is the manager's, with the proxy in place of the API server.
func (s *story) kubeconfig() string {
	s.t.Helper()
	config, err := clientcmd.LoadFromFile(suite.kubeconfig)
	if err != nil {
		s.t.Fatal(err)
	}
	for name := range config.Clusters {
		config.Clusters[name] = &clientcmdapi.Cluster{
			Server: s.proxy.URL, CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.proxy.Certificate().Raw}),
		}
	}
	path := filepath.Join(s.dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		s.t.Fatal(err)
	}
	return path
}

func (s *story) launch() *harness.Manager {
	m, err := harness.LaunchManager(s.options)
	if err != nil {
		s.t.Error(err)
	}
	return m
}

// crash kills the manager and starts another one at once.
func (s *story) crash() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.manager.Kill()
	s.killed++
	s.manager = s.launch()
}

func (s *story) running() *harness.Manager {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.manager
}

func (s *story) stop() {
	if err := s.running().Stop(); err != nil {
		s.t.Error(err)
	}
	if s.t.Failed() {
		s.explain()
	}
}

// clear ends the runners, which would stay for some time, when they do not matter any more.
func (s *story) clear() {
	err := suite.client.DeleteAllOf(context.Background(), &corev1.Pod{}, client.InNamespace(s.namespace), client.GracePeriodSeconds(0))
	if err != nil {
		s.t.Error(err)
	}
}

// explain shows what there is to say about a story that went wrong.
func (s *story) explain() {
	logs, _ := filepath.Glob(filepath.Join(s.dir, "manager-*.log"))
	pods, _ := filepath.Glob(filepath.Join(suite.dir, "pods", s.namespace+"_*.log"))
	slices.SortFunc(logs, func(a, b string) int { return strings.Compare(modified(a), modified(b)) })
	for _, path := range append(logs, pods...) {
		text, _ := os.ReadFile(path)
		s.t.Logf("%s:\n%s", filepath.Base(path), text[max(0, len(text)-30_000):])
	}
	order, _ := s.proxy.seen()
	s.t.Logf("the writes were %v", order)
}

func modified(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	return info.ModTime().Format(time.RFC3339Nano)
}

func (s *story) create() {
	s.t.Helper()
	o := &infrav1.Terraform{ObjectMeta: metav1.ObjectMeta{
		Namespace: s.namespace, Name: "tf", Labels: map[string]string{"test.terrace.dev/story": s.namespace},
	}}
	o.Spec.Interval = metav1.Duration{Duration: time.Hour}
	o.Spec.RetryInterval = &metav1.Duration{Duration: time.Second}
	o.Spec.MaxRetryInterval = &metav1.Duration{Duration: time.Second}
	o.Spec.Approval.Mode = infrav1.ApprovalManual
	o.Spec.DeletionPolicy = infrav1.DeletionDestroy
	o.Spec.Outputs = []infrav1.OutputTarget{{Kind: infrav1.SecretKind, Name: "out"}}
	o.Spec.Inline = map[string]string{"main.tf": fmt.Sprintf(`
terraform {
  required_providers {
    testing = { source = "terrace-dev/testing" }
  }
}
resource "testing_file" "f" {
  path    = %q
  content = "as declared"
}
resource "terraform_data" "d" { input = testing_file.f.content }
output "content" { value = terraform_data.d.output }
output "token" {
  value     = "secret ${terraform_data.d.output}"
  sensitive = true
}
`, s.file)}
	if err := suite.client.Create(s.ctx, o); err != nil {
		s.t.Fatal(err)
	}
	s.object = o
	s.await("the plan of the creation", pends)
	s.checkpoint("creation planned")
}

// drift changes the file behind the object's back and asks for a reconciliation.
func (s *story) drift() {
	s.t.Helper()
	if err := os.WriteFile(s.file, []byte("changed by hand"), 0o600); err != nil {
		s.t.Fatal(err)
	}
	token := time.Now().Format(time.RFC3339Nano)
	s.annotate(meta.ReconcileRequestAnnotation, token)
	s.await("the drift to be found", func(o *infrav1.Terraform) bool {
		return pends(o) && o.Status.LastHandledReconcileAt == token
	})
	s.checkpoint("drift planned")
}

// settle approves what pends, if it does no more than is expected, until the object
// is ready.
func (s *story) settle(what string, most infrav1.PlanSummary) {
	s.t.Helper()
	for {
		o := s.await(what+" to be applied", func(o *infrav1.Terraform) bool {
			return pends(o) && !slices.Contains(s.approved, o.Status.Plan.ID) || isReady(o)
		})
		if isReady(o) {
			break
		}
		if got := o.Status.Plan.Summary; got.Add > most.Add || got.Change > most.Change || got.Destroy > 0 || got.Replace > 0 {
			s.t.Fatalf("after %s a plan pends that does %+v, want no more than %+v", what, got, most)
		}
		s.approved = append(s.approved, o.Status.Plan.ID)
		s.annotate(infrav1.ApproveAnnotation, o.Status.Plan.ID)
	}
	s.checkpoint(what + " applied")
}

// pends says that a plan waits for its approval and nothing else goes on.
func pends(o *infrav1.Terraform) bool {
	return o != nil && o.Status.ObservedGeneration == o.Generation && o.Status.Operation == nil &&
		conditions.GetReason(o, meta.ReadyCondition) == infrav1.ApprovalRequiredReason && conditions.Get(o, meta.ReconcilingCondition) == nil
}

func isReady(o *infrav1.Terraform) bool {
	return o != nil && o.Status.Operation == nil && harness.IsReady(o)
}

func (s *story) annotate(key, value string) {
	s.t.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{key: value}}})
	if err != nil {
		s.t.Fatal(err)
	}
	if err := suite.client.Patch(s.ctx, s.object.DeepCopy(), client.RawPatch("application/merge-patch+json", patch)); err != nil {
		s.t.Fatal(err)
	}
}

// await waits until the object is as wanted; nil stands for an object that is gone.
func (s *story) await(what string, wanted func(*infrav1.Terraform) bool) *infrav1.Terraform {
	s.t.Helper()
	var last *infrav1.Terraform
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		o := &infrav1.Terraform{}
		err := suite.client.Get(s.ctx, client.ObjectKeyFromObject(s.object), o)
		switch {
		case apierrors.IsNotFound(err):
			o = nil
		case err != nil:
			s.t.Fatal(err)
		default:
			last = o
		}
		if wanted(o) {
			return o
		}
		select {
		case <-s.running().Ended():
			s.t.Fatalf("the manager ended by itself")
		default:
		}
	}
	text := []byte("nothing")
	if last != nil {
		text, _ = json.MarshalIndent(last.Status, "", " ")
	}
	s.t.Fatalf("waited %v for %s; the status is %s", patience, what, text)
	return nil
}
