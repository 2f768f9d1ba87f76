package image_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/terrace-dev/terrace/test/cluster/image"
)

func TestALayerHoldsEachFileOnceWithItsDirectories(t *testing.T) {
	t.Parallel()
	layer := filepath.Join(t.TempDir(), "layer")
	if _, err := image.WriteLayer(layer, fill); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, file := range read(t, layer) {
		got = append(got, file.Name+" "+file.Linkname)
	}
	want := []string{"etc/ ", "etc/passwd ", "usr/ ", "usr/bin/ ", "usr/bin/dash ", "usr/bin/again usr/bin/dash", "usr/bin/sh dash"}
	if len(got) != len(want) {
		t.Fatalf("got %q, want %q", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("file %d is %q, want %q", i, got[i], want[i])
		}
	}
}

func TestEqualFilesMakeAnEqualImage(t *testing.T) {
	t.Parallel()
	var ids []string
	for range 2 {
		dir := t.TempDir()
		layer, err := image.WriteLayer(filepath.Join(dir, "layer"), fill)
		if err != nil {
			t.Fatal(err)
		}
		made, err := image.New("some:dev", image.Config{User: "65532:65532"}, layer)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, made.ID)
	}
	if ids[0] != ids[1] {
		t.Errorf("the ids are %s and %s", ids[0], ids[1])
	}
}

func TestAnImageNamesWhatItHolds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	layer, err := image.WriteLayer(filepath.Join(dir, "layer"), fill)
	if err != nil {
		t.Fatal(err)
	}
	made, err := image.New("some:dev", image.Config{Entrypoint: []string{"/usr/bin/sh"}}, layer)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "image.tar")
	if err := made.Write(file); err != nil {
		t.Fatal(err)
	}
	held := map[string]bool{}
	for _, header := range read(t, file) {
		held[header.Name] = true
	}
	manifest := []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}{}
	if err := json.Unmarshal(content(t, file, "manifest.json"), &manifest); err != nil {
		t.Fatal(err)
	}
	if len(manifest) != 1 || manifest[0].RepoTags[0] != "some:dev" || len(manifest[0].Layers) != 1 ||
		!held[manifest[0].Config] || !held[manifest[0].Layers[0]] {
		t.Errorf("the manifest is %+v, the files are %v", manifest, held)
	}
}

// fill takes files as Debian packages have them.
func fill(files *image.Files) error {
	var packed bytes.Buffer
	archive := tar.NewWriter(&packed)
	for _, header := range []tar.Header{
		{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "./usr/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "./usr/bin/dash", Typeflag: tar.TypeReg, Mode: 0o755, Size: 1, ModTime: time.Now()},
		{Name: "./usr/bin/again", Typeflag: tar.TypeLink, Linkname: "./usr/bin/dash"},
		{Name: "./usr/bin/sh", Typeflag: tar.TypeSymlink, Linkname: "dash"},
		{Name: "./usr/share/man/dash", Typeflag: tar.TypeReg},
		{Name: "./etc/passwd", Typeflag: tar.TypeReg, Mode: 0o644},
	} {
		if err := archive.WriteHeader(&header); err != nil {
			return err
		}
		if _, err := archive.Write(make([]byte, header.Size)); err != nil {
			return err
		}
	}
	if err := archive.Close(); err != nil {
		return err
	}
	if err := files.Content("etc/passwd", 0o644, []byte("mine")); err != nil {
		return err
	}
	return files.Tar(&packed, func(name string, _ func() ([]byte, error)) (bool, error) {
		return name != "usr/share/man/dash", nil
	})
}

func read(t *testing.T, file string) []*tar.Header {
	t.Helper()
	var all []*tar.Header
	visit(t, file, func(header *tar.Header, _ io.Reader) { all = append(all, header) })
	return all
}

func content(t *testing.T, file, name string) []byte {
	t.Helper()
	var found []byte
	visit(t, file, func(header *tar.Header, in io.Reader) {
		if header.Name != name {
			return
		}
		var err error
		if found, err = io.ReadAll(in); err != nil {
			t.Fatal(err)
		}
	})
	return found
}

func visit(t *testing.T, file string, each func(*tar.Header, io.Reader)) {
	t.Helper()
	in, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	reader := tar.NewReader(in)
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		each(header, reader)
	}
}
