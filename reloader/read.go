package reloader

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Errors of [Read], and of reading in [Watch].
var (
	// ErrTooLarge is wrapped by errors of content beyond the [Limits].
	ErrTooLarge = errors.New("too large")
	// ErrUnsettled is wrapped if links pointed elsewhere after each of many attempts to read what they point to.
	ErrUnsettled = errors.New("changes too fast to be read as a whole")
)

// Limits bound what is read, so that a wrong path cannot fill the memory. Zero fields mean those of [DefaultLimits].
type Limits struct {
	// FileBytes is the size of the largest file.
	FileBytes int64
	// TotalBytes is the sum of the sizes of all files of all directories together.
	TotalBytes int64
	// Files is the number of files and directories of all directories together.
	Files int
}

// DefaultLimits are generous for ConfigMaps and Secrets, which have at most 1 MiB each.
var DefaultLimits = Limits{FileBytes: 16 << 20, TotalBytes: 64 << 20, Files: 10_000}

const (
	// dataLink is what the kubelet points to the current version of a volume.
	dataLink = "..data"
	// internalPrefix starts the names that the kubelet keeps for itself in a volume.
	internalPrefix = ".."
	// maxLinks is how many links one path may lead through; Linux has the same bound.
	maxLinks = 40
	// maxDepth bounds subdirectories.
	maxDepth = 32
	// maxAttempts bounds reading again what changed while it was read. One attempt takes well under a millisecond, two changes of a volume
	// are many apart, so this is never reached by the kubelet.
	maxAttempts = 100
)

// found is what one look at a set of paths yields.
type found struct {
	// snapshots has one for each path, in their order. It is empty if err is set.
	snapshots []Snapshot
	// volumes tells of each path whether it has a link ..data.
	volumes []bool
	// places are where a change would show, also if err is set.
	places places
	err    error
}

// readSet reads all paths as they were at one moment, as far as links tell: it repeats until no link that it followed has changed meanwhile.
func readSet(paths []string, limits Limits) found {
	var last found
	for range maxAttempts {
		attempt := attempt{limits: limits.orDefault(), found: found{places: places{}}}
		for _, name := range paths {
			if attempt.err = attempt.path(name); attempt.err != nil {
				attempt.snapshots, attempt.volumes = nil, nil
				break
			}
		}
		if attempt.settled() {
			return attempt.found
		}
		// What is missing at the same path twice in a row is missing. If it was a version that the kubelet replaced, its name is another now.
		if errors.Is(attempt.err, fs.ErrNotExist) && last.err != nil && attempt.err.Error() == last.err.Error() {
			return attempt.found
		}
		last = attempt.found
	}
	err := last.err
	if err == nil {
		err = errors.New("a link or file changed while it was read")
	}
	return found{places: last.places, err: fmt.Errorf("%s: %w: %w", strings.Join(paths, ", "), ErrUnsettled, err)}
}

func (l Limits) orDefault() Limits {
	if l.FileBytes == 0 {
		l.FileBytes = DefaultLimits.FileBytes
	}
	if l.TotalBytes == 0 {
		l.TotalBytes = DefaultLimits.TotalBytes
	}
	if l.Files == 0 {
		l.Files = DefaultLimits.Files
	}
	return l
}

// attempt is one try at reading a set.
type attempt struct {
	found
	limits Limits
	bytes  int64
	files  int
	// followed are the paths that lead through links, with where they led; empty for nowhere.
	followed []followed
}

type followed struct{ path, real string }

// path adds one of the paths of the set.
func (a *attempt) path(name string) error {
	snapshot := Snapshot{Dir: name, Files: map[string][]byte{}}
	real, err := a.follow(filepath.Join(name, dataLink))
	isVolume := err == nil
	if missing(err) {
		real, err = a.follow(name)
	}
	if err != nil {
		return err
	}
	info, err := os.Stat(real)
	switch {
	case err != nil:
		return err
	case info.IsDir():
		err = a.dir(real, "", snapshot.Files, nil)
	case info.Mode().IsRegular():
		err = a.file(real, filepath.Base(name), snapshot.Files)
	default:
		err = fmt.Errorf("%s is neither a file nor a directory", name)
	}
	if err != nil {
		return err
	}
	a.snapshots = append(a.snapshots, snapshot)
	a.volumes = append(a.volumes, isVolume)
	return nil
}

// dir adds the files below real, a path without links. parents are the directories on the way to it, so that a link back up ends there.
func (a *attempt) dir(real, prefix string, files map[string][]byte, parents []string) error {
	if slices.Contains(parents, real) {
		return nil
	}
	if len(parents) == maxDepth {
		return fmt.Errorf("%s: %w: more than %d directories deep", real, ErrTooLarge, maxDepth)
	}
	parents = append(slices.Clip(parents), real)
	a.places.addDir(real)
	entries, err := os.ReadDir(real)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), internalPrefix) {
			continue
		}
		if err := a.entry(filepath.Join(real, entry.Name()), entry.Type(), path.Join(prefix, entry.Name()), files, parents); err != nil {
			return err
		}
	}
	return nil
}

func (a *attempt) entry(full string, kind fs.FileMode, as string, files map[string][]byte, parents []string) error {
	if a.files++; a.files > a.limits.Files {
		return fmt.Errorf("%s: %w: more than %d files", parents[0], ErrTooLarge, a.limits.Files)
	}
	if kind&fs.ModeSymlink != 0 {
		real, err := a.follow(full)
		if missing(err) {
			return nil // a link to nothing is no file; if there is something when it is followed again, all is read again
		}
		if err != nil {
			return err
		}
		info, err := os.Stat(real)
		if err != nil {
			return err
		}
		full, kind = real, info.Mode().Type()
	}
	switch {
	case kind.IsDir():
		return a.dir(full, as, files, parents)
	case kind.IsRegular():
		return a.file(full, as, files)
	}
	return nil // sockets, pipes and devices have no content
}

func (a *attempt) file(real, as string, files map[string][]byte) error {
	file, err := os.Open(real)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	content, err := io.ReadAll(io.LimitReader(file, a.limits.FileBytes+1))
	if err != nil {
		return err
	}
	if int64(len(content)) > a.limits.FileBytes {
		return fmt.Errorf("%s: %w: a file may have %d bytes", real, ErrTooLarge, a.limits.FileBytes)
	}
	if a.bytes += int64(len(content)); a.bytes > a.limits.TotalBytes {
		return fmt.Errorf("%s: %w: all files together may have %d bytes", real, ErrTooLarge, a.limits.TotalBytes)
	}
	files[as] = content
	return nil
}

// follow resolves a path, notes where a change of what it leads to would show, and remembers to look at it again.
func (a *attempt) follow(name string) (string, error) {
	real, err := resolve(name, a.places.addName)
	if err != nil && !missing(err) {
		return "", err
	}
	a.followed = append(a.followed, followed{path: name, real: real})
	return real, err
}

// settled tells whether all paths still lead where they led. If something is missing that was there a moment ago, they do not.
func (a *attempt) settled() bool {
	if errors.Is(a.err, fs.ErrNotExist) {
		return false
	}
	for _, was := range a.followed {
		real, err := resolve(was.path, func(string, string) {})
		if real != was.real || (err != nil && !missing(err)) {
			return false
		}
	}
	return true
}

// missing tells whether a path leads nowhere, be it that something on the way is a file.
func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// resolve is the path without links. It tells see of every name, with the directory it is in, that would lead elsewhere if it were replaced: the
// links, the end of the path, and the first that is missing. Other than [filepath.EvalSymlinks] it can therefore say where to watch.
func resolve(name string, see func(dir, name string)) (string, error) {
	name, err := filepath.Abs(name)
	if err != nil {
		return "", err
	}
	root := filepath.VolumeName(name) + string(filepath.Separator)
	at, rest, links := root, components(name), 0
	for len(rest) > 0 {
		next := filepath.Join(at, rest[0])
		info, err := os.Lstat(next)
		if err != nil {
			see(at, rest[0])
			return "", err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			if len(rest) == 1 {
				see(at, rest[0])
			}
			at, rest = next, rest[1:]
			continue
		}
		see(at, rest[0])
		if links++; links > maxLinks {
			return "", &fs.PathError{Op: "follow", Path: name, Err: syscall.ELOOP}
		}
		target, err := os.Readlink(next)
		if err != nil {
			return "", err
		}
		if filepath.IsAbs(target) {
			at = root
		}
		rest = append(components(target), rest[1:]...)
	}
	return at, nil
}

// components splits a path after its root. The parts ".." remain, since they mean the parent of where links have led.
func components(name string) []string {
	name = name[len(filepath.VolumeName(name)):]
	return slices.DeleteFunc(strings.Split(filepath.ToSlash(name), "/"), func(part string) bool { return part == "" || part == "." })
}
