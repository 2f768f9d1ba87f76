package engine

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/fluxcd/pkg/tar"
)

// moduleFiles is the part of a source that one object uses: the directory of
// its root module and those of the local modules it calls.
type moduleFiles struct {
	root string   // of the source
	dirs []string // relative to root, slash-separated, sorted
}

// localModule finds the calls of local modules. The address has to be a literal.
var localModule = regexp.MustCompile(`(?m)(?:^|[{\s"])source"?\s*[=:]\s*"(\.\.?/[^"]*)"`)

// elsewhere finds what may lead out of a module's directory.
var elsewhere = regexp.MustCompile(`\.\.[/\\]|\b(abspath|dirname|path\.cwd|pathexpand)\b`)

// findModule collects the directories that the root module at dir uses. Any
// other reference to a parent directory may lead anywhere, so that the whole
// source counts then.
func findModule(root, dir string) (moduleFiles, error) {
	found := map[string]bool{}
	queue := []string{path.Clean(filepath.ToSlash(dir))}
	for len(queue) > 0 {
		dir, queue = queue[0], queue[1:]
		if found[dir] {
			continue
		}
		found[dir] = true
		calls, outside, err := readCalls(filepath.Join(root, filepath.FromSlash(dir)))
		if err != nil {
			return moduleFiles{}, err
		}
		for _, call := range calls {
			target := path.Join(dir, call)
			outside = outside || target == ".." || strings.HasPrefix(target, "../")
			queue = append(queue, target)
		}
		if outside {
			return moduleFiles{root: root, dirs: []string{"."}}, nil
		}
	}
	m := moduleFiles{root: root}
	for dir := range found {
		m.dirs = append(m.dirs, dir)
	}
	slices.Sort(m.dirs)
	return m, nil
}

// readCalls returns the local modules that a directory calls, and whether it
// refers to a parent directory in any other way.
func readCalls(dir string) (calls []string, outside bool, err error) {
	err = filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			if name == dir && errors.Is(err, fs.ErrNotExist) {
				outside = true // a call of a module that is not there: the tool will say so
				return fs.SkipAll
			}
			return err
		}
		if !entry.Type().IsRegular() || !isCode(name) {
			return nil
		}
		text, err := os.ReadFile(name) //nolint:gosec // inside the extracted source, which has no symbolic links
		if err != nil {
			return err
		}
		for _, match := range localModule.FindAllSubmatch(text, -1) {
			// A nested directory's calls are relative to it.
			if filepath.Dir(name) == dir {
				calls = append(calls, string(match[1]))
			}
		}
		text = localModule.ReplaceAll(text, nil)
		outside = outside || elsewhere.Match(text)
		return nil
	})
	return calls, outside, err
}

// isCode says whether the tools may evaluate a file.
func isCode(name string) bool {
	for _, suffix := range []string{".tf", ".tofu", ".tf.json", ".tofu.json", ".tftpl", ".tpl", ".tmpl", ".hcl"} {
		if strings.HasSuffix(name, suffix) {
			return true
		}
	}
	return false
}

// contains says whether a file, relative to the root, belongs to the module.
func (m moduleFiles) contains(name string) bool {
	name = filepath.ToSlash(name)
	return slices.ContainsFunc(m.dirs, func(dir string) bool {
		return dir == "." || name == dir || strings.HasPrefix(name, dir+"/")
	})
}

// digest covers names, modes and content of the module's files.
func (m moduleFiles) digest() (string, error) {
	sum := sha256.New()
	err := filepath.WalkDir(m.root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		relative, err := filepath.Rel(m.root, name)
		if err != nil || !m.contains(relative) {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		f, err := os.Open(name) //nolint:gosec // inside the extracted source, which has no symbolic links
		if err != nil {
			return err
		}
		defer f.Close()
		fmt.Fprintf(sum, "%q %v %d\n", filepath.ToSlash(relative), info.Mode().Perm()&0o111 != 0, info.Size())
		_, err = io.Copy(sum, f)
		return err
	})
	return hex.EncodeToString(sum.Sum(nil)), err
}

// archive packs the module; nil when it is larger than limit bytes.
func (m moduleFiles) archive(limit int) ([]byte, error) {
	var b bytes.Buffer
	_, err := tar.Tar(m.root, &b, tar.WithFilter(func(name string, info os.FileInfo) bool {
		relative, err := filepath.Rel(m.root, name)
		return err != nil || !info.IsDir() && !m.contains(relative)
	}))
	if err != nil || b.Len() > limit {
		return nil, err
	}
	return b.Bytes(), nil
}
