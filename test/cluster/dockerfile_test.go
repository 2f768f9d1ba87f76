//go:build linux

package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/terrace-dev/terrace/test/cluster/debian"
)

// dockerfile is what the last stage of a Dockerfile says, which the image is made from.
type dockerfile struct {
	base         string
	instructions [][]string // the words of each, the first is its name
}

// products are the images that users build with Docker.
var products = map[string]string{managerImage: "Dockerfile", runnerImage: "Dockerfile.runner"}

func readDockerfile(t *testing.T, name string) dockerfile {
	t.Helper()
	root, err := findRoot()
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	text := regexp.MustCompile(`(?m)^#.*\n`).ReplaceAllString(string(content), "")
	text = strings.ReplaceAll(text, "\\\n", " ")
	var found dockerfile
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
		case words[0] == "FROM":
			found.instructions = nil
		case words[0] == "ARG" && strings.HasPrefix(words[1], "BASE_IMAGE="):
			found.base = strings.TrimPrefix(words[1], "BASE_IMAGE=")
		default:
			found.instructions = append(found.instructions, words)
		}
	}
	return found
}

// all returns what follows the name of each instruction of that name.
func (d dockerfile) all(name string) []string {
	var found []string
	for _, words := range d.instructions {
		if words[0] == name {
			found = append(found, strings.Join(words[1:], " "))
		}
	}
	return found
}

// copied returns the files that COPY makes, without a leading slash.
func (d dockerfile) copied() []string {
	var found []string
	for _, words := range d.instructions {
		if words[0] != "COPY" {
			continue
		}
		from, to := words[len(words)-2], words[len(words)-1]
		if strings.HasSuffix(to, "/") {
			to = path.Join(to, path.Base(from))
		}
		found = append(found, strings.TrimPrefix(to, "/"))
	}
	return found
}

func TestRecipesSayWhatDockerfilesSay(t *testing.T) {
	t.Parallel()
	for name, file := range products {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			d, r := readDockerfile(t, file), recipes[name]
			entrypoint, _ := json.Marshal(r.config.Entrypoint)
			var ports []string
			for port := range r.config.ExposedPorts {
				ports = append(ports, strings.TrimSuffix(port, "/tcp"))
			}
			for _, one := range []struct {
				what      string
				said, has []string
			}{
				{"USER", d.all("USER"), []string{r.config.User}},
				{"ENTRYPOINT", d.all("ENTRYPOINT"), []string{string(entrypoint)}},
				{"EXPOSE", d.all("EXPOSE"), ports},
				{"ENV", d.all("ENV"), slices.DeleteFunc(slices.Clone(r.config.Env), func(value string) bool {
					return strings.HasPrefix(value, "PATH=") // it comes from the base
				})},
			} {
				if !slices.Equal(one.said, one.has) {
					t.Errorf("%s: the Dockerfile says %q, the recipe %q", one.what, one.said, one.has)
				}
			}
			for _, to := range slices.Sorted(maps.Values(r.programs)) {
				if !slices.Contains(d.copied(), to) {
					t.Errorf("the recipe has the program %s, the Dockerfile copies %q", to, d.copied())
				}
			}
			if debianBased := strings.HasPrefix(d.base, "debian:"); debianBased != (r.base != nil) {
				t.Errorf("the base is %s; the recipe has one: %v", d.base, r.base != nil)
			}
		})
	}
}

func TestTheRunnersPackagesAreThoseOfItsDockerfile(t *testing.T) {
	t.Parallel()
	d := readDockerfile(t, products[runnerImage])
	if want := "debian:" + debian.Suite + "-slim"; d.base != want {
		t.Errorf("the base is %s, packages are those of %s", d.base, want)
	}
	commands := strings.Join(d.all("RUN"), " ")
	_, installed, _ := strings.Cut(commands, "--no-install-recommends ")
	installed, _, _ = strings.Cut(installed, " &&")
	if want := runnerPackages[1:]; !slices.Equal(strings.Fields(installed), want) { // the first stands for the base
		t.Errorf("the Dockerfile installs %q, the recipe %q", installed, want)
	}
}

func TestImagesHaveTheFilesThatDockerfilesCopy(t *testing.T) {
	s := newTestSite(t, "files", "10.121.0.0/16")
	for name, file := range products {
		t.Run(file, func(t *testing.T) {
			if err := makeImages(t.Context(), s, newProgress(t.Output()), []string{name}); err != nil {
				t.Fatal(err)
			}
			shop, err := newWorkshop(s)
			if err != nil {
				t.Fatal(err)
			}
			has := filesOf(t, shop.file(name, ".tar"))
			wanted := readDockerfile(t, file).copied()
			if name == runnerImage {
				wanted = append(wanted, "usr/bin/git", "usr/bin/ssh", "bin", "var/lib/terrace", certificatesFile)
			}
			for _, one := range append(wanted, "tmp") {
				if !slices.Contains(has, one) {
					t.Errorf("the image lacks %s", one)
				}
			}
		})
	}
}

// filesOf returns the names of all files of an image.
func filesOf(t *testing.T, file string) []string {
	t.Helper()
	in, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var found []string
	eachFile(t, in, func(name string, layer io.Reader) {
		if strings.HasSuffix(name, ".tar") {
			eachFile(t, layer, func(name string, _ io.Reader) { found = append(found, strings.TrimSuffix(name, "/")) })
		}
	})
	return found
}

func eachFile(t *testing.T, in io.Reader, use func(name string, content io.Reader)) {
	t.Helper()
	archive := tar.NewReader(in)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		use(header.Name, archive)
	}
}
