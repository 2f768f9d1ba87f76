// Package docs_test holds the documentation to what the code says.
package docs_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"sigs.k8s.io/yaml"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
)

// Paths from this directory.
const (
	root            = "../.."
	terraformPage   = root + "/docs/spec/v1alpha1/terraform.md"
	troubleshooting = root + "/docs/troubleshooting.md"
	flagsPage       = root + "/docs/flags.md"
)

// page is a page of Markdown, as far as the tests look at it.
type page struct {
	path     string
	sections []section
	blocks   []block
}

// section is a heading with what follows it up to the next heading of any level.
type section struct {
	level int
	title string
	text  string // without code blocks
}

// block is a fenced code block.
type block struct {
	line     int
	language string
	text     string
}

var heading = regexp.MustCompile(`^(#{1,6}) +(.*?) *$`)

func readPage(t *testing.T, path string) page {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	p := page{path: path, sections: []section{{}}}
	var open *block
	var indent string
	for i, line := range strings.Split(string(content), "\n") {
		last := &p.sections[len(p.sections)-1]
		before, language, fence := strings.Cut(line, "```")
		switch {
		case fence && strings.TrimSpace(before) == "" && open == nil:
			open, indent = &block{line: i + 1, language: language}, before
		case fence && open != nil:
			p.blocks, open = append(p.blocks, *open), nil
		case open != nil:
			open.text += strings.TrimPrefix(line, indent) + "\n"
		case heading.MatchString(line):
			match := heading.FindStringSubmatch(line)
			p.sections = append(p.sections, section{level: len(match[1]), title: match[2]})
		default:
			last.text += line + "\n"
		}
	}
	if open != nil {
		t.Fatalf("%s:%d: the code block has no end", path, open.line)
	}
	return p
}

// pages are all pages for readers.
func pages(t *testing.T) []page {
	t.Helper()
	paths := []string{filepath.Join(root, "README.md"), filepath.Join(root, "CONTRIBUTING.md")}
	err := filepath.WalkDir(filepath.Join(root, "docs"), func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && filepath.Ext(path) == ".md" {
			paths = append(paths, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var found []page
	for _, path := range paths {
		found = append(found, readPage(t, path))
	}
	return found
}

// anchors are the names that links to headings of the page use, as GitHub makes them.
func (p page) anchors() []string {
	var found []string
	seen := map[string]int{}
	for _, s := range p.sections[1:] {
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			default:
				return -1
			}
		}, s.title)
		seen[name]++
		if n := seen[name]; n > 1 {
			name += fmt.Sprintf("-%d", n-1)
		}
		found = append(found, name)
	}
	return found
}

var (
	link       = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	inlineCode = regexp.MustCompile("`[^`]*`")
	scheme     = regexp.MustCompile(`^[a-z]+:`)
)

func TestRelativeLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	anchors := map[string][]string{}
	for _, p := range pages(t) {
		anchors[filepath.Clean(p.path)] = p.anchors()
	}
	for _, p := range pages(t) {
		t.Run(strings.TrimPrefix(p.path, root+"/"), func(t *testing.T) {
			t.Parallel()
			for _, s := range p.sections {
				for _, match := range link.FindAllStringSubmatch(inlineCode.ReplaceAllString(s.text, ""), -1) {
					if scheme.MatchString(match[1]) {
						continue
					}
					file, anchor, _ := strings.Cut(match[1], "#")
					target := filepath.Clean(p.path)
					if file != "" {
						target = filepath.Join(filepath.Dir(p.path), file)
					}
					if _, err := os.Stat(target); err != nil || strings.HasPrefix(target, root+"/..") {
						t.Errorf("under %q: the link to %s leads nowhere", s.title, match[1])
						continue
					}
					if names, ok := anchors[target]; anchor != "" && (!ok || !slices.Contains(names, anchor)) {
						t.Errorf("under %q: the link to %s leads to no heading", s.title, match[1])
					}
				}
			}
		})
	}
}

// kinds are what the YAML of a kind decodes into.
var kinds = map[string]func() any{
	infrav1.TerraformKind:        func() any { return &infrav1.Terraform{} },
	infrav1.KubesprayClusterKind: func() any { return &infrav1.KubesprayCluster{} },
	infrav1.ConfigReloadKind:     func() any { return &infrav1.ConfigReload{} },
}

func TestManifestsInThePagesAreOfTheAPI(t *testing.T) {
	t.Parallel()
	found := 0
	for _, p := range pages(t) {
		for _, b := range p.blocks {
			if strings.TrimSpace(b.language) != "yaml" {
				continue
			}
			for document := range strings.SplitSeq(b.text, "\n---\n") {
				var header struct {
					APIVersion string `json:"apiVersion"`
					Kind       string `json:"kind"`
				}
				if err := yaml.Unmarshal([]byte(document), &header); err != nil {
					t.Errorf("%s:%d: %v", p.path, b.line, err)
					continue
				}
				kind := header.Kind
				if kind == "" && p.path == filepath.Clean(terraformPage) {
					kind = infrav1.TerraformKind // a part of one, on the page of the kind
				}
				object, ok := kinds[kind]
				if !ok {
					continue
				}
				found++
				if err := yaml.UnmarshalStrict([]byte(document), object()); err != nil {
					t.Errorf("%s:%d: %v", p.path, b.line, err)
				}
				if header.Kind != "" && header.APIVersion != infrav1.GroupVersion.String() {
					t.Errorf("%s:%d: apiVersion %q", p.path, b.line, header.APIVersion)
				}
			}
		}
	}
	if found == 0 {
		t.Error("found no manifest at all")
	}
}

func TestTheExamplesInTheREADMEAndTheSampleAreOne(t *testing.T) {
	t.Parallel()
	sample, err := os.ReadFile(filepath.Join(root, "config", "samples", "terraform_minimal.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range readPage(t, filepath.Join(root, "README.md")).blocks {
		if b.language == "yaml" && b.text != string(sample) {
			t.Errorf("README.md:%d differs from the sample that the next lines apply", b.line)
		}
	}
}

var makeTarget = regexp.MustCompile(`(?m)^([a-z0-9-]+):.*## `)

func TestEachMakeTargetInThePagesExists(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	targets := map[string]bool{}
	for _, match := range makeTarget.FindAllStringSubmatch(string(makefile), -1) {
		targets[match[1]] = true
	}
	command := regexp.MustCompile("(?m)(?:^|`)make ([a-z][a-z0-9-]*)")
	for _, p := range pages(t) {
		text := ""
		for _, s := range p.sections {
			text += s.text
		}
		for _, b := range p.blocks {
			text += b.text
		}
		for _, match := range command.FindAllStringSubmatch(text, -1) {
			if !targets[match[1]] {
				t.Errorf("%s: there is no make %s", p.path, match[1])
			}
		}
	}
}
