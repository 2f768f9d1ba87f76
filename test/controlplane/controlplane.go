// Package controlplane starts a real etcd and a real kube-apiserver for tests
// and for the quickstart: RBAC is on, nothing is faked, and there is no kubelet
// and no controller manager. The programs come from `make tools`.
//
// Whatever happens to the program that started a control plane (a panic, a test
// timeout, kill -9), the two processes end with it on Linux.
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// startTimeout bounds how long the API server may take to be ready. It takes
// about five seconds on a quiet machine; the rest is for crowded ones.
const startTimeout = 2 * time.Minute

// Options says what Start starts. The zero value is an empty control plane.
type Options struct {
	// AssetsDir is the directory that etcd and kube-apiserver are in.
	// Default: $KUBEBUILDER_ASSETS, then bin/ in the module's root.
	AssetsDir string

	// CRDs are files, or directories of files, of custom resource definitions to
	// install, for example "config/crd/bases". Relative paths start at the
	// module's root. Start returns when their resources are served.
	CRDs []string

	// FluxCRDs installs Flux's sources too: GitRepository, OCIRepository, Bucket
	// and ExternalArtifact.
	FluxCRDs bool

	// AuditLog is the path of a file in which each request is recorded at level
	// Metadata. Read it with ReadAuditLog. Default: no audit log.
	AuditLog string

	// ServiceAccountAdmission refuses pods whose service account does not exist
	// and mounts tokens into the others, as in any real cluster. It is off by
	// default, because nothing here creates a namespace's "default" account.
	ServiceAccountAdmission bool

	// APIServerArgs are appended to the API server's arguments.
	APIServerArgs []string
}

// ControlPlane is a running etcd and kube-apiserver.
type ControlPlane struct {
	// Config is for clients in this process. It is an administrator's, and
	// without client-side rate limits. Copy it before changing it.
	Config *rest.Config

	// Kubeconfig is the path of a file with the same rights, for other processes.
	// The file is self-contained and goes away with Stop.
	Kubeconfig string

	dir       *workDir
	processes []*process
	stop      func() error
}

// Start starts a control plane and returns when it serves requests. The caller
// must call Stop. An error holds the last lines that the failing program logged.
func Start(opts Options) (*ControlPlane, error) {
	assets, err := findAssets(opts.AssetsDir)
	if err != nil {
		return nil, err
	}
	dir, err := newWorkDir()
	if err != nil {
		return nil, err
	}
	cp := &ControlPlane{dir: dir, Kubeconfig: dir.file("kubeconfig")}
	cp.stop = sync.OnceValue(cp.kill)

	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := cp.start(ctx, opts, assets); err != nil {
		return nil, errors.Join(err, cp.Stop())
	}
	return cp, nil
}

func (cp *ControlPlane) start(ctx context.Context, opts Options, assets string) error {
	keys, err := newPKI()
	if err != nil {
		return fmt.Errorf("creating certificates: %w", err)
	}
	port, err := reservePort()
	if err != nil {
		return fmt.Errorf("reserving a port: %w", err)
	}
	cp.dir.onClose(port.release)

	etcd, err := cp.run("etcd", filepath.Join(assets, "etcd"), etcdArgs(cp.dir)...)
	if err != nil {
		return err
	}
	args, err := apiServerArgs(cp.dir, keys, port.number, opts)
	if err != nil {
		return err
	}
	server, err := cp.run("kube-apiserver", filepath.Join(assets, "kube-apiserver"), args...)
	if err != nil {
		return err
	}

	cp.Config = keys.restConfig(port.number)
	if err := keys.writeKubeconfig(cp.Kubeconfig, port.number); err != nil {
		return err
	}
	if err := waitReady(ctx, cp.Config, etcd, server); err != nil {
		return err
	}
	return installCRDs(cp.Config, opts)
}

func (cp *ControlPlane) run(name, path string, args ...string) (*process, error) {
	p, err := startProcess(name, path, cp.dir.file(name+".log"), args...)
	if err == nil {
		cp.processes = append(cp.processes, p)
	}
	return p, err
}

// Stop ends both processes and removes everything they wrote, except the audit
// log. They are killed, not asked: nobody needs their data any more. It may be
// called more than once, and from any goroutine.
func (cp *ControlPlane) Stop() error { return cp.stop() }

func (cp *ControlPlane) kill() error {
	var errs []error
	for _, p := range slices.Backward(cp.processes) {
		errs = append(errs, p.kill())
	}
	return errors.Join(append(errs, cp.dir.close())...)
}

// Namespace creates a namespace of its own for a test, named after the test. It
// is not removed: without a controller manager a namespace's contents would
// stay anyway, and the whole control plane is thrown away in the end.
func (cp *ControlPlane) Namespace(t testing.TB) string {
	t.Helper()
	client, err := corev1client.NewForConfig(cp.Config)
	if err != nil {
		t.Fatalf("creating a client: %v", err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: namespacePrefix(t.Name())}}
	namespace, err = client.Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("creating a namespace: %v", err)
	}
	return namespace.Name
}

// namespacePrefix turns a test's name into the beginning of a namespace's name,
// short enough for the suffix that the API server adds.
func namespacePrefix(test string) string {
	name := strings.Map(func(r rune) rune {
		if (r >= 'a' && r <= 'z') || (r >= '0' && r <= '9') {
			return r
		}
		return '-'
	}, strings.ToLower(strings.TrimPrefix(test, "Test")))
	if name = strings.Trim(name, "-"); len(name) > 40 {
		name = name[:40]
	}
	return "test-" + name + "-"
}

// installCRDs creates the custom resource definitions that opts asks for and
// waits until the API server serves them.
func installCRDs(config *rest.Config, opts Options) error {
	install := envtest.CRDInstallOptions{ErrorIfPathMissing: true, MaxTime: startTimeout}
	for _, path := range opts.CRDs {
		if !filepath.IsAbs(path) {
			root, err := ModuleRoot()
			if err != nil {
				return err
			}
			path = filepath.Join(root, path)
		}
		install.Paths = append(install.Paths, path)
	}
	if opts.FluxCRDs {
		crds, err := FluxCRDs()
		if err != nil {
			return err
		}
		install.CRDs = crds
	}
	if len(install.Paths)+len(install.CRDs) == 0 {
		return nil
	}
	if _, err := envtest.InstallCRDs(config, install); err != nil {
		return fmt.Errorf("installing custom resource definitions: %w", err)
	}
	return nil
}
