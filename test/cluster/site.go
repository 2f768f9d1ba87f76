//go:build linux

package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
)

// site is where one cluster is: its name, its directories and its addresses.
// Several clusters can be up at once if their names and networks differ.
type site struct {
	Name string
	// root is the directory of the repository.
	root string
	// network is what the addresses are from.
	network netip.Prefix
	// replaced are programs that do not come from bin/.
	replaced map[string]string
	// cgroupMount is where control groups are mounted.
	cgroupMount string

	MachineIP, NodeIP, APIServiceIP, DNSIP netip.Addr
	Link, Pods, Services                   netip.Prefix
}

// Paths on the node. The first is the cluster's directory, run.
const (
	nodeDir          = "/node"
	containerdSocket = "/run/containerd/containerd.sock"
)

// nodeBits is the size of the network of the link between machine and node.
const nodeBits = 30

// validName leaves room for a digit in the 15 characters of an interface's name.
var validName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,12}$`)

// newSite lays a cluster out in a network of 16 bits: 0.1 is this machine, 0.2 the
// node, 1.0/24 are pods and 2.0/24 services.
func newSite(root, name, network string) (*site, error) {
	if !validName.MatchString(name) {
		return nil, fmt.Errorf("the name of the cluster, %q, must be at most 13 letters, digits and dashes", name)
	}
	prefix, err := netip.ParsePrefix(network)
	if err != nil || prefix.Bits() != 16 || !prefix.Addr().Is4() || prefix.Masked() != prefix {
		return nil, fmt.Errorf("the network, %q, must be like 10.123.0.0/16", network)
	}
	base := prefix.Addr().As4()
	address := func(third, fourth byte) netip.Addr { return netip.AddrFrom4([4]byte{base[0], base[1], third, fourth}) }
	return &site{
		Name:         name,
		root:         root,
		network:      prefix,
		cgroupMount:  "/sys/fs/cgroup",
		Link:         netip.PrefixFrom(address(0, 0), nodeBits),
		Pods:         netip.PrefixFrom(address(1, 0), 24),
		Services:     netip.PrefixFrom(address(2, 0), 24),
		MachineIP:    address(0, 1),
		NodeIP:       address(0, 2),
		APIServiceIP: address(2, 1),
		DNSIP:        address(2, 10),
	}, nil
}

// findRoot returns the directory of the repository, from any directory in it.
func findRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("this is not inside the repository of Terrace")
		}
		dir = filepath.Dir(dir)
	}
}

// bin is a file of the directory of what was built.
func (s *site) bin(elem ...string) string {
	return filepath.Join(append([]string{s.root, "bin"}, elem...)...)
}

// run is a file of this cluster's own directory, which is gone when it is down.
func (s *site) run(elem ...string) string {
	return filepath.Join(append([]string{s.root, "test", "cluster", "run", s.Name}, elem...)...)
}

func (s *site) kubeconfig() string { return s.run("pki", "admin.kubeconfig") }
func (s *site) server() string     { return "https://" + s.NodeIP.String() + ":6443" }
func (s *site) log(component string) string {
	return s.run("log", component+".log")
}

// CgroupRoot is the group, in each hierarchy, that all pods are in.
func (s *site) CgroupRoot() string { return "/terrace-cluster-" + s.Name }

// program is the file of a program of the node.
func (s *site) program(name string) string {
	if file, ok := s.replaced[name]; ok {
		return file
	}
	return s.bin(name)
}

// arguments returns those that make this program run a command on this cluster.
func (s *site) arguments(command string) []string {
	args := []string{"--name=" + s.Name, "--network=" + s.network.String()}
	for name, file := range s.replaced {
		args = append(args, "--replace="+name+"="+file)
	}
	return append(args, command)
}
