//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/terrace-dev/terrace/test/cluster/debian"
	"github.com/terrace-dev/terrace/test/cluster/image"
)

// workshop makes images in bin/images.
type workshop struct {
	site    *site
	archive *debian.Archive
}

func newWorkshop(s *site) (*workshop, error) {
	archive, err := debian.Open(s.bin("debian"))
	if err != nil {
		return nil, err
	}
	return &workshop{site: s, archive: archive}, os.MkdirAll(s.bin("images"), 0o755)
}

// file is a file about an image.
func (w *workshop) file(name, suffix string) string {
	return w.site.bin("images", strings.ReplaceAll(name, ":", "_")+suffix)
}

// make has the image as a file, and returns its id. The file is written only if
// something has changed since.
func (w *workshop) make(ctx context.Context, name string) (string, error) {
	r, known := recipes[name]
	if !known {
		return "", fmt.Errorf("there is no image %s; there are %s", name, strings.Join(slices.Sorted(maps.Keys(recipes)), ", "))
	}
	var layers []image.Layer
	if r.base != nil {
		base, err := r.base(ctx, w)
		if err != nil {
			return "", fmt.Errorf("making the base of %s: %w", name, err)
		}
		layers = append(layers, base)
	}
	layer := w.file(name, ".layer")
	defer os.Remove(layer)
	top, err := image.WriteLayer(layer, func(files *image.Files) error { return w.addTop(ctx, r, files) })
	if err != nil {
		return "", fmt.Errorf("making %s: %w", name, err)
	}
	made, err := image.New(name, r.config, append(layers, top)...)
	if err != nil {
		return "", fmt.Errorf("making %s: %w", name, err)
	}
	file, stamp := w.file(name, ".tar"), w.file(name, ".id")
	if content, err := os.ReadFile(stamp); err == nil && string(content) == made.ID {
		if _, err := os.Stat(file); err == nil {
			return made.ID, nil
		}
	}
	if err := made.Write(file); err != nil {
		return "", fmt.Errorf("making %s: %w", name, err)
	}
	return made.ID, os.WriteFile(stamp, []byte(made.ID), 0o600)
}

// addTop fills the layer that changes with the product.
func (w *workshop) addTop(ctx context.Context, r recipe, files *image.Files) error {
	if err := files.Directory("tmp", 0o1777, 0); err != nil {
		return err
	}
	for _, program := range slices.Sorted(maps.Keys(r.programs)) {
		if err := files.Copy(r.programs[program], 0o755, w.site.bin(program)); err != nil {
			return err
		}
	}
	if r.rest == nil {
		return nil
	}
	return r.rest(ctx, w, files)
}

// imageNames returns the images of every cluster in the order in which it needs them.
func imageNames() []string {
	return []string{pauseImage, dnsImage, managerImage, runnerImage}
}

// runnerBase is what the packages hold, without what Debian's slim images leave out.
// Scripts of packages do not run; what matters of their work is done here.
func (w *workshop) runnerBase(ctx context.Context) (image.Layer, error) {
	set, err := w.archive.Fetch(ctx, runnerPackages...)
	if err != nil {
		return image.Layer{}, err
	}
	const layout = "1" // to be raised when what is made below changes
	stamp := w.site.bin("images", "runner-base.stamp")
	file := w.site.bin("images", "runner-base.layer")
	key := set.Digest + layout + " "
	if content, err := os.ReadFile(stamp); err == nil && strings.HasPrefix(string(content), key) {
		if layer, err := image.OpenLayer(file, strings.TrimPrefix(string(content), key)); err == nil {
			return layer, nil
		}
	}
	layer, err := image.WriteLayer(file, func(files *image.Files) error {
		var passwd, group, certificates []byte
		for _, deb := range set.Files {
			err := debian.Tar(ctx, deb, func(in io.Reader) error {
				return files.Tar(in, func(name string, content func() ([]byte, error)) (_ bool, err error) {
					switch {
					case name == "usr/share/base-passwd/passwd.master":
						passwd, err = content()
					case name == "usr/share/base-passwd/group.master":
						group, err = content()
					case isCertificate(name):
						var one []byte
						one, err = content()
						certificates = append(certificates, one...)
					}
					return !superfluous(name), err
				})
			})
			if err != nil {
				return err
			}
		}
		passwd = fmt.Appendf(passwd, "terrace:x:%d:%d::/var/lib/terrace/home:/usr/sbin/nologin\n", user, user)
		group = fmt.Appendf(group, "terrace:x:%d:\n", user)
		return errors.Join(
			files.Content("etc/passwd", 0o644, passwd),
			files.Content("etc/group", 0o644, group),
			files.Content(certificatesFile, 0o644, certificates),
			files.Link("usr/bin/awk", "mawk"),
			files.Directory("var/lib/terrace", 0o755, user),
		)
	})
	if err != nil {
		return image.Layer{}, err
	}
	return layer, os.WriteFile(stamp, []byte(key+layer.Digest), 0o600)
}

// certificatesFile is where programs look for the authorities that they trust.
const certificatesFile = "etc/ssl/certs/ca-certificates.crt"

func isCertificate(name string) bool {
	return strings.HasPrefix(name, "usr/share/ca-certificates/") && strings.HasSuffix(name, ".crt")
}

// superfluous says what Debian's slim images do not have either.
func superfluous(name string) bool {
	if strings.HasPrefix(name, "usr/share/doc/") {
		return !strings.HasSuffix(name, "/copyright")
	}
	return slices.ContainsFunc([]string{"groff", "info", "linda", "lintian", "locale", "man"}, func(dir string) bool {
		return strings.HasPrefix(name, "usr/share/"+dir+"/")
	})
}

// addCertificates adds the authorities that Debian trusts.
func (w *workshop) addCertificates(ctx context.Context, files *image.Files) error {
	set, err := w.archive.Fetch(ctx, runnerPackages...)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(set.Files, func(file string) bool { return strings.HasPrefix(filepath.Base(file), "ca-certificates_") })
	if i < 0 {
		return errors.New("the package ca-certificates is missing")
	}
	var all []byte
	err = debian.Tar(ctx, set.Files[i], func(in io.Reader) error {
		return files.Tar(in, func(name string, content func() ([]byte, error)) (bool, error) {
			if !isCertificate(name) {
				return false, nil
			}
			one, err := content()
			all = append(all, one...)
			return false, err
		})
	})
	if err != nil {
		return err
	}
	return files.Content(certificatesFile, 0o644, all)
}

// moduleDir returns where a module that a module of hack/tools requires is.
func (w *workshop) moduleDir(ctx context.Context, tools, module string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module)
	cmd.Dir = filepath.Join(w.site.root, "hack", "tools", tools)
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("looking for the module %s: %w", module, err)
	}
	return string(bytes.TrimSpace(out)), nil
}
