// Package debian fetches Debian packages and unpacks them without installing
// anything: it uses apt-get with lists, a cache and a status of its own, so that
// the machine stays as it is.
package debian

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Suite is the release that packages come from.
const Suite = "trixie"

// sources is what apt-get reads in place of the machine's own sources.
const sources = `deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian ` + Suite + ` main
deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian-security ` + Suite + `-security main
`

// Archive is a directory that keeps the packages that were fetched.
type Archive struct{ dir string }

// Open returns the archive in dir, and creates it if need be.
func Open(dir string) (*Archive, error) {
	for _, command := range []string{"apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(command); err != nil {
			return nil, fmt.Errorf("unpacking Debian packages needs %s (Debian, Ubuntu and the like have it): %w", command, err)
		}
	}
	for _, sub := range []string{"lists/partial", "archives/partial", "sets"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, err
		}
	}
	a := &Archive{dir: dir}
	// An empty status: apt believes that nothing is installed and names everything.
	if err := os.WriteFile(a.path("status"), nil, 0o600); err != nil {
		return nil, err
	}
	return a, os.WriteFile(a.path("sources.list"), []byte(sources), 0o600)
}

func (a *Archive) path(elem ...string) string {
	return filepath.Join(append([]string{a.dir}, elem...)...)
}

// Set is a number of packages, with all that they depend on.
type Set struct {
	// Digest changes when a file of the set does.
	Digest string
	// Files are the package files, each after those that apt installs before it.
	Files []string
}

// Fetch returns the named packages and what they depend on. Patterns such as
// ?essential are names too. What is in the archive is not looked up again.
func (a *Archive) Fetch(ctx context.Context, packages ...string) (*Set, error) {
	key := digest(append([]string{sources}, packages...))
	index := a.path("sets", key)
	if set, err := a.read(index); err == nil {
		return set, nil
	}
	if _, err := a.apt(ctx, "update", "-qq"); err != nil {
		return nil, err
	}
	install := append([]string{"install", "-y", "-qq", "--no-install-recommends"}, packages...)
	if _, err := a.apt(ctx, append(install, "--download-only")...); err != nil {
		return nil, err
	}
	// Where the file is already in the archive, apt names no address, so it is
	// asked with an empty one.
	printed, err := a.apt(ctx, append(install, "--print-uris", "-o", "Dir::Cache::archives="+a.path("lists"))...)
	if err != nil {
		return nil, err
	}
	var names []string
	for line := range strings.Lines(printed) {
		if fields := strings.Fields(line); len(fields) >= 2 && strings.HasSuffix(fields[1], ".deb") {
			names = append(names, fields[1])
		}
	}
	if err := os.WriteFile(index, []byte(strings.Join(names, "\n")), 0o600); err != nil {
		return nil, err
	}
	return a.read(index)
}

// read returns the set that an index lists, if all of it is there.
func (a *Archive) read(index string) (*Set, error) {
	content, err := os.ReadFile(index)
	if err != nil {
		return nil, err
	}
	names := strings.Fields(string(content))
	if len(names) == 0 {
		return nil, errors.New("the set is empty")
	}
	set := &Set{Digest: digest(names)}
	for _, name := range names {
		file := a.path("archives", name)
		if _, err := os.Stat(file); err != nil {
			return nil, err
		}
		set.Files = append(set.Files, file)
	}
	return set, nil
}

func (a *Archive) apt(ctx context.Context, args ...string) (string, error) {
	options := []string{
		"-o", "Dir::Etc::sourcelist=" + a.path("sources.list"),
		"-o", "Dir::Etc::sourceparts=/dev/null",
		"-o", "Dir::State::lists=" + a.path("lists"),
		"-o", "Dir::State::status=" + a.path("status"),
		"-o", "Dir::Cache=" + a.dir,
		"-o", "Dir::Cache::archives=" + a.path("archives"),
		"-o", "APT::Sandbox::User=",
		"-o", "APT::Keep-Downloaded-Packages=true",
		"-o", "APT::Update::Post-Invoke::=true",
		"-o", "Acquire::Retries=3",
		"-o", "Debug::NoLocking=1",
	}
	cmd := exec.CommandContext(ctx, "apt-get", append(options, args...)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("apt-get %s: %w\n%s", args[0], err, stderr.String())
	}
	return string(out), nil
}

// Unpack unpacks a package file into a directory.
func Unpack(ctx context.Context, file, dir string) error {
	if out, err := exec.CommandContext(ctx, "dpkg-deb", "-x", file, dir).CombinedOutput(); err != nil {
		return fmt.Errorf("unpacking %s: %w\n%s", filepath.Base(file), err, out)
	}
	return nil
}

// Tar calls read with the content of a package file, a tar archive.
func Tar(ctx context.Context, file string, read func(io.Reader) error) (err error) {
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", file)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() {
		// What read leaves must not keep the program from ending.
		_, drained := io.Copy(io.Discard, out)
		err = errors.Join(err, drained, cmd.Wait())
		if err != nil {
			err = fmt.Errorf("reading %s: %w", filepath.Base(file), err)
		}
	}()
	return read(out)
}

func digest(lines []string) string {
	sum := sha256.Sum256([]byte(strings.Join(lines, "\n")))
	return hex.EncodeToString(sum[:16])
}
