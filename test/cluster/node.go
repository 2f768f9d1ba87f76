//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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
	if err := unix.Sethostname([]byte(s.Name)); err != nil {
		return err
	}
	if err := s.enterRoot(); err != nil {
		return err
	}
	if err := os.Setenv("PATH", "/usr/sbin:/usr/bin"); err != nil {
		return err
	}
	if err := s.configureLink(ctx); err != nil {
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

// outsideFile is the file descriptor of the machine's network namespace.
const outsideFile = 3

// configureLink makes the link to the machine and gives the node its addresses. It has
// no default route: nothing gets out of here but to this machine.
func (s *site) configureLink(ctx context.Context) error {
	outside := os.NewFile(outsideFile, "net")
	defer outside.Close()
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o600); err != nil {
		return err
	}
	return ip(ctx, "", outside,
		"link set lo up",
		fmt.Sprintf("link add eth0 type veth peer name %s netns /proc/self/fd/%d", s.device(), outsideFile),
		fmt.Sprintf("address add %s/%d dev eth0", s.NodeIP, nodeBits),
		"link set eth0 up",
		// There must be a route before kube-proxy's rules replace the address.
		fmt.Sprintf("route add %s dev eth0 src %s", s.Services, s.NodeIP),
	)
}

// ip runs commands of ip, in another root if one is given. It gets the file, if there
// is one, under the number outsideFile.
func ip(ctx context.Context, root string, file *os.File, commands ...string) error {
	cmd := exec.CommandContext(ctx, "/usr/bin/ip", "-batch", "-")
	cmd.SysProcAttr = &unix.SysProcAttr{Chroot: root}
	cmd.Dir = "/"
	if file != nil {
		cmd.ExtraFiles = []*os.File{file}
	}
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("setting up the network: %w: %s", err, out)
	}
	return nil
}

func (n *node) start(ctx context.Context, components []component) error {
	for _, c := range components {
		if err := n.startOne(ctx, c); err != nil {
			n.report(c.name, err.Error())
			return fmt.Errorf("starting %s: %w", c.name, err)
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
		n.report(name, how)
		return fmt.Errorf("%s ended: %s", name, how)
	}
}

// report leaves the name of the component that failed, and how, to up.
func (n *node) report(name, how string) {
	file := filepath.Join(nodeDir, "failure")
	if err := os.WriteFile(file, []byte(name+"\n"+how), 0o600); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}
