# The manager: docker build .
# test/cluster/recipes.go makes the same image without Docker: change both.
ARG GO_IMAGE=golang:1.26
ARG BASE_IMAGE=scratch

FROM --platform=$BUILDPLATFORM ${GO_IMAGE} AS build
ARG TARGETOS TARGETARCH
ARG GOPROXY
ENV CGO_ENABLED=0 GOFLAGS=-buildvcs=false
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY api api
COPY cmd cmd
COPY internal internal
COPY runner runner
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -ldflags "-s -w" -o /out/manager ./cmd/manager

FROM ${BASE_IMAGE}
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /out/manager /usr/local/bin/manager
COPY LICENSE /licenses/terrace
# The root file system may be read-only: the manager writes to /tmp only, a volume.
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/manager"]
