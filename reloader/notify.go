package reloader

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"

	"github.com/fsnotify/fsnotify"
)

// ErrPolling is wrapped by what an error handler is told when the system does not report changes, for example because its limit of inotify
// instances or watches is reached. Watch polls then, and tries again each time.
var ErrPolling = errors.New("no events, polling")

// notifier is the part of [fsnotify.Watcher] that is used here.
type notifier interface {
	Add(dir string) error
	Remove(dir string) error
	Close() error
}

// opener starts a notifier with its channels.
type opener func() (notifier, <-chan fsnotify.Event, <-chan error, error)

func openSystem() (notifier, <-chan fsnotify.Event, <-chan error, error) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, nil, nil, err
	}
	return watcher, watcher.Events, watcher.Errors, nil
}

// sentry has the system report changes in directories.
type sentry struct {
	open     opener
	notifier notifier
	// inbox has what the notifier sent. It is empty for ever while there is no notifier.
	inbox *inbox
	// watched are the directories that are watched, as they were: another directory may be at the same path now.
	watched map[string]fs.FileInfo
}

// watch makes the given places, and no others, the watched ones. It tells whether some were not before: then something may have happened there
// unseen. An error means that not all places can be watched; those that can are.
func (s *sentry) watch(places places) (unseen bool, err error) {
	if s.notifier == nil {
		notifier, events, failures, err := s.open()
		if err != nil {
			return false, fmt.Errorf("%w: %w", ErrPolling, err)
		}
		s.notifier, s.inbox, s.watched = notifier, newInbox(events, failures), map[string]fs.FileInfo{}
	}
	for dir := range s.watched {
		if places[dir] == nil {
			s.forget(dir)
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(places)) {
		isNew, addErr := s.add(dir)
		unseen = unseen || isNew
		if addErr != nil && (places[dir].all || !errors.Is(addErr, fs.ErrPermission)) {
			// Directories on the way that may not be read are common, and matter only if what is below them is replaced.
			err = fmt.Errorf("%w: %s: %w", ErrPolling, dir, addErr)
		}
	}
	return unseen, err
}

// add watches a directory if it is there.
func (s *sentry) add(dir string) (isNew bool, err error) {
	info, err := os.Stat(dir)
	if err != nil {
		s.forget(dir)
		return false, ignoreMissing(err)
	}
	known := s.watched[dir]
	if known != nil && !os.SameFile(known, info) {
		s.forget(dir)
		known = nil
	}
	// Also if it is known: that does nothing, but for a watch that the system dropped, as it does when something is unmounted.
	if err := s.notifier.Add(dir); err != nil {
		s.forget(dir)
		return false, ignoreMissing(err)
	}
	s.watched[dir] = info
	return known == nil, nil
}

// forget stops watching a directory, which may be gone.
func (s *sentry) forget(dir string) {
	if s.watched[dir] != nil {
		_ = s.notifier.Remove(dir) // fails if the system has dropped it
		delete(s.watched, dir)
	}
}

// news has something when take has.
func (s *sentry) news() <-chan struct{} {
	if s.inbox == nil {
		return nil
	}
	return s.inbox.news
}

// take is what happened since it was called last: names, or an error if some are lost.
func (s *sentry) take() ([]string, error) {
	happened, err := s.inbox.take()
	if err != nil {
		s.reset()
		return nil, err
	}
	for name, op := range happened {
		if op.Has(fsnotify.Remove) || op.Has(fsnotify.Rename) {
			s.forget(name) // if it is a watched directory, its watch ends with it
		}
	}
	return slices.Collect(maps.Keys(happened)), nil
}

// reset drops all watches. The next call of watch begins anew.
func (s *sentry) reset() {
	if s.notifier != nil {
		_ = s.notifier.Close()
		s.inbox.close()
	}
	s.notifier, s.inbox, s.watched = nil, nil, nil
}

func ignoreMissing(err error) error {
	if missing(err) {
		return nil
	}
	return err
}
