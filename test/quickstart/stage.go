package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terrace-dev/terrace/test/controlplane"
	"github.com/terrace-dev/terrace/test/harness"
	"github.com/terrace-dev/terrace/test/kubelet"
)

// stage is everything that the story runs on.
type stage struct {
	ask     bool
	steps   int
	began   time.Time
	root    string // of the repository
	dir     string // temporary
	plane   *controlplane.ControlPlane
	client  client.WithWatch
	kubelet *kubelet.Kubelet
	manager *harness.Manager
	server  *harness.ArtifactServer
	shown   string
}

func (s *stage) title(text string) {
	if s.steps == 0 {
		s.began = time.Now()
	}
	s.steps++
	fmt.Printf("\n── %d. %s (%.0f s)\n", s.steps, text, time.Since(s.began).Seconds())
}

func (s *stage) say(format string, args ...any) { fmt.Printf("   "+format+"\n", args...) }

// quote shows a text with a margin.
func (s *stage) quote(text string) {
	for line := range strings.Lines(strings.TrimSpace(text)) {
		fmt.Print("   │ " + line)
	}
	fmt.Println()
}

// start starts the API server with all CRDs, a stand-in for a node, which runs the
// runners of pods as processes, and the manager under the roles that it ships with.
func (s *stage) start(ctx context.Context) error {
	var err error
	if s.root, err = controlplane.ModuleRoot(); err != nil {
		return err
	}
	if s.dir, err = os.MkdirTemp("", "terrace-quickstart-"); err != nil {
		return err
	}
	s.plane, err = controlplane.Start(controlplane.Options{CRDs: []string{"config/crd/bases"}, FluxCRDs: true, ServiceAccountAdmission: true})
	if err != nil {
		return err
	}
	if s.client, err = harness.NewClient(s.plane.Config); err != nil {
		return err
	}
	s.say("API server %s", s.plane.Config.Host)
	if s.server, err = harness.NewArtifactServer(); err != nil {
		return err
	}
	return s.startManager(ctx)
}

func (s *stage) startManager(ctx context.Context) error {
	var err error
	if s.kubelet, err = harness.StartKubelet(ctx, s.plane, filepath.Join(s.dir, "pods"), "", ""); err != nil {
		return err
	}
	kubeconfig, err := harness.InstallManager(ctx, s.plane)
	if err != nil {
		return err
	}
	s.manager, err = harness.StartManager(ctx, harness.ManagerOptions{Kubeconfig: kubeconfig, Dir: s.dir})
	if err != nil {
		return err
	}
	s.say("manager    process %d, log %s", s.manager.PID(), s.manager.Log)
	return nil
}

// close ends everything in the order in which it depends on one another.
func (s *stage) close() error {
	var errs []error
	if s.manager != nil {
		errs = append(errs, s.manager.Stop())
	}
	if s.kubelet != nil {
		s.kubelet.Stop()
	}
	if s.server != nil {
		s.server.Stop()
	}
	if s.plane != nil {
		errs = append(errs, s.plane.Stop())
	}
	if s.dir != "" {
		errs = append(errs, os.RemoveAll(s.dir))
	}
	return errors.Join(errs...)
}
