package reloader_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/terrace-dev/terrace/reloader"
)

// tree makes files below a new directory: content by path, a link where the content is "-> target".
func tree(t testing.TB, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		full := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, isLink := strings.CutPrefix(content, "-> "); isLink {
			err = os.Symlink(target, full)
		} else {
			err = os.WriteFile(full, []byte(content), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func contents(snapshot reloader.Snapshot) map[string]string {
	files := map[string]string{}
	for name, content := range snapshot.Files {
		files[name] = string(content)
	}
	return files
}

func TestReadFindsTheFilesOf(t *testing.T) {
	t.Parallel()
	volume := map[string]string{
		"v/..2026_01/tls.crt":   "crt",
		"v/..2026_01/ca/ca.crt": "ca",
		"v/..data":              "-> ..2026_01",
		"v/tls.crt":             "-> ..data/tls.crt",
		"v/ca":                  "-> ..data/ca",
	}
	inVolume := map[string]string{"tls.crt": "crt", "ca/ca.crt": "ca"}
	with := func(more map[string]string) map[string]string {
		maps.Copy(more, volume)
		return more
	}
	for name, tt := range map[string]struct {
		files map[string]string
		dir   string
		want  map[string]string
	}{
		"a volume":                          {volume, "v", inVolume},
		"a volume by a link":                {with(map[string]string{"a/link": "-> ../v"}), "a/link", inVolume},
		"a volume by links to links":        {with(map[string]string{"a": "-> b", "b": "-> v"}), "a", inVolume},
		"a volume without its key links":    {map[string]string{"v/..1/a": "a", "v/..data": "-> ..1"}, "v", map[string]string{"a": "a"}},
		"a volume with an old version":      {with(map[string]string{"v/..2025/old": "old"}), "v", inVolume},
		"a volume with a key link left":     {with(map[string]string{"v/gone": "-> ..data/gone"}), "v", inVolume},
		"a directory":                       {map[string]string{"d/a": "1", "d/b/c": "2", "d/.hidden": "3"}, "d", map[string]string{"a": "1", "b/c": "2", ".hidden": "3"}},
		"an empty directory":                {map[string]string{"d/..x": ""}, "d", map[string]string{}},
		"a directory of links into volumes": {with(map[string]string{"d/cert": "-> ../v/tls.crt", "d/authority": "-> ../v/ca"}), "d", map[string]string{"cert": "crt", "authority/ca.crt": "ca"}},
		"a directory with a link to itself": {map[string]string{"d/a": "1", "d/self": "-> .", "d/b/up": "-> ../.."}, "d", map[string]string{"a": "1"}},
		"a directory with a link to nothing": {
			map[string]string{"d/a": "1", "d/none": "-> nowhere", "d/under": "-> a/b"}, "d", map[string]string{"a": "1"}},
		"a link that is swapped as a whole": {map[string]string{"rev1/a": "1", "current": "-> rev1"}, "current", map[string]string{"a": "1"}},
		"a file":                            {map[string]string{"f": "1", "g": "2"}, "f", map[string]string{"f": "1"}},
		"a file in a volume":                {volume, "v/tls.crt", map[string]string{"tls.crt": "crt"}},
		"an empty file":                     {map[string]string{"f": ""}, "f", map[string]string{"f": ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			dir := filepath.Join(tree(t, tt.files), tt.dir)
			snapshot, err := reloader.Read(dir)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(contents(snapshot)).To(Equal(tt.want))
			g.Expect(snapshot.Dir).To(Equal(dir))
		})
	}
}

func TestReadSaysWhyItCannot(t *testing.T) {
	t.Parallel()
	root := tree(t, map[string]string{"file": "x", "loop": "-> loop", "dangling": "-> nowhere", "v/..data": "-> ..gone"})
	big := filepath.Join(root, "big")
	if err := os.WriteFile(big, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(big, reloader.DefaultLimits.FileBytes+1); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		dir  string
		want error
		text string
	}{
		"nothing there":     {"none", fs.ErrNotExist, "none"},
		"a link to nothing": {"dangling", fs.ErrNotExist, "nowhere"},
		"a file too large":  {"big", reloader.ErrTooLarge, "big"},
		"a circle":          {"loop", nil, "loop"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			_, err := reloader.Read(filepath.Join(root, tt.dir))
			g.Expect(err).To(MatchError(ContainSubstring(tt.text)))
			if tt.want != nil {
				g.Expect(errors.Is(err, tt.want)).To(BeTrue(), err.Error())
			}
		})
	}
	_, err := reloader.Read("")
	NewWithT(t).Expect(err).To(HaveOccurred())
}

func TestSnapshotsAreEqualByContent(t *testing.T) {
	t.Parallel()
	one := reloader.Snapshot{Dir: "x", Files: map[string][]byte{"a": []byte("1"), "b": nil}}
	for name, tt := range map[string]struct {
		files map[string][]byte
		equal bool
	}{
		"the same elsewhere":  {map[string][]byte{"a": []byte("1"), "b": {}}, true},
		"other content":       {map[string][]byte{"a": []byte("2"), "b": nil}, false},
		"another name":        {map[string][]byte{"a": []byte("1"), "c": nil}, false},
		"one less":            {map[string][]byte{"a": []byte("1")}, false},
		"one more":            {map[string][]byte{"a": []byte("1"), "b": nil, "c": nil}, false},
		"none of them at all": {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			other := reloader.Snapshot{Dir: "y", Files: tt.files}
			NewWithT(t).Expect(one.Equal(other)).To(Equal(tt.equal))
		})
	}
}

func TestTheDigestOfASnapshotIsTheSumOfItsFiles(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	key := fixedKey(t)
	snapshot := reloader.Snapshot{Dir: "/etc/app", Files: map[string][]byte{"a": []byte("1"), "ca/b": []byte("2"), "expected": []byte("v1…")}}

	g.Expect(key.Snapshot(snapshot, "expected")).To(Equal(key.Sum([]reloader.Entry{
		{Name: "ca/b", Digest: key.Digest([]byte("2"))},
		{Name: "a", Digest: key.Digest([]byte("1"))},
	})))
	g.Expect(key.Snapshot(snapshot)).NotTo(Equal(key.Snapshot(snapshot, "expected")))
	g.Expect(key.Snapshot(snapshot, "none")).To(Equal(key.Snapshot(snapshot)))
}

func TestASnapshotNeverShowsItsContent(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	snapshot := reloader.Snapshot{Dir: "/etc/app", Files: map[string][]byte{"password": []byte(secret)}}

	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
		for _, value := range []any{snapshot, &snapshot, []reloader.Snapshot{snapshot}} {
			g.Expect(fmt.Sprintf(format, value)).NotTo(MatchRegexp(`hunter2|68756e|104 117|0x68, 0x75`), "%s of %T", format, value)
		}
	}
	g.Expect(snapshot.Size()).To(BeEquivalentTo(len(secret)))
	var logged bytes.Buffer
	slog.New(slog.NewJSONHandler(&logged, nil)).Info("read", "snapshot", snapshot, "all", []reloader.Snapshot{snapshot})
	g.Expect(logged.String()).To(And(ContainSubstring("/etc/app"), Not(ContainSubstring("aHVudGVyMg"))))
}
