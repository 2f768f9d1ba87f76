# `make` shows what there is. Everything is had from Go modules: nothing is
# downloaded otherwise, and no container engine or cluster is needed.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

BIN := $(CURDIR)/bin

# How `make quickstart` behaves: YES=1 answers all questions with yes, KEEP=1
# leaves everything running at the end.
YES ?=
KEEP ?=

# What tests and the quickstart run. Only they are told: KUBEBUILDER_ASSETS from
# outside says to hack/tools.sh where to look.
WITH_TOOLS := KUBEBUILDER_ASSETS=$(BIN) TERRACE_TOFU=$(BIN)/tofu TERRACE_TF_CLI_CONFIG=$(BIN)/providers/cli.tfrc

# A developer's own configuration of Terraform must not change what tests see.
unexport TF_CLI_CONFIG_FILE

# The cluster's program without bin/, built as bin/cluster is so that Go's cache serves both.
CLUSTER := CGO_ENABLED=0 go run -trimpath ./test/cluster

# PKG and RUN narrow `make test`: make test PKG=./runner/... RUN=TestPlan
PKG ?= ./...
TESTFLAGS ?= -race -timeout 20m
RUN ?=

GENERATED := api config/crd config/rbac/role.yaml runner/runnerpb

##@ Start

.PHONY: help
help: ## Show this list
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@/ { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z0-9-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: quickstart
quickstart: tools build ## Run the operator on this machine, without a cluster (YES=1, KEEP=1)
	@$(WITH_TOOLS) go run ./test/quickstart $(if $(YES),-yes) $(if $(KEEP),-keep)

.PHONY: tools
tools: ## Have etcd, kube-apiserver, OpenTofu and the generators in bin/ (slow only once)
	@hack/tools.sh kube-apiserver etcd tofu provider controller-gen protoc

##@ Develop

.PHONY: generate
generate: ## Generate deep copies, CRDs, RBAC and gRPC code
	@hack/tools.sh controller-gen protoc
	$(BIN)/controller-gen object:headerFile=hack/boilerplate.go.txt paths=./api/...
	$(BIN)/controller-gen crd paths=./api/... output:crd:artifacts:config=config/crd/bases
	if [ -d internal/controller ]; then $(BIN)/controller-gen rbac:roleName=terrace-manager \
	  paths=./internal/... output:rbac:artifacts:config=config/rbac; fi
	for file in $$(find runner -name '*.proto'); do $(BIN)/protoc -out . $$file; done

.PHONY: verify
verify: generate ## Fail if something generated, or go.mod, is not up to date
	git --no-pager diff --exit-code -- $(GENERATED)
	@new=$$(git ls-files --others --exclude-standard -- $(GENERATED)); \
	  [ -z "$$new" ] || { printf 'generated, but not committed:\n%s\n' "$$new"; exit 1; }
	go mod tidy -diff

.PHONY: fmt
fmt: ## Format the code and sort its imports
	@hack/tools.sh golangci-lint
	$(BIN)/golangci-lint fmt

.PHONY: vet
vet: ## Run go vet
	go vet ./...

.PHONY: lint
lint: ## Run golangci-lint (its first build takes a few minutes)
	@hack/tools.sh golangci-lint
	$(BIN)/golangci-lint run

.PHONY: build
build: ## Build the manager and the runner into bin/
	CGO_ENABLED=0 go build -trimpath -o $(BIN)/ ./cmd/manager ./cmd/runner

##@ Test

.PHONY: test
test: tools ## Run all tests (PKG=./runner/... RUN=TestName)
	$(WITH_TOOLS) go test $(TESTFLAGS) $(if $(RUN),-run '$(RUN)') $(PKG)
	$(if $(filter ./...,$(PKG)),cd test/provider && CGO_ENABLED=0 go test -trimpath ./...)

.PHONY: test-faults
test-faults: tools ## Kill manager and runner at every point of a story (make test takes a part of them)
	cd test/faults && $(WITH_TOOLS) TERRACE_FAULTS_ALL=1 go test -count=1 -timeout 60m $(if $(RUN),-run '$(RUN)')

.PHONY: cluster-up
cluster-up: cluster-check cluster-tools ## Start a real one-node Kubernetes on this machine, with the product's images (takes root)
	@$(BIN)/cluster up

.PHONY: cluster-down
cluster-down: ## Remove every trace of that cluster
	@$(CLUSTER) down

# Before anything is built: it takes minutes.
.PHONY: cluster-check
cluster-check:
	@$(CLUSTER) check

# What the cluster is made of. The images hold the product's programs as they are now.
.PHONY: cluster-tools
cluster-tools: build
	@hack/tools.sh etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl coredns tofu
	CGO_ENABLED=0 go build -trimpath -o $(BIN)/ ./test/cluster ./test/cluster/pause

# What only tests need of the cluster: Flux's source-controller, and a git server.
.PHONY: e2e-images
e2e-images: cluster-up
	@hack/tools.sh source-controller provider
	CGO_ENABLED=0 go build -trimpath -o $(BIN)/ ./test/e2e/gitserver
	@$(BIN)/cluster load terrace-source-controller:dev terrace-gitserver:dev terrace-runner-test:dev

# One after the other: figures are not to depend on what else runs. RUN leaves them out.
.PHONY: e2e
e2e: e2e-images ## Test the product's images in that cluster, and that clusters leave no trace; measure into bench/
	@export TERRACE_E2E_KUBECONFIG="$$($(BIN)/cluster kubeconfig)"; set -x; \
	  go test -p 1 -count=1 -timeout 20m $(if $(RUN),-run '$(RUN)') ./test/e2e ./test/cluster; \
	  $(if $(RUN),:,go run ./test/e2e/bench)

.PHONY: bench
bench: tools build ## Measure against the raw tools; results go to bench/
	$(WITH_TOOLS) go run ./test/bench

##@ Clean

.PHONY: clean
clean: ## Remove bin/ (Go's caches stay, so that tools come back quickly)
	if [ -d test/cluster/run ]; then $(MAKE) cluster-down; fi
	rm -rf $(BIN)
