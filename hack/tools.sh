#!/usr/bin/env bash
# hack/tools.sh TOOL...: has the named tools in bin/, at the versions that the
# modules under hack/tools pin. `make tools` calls it.
#
#   etcd kube-apiserver   the control plane of tests and quickstart
#   tofu                  OpenTofu
#   provider              the tests' provider, as a mirror: bin/providers
#   controller-gen        generates CRDs, RBAC and deep copies
#   protoc                generates gRPC code: protoc and its two Go plugins
#   golangci-lint         for `make lint`
#   kubectl kubelet kube-controller-manager kube-scheduler kube-proxy coredns
#                         the rest of the cluster of the end to end tests
#   source-controller     Flux's, which runs in that cluster
#
# A tool that the machine has at the right version is linked: etcd and
# kube-apiserver from $KUBEBUILDER_ASSETS, tofu from $PATH. Anything else is built
# with Go alone. That takes long only once: a stamp in bin/.stamps tells whether
# anything has changed since, and an interrupted build goes on where it was,
# because Go caches each package.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin=$root/bin
modules=$root/hack/tools
assets=${KUBEBUILDER_ASSETS:-}
[ -z "$assets" ] || [ ! "$assets" -ef "$bin" ] || assets= # our own work is not found again
step=15 # seconds between two lines about progress

# The cache only serves builds whose settings are equal, so they are fixed here.
export CGO_ENABLED=0 GOFLAGS=-buildvcs=false GOWORK=off
unset TF_CLI_CONFIG_FILE

# version MODULE PATH prints the version that hack/tools/MODULE requires of PATH.
version() {
  awk -v path="$2" '$1 == "require" { sub(/^require /, "") } $1 == path { print $2; exit }' "$modules/$1/go.mod"
}

say() { printf '%-15s %s\n' "$1" "$2"; }

# fingerprint DIR FLAGS... digests all that decides what comes out of a build:
# the module files, the sources beside them, the flags and the version of Go.
fingerprint() {
  local dir=$1
  shift
  {
    printf '%s\n' "$(go env GOVERSION GOOS GOARCH)" "$@"
    find "$dir" -type f \( -name '*.go' -o -name go.mod -o -name go.sum \) | LC_ALL=C sort | xargs cat
  } | digest
}

digest() {
  if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi | cut -d' ' -f1
}

# current NAME STAMP FILE... says whether the files exist and the stamp is NAME's.
current() {
  local name=$1 stamp=$2 file
  shift 2
  [ "$(cat "$bin/.stamps/$name" 2>/dev/null)" = "$stamp" ] || return 1
  for file in "$@"; do
    [ -f "$bin/$file" ] && [ ! -L "$bin/$file" ] || return 1
  done
}

# adopt NAME FOUND WANTED COMMAND... links the program FOUND into bin/ if the
# output of the command, which asks it for its version, has the line WANTED.
adopt() {
  local name=$1 found=$2 wanted=$3
  shift 3
  [ -n "$found" ] && [ -x "$found" ] || return 1
  "$@" 2>/dev/null | grep -qxF "$wanted" || return 1
  ln -sfn "$found" "$bin/$name"
  say "$name" "$wanted: $found"
}

# build NAME DIR LDFLAGS [PACKAGE=FILE]... builds each package of the module in
# DIR into the file bin/FILE, unless the stamp says that this has been done.
build() {
  local name=$1 dir=$2 ldflags=$3 stamp pair label files=()
  shift 3
  for pair in "$@"; do files+=("${pair#*=}"); done
  stamp=$(fingerprint "$dir" "$ldflags" "$@")
  if current "$name" "$stamp" "${files[@]}"; then
    say "$name" "up to date"
    return
  fi
  for pair in "$@"; do
    mkdir -p "$(dirname "$bin/${pair#*=}")"
    label=$name
    [ $# = 1 ] || label=${pair#*=}
    compile "$label" "$dir" -trimpath -ldflags "$ldflags" -o "$bin/${pair#*=}.new" "${pair%%=*}"
    mv -f "$bin/${pair#*=}.new" "$bin/${pair#*=}"
  done
  printf '%s\n' "$stamp" >"$bin/.stamps/$name"
}

# compile NAME DIR ARGUMENTS... runs go build and tells every few seconds how far
# it has come. Its output is shown if it fails.
compile() {
  local name=$1 dir=$2 begin=$SECONDS next=$step log=$bin/.stamps/$1.log
  shift 2
  say "$name" "building ..."
  (cd "$dir" && exec nice go build -v "$@") >"$log" 2>&1 9>&- &
  child=$!
  while kill -0 "$child" 2>/dev/null; do
    sleep 0.2
    if ((SECONDS - begin >= next)); then
      say "$name" "  $((SECONDS - begin)) s, $(grep -cv '^go: ' "$log" || true) packages compiled, $(tail -n 1 "$log" | cut -c1-60)"
      next=$((SECONDS - begin + step))
    fi
  done
  if ! wait "$child"; then
    child=
    tail -n 30 "$log" >&2
    say "$name" "FAILED after $((SECONDS - begin)) s" >&2
    return 1
  fi
  child=
  rm -f "$log"
  say "$name" "built in $((SECONDS - begin)) s"
}

etcd() {
  local v
  v=$(version kubernetes go.etcd.io/etcd/server/v3)
  adopt etcd "${assets:+$assets/etcd}" "etcd Version: ${v#v}" "$assets/etcd" --version ||
    build etcd "$modules/kubernetes" "-s -w" go.etcd.io/etcd/server/v3=etcd
}

kube_apiserver() {
  local v
  v=$(version kubernetes k8s.io/kubernetes)
  adopt kube-apiserver "${assets:+$assets/kube-apiserver}" "Kubernetes $v" "$assets/kube-apiserver" --version ||
    kubernetes kube-apiserver
}

kubectl() { kubernetes kubectl; }
kubelet() { kubernetes kubelet; }
kube_controller_manager() { kubernetes kube-controller-manager; }
kube_scheduler() { kubernetes kube-scheduler; }
kube_proxy() { kubernetes kube-proxy; }

# kubernetes NAME builds a program of Kubernetes that knows its version.
kubernetes() {
  local v major minor p=k8s.io/component-base/version
  v=$(version kubernetes k8s.io/kubernetes)
  IFS=. read -r major minor _ <<<"${v#v}"
  build "$1" "$modules/kubernetes" \
    "-s -w -X $p.gitVersion=$v -X $p.gitMajor=$major -X $p.gitMinor=$minor -X $p.gitTreeState=clean -X k8s.io/client-go/pkg/version.gitVersion=$v" \
    "k8s.io/kubernetes/cmd/$1=$1"
}

coredns() {
  build coredns "$modules/coredns" "-s -w" .=coredns
}

source_controller() {
  build source-controller "$modules/source-controller" "-s -w" github.com/fluxcd/source-controller=source-controller
}

tofu() {
  local v found
  v=$(version opentofu github.com/opentofu/opentofu)
  found=$(type -aP tofu | grep -vxF "$bin/tofu" | head -n 1 || true)
  adopt tofu "$found" "OpenTofu $v" "$found" version ||
    build tofu "$modules/opentofu" "-s -w -X github.com/opentofu/opentofu/version.dev=no" \
      github.com/opentofu/opentofu/cmd/tofu=tofu
}

controller_gen() {
  build controller-gen "$modules/dev" "-s -w" sigs.k8s.io/controller-tools/cmd/controller-gen=controller-gen
}

protoc() {
  build protoc "$modules/dev" "-s -w" ./protoc=protoc \
    google.golang.org/protobuf/cmd/protoc-gen-go=protoc-gen-go \
    google.golang.org/grpc/cmd/protoc-gen-go-grpc=protoc-gen-go-grpc
}

golangci_lint() {
  local v
  v=$(version lint github.com/golangci/golangci-lint/v2)
  build golangci-lint "$modules/lint" "-s -w -X main.version=${v#v}" \
    github.com/golangci/golangci-lint/v2/cmd/golangci-lint=golangci-lint
}

# provider lays the provider out as a mirror of both registries. The directories
# are real ones and the second file is a hard link: OpenTofu does not follow
# links to directories there.
provider() {
  local v=0.1.0 platform path copy mirror=$bin/providers
  platform=$(go env GOOS)_$(go env GOARCH)
  path=terrace-dev/testing/$v/$platform/terraform-provider-testing_v$v
  build provider "$root/test/provider" "-s -w -X main.version=$v" ".=providers/registry.opentofu.org/$path"
  copy=$mirror/registry.terraform.io/$path
  mkdir -p "$(dirname "$copy")"
  ln -f "$mirror/registry.opentofu.org/$path" "$copy"
  cat >"$mirror/cli.tfrc.new" <<EOF
disable_checkpoint = true

provider_installation {
  filesystem_mirror {
    path = "$mirror"
  }
}
EOF
  mv -f "$mirror/cli.tfrc.new" "$mirror/cli.tfrc"
}

main() {
  mkdir -p "$bin/.stamps"
  if command -v flock >/dev/null; then # two at once would do everything twice
    exec 9>"$bin/.stamps/lock"
    flock -n 9 || { say tools "waiting for another run"; flock 9; }
  fi
  child=
  trap '[ -z "$child" ] || kill "$child" 2>/dev/null || true' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  local tool
  for tool in "$@"; do
    case $tool in
    etcd | kube-apiserver | tofu | provider | controller-gen | protoc | golangci-lint) "${tool//-/_}" ;;
    kubectl | kubelet | kube-controller-manager | kube-scheduler | kube-proxy | coredns | source-controller) "${tool//-/_}" ;;
    *)
      say "$tool" "no such tool" >&2
      exit 2
      ;;
    esac
  done
}

main "$@"
