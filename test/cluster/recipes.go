//go:build linux

package main

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"

	"github.com/terrace-dev/terrace/test/cluster/image"
)

// The images. None has the tag latest, so nobody tries to pull them.
const (
	pauseImage   = "terrace-pause:dev"
	dnsImage     = "terrace-coredns:dev"
	managerImage = "terrace-manager:dev"
	runnerImage  = "terrace-runner:dev"
)

// Images that only end to end tests need: make e2e loads them.
const (
	sourceControllerImage = "terrace-source-controller:dev"
	gitServerImage        = "terrace-gitserver:dev"
	runnerTestImage       = "terrace-runner-test:dev"
)

// user is whom the product's images run as.
const user = 65532

// runnerPackages are what Dockerfile.runner has: Debian's image, and three more.
var runnerPackages = []string{"?essential", "ca-certificates", "git", "openssh-client"}

// recipe says how an image is made.
type recipe struct {
	config image.Config
	// base is a layer below, if there is one.
	base func(context.Context, *workshop) (image.Layer, error)
	// programs are copied from bin/ to directories of the image.
	programs map[string]string
	// rest adds what else there is.
	rest func(context.Context, *workshop, *image.Files) error
}

var nonRoot = fmt.Sprintf("%d:%d", user, user)

// runnerRecipe is that of the runner's image.
var runnerRecipe = recipe{
	config: image.Config{
		User:         nonRoot,
		Entrypoint:   []string{"/usr/local/bin/runner"},
		ExposedPorts: map[string]struct{}{"9444/tcp": {}},
		Env: []string{
			"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
			"HOME=/var/lib/terrace/home",
		},
	},
	base:     debianBase,
	programs: map[string]string{"runner": "usr/local/bin/runner", "tofu": "usr/local/bin/tofu"},
	rest: func(ctx context.Context, w *workshop, files *image.Files) error {
		tofu, err := w.moduleDir(ctx, "opentofu", "github.com/opentofu/opentofu")
		if err != nil {
			return err
		}
		if err := files.Copy("licenses/opentofu", 0o644, filepath.Join(tofu, "LICENSE")); err != nil {
			return err
		}
		return files.Copy("licenses/terrace", 0o644, filepath.Join(w.site.root, "LICENSE"))
	},
}

// withProvider is a recipe for an image FROM another: with the tests' provider in one
// of the directories where tofu looks for providers before it asks a registry.
func withProvider(r recipe) recipe {
	rest := r.rest
	r.rest = func(ctx context.Context, w *workshop, files *image.Files) error {
		if err := rest(ctx, w, files); err != nil {
			return err
		}
		mirror := w.site.bin("providers")
		return filepath.WalkDir(filepath.Join(mirror, "registry.opentofu.org"), func(file string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			name, err := filepath.Rel(mirror, file)
			if err != nil {
				return err
			}
			return files.Copy(path.Join("usr/local/share/terraform/plugins", name), 0o755, file)
		})
	}
	return r
}

// recipes correspond to Dockerfile and Dockerfile.runner, as far as they are the
// product's images.
var recipes = map[string]recipe{
	pauseImage: {
		config:   image.Config{User: nonRoot, Entrypoint: []string{"/pause"}},
		programs: map[string]string{"pause": "pause"},
	},
	dnsImage: {
		config:   image.Config{User: nonRoot, Entrypoint: []string{"/coredns"}},
		programs: map[string]string{"coredns": "coredns"},
	},
	managerImage: {
		config:   image.Config{User: nonRoot, Entrypoint: []string{"/usr/local/bin/manager"}},
		programs: map[string]string{"manager": "usr/local/bin/manager"},
		rest: func(ctx context.Context, w *workshop, files *image.Files) error {
			if err := w.addCertificates(ctx, files); err != nil {
				return err
			}
			return files.Copy("licenses/terrace", 0o644, filepath.Join(w.site.root, "LICENSE"))
		},
	},
	runnerImage:     runnerRecipe,
	runnerTestImage: withProvider(runnerRecipe),
	sourceControllerImage: {
		config:   image.Config{User: nonRoot, Entrypoint: []string{"/usr/local/bin/source-controller"}},
		programs: map[string]string{"source-controller": "usr/local/bin/source-controller"},
		rest:     func(ctx context.Context, w *workshop, files *image.Files) error { return w.addCertificates(ctx, files) },
	},
	gitServerImage: {
		config: image.Config{
			User:       nonRoot,
			Entrypoint: []string{"/usr/local/bin/gitserver"},
			Env:        []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/tmp"},
		},
		base:     debianBase,
		programs: map[string]string{"gitserver": "usr/local/bin/gitserver"},
	},
}

// debianBase is the layer below programs that need git or a shell.
func debianBase(ctx context.Context, w *workshop) (image.Layer, error) { return w.runnerBase(ctx) }
