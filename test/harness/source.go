package harness

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/tar"
	"github.com/fluxcd/pkg/testserver"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ArtifactServer stands in for Flux's source-controller: it serves archives and
// makes ExternalArtifact objects point to them.
type ArtifactServer struct {
	*testserver.ArtifactServer
}

// NewArtifactServer starts a server on the loopback address.
func NewArtifactServer() (*ArtifactServer, error) {
	server, err := testserver.NewTempArtifactServer()
	if err != nil {
		return nil, err
	}
	server.Start()
	return &ArtifactServer{ArtifactServer: server}, nil
}

// Stop ends the server and removes what it served.
func (a *ArtifactServer) Stop() {
	a.ArtifactServer.Stop()
	_ = os.RemoveAll(a.Root())
}

// Store serves an archive of a directory and describes it as Flux does.
func (a *ArtifactServer) Store(dir string) (*meta.Artifact, error) {
	var archive bytes.Buffer
	if _, err := tar.Tar(dir, &archive); err != nil {
		return nil, err
	}
	return a.StoreArchive(archive.Bytes())
}

// StoreArchive serves an archive that is made already.
func (a *ArtifactServer) StoreArchive(archive []byte) (*meta.Artifact, error) {
	sum := sha256.Sum256(archive)
	digest := hex.EncodeToString(sum[:])
	path := digest + ".tar.gz"
	if err := os.WriteFile(filepath.Join(a.Root(), path), archive, 0o600); err != nil {
		return nil, err
	}
	size := int64(len(archive))
	return &meta.Artifact{
		URL: a.URL() + "/" + path, Path: path, Digest: "sha256:" + digest, Revision: "v1@sha256:" + digest[:12],
		Size: &size, LastUpdateTime: metav1.Now(),
	}, nil
}

// Publish makes the ExternalArtifact point to an artifact; it is created if need be.
func Publish(ctx context.Context, c client.Client, key client.ObjectKey, artifact *meta.Artifact) error {
	source := &sourcev1.ExternalArtifact{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	if err := c.Create(ctx, source); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	if err := c.Get(ctx, key, source); err != nil {
		return err
	}
	source.Status.Artifact = artifact
	source.Status.Conditions = []metav1.Condition{{
		Type: meta.ReadyCondition, Status: metav1.ConditionTrue, Reason: meta.SucceededReason,
		Message: fmt.Sprintf("stored artifact for revision '%s'", artifact.Revision), ObservedGeneration: source.Generation,
		LastTransitionTime: metav1.NewTime(time.Now()),
	}}
	return c.Status().Update(ctx, source)
}
