package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/pki"
	"github.com/terrace-dev/terrace/runner"
	"github.com/terrace-dev/terrace/test/controlplane"
	"github.com/terrace-dev/terrace/test/kubelet"
)

const patience = time.Minute

var suite struct {
	plane  *controlplane.ControlPlane
	client client.Client
}

// fakeVariable turns the test binary into a manager that is ready at once and
// writes down how it was started.
const fakeVariable = "TERRACE_TEST_FAKE_MANAGER"

func TestMain(m *testing.M) {
	if path := os.Getenv(fakeVariable); path != "" {
		fakeManager(path)
	}
	code, err := runSuite(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runSuite(m *testing.M) (code int, err error) {
	suite.plane, err = controlplane.Start(controlplane.Options{CRDs: []string{"config/crd/bases"}, FluxCRDs: true, ServiceAccountAdmission: true})
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, suite.plane.Stop()) }()
	if suite.client, err = client.New(suite.plane.Config, client.Options{}); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

func fakeManager(path string) {
	text, _ := json.Marshal(append([]string{"RUNTIME_NAMESPACE=" + os.Getenv("RUNTIME_NAMESPACE"), "KUBECONFIG=" + os.Getenv("KUBECONFIG")}, os.Args[1:]...))
	if err := os.WriteFile(path, text, 0o600); err != nil {
		panic(err)
	}
	for _, arg := range os.Args {
		if address, found := strings.CutPrefix(arg, "--health-addr="); found {
			panic(http.ListenAndServe(address, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
		}
	}
}

func TestManagersAreStartedByMode(t *testing.T) {
	storage, dir := t.TempDir(), t.TempDir()
	for name, test := range map[string]struct {
		options ManagerOptions
		want    []string
		not     []string
	}{
		"pods are the default": {
			ManagerOptions{Storage: storage},
			[]string{"--runner-mode=pod", "--runner-image=" + RunnerImage, "--storage-path=" + storage, "RUNTIME_NAMESPACE=terrace-system", "KUBECONFIG=config"},
			[]string{"--tofu-path", "--tool-cli-config"},
		},
		"pods of another image": {ManagerOptions{Mode: ModePod, Image: "other", Namespace: "ns"}, []string{"--runner-image=other", "RUNTIME_NAMESPACE=ns"}, nil},
		"embedded": {
			ManagerOptions{Mode: ModeEmbedded, Tofu: "tofu"},
			[]string{"--runner-mode=embedded", "--tofu-path=tofu", "--storage-path=" + dir + "/storage", "RUNTIME_NAMESPACE=default"},
			[]string{"--runner-image"},
		},
		"further arguments": {ManagerOptions{Args: []string{"--log-level=debug"}}, []string{"--log-level=debug"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			record := filepath.Join(t.TempDir(), "record")
			t.Setenv(fakeVariable, record)
			test.options.Program, test.options.Dir, test.options.Kubeconfig = os.Args[0], dir, "config"
			m, err := StartManager(t.Context(), test.options)
			if err != nil {
				t.Fatal(err)
			}
			if err := m.Stop(); err != nil {
				t.Error(err)
			}
			text, err := os.ReadFile(record)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			if err := json.Unmarshal(text, &got); err != nil {
				t.Fatal(err)
			}
			for _, want := range test.want {
				if !slices.Contains(got, want) {
					t.Errorf("%q is missing in %q", want, got)
				}
			}
			for _, not := range test.not {
				if slices.ContainsFunc(got, func(arg string) bool { return strings.HasPrefix(arg, not) }) {
					t.Errorf("%q is in %q", not, got)
				}
			}
		})
	}
}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestApply(t *testing.T) {
	t.Parallel()
	mine, theirs := suite.plane.Namespace(t), suite.plane.Namespace(t)
	object := func(kind, name, namespace string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: %s\nmetadata:\n  name: %s\n  namespace: %q\n", kind, name, namespace)
	}
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"kustomization.yaml":      "resources:\n- some.yaml\n- more\nnamePrefix: ignored-\n",
		"some.yaml":               "# a comment\n---\n" + object("ConfigMap", "first", theirs) + "---\n" + object("ConfigMap", "second", theirs),
		"more/kustomization.yml":  "",
		"more/kustomization.yaml": "resources: [role.yaml]\n",
		"more/role.yaml":          "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata:\n  name: " + mine + "\n",
		"unlisted.yaml":           object("ConfigMap", "unlisted", mine),
	})
	for range 2 { // again does no harm
		for _, namespace := range []string{mine, ""} {
			count, err := Apply(t.Context(), suite.client, dir, namespace)
			if err != nil || count != 3 {
				t.Fatalf("applied %d objects, %v; want 3", count, err)
			}
		}
	}
	for _, namespace := range []string{mine, theirs} {
		list := &corev1.ConfigMapList{}
		if err := suite.client.List(t.Context(), list, client.InNamespace(namespace)); err != nil || len(list.Items) != 2 {
			t.Errorf("namespace %s has %d ConfigMaps, %v; want 2", namespace, len(list.Items), err)
		}
	}
	if err := suite.client.Get(t.Context(), client.ObjectKey{Name: mine}, &rbacv1.ClusterRole{}); err != nil {
		t.Error(err)
	}
}

func TestApplySaysWhatFails(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		files map[string]string
		want  string
	}{
		"no kustomization": {nil, "kustomization.yaml"},
		"no file":          {map[string]string{"kustomization.yaml": "resources: [missing.yaml]"}, "missing.yaml"},
		"an unknown kind":  {map[string]string{"kustomization.yaml": "resources: [a.yaml]", "a.yaml": "apiVersion: v1\nkind: Nothing\nmetadata: {name: a}"}, "Nothing a"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write(t, dir, test.files)
			if _, err := Apply(t.Context(), suite.client, dir, "default"); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want something about %q", err, test.want)
			}
		})
	}
}

func TestAnInstalledManagerHasTheShippedRights(t *testing.T) {
	t.Parallel()
	for range 2 { // again does no harm
		kubeconfig, err := InstallManager(t.Context(), suite.plane)
		if err != nil {
			t.Fatal(err)
		}
		config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		if config.CertData != nil || config.BearerToken == "" {
			t.Error("the kubeconfig has more than a token")
		}
		c, err := client.New(config, client.Options{})
		if err != nil {
			t.Fatal(err)
		}
		terraforms := &metav1.PartialObjectMetadataList{}
		terraforms.SetGroupVersionKind(infrav1.GroupVersion.WithKind("TerraformList"))
		if err := c.List(t.Context(), terraforms); err != nil {
			t.Errorf("listing Terraform objects: %v", err)
		}
		if err := c.List(t.Context(), &corev1.SecretList{}); !apierrors.IsForbidden(err) {
			t.Errorf("listing all Secrets: %v, want Forbidden", err)
		}
	}
}

// TestARunnerPodServes starts the real runner in a pod as the manager makes them.
func TestARunnerPodServes(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	namespace := suite.plane.Namespace(t)
	if _, err := OpenNamespace(ctx, suite.client, namespace); err != nil {
		t.Fatal(err)
	}
	k, err := StartKubelet(ctx, suite.plane, t.TempDir(), buildRunner(t), "", func(o *kubelet.Options) { o.Namespace = namespace })
	if err != nil {
		t.Fatal(err)
	}
	defer k.Stop()

	pod := runnerPod(namespace)
	if err := suite.client.Create(ctx, pod); err != nil {
		t.Fatal(err)
	}
	ca, err := pki.NewCA(clock.RealClock{}, pki.Lives{})
	if err != nil {
		t.Fatal(err)
	}
	createCertificate(t, ca, pod)
	for pod.Status.PodIP == "" {
		if err := suite.client.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
			t.Fatal(err)
		}
	}
	leaves, err := ca.IssueClients(0)
	if err != nil {
		t.Fatal(err)
	}
	source := pki.ClientConfig(func() (*pki.Credentials, error) {
		return &pki.Credentials{Certificates: leaves, Roots: ca.Pool()}, nil
	}, pod.Name+"."+namespace)
	c, err := runner.Dial(net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(runner.Port)), source, runner.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	hello, err := c.Connect(ctx)
	if err != nil {
		t.Fatalf("%v\n%s", err, k.LastLog(namespace, pod.Name))
	}
	t.Logf("the runner says %v", hello)

	if err := suite.client.Delete(ctx, pod); err != nil {
		t.Fatal(err)
	}
	for {
		err := suite.client.Get(ctx, client.ObjectKeyFromObject(pod), pod)
		if apierrors.IsNotFound(err) {
			return
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, k.LastLog(namespace, pod.Name))
		}
	}
}

func buildRunner(t *testing.T) string {
	t.Helper()
	root, err := controlplane.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "runner")
	cmd := exec.Command("go", "build", "-o", program, "./cmd/runner")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building the runner: %v\n%s", err, out)
	}
	return program
}

// runnerPod is a runner's pod as far as it matters here.
func runnerPod(namespace string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "terrace-runner-test", Labels: map[string]string{"app.kubernetes.io/component": "runner"}},
		Spec: corev1.PodSpec{
			ServiceAccountName: "terrace-runner", AutomountServiceAccountToken: new(true), RestartPolicy: corev1.RestartPolicyOnFailure,
			TerminationGracePeriodSeconds: new(int64(600)),
			Containers: []corev1.Container{{
				Name: "runner", Image: RunnerImage, Args: []string{"--listen=$(POD_IP)", "--tls-dir=/etc/terrace/tls", "--data-dir=/var/lib/terrace"},
				Env: []corev1.EnvVar{
					{Name: "POD_IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}},
					{Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
					{Name: "POD_NAMESPACE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}},
					{Name: "HOME", Value: "/var/lib/terrace/home"}, {Name: "TMPDIR", Value: "/tmp"},
				},
				VolumeMounts: []corev1.VolumeMount{
					{Name: "data", MountPath: "/var/lib/terrace"}, {Name: "tmp", MountPath: "/tmp"}, {Name: "tls", MountPath: "/etc/terrace/tls"},
				},
			}},
			Volumes: []corev1.Volume{
				{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				{Name: "tls", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "terrace-runner-test"}}},
			},
		},
	}
}

// createCertificate creates the Secret that the pod waits for.
func createCertificate(t *testing.T, ca *pki.CA, pod *corev1.Pod) {
	t.Helper()
	leaf, err := ca.IssueServer(pod.Name+"."+pod.Namespace, 0)
	if err != nil {
		t.Fatal(err)
	}
	certificate, key, err := pki.MarshalLeaf(leaf)
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}},
		},
		Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: certificate, corev1.TLSPrivateKeyKey: key, "ca.crt": ca.Bundle()},
	}
	if err := suite.client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
}
