// Package atomicwriter plays the kubelet for tests: it writes volumes step by step as the AtomicWriter of Kubernetes 1.37 does
// (pkg/volume/util/atomic_writer.go), which cannot be imported.
package atomicwriter

import (
	"bytes"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	dataLink    = "..data"
	newDataLink = "..data_tmp"
)

// Step is a moment between two changes of a volume, in which readers may look.
type Step string

// The steps of one write, in their order. After the swap readers of ..data see the new version; key links follow.
const (
	Written  Step = "new version written"
	Linked   Step = "link to the new version made"
	Swapped  Step = "swapped"
	KeysMade Step = "links of new keys made"
	KeysGone Step = "links of old keys removed"
	Removed  Step = "old version removed"
)

// Volume is a volume of a pod.
type Volume struct {
	// Root is the directory where the volume is mounted. It exists.
	Root string
	// At is called at each step, if it is set.
	At func(Step)
}

// Write makes the volume hold exactly these files. If it does already nothing is written.
func (v *Volume) Write(files map[string]string) error {
	old, err := os.Readlink(v.path(dataLink))
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	if old != "" {
		same, err := holds(v.path(old), files)
		if err != nil {
			return err
		}
		if same {
			return v.makeKeys(files)
		}
	}
	if err := v.swap(files); err != nil {
		return err
	}
	v.at(Swapped)
	if err := v.makeKeys(files); err != nil {
		return err
	}
	v.at(KeysMade)
	if err := v.removeKeys(files); err != nil {
		return err
	}
	v.at(KeysGone)
	if old != "" {
		if err := os.RemoveAll(v.path(old)); err != nil {
			return err
		}
	}
	v.at(Removed)
	return nil
}

func (v *Volume) path(name string) string { return filepath.Join(v.Root, name) }

func (v *Volume) at(step Step) {
	if v.At != nil {
		v.At(step)
	}
}

// swap writes a new version and points ..data to it.
func (v *Volume) swap(files map[string]string) error {
	version, err := os.MkdirTemp(v.Root, time.Now().UTC().Format("..2006_01_02_15_04_05."))
	if err != nil {
		return err
	}
	for name, content := range files {
		full := filepath.Join(version, name)
		if err := os.MkdirAll(filepath.Dir(full), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(full, []byte(content), 0o600); err != nil {
			return err
		}
		if err := os.Chmod(full, 0o600); err != nil {
			return err
		}
	}
	v.at(Written)
	if err := os.Symlink(filepath.Base(version), v.path(newDataLink)); err != nil {
		return err
	}
	v.at(Linked)
	return os.Rename(v.path(newDataLink), v.path(dataLink))
}

// makeKeys makes the links by which programs open the files.
func (v *Volume) makeKeys(files map[string]string) error {
	for _, key := range keys(files) {
		if _, err := os.Readlink(v.path(key)); err == nil {
			continue
		}
		if err := os.Symlink(filepath.Join(dataLink, key), v.path(key)); err != nil {
			return err
		}
	}
	return nil
}

// removeKeys removes the links of what is no longer there.
func (v *Volume) removeKeys(files map[string]string) error {
	entries, err := os.ReadDir(v.Root)
	if err != nil {
		return err
	}
	keep := keys(files)
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), "..") || slices.Contains(keep, entry.Name()) {
			continue
		}
		if err := os.Remove(v.path(entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

// keys are the names in the root of the volume: the first parts of the paths.
func keys(files map[string]string) []string {
	first := map[string]bool{}
	for name := range files {
		key, _, _ := strings.Cut(name, "/")
		first[key] = true
	}
	return slices.Sorted(maps.Keys(first))
}

// holds tells whether a version has exactly these files.
func holds(version string, files map[string]string) (bool, error) {
	tree, count := os.DirFS(version), 0
	err := fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		is, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		if want, ok := files[name]; ok && bytes.Equal(is, []byte(want)) {
			count++
			return nil
		}
		count = -1
		return fs.SkipAll
	})
	return count == len(files), err
}
