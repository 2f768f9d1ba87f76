//go:build linux

package main

import (
	"context"
	"embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/terrace-dev/terrace/test/cluster/debian"
)

//go:embed assets
var assets embed.FS

// nodePackages are the Debian packages that the node runs.
var nodePackages = []string{"containerd", "runc", "containernetworking-plugins", "nftables", "iproute2", "mount"}

// nodeRoot is where they are unpacked.
func (s *site) nodeRoot() string { return s.bin("debian", "node") }

// unpackNode makes the root of nodes. It is read-only for them, and the same for all.
func (s *site) unpackNode(ctx context.Context, archive *debian.Archive) error {
	set, err := archive.Fetch(ctx, nodePackages...)
	if err != nil {
		return err
	}
	const layout = "1" // to be raised when what is made below changes
	stamp := filepath.Join(s.nodeRoot(), "stamp")
	if content, err := os.ReadFile(stamp); err == nil && string(content) == set.Digest+layout {
		return nil
	}
	if err := os.RemoveAll(s.nodeRoot()); err != nil {
		return err
	}
	for _, dir := range []string{"usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "etc", "proc", "sys", "dev", "run", "tmp", "var", "node", "root"} {
		if err := os.MkdirAll(filepath.Join(s.nodeRoot(), dir), 0o755); err != nil {
			return err
		}
	}
	for _, dir := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.Symlink(filepath.Join("usr", dir), filepath.Join(s.nodeRoot(), dir)); err != nil {
			return err
		}
	}
	for _, file := range set.Files {
		if err := debian.Unpack(ctx, file, s.nodeRoot()); err != nil {
			return err
		}
	}
	for name, content := range map[string]string{
		"passwd":     "root:x:0:0:root:/root:/usr/sbin/nologin\n",
		"group":      "root:x:0:\n",
		"hosts":      "127.0.0.1 localhost\n",
		"machine-id": strings.Repeat("0", 31) + "1\n",
		"os-release": "ID=debian\nPRETTY_NAME=\"Debian (" + debian.Suite + ")\"\n",
	} {
		if err := os.WriteFile(filepath.Join(s.nodeRoot(), "etc", name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(stamp, []byte(set.Digest+layout), 0o600)
}

// writeConfig makes the cluster's directory and all that components read.
func (s *site) writeConfig() error {
	for _, dir := range []string{"config/cni", "etcd", "images", "log", "pki", "programs", "ready", "sysctl", "var/lib", "var/log"} {
		if err := os.MkdirAll(s.run(dir), 0o700); err != nil {
			return err
		}
	}
	// Containers, who are others, find their volumes below it.
	if err := os.Chmod(s.run("var"), 0o755); err != nil {
		return err
	}
	if err := os.Symlink("/run", s.run("var", "run")); err != nil {
		return err
	}
	if err := writePKI(s); err != nil {
		return fmt.Errorf("creating certificates: %w", err)
	}
	for file, name := range map[string]string{
		"config/audit.yaml":        "audit.yaml",
		"config/containerd.toml":   "containerd.toml",
		"config/kubelet.yaml":      "kubelet.yaml",
		"config/kube-proxy.yaml":   "kube-proxy.yaml",
		"config/cni/pods.conflist": "cni.conflist",
		"config/addons.yaml":       "addons.yaml",
	} {
		if err := s.render(name, s.run(file)); err != nil {
			return err
		}
	}
	return os.WriteFile(s.run("config", "resolv.conf"), nil, 0o600)
}

func (s *site) render(name, file string) error {
	parsed, err := template.ParseFS(assets, "assets/"+name)
	if err != nil {
		return err
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	values := struct {
		*site
		PauseImage, DNSImage string
	}{s, pauseImage, dnsImage}
	if err := parsed.Option("missingkey=error").Execute(out, values); err != nil {
		return err
	}
	return out.Close()
}
