//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// down ends the cluster and removes every trace of it. With its first process the
// kernel ends all others of the node and drops their mounts, interfaces and rules; left
// are control groups and files. It fails if anything is still there afterwards.
func down(ctx context.Context, s *site, p *progress) error {
	if err := checkRights(); err != nil {
		return err
	}
	release, err := s.lock(ctx, p)
	if err != nil {
		return err
	}
	defer release()
	return s.remove(ctx)
}

// remove is down for those who hold the lock.
func (s *site) remove(ctx context.Context) error {
	id, err := s.readIdentity()
	if err != nil {
		return err
	}
	var namespace string
	if id.alive() {
		file, name, err := id.namespace()
		if err != nil {
			return err
		}
		defer file.Close()
		namespace = name
		if err := id.kill(ctx); err != nil {
			return err
		}
	}
	if err := s.unlink(ctx); err != nil {
		return err
	}
	if err := s.removeCgroups(ctx); err != nil {
		return err
	}
	if err := os.RemoveAll(s.run()); err != nil {
		return err
	}
	_ = os.Remove(filepath.Dir(s.run())) // unless another cluster is up
	left, err := s.traces(namespace)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("the cluster %s has left:\n  %s", s.Name, strings.Join(left, "\n  "))
	}
	return nil
}

// traces returns what there is of the cluster, up or not: processes in the node's
// namespace, unless it is "", and in control groups; mounts, the interface, control
// groups and files.
func (s *site) traces(namespace string) ([]string, error) {
	found, err := s.processes(namespace)
	if err != nil {
		return nil, err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(mounts) {
		if bytes.Contains(line, []byte(s.run())) || bytes.Contains(line, []byte(s.nodeRoot())) {
			found = append(found, "mount "+string(bytes.TrimSpace(line)))
		}
	}
	if s.linked() {
		found = append(found, "interface "+s.device())
	}
	groups, err := s.cgroups()
	if err != nil {
		return nil, err
	}
	for _, group := range groups {
		found = append(found, "control group "+group)
	}
	if _, err := os.Stat(s.run()); !errors.Is(err, os.ErrNotExist) {
		found = append(found, "directory "+s.run())
	}
	return found, nil
}

// processes returns all processes of the node's namespace and of the control groups.
func (s *site) processes(namespace string) ([]string, error) {
	ids := map[string]bool{}
	links, err := filepath.Glob("/proc/[0-9]*/ns/pid")
	if err != nil {
		return nil, err
	}
	for _, link := range links {
		if name, err := os.Readlink(link); err == nil && name == namespace { // err: it has ended
			ids[filepath.Base(filepath.Dir(filepath.Dir(link)))] = true
		}
	}
	groups, err := s.cgroups()
	if err != nil {
		return nil, err
	}
	for _, group := range groups {
		members, err := os.ReadFile(filepath.Join(group, "cgroup.procs"))
		if err != nil {
			continue // the group has ended
		}
		for id := range strings.FieldsSeq(string(members)) {
			ids[id] = true
		}
	}
	var all []string
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		command, err := os.ReadFile(filepath.Join("/proc", id, "cmdline"))
		if err != nil || len(command) == 0 {
			continue // it has ended, though its parent may not know yet
		}
		all = append(all, fmt.Sprintf("process %s %s", id, bytes.ReplaceAll(command, []byte{0}, []byte(" "))))
	}
	return all, nil
}
