//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long a component may take to serve.
const patience = 3 * time.Minute

// up starts the cluster, or what is missing of it, and returns when pods can run
// and find one another by name.
func up(ctx context.Context, s *site, p *progress) error {
	if err := checkRights(); err != nil {
		return err
	}
	release, err := s.lock(ctx, p)
	if err != nil {
		return err
	}
	defer release()
	if err := s.check(); err != nil {
		return err
	}
	shop, err := newWorkshop(s)
	if err != nil {
		return err
	}
	id, err := s.readIdentity()
	if err != nil {
		return err
	}
	found := s.whole(id)
	if found {
		p.say("cluster %s is up", s.Name)
	} else {
		if id != nil {
			p.say("cluster %s is not up any more: %s; starting it anew", s.Name, s.howItEnded(id))
		}
		if err := s.begin(ctx, shop, p); err != nil {
			return s.giveUp(ctx, err)
		}
		if id, err = s.readIdentity(); err != nil {
			return err
		}
	}
	alive, cancel := id.whileAlive(ctx)
	defer cancel()
	err = s.finish(alive, shop, id, p)
	switch {
	case err != nil && found && id.alive():
		return fmt.Errorf("the cluster stays up, but: %w", s.explain(err))
	case err != nil:
		return s.giveUp(ctx, err)
	}
	p.say("cluster %s is ready", s.Name)
	return nil
}

// whole says whether the cluster is up, and neither about to end nor without its files
// or its link.
func (s *site) whole(id *identity) bool {
	_, err := os.Stat(s.kubeconfig())
	failed, _ := s.failure()
	return id.alive() && failed == "" && err == nil && s.linked()
}

// giveUp ends a cluster that did not start, and explains the error. What tells why stays
// until the next up or down; nothing stays if the user had enough.
func (s *site) giveUp(ctx context.Context, err error) error {
	rest := context.WithoutCancel(ctx)
	if ctx.Err() != nil {
		return errors.Join(fmt.Errorf("interrupted: cluster %s is down", s.Name), s.remove(rest))
	}
	id, readErr := s.readIdentity()
	if readErr == nil {
		readErr = id.kill(rest)
	}
	// Its own word, if there is one, is better than what follows from it.
	who, ok := errors.AsType[*blamed](err)
	if component, _ := s.failure(); ok && component == "" {
		readErr = errors.Join(readErr, writeFailure(s.run("failure"), who.component, err))
	}
	return errors.Join(s.explain(err), readErr)
}

// begin removes what another cluster left and starts the node.
func (s *site) begin(ctx context.Context, shop *workshop, p *progress) error {
	if err := s.remove(ctx); err != nil {
		return fmt.Errorf("removing what was left: %w", err)
	}
	for _, name := range programs {
		if _, err := os.Stat(s.program(name)); err != nil {
			return fmt.Errorf("make cluster-tools builds what is missing: %w", err)
		}
	}
	release, err := s.lockFiles(ctx, p)
	if err != nil {
		return err
	}
	defer release()
	p.say("unpacking Debian packages (fetching takes a minute, once)")
	if err := s.unpackNode(ctx, shop.archive); err != nil {
		return err
	}
	if err := s.writeConfig(); err != nil {
		return err
	}
	if err := s.createCgroups(); err != nil {
		return fmt.Errorf("creating control groups: %w", err)
	}
	p.say("starting the node")
	return blame("node", s.spawn(ctx))
}

// finish waits for the components, loads the images and adds cluster DNS.
func (s *site) finish(ctx context.Context, shop *workshop, id *identity, p *progress) error {
	if err := s.connect(ctx); err != nil {
		return err
	}
	for _, c := range s.foundation() {
		if err := s.await(ctx, id, c.name, p); err != nil {
			return err
		}
	}
	if err := s.load(ctx, shop, id, p, imageNames()...); err != nil {
		return err
	}
	for _, c := range s.others() {
		if err := s.await(ctx, id, c.name, p); err != nil {
			return err
		}
	}
	timeout := "--timeout=" + patience.String()
	if err := s.kubectl(ctx, "wait", "--for=create", timeout, "node/"+s.Name); err != nil {
		return blame("kubelet", err)
	}
	if err := s.kubectl(ctx, "wait", "--for=condition=Ready", timeout, "node/"+s.Name); err != nil {
		return blame("kubelet", err)
	}
	p.say("node Ready")
	if err := s.kubectl(ctx, "apply", "-f", s.run("config", "addons.yaml")); err != nil {
		return blame("kube-apiserver", err)
	}
	if err := s.kubectl(ctx, "rollout", "status", "-n", "kube-system", "deployment/coredns", timeout); err != nil {
		return blame("kubelet", err)
	}
	p.say("cluster DNS serves")
	return nil
}

// await returns when the node says that a component serves.
func (s *site) await(ctx context.Context, id *identity, name string, p *progress) error {
	if s.serves(name) && id.alive() {
		return nil
	}
	err := poll(ctx, patience, func() bool { return s.serves(name) || !id.alive() })
	switch {
	case !id.alive():
		return blame("node", errors.New("the node ended"))
	case err != nil:
		return blame(name, fmt.Errorf("%s does not serve after %s: %w", name, patience, err))
	}
	p.say("%s serves", name)
	return nil
}

// blamed is an error and the component whose log may tell why.
type blamed struct {
	component string
	error
}

func (b *blamed) Unwrap() error { return b.error }

func blame(component string, err error) error {
	if err == nil {
		return nil
	}
	return &blamed{component: component, error: err}
}

// explain adds to an error the component that failed and the end of its log.
func (s *site) explain(err error) error {
	if component, how := s.failure(); component != "" {
		return s.showLog(errors.New(how), component)
	}
	if who, ok := errors.AsType[*blamed](err); ok {
		return s.showLog(err, who.component)
	}
	return err
}

func (s *site) showLog(err error, component string) error {
	return fmt.Errorf("%w\nthe last lines of %s:\n%s", err, s.log(component), tail(s.log(component)))
}

// tail returns the last lines of a file, each cut to a bearable length.
func tail(file string) string {
	const count, width = 20, 300
	content, err := os.ReadFile(file)
	if err != nil {
		return "  " + err.Error()
	}
	lines := bytes.Split(bytes.TrimSpace(content), []byte("\n"))
	lines = lines[max(0, len(lines)-count):]
	for i, line := range lines {
		lines[i] = append([]byte("  "), line[:min(len(line), width)]...)
	}
	return string(bytes.Join(lines, []byte("\n")))
}

// load makes images and gives them to the node, unless it has them.
func (s *site) load(ctx context.Context, shop *workshop, id *identity, p *progress, names ...string) error {
	release, err := s.lockFiles(ctx, p)
	if err != nil {
		return err
	}
	defer release()
	for _, name := range names {
		made, err := shop.make(ctx, name)
		if err != nil {
			return err
		}
		stamp := s.run("images", strings.ReplaceAll(name, ":", "_"))
		if content, err := os.ReadFile(stamp); err == nil && string(content) == made {
			continue
		}
		if err := id.importImage(ctx, shop.file(name, ".tar")); err != nil {
			return blame("containerd", fmt.Errorf("loading %s: %w", name, err))
		}
		if err := os.WriteFile(stamp, []byte(made), 0o600); err != nil {
			return err
		}
		p.say("image %s loaded", name)
	}
	return nil
}

// importImage has the node's own ctr read the image.
func (id *identity) importImage(ctx context.Context, file string) error {
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer in.Close()
	cmd := exec.CommandContext(ctx, "/usr/bin/ctr", "--address", containerdSocket, "--namespace", "k8s.io", "images", "import", "-")
	cmd.SysProcAttr = &unix.SysProcAttr{Chroot: id.root()}
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin"}
	cmd.Stdin = in
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// kubectl runs kubectl with all rights.
func (s *site) kubectl(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, s.bin("kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.kubeconfig())
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
