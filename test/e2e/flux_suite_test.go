//go:build linux

package e2e_test

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
)

const (
	// fluxNamespace is where Flux is in every cluster.
	fluxNamespace = "flux-system"
	// gitNamespace and gitServer are those of flux/git_server.yaml.
	gitNamespace = "git-server"
	gitServer    = "gitserver"
	// branch is the git server's only one.
	branch = "main"
)

// installFlux installs Flux's source-controller and a git server, once.
var installFlux = sync.OnceValue(func() error {
	ctx := context.Background() // for all tests, not for the first one
	dir, err := os.MkdirTemp("", "flux-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	list := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/fluxcd/source-controller")
	list.Dir = filepath.Join(suite.root, "hack", "tools", "source-controller")
	list.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	module, err := list.Output()
	if err != nil {
		return fmt.Errorf("looking for the manifests of source-controller: %w", err)
	}
	ours := filepath.Join(suite.root, "test", "e2e", "flux")
	// Kustomize takes no absolute paths, so all is brought to one place.
	if err := os.CopyFS(dir, os.DirFS(ours)); err != nil {
		return err
	}
	if err := os.CopyFS(filepath.Join(dir, "source-controller"), os.DirFS(filepath.Join(strings.TrimSpace(string(module)), "config"))); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"apply", "-k", dir},
		{"apply", "-k", filepath.Join(suite.root, "config", "flux")},
		{"apply", "-f", filepath.Join(ours, "git_server.yaml")},
		{"rollout", "status", "-n", gitNamespace, "deployment/" + gitServer, "--timeout=" + patience.String()},
		{"rollout", "status", "-n", fluxNamespace, "deployment/source-controller", "--timeout=" + patience.String()},
	} {
		if _, err := kubectl(ctx, args...); err != nil {
			return err
		}
	}
	return nil
})

// repository is a git repository of the tests' server, and the GitRepository by which
// Flux follows it. Flux looks at it only when it is told to.
type repository struct {
	*tenant
	source *sourcev1.GitRepository
}

// newRepository makes a repository with these files in a namespace of its own, and
// returns it with the first revision.
func newRepository(t *testing.T, content map[string]string) (r *repository, revision string) {
	t.Helper()
	r = &repository{tenant: newTenant(t)}
	if err := installFlux(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			out, err := kubectl(context.Background(), "get", "-n", r.namespace, "gitrepositories", "-o", "wide")
			t.Logf("sources: %v\n%s", err, out)
		}
		r.git("remove", nil)
	})
	r.source = &sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: "modules"}}
	r.source.Spec.URL = fmt.Sprintf("http://%s.%s/%s.git", gitServer, gitNamespace, r.namespace)
	r.source.Spec.Interval = metav1.Duration{Duration: time.Hour}
	r.source.Spec.Reference = &sourcev1.GitRepositoryRef{Branch: branch}
	revision = r.git("commit", content)
	if err := suite.client.Create(r.ctx, r.source); err != nil {
		t.Fatal(err)
	}
	return r, revision
}

// push commits these files in place of all others, has Flux look, and returns the
// revision. Flux's own word for it is not waited for.
func (r *repository) push(content map[string]string) (revision string) {
	r.t.Helper()
	revision = r.git("commit", content)
	r.look()
	return revision
}

// look asks Flux to look at the repository now, and returns what it will note then.
func (r *repository) look() (request string) {
	r.t.Helper()
	request = time.Now().Format(time.RFC3339Nano)
	r.kubectl("annotate", "--overwrite", "gitrepository", r.source.Name, meta.ReconcileRequestAnnotation+"="+request)
	return request
}

// awaitLook waits until Flux has looked.
func (r *repository) awaitLook(request string) {
	r.t.Helper()
	r.eventually("Flux to look at the repository", func(ctx context.Context) (bool, error) {
		err := suite.client.Get(ctx, client.ObjectKeyFromObject(r.source), r.source)
		return r.source.Status.LastHandledReconcileAt == request, err
	})
}

// object creates an object that uses the repository; edit completes it.
func (r *repository) object(mode infrav1.ApprovalMode, edit func(*infrav1.Terraform)) *infrav1.Terraform {
	r.t.Helper()
	return r.create("greeting", "", func(o *infrav1.Terraform) {
		o.Spec.Inline = nil
		o.Spec.SourceRef = &infrav1.SourceReference{Kind: sourcev1.GitRepositoryKind, Name: r.source.Name}
		o.Spec.Approval.Mode = mode
		if edit != nil {
			edit(o)
		}
	})
}

// git runs a command of the git server on the repository, with files. It returns the
// revision, as Flux calls it, if there is one.
func (r *repository) git(command string, content map[string]string) (revision string) {
	r.t.Helper()
	archive, err := pack(content)
	if err != nil {
		r.t.Fatal(err)
	}
	// Not with the test's context: it is used for tidying up too.
	cmd := exec.Command(filepath.Join(suite.root, "bin", "kubectl"), "exec", "-i", "-n", gitNamespace, "deployment/"+gitServer, "--",
		gitServer, command, r.namespace)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+suite.kubeconfig)
	cmd.Stdin = archive
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		r.t.Fatalf("git server: %s: %v: %s", command, err, stderr.String())
	}
	return branch + "@sha1:" + strings.TrimSpace(string(out))
}

// pack makes a tar archive. What begins like a script or a program is executable.
func pack(content map[string]string) (*bytes.Buffer, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, name := range slices.Sorted(maps.Keys(content)) {
		text := content[name]
		header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(text))}
		if strings.HasPrefix(text, "#!") || strings.HasPrefix(text, "\x7fELF") {
			header.Mode = 0o755
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write([]byte(text)); err != nil {
			return nil, err
		}
	}
	return &archive, w.Close()
}
