//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// enabled is the variable that says that this machine can run clusters: make e2e sets it.
const enabled = "TERRACE_E2E_KUBECONFIG"

func TestMain(m *testing.M) {
	if os.Getpid() == 1 { // up started this program as the node of a cluster
		main()
		return
	}
	os.Exit(m.Run())
}

// newTestSite is a cluster beside the one that make cluster-up started.
func newTestSite(t *testing.T, name, network string) *site {
	t.Helper()
	if os.Getenv(enabled) == "" {
		t.Skip("a cluster takes root and Debian packages: make e2e runs this")
	}
	root, err := findRoot()
	if err != nil {
		t.Fatal(err)
	}
	s, err := newSite(root, name, network)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := down(context.Background(), s, newProgress(t.Output())); err != nil { // the test is over
			t.Error(err)
		}
	})
	return s
}

func TestAClusterLeavesNoTrace(t *testing.T) {
	s := newTestSite(t, "traces", "10.124.0.0/16")
	before := machine(t, s)

	if err := up(t.Context(), s, newProgress(t.Output())); err != nil {
		t.Fatal(err)
	}
	id, err := s.readIdentity()
	if err != nil {
		t.Fatal(err)
	}
	// What is looked for below must be seen while it is there.
	file, namespace, err := id.namespace()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	traces, err := s.traces(namespace)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"process", "interface", "control group", "directory"} {
		if !slices.ContainsFunc(traces, func(trace string) bool { return strings.HasPrefix(trace, kind) }) {
			t.Errorf("a cluster that is up shows no %s:\n%s", kind, strings.Join(traces, "\n"))
		}
	}
	for _, program := range append(slices.Clone(programs), "containerd-shim-runc-v2", "/coredns", "/pause") {
		if !slices.ContainsFunc(traces, func(trace string) bool { return strings.Contains(trace, program) }) {
			t.Errorf("no process is %s:\n%s", program, strings.Join(traces, "\n"))
		}
	}

	// Again, while it is up: nothing is started twice.
	if err := up(t.Context(), s, newProgress(t.Output())); err != nil {
		t.Fatal(err)
	}
	if again, err := s.readIdentity(); err != nil || again.PID != id.PID {
		t.Errorf("up has started another cluster: %+v, %v", again, err)
	}

	if err := down(t.Context(), s, newProgress(t.Output())); err != nil {
		t.Fatal(err)
	}
	if processes, err := s.processes(namespace); err != nil || len(processes) > 0 {
		t.Errorf("processes are left: %v, %v", processes, err)
	}
	after := machine(t, s)
	for _, what := range slices.Sorted(maps.Keys(before)) {
		if before[what] != after[what] {
			t.Errorf("%s changed from\n%s\nto\n%s", what, before[what], after[what])
		}
	}
	if err := down(t.Context(), s, newProgress(t.Output())); err != nil {
		t.Errorf("down, while it is down: %v", err)
	}
}

func TestAFailedStartNamesTheComponentAndShowsItsLog(t *testing.T) {
	s := newTestSite(t, "failing", "10.125.0.0/16")
	program := filepath.Join(t.TempDir(), "kubelet")
	// The node has no shell, so a program is taken that does not know these flags.
	if err := os.Link(s.bin("coredns"), program); err != nil {
		content, err := os.ReadFile(s.bin("coredns"))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(program, content, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s.replaced = map[string]string{"kubelet": program}

	err := up(t.Context(), s, newProgress(t.Output()))
	if err == nil {
		t.Fatal("up did not notice that the kubelet does not run")
	}
	for _, part := range []string{"kubelet ended: exit status", "flag provided but not defined", s.log("kubelet")} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the message lacks %q: %v", part, err)
		}
	}
	if id, err := s.readIdentity(); err != nil || id.alive() {
		t.Errorf("the rest of the cluster runs still: %v", err)
	}
}

// machine describes what a cluster might change of this machine.
func machine(t *testing.T, s *site) map[string]string {
	t.Helper()
	state := map[string]string{}
	read := func(file string) string {
		content, err := os.ReadFile(file)
		if err != nil {
			return err.Error()
		}
		return string(content)
	}
	state["mounts"] = read("/proc/self/mountinfo")
	state["routes"] = read("/proc/net/route")
	state["controllers of groups"] = read(filepath.Join(s.cgroupMount, subtreeControl)) // with version 2
	for name := range sysctls {
		state["setting "+name] = read(filepath.Join("/proc/sys", name))
	}
	state["setting net/ipv4/ip_forward"] = read("/proc/sys/net/ipv4/ip_forward")
	for _, pattern := range []string{
		"/sys/class/net/*", "/sys/fs/cgroup/*", "/sys/fs/cgroup/*/*", "/etc/*", "/run/*", "/run/netns/*", "/run/containerd/*", "/opt/*",
		"/var/lib/*", "/var/log/*", "/var/lib/kubelet/*", "/var/lib/containerd/*", "/var/lib/cni/*", "/var/lib/apt/lists/*", "/var/cache/apt/archives/*",
	} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		state[pattern] = strings.Join(files, "\n")
	}
	// With nft of the node's packages: the machine may have none.
	rules := exec.CommandContext(t.Context(), "/usr/sbin/nft", "list", "ruleset")
	rules.SysProcAttr = &unix.SysProcAttr{Chroot: s.nodeRoot()}
	rules.Dir = "/"
	out, err := rules.CombinedOutput()
	if err != nil {
		t.Fatalf("listing packet filter rules: %v: %s", err, out)
	}
	state["packet filter rules"] = string(out)
	return state
}

func TestASiteHasItsOwnAddresses(t *testing.T) {
	s, err := newSite("/root", "one", "10.99.0.0/16")
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprintf("%s %s %s %s %s %s %s", s.MachineIP, s.NodeIP, s.Pods, s.Services, s.APIServiceIP, s.DNSIP, s.device())
	if want := "10.99.0.1 10.99.0.2 10.99.1.0/24 10.99.2.0/24 10.99.2.1 10.99.2.10 one0"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for _, bad := range [][2]string{{"", "10.0.0.0/16"}, {"a/b", "10.0.0.0/16"}, {"waytoolonganame", "10.0.0.0/16"}, {"one", "10.0.0.0/8"}, {"one", "10.0.1.0/16"}} {
		if _, err := newSite("/root", bad[0], bad[1]); err == nil {
			t.Errorf("name %q and network %q are taken", bad[0], bad[1])
		}
	}
}

func TestTheTailOfALogIsShort(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	var content bytes.Buffer
	for i := range 100 {
		fmt.Fprintf(&content, "%d %s\n", i, strings.Repeat("x", 1000))
	}
	if err := os.WriteFile(file, content.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(tail(file), "\n")
	if len(lines) != 20 || !strings.HasPrefix(lines[19], "  99 x") || len(lines[19]) > 302 {
		t.Errorf("the tail has %d lines, the last has %d characters", len(lines), len(lines[len(lines)-1]))
	}
}
