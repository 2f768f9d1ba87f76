package terraform

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"github.com/fluxcd/pkg/testserver"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/artifact"
	"github.com/terrace-dev/terrace/internal/reconcile"
)

func TestSource(t *testing.T) {
	t.Parallel()
	t.Run("waits for the source, then for its artifact", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		obj := w.create(w.terraform("a").auto().source("GitRepository", "repo"))
		obj = w.reason(obj, infrav1.SourceNotFoundReason)
		w.conform(obj)
		repository := w.git("repo")
		w.reason(obj, infrav1.SourceNotReadyReason)
		revision := w.commit(repository, file("main.tf", t.Name()))
		obj = w.ready(obj)
		if obj.Status.Source == nil || obj.Status.Source.Revision != revision || obj.Status.LastAttemptedRevision != revision {
			t.Errorf("source = %+v, want %s", obj.Status.Source, revision)
		}
		plans := w.engine.plans()
		if len(plans) != 1 || !w.engine.HasSource(plans[0].request.GetSource().GetDigest()) {
			t.Errorf("want one plan with the source at the runner:\n%s", w.engine.story())
		}
		event := w.event(obj, meta.ReconciliationSucceededReason)
		if event.Annotations["infra.terrace.dev/revision"] != revision {
			t.Errorf("annotations of the event = %v", event.Annotations)
		}
	})
	t.Run("an artifact that is too large stalls the object", func(t *testing.T) {
		t.Parallel()
		w := start(t, func(r *Reconciler) {
			r.Fetcher = artifact.New(artifact.Options{Dir: t.TempDir(), MaxBytes: 64})
		})
		w.git("repo", file("main.tf", strings.Repeat(t.Name(), 10)))
		obj := w.reason(w.create(w.terraform("a").auto().source("GitRepository", "repo")), meta.ArtifactFailedReason)
		if !conditions.IsStalled(obj) || len(w.engine.plans()) != 0 {
			t.Errorf("conditions = %+v, want it stalled and nothing planned:\n%s", obj.Status.Conditions, w.engine.story())
		}
		w.conform(obj)
	})
	t.Run("a new revision is planned if it matters", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		repository := w.git("repo", file("main.tf", t.Name()))
		w.engine.on(inTurn(changes(planA), skipped()), nil, nil)
		obj := w.ready(w.create(w.terraform("a").auto().source("GitRepository", "repo")))
		revision := w.commit(repository, file("main.tf", t.Name()), file("README.md", "new"))
		obj = w.until(obj, "at the new revision", func(o *infrav1.Terraform) bool {
			return o.Status.Source.Revision == revision && conditions.IsReady(o)
		})
		if plans := w.engine.plans(); len(plans) != 2 || !plans[1].request.GetPlan().GetIfChanged() {
			t.Errorf("want a second plan if it matters:\n%s", w.engine.story())
		}
		if len(w.engine.applies()) != 1 || !strings.Contains(conditions.GetMessage(obj, meta.ReadyCondition), "No changes in "+revision) {
			t.Errorf("message: %s", conditions.GetMessage(obj, meta.ReadyCondition))
		}
	})
	t.Run("a corrupt artifact is tried again", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		repository := w.git("repo", file("main.tf", t.Name()))
		good := repository.Status.Artifact.DeepCopy()
		repository.Status.Artifact.Digest = "sha256:" + strings.Repeat("0", 64)
		if err := w.Status().Update(t.Context(), repository); err != nil {
			t.Fatal(err)
		}
		obj := w.create(w.terraform("a").auto().source("GitRepository", "repo"))
		obj = w.reason(obj, meta.ArtifactFailedReason)
		w.eventually(func() bool {
			return w.until(obj, "failing", func(*infrav1.Terraform) bool { return true }).Status.Failures > 1
		}, w.engine.story)
		if len(w.engine.plans()) > 0 {
			t.Error("a corrupt artifact was planned")
		}
		repository.Status.Artifact = good
		if err := w.Status().Update(t.Context(), repository); err != nil {
			t.Fatal(err)
		}
		w.ready(obj)
	})
	t.Run("an artifact that is gone is waited for", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		repository := w.git("repo", file("main.tf", t.Name()))
		repository.Status.Artifact.URL += ".gone"
		if err := w.Status().Update(t.Context(), repository); err != nil {
			t.Fatal(err)
		}
		obj := w.create(w.terraform("a").auto().source("GitRepository", "repo"))
		obj = w.reason(obj, meta.ArtifactFailedReason)
		if conditions.IsStalled(obj) || obj.Status.NextRetryAt != nil {
			t.Errorf("not waiting:\n%s", describe(obj))
		}
		w.commit(repository, file("main.tf", t.Name()+" again"))
		w.ready(obj)
	})
	t.Run("other namespaces are denied", func(t *testing.T) {
		t.Parallel()
		w := start(t)
		obj := w.create(w.terraform("a").source("GitRepository", "repo").with(func(s *infrav1.TerraformSpec) { s.SourceRef.Namespace = "default" }))
		obj = w.reason(obj, infrav1.AccessDeniedReason)
		if !conditions.IsStalled(obj) || !strings.Contains(conditions.GetMessage(obj, meta.ReadyCondition), "--no-cross-namespace-refs") {
			t.Errorf("not stalled:\n%s", describe(obj))
		}
	})
}

func TestKindsThatAreNotInstalledAreWaitedFor(t *testing.T) {
	t.Parallel()
	r := &Reconciler{}
	r.sources.mapper = apimeta.NewDefaultRESTMapper(nil)
	s := &scope{obj: &infrav1.Terraform{ObjectMeta: metav1.ObjectMeta{Namespace: "a"}}}
	s.obj.Spec.SourceRef = &infrav1.SourceReference{Kind: "Bucket", Name: "b"}
	_, err := r.resolveSource(t.Context(), s)
	if reconcile.KindOf(err) != reconcile.KindWaiting || reconcile.ReasonOf(err) != infrav1.SourceNotFoundReason || !strings.Contains(err.Error(), "source-controller") {
		t.Errorf("error = %v, want to wait for the kind", err)
	}
}

// git is a GitRepository with an artifact of these files.
func (w *world) git(name string, files ...testserver.File) *sourcev1.GitRepository {
	w.t.Helper()
	repository := &sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
	repository.Spec.URL = "https://example.com/" + name
	repository.Spec.Interval = metav1.Duration{Duration: time.Hour}
	if err := w.Create(w.t.Context(), repository); err != nil {
		w.t.Fatal(err)
	}
	if len(files) > 0 {
		w.commit(repository, files...)
	}
	return repository
}

// commit gives a source a new artifact and returns its revision.
func (w *world) commit(repository *sourcev1.GitRepository, files ...testserver.File) string {
	w.t.Helper()
	name, err := artifacts.ArtifactFromFiles(files)
	if err != nil {
		w.t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(artifacts.Root(), name))
	if err != nil {
		w.t.Fatal(err)
	}
	sum := sha256.Sum256(content)
	digest := hex.EncodeToString(sum[:])
	url, err := artifacts.URLForFile(name)
	if err != nil {
		w.t.Fatal(err)
	}
	revision := "main@sha1:" + digest[:40]
	repository.Status.Artifact = &meta.Artifact{
		Path: name, URL: url, Revision: revision, Digest: "sha256:" + digest, LastUpdateTime: metav1.Now(),
	}
	if err := w.Status().Update(w.t.Context(), repository); err != nil {
		w.t.Fatal(err)
	}
	return revision
}

func file(name, body string) testserver.File { return testserver.File{Name: name, Body: body} }
