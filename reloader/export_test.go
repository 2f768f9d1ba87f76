package reloader

import (
	"time"

	"github.com/fsnotify/fsnotify"
)

// WithoutPolling leaves everything to events, so that a test fails if one is missed.
func WithoutPolling() Option {
	return func(o *options) { o.poll, o.pollAlone = 24*time.Hour, 24*time.Hour }
}

// WithNotifier replaces what reports changes.
func WithNotifier(open func() (Notifier, <-chan fsnotify.Event, <-chan error, error)) Option {
	return func(o *options) {
		o.open = func() (notifier, <-chan fsnotify.Event, <-chan error, error) { return open() }
	}
}

// Notifier is the part of [fsnotify.Watcher] that Watch uses.
type Notifier = notifier
