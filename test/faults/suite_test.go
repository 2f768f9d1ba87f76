// Package faults_test is the crash-point suite. One story, from the creation of an
// object over two applies to its destruction, is told once without a fault. From
// what is recorded then, tests are generated: the story is told again with the manager
// killed before and after each of its writes, with each answer of the API server
// lost or negative, and with the runner, or its pod, killed at each message of the
// protocol. It must end as it did without a fault, and nothing may have been done twice.
//
// `make test-faults` tells all of these stories. `go test`, and so `make test`, tells
// about one of ten: those with the manager killed after each write, and some of each
// other series, of every kind. With allPoints in the environment it tells all.
package faults_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terrace-dev/terrace/test/controlplane"
	"github.com/terrace-dev/terrace/test/harness"
	"github.com/terrace-dev/terrace/test/kubelet"
)

const (
	// patience bounds the wait for anything; it is never waited for when all is well.
	patience = 2 * time.Minute
	// allPoints in the environment asks for all points; make test-faults sets it.
	allPoints = "TERRACE_FAULTS_ALL"
	// faultsVariable tells runners with the build tag faults where orders are.
	faultsVariable = "TERRACE_TEST_FAULTS"
)

// suite is what all stories share.
var suite struct {
	dir        string
	orders     string // for runners, by namespace
	calls      string // where tool processes are written down
	manager    string
	plane      *controlplane.ControlPlane
	kubeconfig string // with the manager's rights
	client     client.Client
	kubelet    *kubelet.Kubelet
	points     tally
}

func TestMain(m *testing.M) {
	code, err := runSuite(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runSuite(m *testing.M) (code int, err error) {
	if suite.dir, err = os.MkdirTemp("", "terrace-faults-"); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(suite.dir)) }()
	suite.plane, err = controlplane.Start(controlplane.Options{
		CRDs: []string{"config/crd/bases"}, FluxCRDs: true, ServiceAccountAdmission: true,
	})
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, suite.plane.Stop()) }()
	if suite.kubeconfig, err = harness.InstallManager(context.Background(), suite.plane); err != nil {
		return 1, err
	}
	if suite.client, err = harness.NewClient(suite.plane.Config); err != nil {
		return 1, err
	}
	if err := startPrograms(); err != nil {
		return 1, err
	}
	defer suite.kubelet.Stop()
	code = m.Run()
	fmt.Println(suite.points.summary(code))
	return code, nil
}

// startPrograms builds the manager and a runner with faults, and starts a kubelet
// that knows the runner.
func startPrograms() (err error) {
	if suite.manager, err = build("manager"); err != nil {
		return err
	}
	program, err := build("runner", "-tags", "faults")
	if err != nil {
		return err
	}
	tofu, err := harness.Bin("tofu")
	if err != nil {
		return err
	}
	counted := filepath.Join(suite.dir, "tofu")
	suite.calls, suite.orders = filepath.Join(suite.dir, "calls"), filepath.Join(suite.dir, "orders")
	if err := harness.CountTool(counted, tofu, suite.calls); err != nil {
		return err
	}
	suite.kubelet, err = harness.StartKubelet(context.Background(), suite.plane, filepath.Join(suite.dir, "pods"), program, counted,
		func(o *kubelet.Options) { o.Env = map[string]string{faultsVariable: suite.orders} })
	return err
}

// build builds a program from the tree that is tested.
func build(name string, flags ...string) (string, error) {
	return harness.Build(filepath.Join(suite.dir, name), "./cmd/"+name, flags...)
}

// tally counts points.
type tally struct {
	mu     sync.Mutex
	count  map[string]int // by whose they are
	failed []string
}

// ended notes a point that was tried, once its test has ended.
func (p *tally) ended(t *testing.T, whose string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.count == nil {
		p.count = map[string]int{}
	}
	p.count[whose]++
	if t.Failed() {
		p.failed = append(p.failed, t.Name())
	}
}

// summary says how it went; code is that with which the tests end.
func (p *tally) summary(code int) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := fmt.Sprintf("faults: %d manager points, %d answers of the API server, %d runner points", p.count[ofManager], p.count[ofServer], p.count[ofRunner])
	switch {
	case code == 0:
		return text + ", all passed"
	case len(p.failed) == 0:
		return text + "; the tests failed outside of them"
	}
	slices.Sort(p.failed)
	return fmt.Sprintf("%s, %d failed:\n  %s", text, len(p.failed), strings.Join(p.failed, "\n  "))
}

// Whose points there are.
const (
	ofManager = "manager"
	ofServer  = "server"
	ofRunner  = "runner"
)
