//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

// node is the first process of the cluster's namespaces. When it ends, all others
// do, and so do mounts and interfaces. Files tell up how far it has come: ready/NAME
// for components that serve, and failure if one has ended.
type node struct {
	site *site

	mu       sync.Mutex
	children map[int]string // names of components by process id
}

// runNode is the command node. It does not return but with an error.
func runNode(ctx context.Context, s *site) error {
	if os.Getpid() != 1 {
		return fmt.Errorf("the command node is only for up to start")
	}
	// Who finds the link or a process of the node must find this too, even if up is gone.
	id, err := identifySelf()
	if err != nil {
		return err
	}
	if err := s.writeIdentity(id); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(s.Name)); err != nil {
		return err
	}
	if err := s.enterRoot(); err != nil {
		return err
	}
	if err := os.Setenv("PATH", "/usr/sbin:/usr/bin"); err != nil {
		return err
	}
	if err := s.makeLink(ctx, id); err != nil {
		return err
	}
	n := &node{site: s, children: map[int]string{}}
	failed := make(chan error, 1)
	if err := n.start(ctx, s.foundation()); err != nil {
		return err
	}
	go func() { failed <- n.reap() }()
	go func() {
		if err := n.awaitAll(ctx, s.foundation()); err != nil {
			return // the context is over
		}
		if err := n.start(ctx, s.others()); err != nil {
			failed <- err
			return
		}
		_ = n.awaitAll(ctx, s.others())
	}()
	return <-failed
}

func (n *node) start(ctx context.Context, components []component) error {
	for _, c := range components {
		if err := n.startOne(ctx, c); err != nil {
			err = fmt.Errorf("starting %s: %w", c.name, err)
			n.report(c.name, err)
			return err
		}
	}
	return nil
}

func (n *node) startOne(ctx context.Context, c component) error {
	log, err := os.Create(filepath.Join(nodeDir, "log", c.name+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, c.program, c.args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/var/lib", "TMPDIR=/tmp"}
	n.mu.Lock() // reap must not see the process before it is in the map
	defer n.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	n.children[cmd.Process.Pid] = c.name
	return nil
}

// awaitAll marks each component as ready when it is.
func (n *node) awaitAll(ctx context.Context, components []component) error {
	for _, c := range components {
		err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			return c.ready(ctx) == nil, nil
		})
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(nodeDir, "ready", c.name), nil, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// reap collects all processes that end, including those that containers leave to
// this one, and returns when a component is among them.
func (n *node) reap() error {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("waiting for processes: %w", err)
		}
		n.mu.Lock()
		name := n.children[pid]
		n.mu.Unlock()
		if name == "" {
			continue
		}
		how := fmt.Sprintf("exit status %d", status.ExitStatus())
		if status.Signaled() {
			how = status.Signal().String()
		}
		err = fmt.Errorf("%s ended: %s", name, how)
		n.report(name, err)
		return err
	}
}

// report leaves the name of the component that failed, and how, to up and status.
func (n *node) report(name string, failure error) {
	if err := writeFailure(filepath.Join(nodeDir, "failure"), name, failure); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}
