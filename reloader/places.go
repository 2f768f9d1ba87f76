package reloader

import (
	"path/filepath"
	"strings"
)

// places are the directories in which changes show, by their paths without links.
type places map[string]*place

// place is what matters in a directory.
type place struct {
	// all is set if any change in it matters, since it is read as a whole.
	all bool
	// names matter otherwise.
	names map[string]bool
}

// addDir notes a directory that is read as a whole.
func (p places) addDir(dir string) {
	if place := p.at(dir); place != nil {
		place.all = true
	}
}

// addName notes a name in a directory.
func (p places) addName(dir, name string) {
	if place := p.at(dir); place != nil {
		place.names[name] = true
	}
}

// at is nil for the versions of a volume: the kubelet writes those once, before they count, and removes them. What is watched is the root of the
// volume, where the link to the next one appears.
func (p places) at(dir string) *place {
	if strings.Contains(dir, string(filepath.Separator)+internalPrefix) {
		return nil
	}
	if p[dir] == nil {
		p[dir] = &place{names: map[string]bool{}}
	}
	return p[dir]
}

// concern tells whether something that happened to a path can have changed content.
func (p places) concern(path string) bool {
	if p[path] != nil {
		return true // the directory itself
	}
	dir, name := filepath.Split(path)
	place := p[filepath.Clean(dir)]
	return place != nil && (place.all || place.names[name])
}
