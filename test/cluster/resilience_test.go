//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestAClusterThatLostAComponentSaysSoAndComesBack(t *testing.T) {
	s := newTestSite(t, "losing", "10.121.0.0/16")
	first := bring(t, s)
	if out := statusOf(t, s); !strings.Contains(out, "kubelet                  serves  Kubernetes v1.") {
		t.Errorf("the status is not what runs, with versions:\n%s", out)
	}

	kill(t, s, first, "/node/programs/kubelet")

	err := status(t.Context(), s, t.Output())
	if err == nil {
		t.Fatal("the status has not noticed that the kubelet ended")
	}
	for _, part := range []string{"cluster losing is not up any more: kubelet ended: killed", s.log("kubelet")} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the status lacks %q: %v", part, err)
		}
	}
	second := bring(t, s)
	if second.PID == first.PID {
		t.Error("up has not replaced the node")
	}
	statusOf(t, s)

	// As git clean does: what is left to find the node by is the link.
	if err := errors.Join(os.Remove(s.run("node.json")), os.RemoveAll(s.run("pki"))); err != nil {
		t.Fatal(err)
	}
	if err := down(t.Context(), s, newProgress(t.Output())); err != nil {
		t.Fatal(err)
	}
	if second.alive() {
		t.Error("down has forgotten a node without files")
	}
	if err := status(t.Context(), s, t.Output()); err == nil || !strings.Contains(err.Error(), "cluster losing is not up") {
		t.Errorf("the status of a cluster that is down is %v", err)
	}
}

func TestAnInterruptedUpLeavesNothing(t *testing.T) {
	s := newTestSite(t, "interrupted", "10.121.0.0/16")
	before := machine(t, s)
	ctx, interrupt := context.WithCancel(t.Context())
	go func() {
		defer interrupt()
		if err := poll(ctx, patience, func() bool { return s.serves("etcd") }); err != nil {
			t.Error(err)
		}
	}()

	if err := up(ctx, s, newProgress(t.Output())); err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("up, interrupted, returned %v", err)
	}
	left, err := s.traces("")
	if err != nil || len(left) > 0 {
		t.Errorf("it left %v, %v", left, err)
	}
	after := machine(t, s)
	for what := range before {
		if before[what] != after[what] {
			t.Errorf("%s changed from\n%s\nto\n%s", what, before[what], after[what])
		}
	}
}

func TestUpAndDownKeepTheirHandsOffInterfacesAndNetworksOfOthers(t *testing.T) {
	s := newTestSite(t, "others", "10.121.0.0/16")
	shop, err := newWorkshop(s)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.unpackNode(t.Context(), shop.archive); err != nil { // it has ip
		t.Fatal(err)
	}
	if err := ip(t.Context(), s.nodeRoot(), nil,
		"link add others0 type veth peer name others1",
		"address add 10.122.7.1/24 dev others1",
	); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ip(context.Background(), s.nodeRoot(), nil, "link delete others0"); err != nil {
			t.Error(err)
		}
	})

	if err := up(t.Context(), s, newProgress(t.Output())); err == nil || !strings.Contains(err.Error(), "there is an interface others0") {
		t.Errorf("up, where the interface is that of another, returned %v", err)
	}
	if err := down(t.Context(), s, newProgress(t.Output())); err != nil {
		t.Error(err)
	}
	if _, err := net.InterfaceByName("others0"); err != nil {
		t.Errorf("the interface of another was removed: %v", err)
	}
	other, err := newSite(s.root, "network", "10.122.0.0/16")
	if err != nil {
		t.Fatal(err)
	}
	if err := up(t.Context(), other, newProgress(t.Output())); err == nil || !strings.Contains(err.Error(), "the interface others1 has the address 10.122.7.1/24") {
		t.Errorf("up, where the network is that of another, returned %v", err)
	}
}

func TestASecondCommandWaitsForTheFirst(t *testing.T) {
	t.Parallel()
	var told bytes.Buffer
	name := fmt.Sprintf("test-%d", os.Getpid())
	release, err := lock(t.Context(), newProgress(&told), name)
	if err != nil {
		t.Fatal(err)
	}
	if told.Len() > 0 {
		t.Errorf("the first was told: %s", told.String())
	}
	impatient, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := lock(impatient, newProgress(&told), name); err == nil {
		t.Fatal("two hold the lock")
	}
	if lines := strings.Count(told.String(), "another command works on "+name); lines != 1 {
		t.Errorf("the second was told %d times:\n%s", lines, told.String())
	}
	release()
	release, err = lock(t.Context(), newProgress(&told), name)
	if err != nil {
		t.Fatal(err)
	}
	release()
}

func TestAProcessIsNotTakenForOneOfBeforeTheMachineStarted(t *testing.T) {
	t.Parallel()
	id, err := identify(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if !id.alive() {
		t.Error("this process is not alive")
	}
	later, earlier := *id, *id
	later.Start += "1"
	earlier.Boot = "another"
	if later.alive() || earlier.alive() {
		t.Error("another process of the same id, or of before the machine started, is alive")
	}
}

func TestRoutesAreRead(t *testing.T) {
	t.Parallel()
	got := readRoutes([]byte(`Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
eth0	00000000	010200C0	0003	0	0	0	00000000	0	0	0
one0	00017B0A	02007B0A	0003	0	0	0	00FFFFFF	0	0	0
`))
	want := []route{{"eth0", netip.MustParsePrefix("0.0.0.0/0")}, {"one0", netip.MustParsePrefix("10.123.1.0/24")}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// bring has the cluster up and returns its node.
func bring(t *testing.T, s *site) *identity {
	t.Helper()
	if err := up(t.Context(), s, newProgress(t.Output())); err != nil {
		t.Fatal(err)
	}
	id, err := s.readIdentity()
	if err != nil || !id.alive() {
		t.Fatalf("the cluster has no node: %+v, %v", id, err)
	}
	return id
}

func statusOf(t *testing.T, s *site) string {
	t.Helper()
	var out strings.Builder
	if err := status(t.Context(), s, &out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// kill kills a program of the node and waits for the end of the node.
func kill(t *testing.T, s *site, id *identity, program string) {
	t.Helper()
	file, namespace, err := id.namespace()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	all, err := s.processes(namespace)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(process string) bool { return strings.Contains(process, " "+program+" ") })
	if i < 0 {
		t.Fatalf("no process is %s:\n%s", program, strings.Join(all, "\n"))
	}
	var pid int
	if _, err := fmt.Sscanf(all[i], "process %d ", &pid); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := poll(t.Context(), patience, func() bool { return !id.alive() }); err != nil {
		t.Fatalf("the node goes on without %s: %v", program, err)
	}
}
