//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// outsideFile is the file descriptor of the machine's network namespace.
const outsideFile = 3

// device is the machine's end of the link. The other end is the node's eth0.
func (s *site) device() string { return s.Name + "0" }

// mark is what the alias of the machine's end begins with. By it the link is told from
// others of the same name, which are not touched.
func (s *site) mark() string {
	const longest = 150 // an alias has at most 255 bytes
	return fmt.Sprintf("terrace cluster %s of %s, process ", s.Name, s.root[max(0, len(s.root)-longest):])
}

// alias returns that of an interface, and whether there is such an interface.
func alias(device string) (string, bool) {
	if _, err := net.InterfaceByName(device); err != nil {
		return "", false
	}
	content, _ := os.ReadFile(filepath.Join("/sys/class/net", device, "ifalias"))
	return string(bytes.TrimSpace(content)), true
}

// linked says whether the machine's end of the cluster's own link exists.
func (s *site) linked() bool {
	text, _ := alias(s.device())
	return strings.HasPrefix(text, s.mark())
}

// linkIdentity returns the node that the link belongs to, or nil.
func (s *site) linkIdentity() *identity {
	text, _ := alias(s.device())
	rest, ours := strings.CutPrefix(text, s.mark())
	id := &identity{Boot: bootID()} // no link outlives the machine
	if _, err := fmt.Sscan(rest, &id.PID, &id.Start); !ours || err != nil {
		return nil
	}
	return id
}

// makeLink makes the link to the machine and gives the node its addresses. It has no
// default route: nothing gets out of here but to this machine.
func (s *site) makeLink(ctx context.Context, id *identity) error {
	outside := os.NewFile(outsideFile, "net")
	defer outside.Close()
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o600); err != nil {
		return err
	}
	return ip(ctx, "", outside,
		"link set lo up",
		"link add eth0 type veth peer name "+s.device(),
		// It has its mark before anybody sees it.
		fmt.Sprintf(`link set %s alias "%s%d %s"`, s.device(), s.mark(), id.PID, id.Start),
		fmt.Sprintf("link set %s netns /proc/self/fd/%d", s.device(), outsideFile),
		fmt.Sprintf("address add %s/%d dev eth0", s.NodeIP, nodeBits),
		"link set eth0 up",
		// There must be a route before kube-proxy's rules replace the address.
		fmt.Sprintf("route add %s dev eth0 src %s", s.Services, s.NodeIP),
	)
}

// connect gives the machine's end its address and routes, unless it has them.
func (s *site) connect(ctx context.Context) error {
	return ip(ctx, s.nodeRoot(), nil,
		fmt.Sprintf("address replace %s/%d dev %s", s.MachineIP, nodeBits, s.device()),
		fmt.Sprintf("link set %s up", s.device()),
		fmt.Sprintf("route replace %s via %s", s.Pods, s.NodeIP),
		fmt.Sprintf("route replace %s via %s", s.Services, s.NodeIP),
	)
}

// unlink removes the link. It goes with the node's network, but that may take minutes:
// connections whose other end is gone keep it until they time out.
func (s *site) unlink(ctx context.Context) error {
	var removed error
	if s.linked() {
		removed = ip(ctx, s.nodeRoot(), nil, "link delete "+s.device()) // fails if it has just gone
	}
	if err := poll(ctx, 10*time.Second, func() bool { return !s.linked() }); err != nil {
		return fmt.Errorf("the interface %s does not go away: %w", s.device(), errors.Join(removed, err))
	}
	return nil
}

// ip runs commands of ip, in another root if one is given. It gets the file, if there
// is one, under the number outsideFile.
func ip(ctx context.Context, root string, file *os.File, commands ...string) error {
	cmd := exec.CommandContext(ctx, "/usr/bin/ip", "-batch", "-")
	cmd.SysProcAttr = &unix.SysProcAttr{Chroot: root}
	cmd.Dir = "/"
	if file != nil {
		cmd.ExtraFiles = []*os.File{file}
	}
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("setting up the network: %w: %s", err, out)
	}
	return nil
}

// conflicts says what else uses the name of the link, or the network. Wider networks
// may hold this one: only three small parts of it are hidden from the machine.
func (s *site) conflicts() error {
	text, exists := alias(s.device())
	ours := strings.HasPrefix(text, s.mark())
	if exists && !ours {
		if strings.HasPrefix(text, "terrace cluster ") {
			return fmt.Errorf("the interface %s is that of another one, %q: take that down first, or give this one another -name and -network", s.device(), text)
		}
		return fmt.Errorf("there is an interface %s, which is not of this cluster: give it another -name", s.device())
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, one := range interfaces {
		if ours && one.Name == s.device() {
			continue
		}
		addresses, err := one.Addrs()
		if err != nil {
			continue // it has just gone
		}
		for _, address := range addresses {
			if prefix, err := netip.ParsePrefix(address.String()); err == nil && s.network.Contains(prefix.Addr()) {
				return fmt.Errorf("the interface %s has the address %s of the network %s: give the cluster another -network", one.Name, prefix, s.network)
			}
		}
	}
	content, err := os.ReadFile("/proc/net/route")
	if err != nil {
		return err
	}
	for _, r := range readRoutes(content) {
		if r.prefix.Bits() >= s.network.Bits() && r.prefix.Overlaps(s.network) && (!ours || r.device != s.device()) {
			return fmt.Errorf("there is a route to %s of the network %s, by %s: give the cluster another -network", r.prefix, s.network, r.device)
		}
	}
	return nil
}

// route is where packets to a network go.
type route struct {
	device string
	prefix netip.Prefix
}

// readRoutes reads /proc/net/route.
func readRoutes(content []byte) []route {
	const device, destination, mask = 0, 1, 7
	var found []route
	for line := range strings.Lines(string(content)) {
		fields := strings.Fields(line)
		if len(fields) <= mask {
			continue
		}
		to, err1 := strconv.ParseUint(fields[destination], 16, 32)
		of, err2 := strconv.ParseUint(fields[mask], 16, 32)
		if err1 != nil || err2 != nil {
			continue // the heading
		}
		var address [4]byte
		binary.NativeEndian.PutUint32(address[:], uint32(to))
		prefix := netip.PrefixFrom(netip.AddrFrom4(address), bits.OnesCount32(uint32(of)))
		found = append(found, route{device: fields[device], prefix: prefix})
	}
	return found
}
