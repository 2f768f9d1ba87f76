#!/usr/bin/env bash
# hack/flux-crds.sh brings the definitions of Flux's sources for the tests to the
# release of source-controller whose api module go.mod requires. Run it after
# changing that.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=$(go list -m -f '{{.Version}}' github.com/fluxcd/source-controller/api)
# The module is only unpacked; it does not become a dependency.
dir=$(cd / && go mod download -json "github.com/fluxcd/source-controller@$version" |
  sed -n 's/.*"Dir": "\(.*\)".*/\1/p')

target=test/controlplane/crds
for kind in buckets externalartifacts gitrepositories ocirepositories; do
  install -m 644 "$dir/config/crd/bases/source.toolkit.fluxcd.io_$kind.yaml" "$target/"
done
echo "$version" >"$target/VERSION"
echo "$target is now of source-controller $version"
