package reloader

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"slices"
)

// Snapshot is the content of a directory or file at one moment. Formatting or logging it shows where it is from and how much there is, never the
// content. Treat it as read-only: [Watch] compares with the ones it has handed out.
type Snapshot struct {
	// Dir is the path as it was given to [Read] or [Watch].
	Dir string
	// Files are the contents by path below Dir, with forward slashes. If Dir itself is a file its name is the only path.
	Files map[string][]byte `json:"-"`
}

// Read reads all files of dir as they were at one moment, within the [DefaultLimits].
//
// In a volume of Kubernetes (anything with a link ..data) the files come from the one version that ..data points to, so that a
// certificate and its key belong together. Links are followed, and if any of them points elsewhere once everything is read, it is
// read again. A plain directory is read with its subdirectories; nobody swaps those as a whole, so it is as consistent as
// its writer makes it. A plain file is a snapshot with that file. Names that start with two dots belong to the volume and are left out, and so
// is what is neither a file nor a directory.
//
// The error wraps [fs.ErrNotExist] if there is no dir, [ErrTooLarge] or [ErrUnsettled], or is that of the system. It holds no content.
func Read(dir string) (Snapshot, error) {
	if err := validDirs([]string{dir}); err != nil {
		return Snapshot{}, err
	}
	found := readSet([]string{dir}, DefaultLimits)
	if found.err != nil {
		return Snapshot{}, found.err
	}
	return found.snapshots[0], nil
}

// Equal tells whether both hold the same files with the same content, wherever they are from.
func (s Snapshot) Equal(other Snapshot) bool {
	return maps.EqualFunc(s.Files, other.Files, bytes.Equal)
}

// Size is the sum of the sizes of the files, in bytes.
func (s Snapshot) Size() int64 {
	var size int64
	for _, content := range s.Files {
		size += int64(len(content))
	}
	return size
}

// Format writes path, number and size of files, whatever the verb.
func (s Snapshot) Format(state fmt.State, _ rune) {
	_, _ = fmt.Fprintf(state, "%s (%d files, %d bytes)", s.Dir, len(s.Files), s.Size())
}

// LogValue shows path, number and size of files.
func (s Snapshot) LogValue() slog.Value {
	return slog.GroupValue(slog.String("dir", s.Dir), slog.Int("files", len(s.Files)), slog.Int64("bytes", s.Size()))
}

// Snapshot is the sum of all files of s by their paths, without the paths in except. Whoever knows what a volume should hold gets the same from
// [Key.Sum] with an [Entry] for each file: its path, and the [Key.Digest] of its content.
func (k Key) Snapshot(s Snapshot, except ...string) string {
	entries := make([]Entry, 0, len(s.Files))
	for path, content := range s.Files {
		if !slices.Contains(except, path) {
			entries = append(entries, Entry{Name: path, Digest: k.Digest(content)})
		}
	}
	return k.Sum(entries)
}
