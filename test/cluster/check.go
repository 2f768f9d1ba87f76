//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// check says why this machine cannot have the cluster, before anything is built.
func (s *site) check() error {
	if err := checkRights(); err != nil {
		return err
	}
	if _, err := newWorkshop(s); err != nil {
		return err
	}
	if _, err := s.hierarchies(); err != nil {
		return err
	}
	if err := s.conflicts(); err != nil {
		return err
	}
	return s.checkSpace()
}

// capabilities are what of root's rights an environment such as a container may lack.
var capabilities = map[string]int{
	"CAP_NET_ADMIN":  unix.CAP_NET_ADMIN,
	"CAP_SYS_ADMIN":  unix.CAP_SYS_ADMIN,
	"CAP_SYS_CHROOT": unix.CAP_SYS_CHROOT,
}

func checkRights() error {
	if os.Geteuid() != 0 {
		return errors.New("a node takes root: its namespaces, mounts and network are not for others to make")
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	_, rest, _ := strings.Cut(string(status), "CapEff:")
	word, _, _ := strings.Cut(strings.TrimSpace(rest), "\n")
	effective, err := strconv.ParseUint(word, 16, 64)
	if err != nil {
		return fmt.Errorf("reading what this process may do: %w", err)
	}
	for name, number := range capabilities {
		if effective&(1<<number) == 0 {
			return fmt.Errorf("this root has no %s, as in a container that is not privileged: a node takes it", name)
		}
	}
	return nil
}

// checkSpace fails if the disk is so full that the kubelet would take no pods.
func (s *site) checkSpace() error {
	const need = 2 << 30 // packages, images and what is made of them take a bit more than half of it
	var disk unix.Statfs_t
	if err := unix.Statfs(s.root, &disk); err != nil {
		return err
	}
	size, free := disk.Blocks*uint64(disk.Bsize), disk.Bavail*uint64(disk.Bsize)
	if wanted := size/100 + need; free < wanted { // the hundredth is evictionHard in kubelet.yaml
		return fmt.Errorf("the disk of %s is too full: %.1f GiB are free, a node takes %.1f", s.root, gibibytes(free), gibibytes(wanted))
	}
	return nil
}

func gibibytes(n uint64) float64 { return float64(n) / (1 << 30) }
