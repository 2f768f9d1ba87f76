//go:build linux

// Command bench measures the product's images on the real node that the environment
// variable TERRACE_E2E_KUBECONFIG names, and prints what a peer took on a cluster
// like it. It takes root on the node's machine, since it looks at the processes of
// containers. No figure makes it fail; what does not converge does.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terrace-dev/terrace/test/bench/measure"
	"github.com/terrace-dev/terrace/test/controlplane"
	"github.com/terrace-dev/terrace/test/harness"
)

// kubeconfigVariable names the cluster, for tests too.
const kubeconfigVariable = "TERRACE_E2E_KUBECONFIG"

// peer is whose figures are printed beside ours. They are given where ours are made.
const peer = "tofu-controller v0.16.5 with OpenTofu 1.12.6 and the same module, measured on 2026-11-30 on a cluster like this one: " +
	"2 CPUs for everything, etcd without fsync, no images to pull. Medians of 5, of recoveries single runs"

// sizes say how much is measured.
type sizes struct{ runs, secrets, pods int }

var bench = measure.Bench[*lab, *sizes]{
	File:  "e2e.json",
	Peer:  peer,
	Open:  newLab,
	Close: func(ctx context.Context, l *lab) error { return l.close(ctx) },
	Parts: []measure.Part[*lab, *sizes]{
		{Name: "empty", Measure: emptyCluster},
		{Name: "cycles", Measure: cycles},
		{Name: "processes", Measure: processes},
		{Name: "restart", Measure: restarts},
		{Name: "kill", Measure: kills},
		{Name: "full", Measure: fullCluster},
	},
}

func main() {
	n := &sizes{}
	flag.IntVar(&n.runs, "runs", 5, "how often each step is repeated; medians are shown")
	flag.IntVar(&n.secrets, "secrets", 10000, "how many Secrets are not ours")
	flag.IntVar(&n.pods, "pods", 1000, "how many Pods are not ours")
	bench.Main(n)
}

// lab is the cluster, with the manager as config/default installs it.
type lab struct {
	measure.Objects
	kubeconfig string
	audit      measure.AuditLog
	id         string // of this run: begins the names of its namespaces, and is a label of them
}

// newLab installs the manager, unless it is, and starts it anew: no figure is to
// depend on what it did before.
func newLab(ctx context.Context) (*lab, error) {
	l := &lab{kubeconfig: os.Getenv(kubeconfigVariable), id: "bench-" + rand.String(5)}
	if l.kubeconfig == "" {
		return nil, fmt.Errorf("%s names no cluster: make e2e runs this", kubeconfigVariable)
	}
	l.audit.Path = filepath.Join(filepath.Dir(l.kubeconfig), "..", "log", "audit.log")
	config, err := clientcmd.BuildConfigFromFlags("", l.kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS = -1 // no limit
	if l.Client, err = harness.NewClient(config); err != nil {
		return nil, err
	}
	root, err := controlplane.ModuleRoot()
	if err != nil {
		return nil, err
	}
	if _, err := l.command(ctx, "apply", "-k", filepath.Join(root, "config", "default")); err != nil {
		return nil, err
	}
	return l, errors.Join(l.stop(ctx), l.start(ctx))
}

// open makes a namespace of this run, as strict as those of tenants should be.
func (l *lab) open(ctx context.Context, name string) (namespace string, err error) {
	namespace = l.id + "-" + name
	return namespace, l.Open(ctx, namespace, map[string]string{l.id: "", "pod-security.kubernetes.io/enforce": "restricted"})
}

// close removes all namespaces of this run, and returns when they are gone. It takes a
// manager, which a measurement that failed may have left stopped.
func (l *lab) close(ctx context.Context) error {
	if err := l.start(ctx); err != nil {
		return err
	}
	namespaces := &corev1.NamespaceList{}
	if err := l.Client.List(ctx, namespaces, client.HasLabels{l.id}); err != nil {
		return err
	}
	for i := range namespaces.Items {
		if err := l.Client.Delete(ctx, &namespaces.Items[i]); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	return until(ctx, "the namespaces to go", func(ctx context.Context) (bool, error) {
		err := l.Client.List(ctx, namespaces, client.HasLabels{l.id})
		return len(namespaces.Items) == 0, err
	})
}
