//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// hierarchies returns the machine's control group hierarchies: one with version 2,
// one for each controller with version 1.
func (s *site) hierarchies() ([]string, error) {
	if s.unified() {
		return []string{s.cgroupMount}, nil
	}
	files, err := filepath.Glob(filepath.Join(s.cgroupMount, "*", "cgroup.procs"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no control groups are mounted at %s", s.cgroupMount)
	}
	for i := range files {
		files[i] = filepath.Dir(files[i])
	}
	return files, nil
}

// unified says whether control groups are of version 2.
func (s *site) unified() bool {
	_, err := os.Stat(filepath.Join(s.cgroupMount, "cgroup.controllers"))
	return err == nil
}

// createCgroups makes the group of all pods.
func (s *site) createCgroups() error {
	all, err := s.hierarchies()
	if err != nil {
		return err
	}
	if s.unified() {
		if err := s.enableControllers(); err != nil {
			return err
		}
	}
	for _, hierarchy := range all {
		group := filepath.Join(hierarchy, s.CgroupRoot())
		if err := os.MkdirAll(group, 0o755); err != nil {
			return err
		}
		if s.unified() {
			continue
		}
		// Version 1 lets nobody into a group without processors and memory.
		for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
			value, err := os.ReadFile(filepath.Join(hierarchy, name))
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(group, name), value, 0o600); err != nil {
				return err
			}
		}
	}
	return nil
}

// subtreeControl lists the controllers of the groups below the one that it is in.
const subtreeControl = "cgroup.subtree_control"

// enableControllers has version 2 give groups all controllers that there are, as the
// kubelet and runc would do; those that were not given before are noted for
// returnControllers.
func (s *site) enableControllers() error {
	available, err := os.ReadFile(filepath.Join(s.cgroupMount, "cgroup.controllers"))
	if err != nil {
		return err
	}
	given, err := os.ReadFile(filepath.Join(s.cgroupMount, subtreeControl))
	if err != nil {
		return err
	}
	missing := slices.DeleteFunc(strings.Fields(string(available)), func(name string) bool {
		return slices.Contains(strings.Fields(string(given)), name)
	})
	if len(missing) == 0 {
		return nil
	}
	if err := os.WriteFile(s.run("controllers"), []byte(strings.Join(missing, " ")), 0o600); err != nil {
		return err
	}
	command := "+" + strings.Join(missing, " +")
	err = os.WriteFile(filepath.Join(s.cgroupMount, subtreeControl), []byte(command), 0o600)
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("%w: %s is not the machine's root of control groups and has processes itself, as in a container: groups below it get no controllers until these are moved", err, s.cgroupMount)
	}
	return err
}

// returnControllers undoes enableControllers. What groups of others use by now stays:
// the kernel refuses to take it away.
func (s *site) returnControllers() error {
	added, err := os.ReadFile(s.run("controllers"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for name := range strings.FieldsSeq(string(added)) {
		err := os.WriteFile(filepath.Join(s.cgroupMount, subtreeControl), []byte("-"+name), 0o600)
		if err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("taking the controller %s from groups again: %w", name, err)
		}
	}
	return nil
}

// removeCgroups removes the group and all below it. Processes that were just ended
// may be in them for a moment.
func (s *site) removeCgroups(ctx context.Context) error {
	var last error
	err := poll(ctx, 10*time.Second, func() bool {
		var all []string
		all, last = s.cgroups()
		for _, group := range slices.Backward(all) {
			last = errors.Join(last, os.Remove(group))
		}
		return last == nil
	})
	if err != nil {
		return fmt.Errorf("removing control groups: %w", last)
	}
	return s.returnControllers()
}

// cgroups returns all groups of the cluster, parents first.
func (s *site) cgroups() ([]string, error) {
	all, err := s.hierarchies()
	if err != nil {
		return nil, err
	}
	var groups []string
	for _, hierarchy := range all {
		err := filepath.WalkDir(filepath.Join(hierarchy, s.CgroupRoot()), func(path string, entry fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, os.ErrNotExist):
				return nil
			case err != nil:
				return err
			case entry.IsDir():
				groups = append(groups, path)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return groups, nil
}
