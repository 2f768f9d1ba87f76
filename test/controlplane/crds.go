package controlplane

import (
	"embed"
	"fmt"
	"path"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// fluxFiles holds source-controller's definitions as its release has them, and
// the release's number. hack/flux-crds.sh brings in another release.
//
//go:embed crds
var fluxFiles embed.FS

// FluxVersion returns the release of source-controller that FluxCRDs are from.
func FluxVersion() string {
	version, err := fluxFiles.ReadFile("crds/VERSION")
	if err != nil {
		panic(err) // the file is part of the program
	}
	return strings.TrimSpace(string(version))
}

// FluxCRDs returns the definitions of Flux's GitRepository, OCIRepository,
// Bucket and ExternalArtifact.
func FluxCRDs() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	entries, err := fluxFiles.ReadDir("crds")
	if err != nil {
		return nil, err
	}
	var crds []*apiextensionsv1.CustomResourceDefinition
	for _, entry := range entries {
		if path.Ext(entry.Name()) != ".yaml" {
			continue
		}
		content, err := fluxFiles.ReadFile(path.Join("crds", entry.Name()))
		if err != nil {
			return nil, err
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(content, crd); err != nil {
			return nil, fmt.Errorf("%s: %w", entry.Name(), err)
		}
		crds = append(crds, crd)
	}
	return crds, nil
}
