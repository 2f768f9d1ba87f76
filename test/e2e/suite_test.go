//go:build linux

// Package e2e_test runs the product as users have it: its images, installed from
// config/default, on a real node. make e2e starts the cluster and names it in
// TERRACE_E2E_KUBECONFIG; without it everything here is skipped.
package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/test/controlplane"
	"github.com/terrace-dev/terrace/test/harness"
)

const (
	// kubeconfigVariable names the cluster.
	kubeconfigVariable = "TERRACE_E2E_KUBECONFIG"
	// patience bounds the wait for anything; it is never waited for when all is well.
	patience = 3 * time.Minute
	// managerNamespace and managerName are those of config/default.
	managerNamespace = "terrace-system"
	managerName      = "terrace-manager"
	runnerImage      = "terrace-runner:dev"
	// runnerTestImage is made from it, with a provider that users would add like that.
	runnerTestImage = "terrace-runner-test:dev"
)

// suite is what all tests share.
var suite struct {
	root       string // of the repository
	kubeconfig string
	client     client.WithWatch
}

func TestMain(m *testing.M) {
	// Tests wait for the cluster most of the time, and few processors are no reason to
	// wait for one after the other.
	flag.Parse()
	if err := flag.Set("test.parallel", "12"); err != nil {
		panic(err)
	}
	ctrllog.SetLogger(logr.Discard()) // or the client asks for one
	suite.kubeconfig = os.Getenv(kubeconfigVariable)
	if suite.kubeconfig != "" {
		if err := install(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// install installs the product as the documentation says, and has the manager of an
// earlier run replaced: its image may be another one.
func install(ctx context.Context) (err error) {
	if suite.root, err = controlplane.ModuleRoot(); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", suite.kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1 // tests that run at the same time share the client
	if suite.client, err = harness.NewClient(config); err != nil {
		return err
	}
	_, absent := kubectl(ctx, "get", "-n", managerNamespace, "deployment", managerName)
	if _, err := kubectl(ctx, "apply", "-k", filepath.Join(suite.root, "config", "default")); err != nil {
		return err
	}
	if absent == nil {
		if _, err := kubectl(ctx, "rollout", "restart", "-n", managerNamespace, "deployment/"+managerName); err != nil {
			return err
		}
	}
	_, err = kubectl(ctx, "rollout", "status", "-n", managerNamespace, "deployment/"+managerName, "--timeout="+patience.String())
	return err
}

// kubectl is what a user would type. It returns what it prints.
func kubectl(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(suite.root, "bin", "kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+suite.kubeconfig)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return string(out), nil
}

// tenant is a namespace that enforces the Pod Security Standard restricted and is open
// for Terraform objects.
type tenant struct {
	t         *testing.T
	ctx       context.Context
	namespace string
}

func newTenant(t *testing.T) *tenant {
	t.Helper()
	if suite.kubeconfig == "" {
		t.Skip(kubeconfigVariable + " names no cluster: make e2e runs this")
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "tenant-",
		Labels:       map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}
	if err := suite.client.Create(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	e := &tenant{t: t, ctx: t.Context(), namespace: namespace.Name}
	t.Cleanup(func() {
		if t.Failed() {
			e.explain()
		}
		if err := suite.client.Delete(context.Background(), namespace); client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	})
	e.kubectl("apply", "-k", filepath.Join(suite.root, "config", "runner-namespace"))
	return e
}

// kubectl works in the tenant's namespace.
func (e *tenant) kubectl(args ...string) string {
	e.t.Helper()
	out, err := kubectl(e.ctx, append([]string{"-n", e.namespace}, args...)...)
	if err != nil {
		e.t.Fatal(err)
	}
	return out
}

// explain logs what a person would look at.
func (e *tenant) explain() {
	for _, args := range [][]string{
		{"-n", e.namespace, "get", "terraforms,pods", "-o", "wide"},
		{"-n", e.namespace, "get", "events", "--sort-by=.lastTimestamp"},
		{"-n", e.namespace, "logs", "-l", "app.kubernetes.io/component=runner", "--tail=50"},
		{"-n", managerNamespace, "logs", "deployment/" + managerName, "--tail=50"},
	} {
		out, err := kubectl(context.Background(), args...)
		e.t.Logf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// create creates an object; edit completes it. By default its resources are destroyed
// with it.
func (e *tenant) create(name, module string, edit func(*infrav1.Terraform)) *infrav1.Terraform {
	e.t.Helper()
	o := &infrav1.Terraform{ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: name}}
	o.Spec.Interval = metav1.Duration{Duration: time.Hour}
	o.Spec.Inline = map[string]string{"main.tf": module}
	o.Spec.DeletionPolicy = infrav1.DeletionDestroy
	if edit != nil {
		edit(o)
	}
	if err := suite.client.Create(e.ctx, o); err != nil {
		e.t.Fatal(err)
	}
	return o
}

// await waits until the object is as wanted. It may not go meanwhile.
func (e *tenant) await(o *infrav1.Terraform, what string, wanted func(*infrav1.Terraform) bool) {
	e.t.Helper()
	err := wait.PollUntilContextTimeout(e.ctx, 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		if err := suite.client.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return false, err
		}
		return wanted(o), nil
	})
	if err != nil {
		status, _ := json.MarshalIndent(o.Status, "", " ")
		e.t.Fatalf("waiting for %s: %v; the status is %s", what, err, status)
	}
}

// remove deletes the object and waits until it is gone.
func (e *tenant) remove(o *infrav1.Terraform) {
	e.t.Helper()
	if err := suite.client.Delete(e.ctx, o); err != nil {
		e.t.Fatal(err)
	}
	err := wait.PollUntilContextTimeout(e.ctx, 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		err := suite.client.Get(ctx, client.ObjectKeyFromObject(o), o)
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
	if err != nil {
		status, _ := json.MarshalIndent(o.Status, "", " ")
		e.t.Fatalf("waiting for the object to go: %v; the status is %s", err, status)
	}
}

// runners returns the tenant's runner pods.
func (e *tenant) runners() []corev1.Pod {
	e.t.Helper()
	pods := &corev1.PodList{}
	labels := client.MatchingLabels{"app.kubernetes.io/name": "terrace", "app.kubernetes.io/component": "runner"}
	if err := suite.client.List(e.ctx, pods, client.InNamespace(e.namespace), labels); err != nil {
		e.t.Fatal(err)
	}
	return pods.Items
}

// exists says whether the tenant has a Secret.
func (e *tenant) exists(secret string) bool {
	e.t.Helper()
	err := suite.client.Get(e.ctx, client.ObjectKey{Namespace: e.namespace, Name: secret}, &corev1.Secret{})
	if client.IgnoreNotFound(err) != nil {
		e.t.Fatal(err)
	}
	return err == nil
}
