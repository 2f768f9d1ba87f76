package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path"
	"strings"
	"time"
)

// Files collects the files of one layer. The first file of a name stays. Times are
// dropped, so that equal files make an equal layer.
type Files struct {
	archive *tar.Writer
	seen    map[string]bool
}

func newFiles(archive *tar.Writer) *Files {
	return &Files{archive: archive, seen: map[string]bool{}}
}

// Directory adds a directory with an owner, who is both user and group.
func (f *Files) Directory(name string, mode int64, owner int) error {
	return f.add(&tar.Header{Name: name + "/", Typeflag: tar.TypeDir, Mode: mode, Uid: owner, Gid: owner}, nil)
}

// Content adds a file with a content.
func (f *Files) Content(name string, mode int64, content []byte) error {
	return f.add(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode, Size: int64(len(content))}, bytes.NewReader(content))
}

// Link adds a symbolic link.
func (f *Files) Link(name, target string) error {
	return f.add(&tar.Header{Name: name, Typeflag: tar.TypeSymlink, Mode: 0o777, Linkname: target}, nil)
}

// Copy adds a file of this machine.
func (f *Files) Copy(name string, mode int64, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	return f.add(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode, Size: info.Size()}, in)
}

// Tar adds the content of a tar archive. Before each file it asks use, which gets
// its name, without a leading slash, and its content; what use refuses is left out.
func (f *Files) Tar(in io.Reader, use func(name string, content func() ([]byte, error)) (bool, error)) error {
	reader := tar.NewReader(in)
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := clean(header.Name)
		if name == "" {
			continue
		}
		var content io.Reader = reader
		wanted, err := use(name, func() ([]byte, error) {
			all, err := io.ReadAll(reader)
			content = bytes.NewReader(all)
			return all, err
		})
		if err != nil {
			return err
		}
		if !wanted {
			continue
		}
		if header.Typeflag == tar.TypeLink {
			header.Linkname = clean(header.Linkname)
		}
		if err := f.add(header, content); err != nil {
			return err
		}
	}
}

func (f *Files) add(header *tar.Header, content io.Reader) error {
	name := clean(header.Name)
	if f.seen[name] {
		return nil
	}
	// The directories above it, for those that no package has.
	if parent := path.Dir(name); parent != "." && !f.seen[parent] {
		if err := f.Directory(parent, 0o755, 0); err != nil {
			return err
		}
	}
	f.seen[name] = true
	header.Name = name
	if header.Typeflag == tar.TypeDir {
		header.Name += "/"
	}
	header.ModTime = time.Unix(0, 0)
	header.AccessTime, header.ChangeTime = time.Time{}, time.Time{}
	header.Uname, header.Gname, header.Format = "", "", tar.FormatUnknown
	if err := f.archive.WriteHeader(header); err != nil {
		return err
	}
	if header.Typeflag != tar.TypeReg {
		return nil
	}
	_, err := io.Copy(f.archive, content)
	return err
}

func clean(name string) string {
	return strings.TrimPrefix(path.Clean("/"+name), "/") // empty for the root
}
