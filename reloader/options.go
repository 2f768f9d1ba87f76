package reloader

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Defaults of [Watch].
const (
	// DefaultQuiet is enough for the volumes of a pod, which the kubelet updates one after the other.
	DefaultQuiet = 100 * time.Millisecond
	// DefaultMaxWait bounds waiting for quiet.
	DefaultMaxWait = 2 * time.Second
	// DefaultPoll is how often is looked where no event called for it.
	DefaultPoll = 10 * time.Second
	// DefaultMinBackoff follows the first failure of a callback.
	DefaultMinBackoff = 500 * time.Millisecond
	// DefaultMaxBackoff is where doubling ends.
	DefaultMaxBackoff = 30 * time.Second
)

// pollAlone is the longest time between two looks while the system sends no events or something cannot be read.
const pollAlone = 2 * time.Second

// Option changes how [Watch] works.
type Option func(*options)

type options struct {
	quiet, maxWait         time.Duration
	poll, pollAlone        time.Duration
	minBackoff, maxBackoff time.Duration
	limits                 Limits
	baseline               []Snapshot
	report                 func(error)
	open                   opener
}

// WithQuiet sets how long content has to stay as it is before it is handed to the callback, and how long it may wait for that if it keeps
// changing. The first is at least 1 ms, the second at least the first. The defaults are [DefaultQuiet] and [DefaultMaxWait].
func WithQuiet(quiet, maxWait time.Duration) Option {
	return func(o *options) { o.quiet, o.maxWait = quiet, maxWait }
}

// WithPoll sets how often Watch looks although the system reported nothing, at least every 10 ms. The default is [DefaultPoll]. While the system
// cannot report changes Watch looks every 2 s or this often, whichever is more.
func WithPoll(every time.Duration) Option {
	return func(o *options) { o.poll = every }
}

// WithBackoff sets the pauses between calls for the same content: the first one after the first failure, then twice as long each time, up to
// the longest. Up to a fifth is taken off at random, so that a thousand pods with the same content do not retry in step. The first is
// at least 1 ms. The defaults are [DefaultMinBackoff] and [DefaultMaxBackoff].
func WithBackoff(first, longest time.Duration) Option {
	return func(o *options) { o.minBackoff, o.maxBackoff = first, longest }
}

// WithLimits sets how much may be read. The default is [DefaultLimits].
func WithLimits(limits Limits) Option {
	return func(o *options) { o.limits = limits.orDefault() }
}

// WithBaseline names the content that the program has already loaded, one snapshot for each directory in their order, as from [Read]. The
// callback is called first when content differs from that, be it that it changed before Watch began. Without a baseline it is called
// with whatever is there.
func WithBaseline(snapshots ...Snapshot) Option {
	return func(o *options) { o.baseline = snapshots }
}

// WithErrorHandler sets a function that is told what goes wrong: a directory is missing or cannot be read (once for each reason), there are no events and
// Watch polls (wraps [ErrPolling]), the callback failed (is a [*CallbackError]). Watch goes on in any case. The function is never called
// concurrently with itself and must return soon. The errors hold no content, unless the callback puts some into its own.
func WithErrorHandler(handler func(error)) Option {
	return func(o *options) { o.report = handler }
}

func newOptions(dirs []string, changes []Option) (options, error) {
	o := options{
		quiet: DefaultQuiet, maxWait: DefaultMaxWait, poll: DefaultPoll, pollAlone: pollAlone,
		minBackoff: DefaultMinBackoff, maxBackoff: DefaultMaxBackoff,
		limits: DefaultLimits, report: func(error) {}, open: openSystem,
	}
	for _, change := range changes {
		change(&o)
	}
	return o, errors.Join(validDirs(dirs), o.validate(dirs))
}

func (o options) validate(dirs []string) error {
	switch {
	case o.quiet < time.Millisecond || o.maxWait < o.quiet:
		return fmt.Errorf("quiet of %s within %s: want at least 1ms, and the second not less than the first", o.quiet, o.maxWait)
	case o.poll < 10*time.Millisecond:
		return fmt.Errorf("polling every %s: want at least 10ms", o.poll)
	case o.minBackoff < time.Millisecond || o.maxBackoff < o.minBackoff:
		return fmt.Errorf("pauses from %s to %s: want at least 1ms, and the second not less than the first", o.minBackoff, o.maxBackoff)
	case o.limits.FileBytes < 0 || o.limits.TotalBytes < 0 || o.limits.Files < 0:
		return errors.New("limits are positive, or zero for the defaults")
	case o.report == nil:
		return errors.New("the error handler is nil")
	case o.baseline != nil && len(o.baseline) != len(dirs):
		return fmt.Errorf("the baseline has %d snapshots for %d directories", len(o.baseline), len(dirs))
	}
	return nil
}

func validDirs(dirs []string) error {
	if len(dirs) == 0 {
		return errors.New("there is no directory to watch")
	}
	for i, dir := range dirs {
		if dir == "" {
			return fmt.Errorf("directory %d of %d has no name", i+1, len(dirs))
		}
		if slices.Contains(dirs[:i], dir) {
			return fmt.Errorf("directory %s is given twice", dir)
		}
	}
	return nil
}
