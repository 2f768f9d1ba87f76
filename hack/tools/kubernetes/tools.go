//go:build tools

// Package tools pins the Kubernetes programs that the tests run on. It is a
// module of its own, so that none of their dependencies reach the product.
package tools

import (
	_ "go.etcd.io/etcd/server/v3"
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
)
