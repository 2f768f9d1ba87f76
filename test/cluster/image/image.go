// Package image writes container images as archives that any container engine
// loads (ctr images import, docker load), without an engine.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
)

// Config is what an image says about the programs that are started from it. Its
// fields are those of the OCI image specification.
type Config struct {
	User         string              `json:"User,omitempty"`
	ExposedPorts map[string]struct{} `json:"ExposedPorts,omitempty"`
	Env          []string            `json:"Env,omitempty"`
	Entrypoint   []string            `json:"Entrypoint,omitempty"`
	WorkingDir   string              `json:"WorkingDir,omitempty"`
}

// Layer is a tar file.
type Layer struct {
	// Digest is the SHA-256 of the file, hexadecimal.
	Digest string
	file   string
}

// path is the name of the layer in an image.
func (l Layer) path() string { return l.Digest + ".tar" }

// WriteLayer writes a layer into a file, by means of fill.
func WriteLayer(file string, fill func(*Files) error) (Layer, error) {
	out, err := os.Create(file)
	if err != nil {
		return Layer{}, err
	}
	defer out.Close()
	sum := sha256.New()
	archive := tar.NewWriter(io.MultiWriter(out, sum))
	if err := fill(newFiles(archive)); err != nil {
		return Layer{}, err
	}
	if err := archive.Close(); err != nil {
		return Layer{}, err
	}
	return Layer{file: file, Digest: hex.EncodeToString(sum.Sum(nil))}, out.Close()
}

// OpenLayer returns a layer that WriteLayer wrote before, and its digest.
func OpenLayer(file, digest string) (Layer, error) {
	_, err := os.Stat(file)
	return Layer{file: file, Digest: digest}, err
}

// Image is an image that is not written yet.
type Image struct {
	// ID is the digest of its configuration, which stands for all of it.
	ID string

	description, manifest []byte
	layers                []Layer
}

// New returns the image NAME:TAG with its layers, the lowest first.
func New(name string, config Config, layers ...Layer) (*Image, error) {
	digests := make([]string, 0, len(layers))
	paths := make([]string, 0, len(layers))
	for _, layer := range layers {
		digests = append(digests, "sha256:"+layer.Digest)
		paths = append(paths, layer.path())
	}
	description, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config":       config,
		"rootfs":       map[string]any{"type": "layers", "diff_ids": digests},
	})
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(description)
	id := hex.EncodeToString(sum[:])
	manifest, err := json.Marshal([]map[string]any{{"Config": id + ".json", "RepoTags": []string{name}, "Layers": paths}})
	return &Image{ID: id, description: description, manifest: manifest, layers: layers}, err
}

// Write writes the image to a file, in the format of docker save.
func (i *Image) Write(file string) error {
	out, err := os.Create(file + ".new")
	if err != nil {
		return err
	}
	defer os.Remove(out.Name()) // unless it got its name
	defer out.Close()
	archive := tar.NewWriter(out)
	if err := put(archive, "manifest.json", int64(len(i.manifest)), bytes.NewReader(i.manifest)); err != nil {
		return err
	}
	if err := put(archive, i.ID+".json", int64(len(i.description)), bytes.NewReader(i.description)); err != nil {
		return err
	}
	for _, layer := range i.layers {
		if err := putFile(archive, layer.path(), layer.file); err != nil {
			return err
		}
	}
	if err := archive.Close(); err != nil {
		return err
	}
	if err := out.Close(); err != nil {
		return err
	}
	return os.Rename(out.Name(), file)
}

func putFile(archive *tar.Writer, name, file string) error {
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	return put(archive, name, info.Size(), in)
}

func put(archive *tar.Writer, name string, size int64, content io.Reader) error {
	if err := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: size}); err != nil {
		return err
	}
	if _, err := io.Copy(archive, content); err != nil {
		return fmt.Errorf("writing %s: %w", filepath.Base(name), err)
	}
	return nil
}
