//go:build linux

package main

import (
	"os"
	"path/filepath"
	"testing"
)

// fakeCgroups is a site whose control groups are plain files.
func fakeCgroups(t *testing.T, files map[string]string) *site {
	t.Helper()
	s, err := newSite(t.TempDir(), "one", "10.99.0.0/16")
	if err != nil {
		t.Fatal(err)
	}
	s.cgroupMount = t.TempDir()
	if err := os.MkdirAll(s.run(), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		file := filepath.Join(s.cgroupMount, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *site) fakeFile(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(s.cgroupMount, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestWithControlGroupsOfVersion2AllControllersAreGivenAndReturned(t *testing.T) {
	t.Parallel()
	s := fakeCgroups(t, map[string]string{
		"cgroup.controllers": "cpuset cpu io memory hugetlb pids\n",
		subtreeControl:       "cpu io memory pids\n",
	})
	if err := s.createCgroups(); err != nil {
		t.Fatal(err)
	}
	if got := s.fakeFile(t, subtreeControl); got != "+cpuset +hugetlb" {
		t.Errorf("%q was written, wanted are the controllers that groups did not have", got)
	}
	groups, err := s.cgroups()
	if err != nil || len(groups) != 1 || groups[0] != filepath.Join(s.cgroupMount, "terrace-cluster-one") {
		t.Errorf("the groups are %v, %v", groups, err)
	}
	if err := s.removeCgroups(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := s.fakeFile(t, subtreeControl); got != "-hugetlb" { // the last of two
		t.Errorf("%q was written last, wanted is that what was given is taken again", got)
	}
	if groups, err := s.cgroups(); err != nil || len(groups) > 0 {
		t.Errorf("the groups are %v, %v", groups, err)
	}
}

func TestWithControlGroupsOfVersion2NothingIsReturnedThatWasThere(t *testing.T) {
	t.Parallel()
	s := fakeCgroups(t, map[string]string{"cgroup.controllers": "cpu memory\n", subtreeControl: "cpu memory\n"})
	if err := s.createCgroups(); err != nil {
		t.Fatal(err)
	}
	if err := s.removeCgroups(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := s.fakeFile(t, subtreeControl); got != "cpu memory\n" {
		t.Errorf("%q was written", got)
	}
}

func TestWithControlGroupsOfVersion1EachHierarchyHasTheGroupAndItsProcessors(t *testing.T) {
	t.Parallel()
	s := fakeCgroups(t, map[string]string{
		"cpuset/cgroup.procs": "", "cpuset/cpuset.cpus": "0-1\n", "cpuset/cpuset.mems": "0\n",
		"memory/cgroup.procs": "",
	})
	if err := s.createCgroups(); err != nil {
		t.Fatal(err)
	}
	if cpus, mems := s.fakeFile(t, "cpuset/terrace-cluster-one/cpuset.cpus"), s.fakeFile(t, "cpuset/terrace-cluster-one/cpuset.mems"); cpus != "0-1\n" || mems != "0\n" {
		t.Errorf("the group has processors %q and memory %q", cpus, mems)
	}
	groups, err := s.cgroups()
	if err != nil || len(groups) != 2 {
		t.Errorf("the groups are %v, %v", groups, err)
	}
}

func TestAMachineWithoutControlGroupsIsToldSo(t *testing.T) {
	t.Parallel()
	if err := fakeCgroups(t, nil).createCgroups(); err == nil {
		t.Error("groups were made where none are mounted")
	}
}
