package integration_test

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/test/harness"
)

func (l *lab) make(object client.Object) {
	l.t.Helper()
	object.SetNamespace(l.namespace)
	if err := suite.client.Create(l.ctx, object); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) secret(name string, data map[string]string) {
	l.t.Helper()
	for _, value := range data {
		if len(value) >= 6 { // shorter ones are not redacted
			confidential.Store(value, true)
		}
	}
	l.make(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: data})
}

// commit publishes files as the source "repo" and returns the revision.
func (l *lab) commit(files map[string]string) string {
	l.t.Helper()
	dir := l.t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			l.t.Fatal(err)
		}
	}
	artifact, err := suite.sources.Store(dir)
	if err != nil {
		l.t.Fatal(err)
	}
	return l.publish(artifact)
}

func (l *lab) publish(artifact *meta.Artifact) string {
	l.t.Helper()
	if err := harness.Publish(l.ctx, suite.client, client.ObjectKey{Namespace: l.namespace, Name: "repo"}, artifact); err != nil {
		l.t.Fatal(err)
	}
	return artifact.Revision
}

func fromSource(o *infrav1.Terraform) {
	o.Spec.SourceRef = &infrav1.SourceReference{Kind: sourcev1.ExternalArtifactKind, Name: "repo"}
}
