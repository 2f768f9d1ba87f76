//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// sysctls are settings of all of the machine that a kubelet writes. It gets files
// of its own in their place.
var sysctls = map[string]string{
	"vm/overcommit_memory":      "1",
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/keys/root_maxbytes": "25000000",
}

// enterRoot makes the unpacked Debian packages the root of this process, read-only,
// with the cluster's directory at /node and below /var. It must be the first process of
// new mount and process namespaces: nothing of this shows outside, and all of it goes
// with the last process.
func (s *site) enterRoot() error {
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	for _, name := range programs {
		if err := bindFile(s.run("programs", name), s.program(name)); err != nil {
			return err
		}
	}
	root := s.nodeRoot()
	at := func(elem string) string { return filepath.Join(root, elem) }
	for _, m := range []struct {
		source, target, kind string
		flags                uintptr
		data                 string
	}{
		{root, root, "", unix.MS_BIND, ""},
		{"", root, "", unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY, ""},
		{"proc", at("proc"), "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"sysfs", at("sys"), "sysfs", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"/sys/fs/cgroup", at("sys/fs/cgroup"), "", unix.MS_BIND | unix.MS_REC, ""},
		{"/dev", at("dev"), "", unix.MS_BIND | unix.MS_REC, ""},
		{"tmpfs", at("run"), "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=755"},
		{"tmpfs", at("tmp"), "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
		{s.run(), at("node"), "", unix.MS_BIND | unix.MS_REC, ""},
		{s.run("var"), at("var"), "", unix.MS_BIND, ""},
	} {
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("mounting %s at %s: %w", m.source, m.target, err)
		}
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	// The old root comes to lie on the new one, and is taken away.
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("changing the root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leaving the old root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	for name, value := range sysctls {
		file := filepath.Join(nodeDir, "sysctl", filepath.Base(name))
		if err := os.WriteFile(file, []byte(value+"\n"), 0o600); err != nil {
			return err
		}
		if err := unix.Mount(file, filepath.Join("/proc/sys", name), "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("hiding the setting %s: %w", name, err)
		}
	}
	// Mounts of the kubelet must reach the containers.
	return unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, "")
}

// bindFile shows the file, or that which it links to, at the path.
func bindFile(path, file string) error {
	file, err := filepath.EvalSymlinks(file)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	if err := unix.Mount(file, path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mounting %s: %w", file, err)
	}
	return nil
}
