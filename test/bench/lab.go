package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/terrace-dev/terrace/test/bench/measure"
	"github.com/terrace-dev/terrace/test/controlplane"
	"github.com/terrace-dev/terrace/test/harness"
	"github.com/terrace-dev/terrace/test/kubelet"
)

// The tools of runners, and the images that have them.
const (
	realImage = "terrace-runner:real"
	stubImage = "terrace-runner:stub"
)

// lab is the cluster that all measurements share. One manager at a time works in
// it, with the shipped rights; its runners are processes in pods.
type lab struct {
	measure.Objects
	dir        string
	audit      measure.AuditLog
	tofu       string
	kubeconfig string // with the manager's rights
	plane      *controlplane.ControlPlane
	kubelet    *kubelet.Kubelet

	image string         // of the runners of the manager
	calls map[string]int // tool processes that were counted, by image
}

func newLab(ctx context.Context) (l *lab, err error) {
	l = &lab{calls: map[string]int{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	if l.dir, err = os.MkdirTemp("", "terrace-bench-"); err != nil {
		return l, err
	}
	l.audit.Path = filepath.Join(l.dir, "audit.log")
	l.plane, err = controlplane.Start(controlplane.Options{
		CRDs: []string{"config/crd/bases"}, FluxCRDs: true, ServiceAccountAdmission: true, AuditLog: l.audit.Path,
	})
	if err != nil {
		return l, err
	}
	if l.Client, err = harness.NewClient(l.plane.Config); err != nil {
		return l, err
	}
	if l.kubeconfig, err = harness.InstallManager(ctx, l.plane); err != nil {
		return l, err
	}
	return l, l.startKubelet(ctx)
}

// startKubelet has an image for each tool, whose processes are counted.
func (l *lab) startKubelet(ctx context.Context) (err error) {
	if l.tofu, err = harness.Bin("tofu"); err != nil {
		return err
	}
	stub := filepath.Join(l.dir, "stub")
	build := exec.CommandContext(ctx, "go", "build", "-o", stub, "github.com/terrace-dev/terrace/test/bench/stub")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("building the stub tool: %w\n%s", err, out)
	}
	images := map[string][]string{}
	for image, tool := range map[string]string{realImage: l.tofu, stubImage: stub} {
		counted := filepath.Join(l.dir, image+".tool")
		if err := harness.CountTool(counted, tool, l.callsOf(image)); err != nil {
			return err
		}
		if images[image], err = harness.RunnerProgram("", counted); err != nil {
			return err
		}
	}
	l.kubelet, err = harness.StartKubelet(ctx, l.plane, filepath.Join(l.dir, "pods"), "", "", func(o *kubelet.Options) { o.Programs = images })
	return err
}

func (l *lab) callsOf(image string) string { return filepath.Join(l.dir, image+".calls") }

// close ends everything that a measurement started, also one that failed.
func (l *lab) close() error {
	errs := []error{l.stop()}
	if l.kubelet != nil {
		l.kubelet.Stop()
	}
	if l.plane != nil {
		errs = append(errs, l.plane.Stop())
	}
	return errors.Join(append(errs, os.RemoveAll(l.dir))...)
}

// start starts the manager, with runners of that image. Managers follow one
// another as leaders.
func (l *lab) start(ctx context.Context, image string, args ...string) (err error) {
	dir := filepath.Join(l.dir, "manager")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	l.image = image
	l.Manager, err = harness.StartManager(ctx, harness.ManagerOptions{
		Kubeconfig: l.kubeconfig, Dir: dir, Image: image, Args: append([]string{"--log-level=debug", "--enable-leader-election=true"}, args...),
	})
	return err
}

// stop ends the manager, if one runs.
func (l *lab) stop() error {
	if l.Manager == nil {
		return nil
	}
	err := l.Manager.Stop()
	l.Manager = nil
	return err
}
