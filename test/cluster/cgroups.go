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
	"time"
)

const cgroupMount = "/sys/fs/cgroup"

// hierarchies returns the machine's control group hierarchies: one with version 2,
// one for each controller with version 1.
func hierarchies() ([]string, error) {
	if _, err := os.Stat(filepath.Join(cgroupMount, "cgroup.controllers")); err == nil {
		return []string{cgroupMount}, nil
	}
	files, err := filepath.Glob(filepath.Join(cgroupMount, "*", "cgroup.procs"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no control groups are mounted at %s", cgroupMount)
	}
	for i := range files {
		files[i] = filepath.Dir(files[i])
	}
	return files, nil
}

// createCgroups makes the group of all pods.
func (s *site) createCgroups() error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, hierarchy := range all {
		group := filepath.Join(hierarchy, s.CgroupRoot())
		if err := os.MkdirAll(group, 0o755); err != nil {
			return err
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
	return nil
}

// cgroups returns all groups of the cluster, parents first.
func (s *site) cgroups() ([]string, error) {
	all, err := hierarchies()
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
