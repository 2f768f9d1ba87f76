package runner

import (
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/terrace-dev/terrace/runner/runnerpb"
)

const (
	// maxTextBytes bounds one text in an event; longer lines of a tool are cut.
	maxTextBytes = 8 << 10
	// maxLogBytes bounds the events of one operation, its result aside.
	maxLogBytes = 256 << 10
)

// eventLog keeps the last events of one operation. Sequence numbers count from 1
// without gaps; the oldest events go first, but never the current phase, so that
// somebody who comes late learns what the operation is doing, and never the result.
// Those who watch read from it at their own pace and never hold up the operation.
type eventLog struct {
	limit int
	now   func() time.Time

	mu     sync.Mutex
	events []*runnerpb.OperationEvent
	// phase is the current phase once it fell out of events.
	phase   *runnerpb.OperationEvent
	last    int64
	bytes   int
	done    bool
	changed chan struct{}
}

func newEventLog(limit int, now func() time.Time) *eventLog {
	return &eventLog{limit: limit, now: now, changed: make(chan struct{})}
}

// Phase implements Reporter.
func (l *eventLog) Phase(name string) {
	l.append(&runnerpb.OperationEvent{Event: &runnerpb.OperationEvent_Phase{Phase: &runnerpb.Phase{Name: clip(name)}}})
}

// Log implements Reporter.
func (l *eventLog) Log(level, text string) {
	l.append(&runnerpb.OperationEvent{Event: &runnerpb.OperationEvent_Log{
		Log: &runnerpb.LogLine{Level: clip(level), Text: clip(text)},
	}})
}

// Progress implements Reporter.
func (l *eventLog) Progress(address, action string, done bool) {
	l.append(&runnerpb.OperationEvent{Event: &runnerpb.OperationEvent_Progress{
		Progress: &runnerpb.Progress{Address: clip(address), Action: clip(action), Done: done},
	}})
}

// finish appends the result; nothing can be appended after it.
func (l *eventLog) finish(result *runnerpb.Result) {
	l.append(&runnerpb.OperationEvent{Event: &runnerpb.OperationEvent_Result{Result: result}})
}

func (l *eventLog) append(event *runnerpb.OperationEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done {
		return
	}
	l.last++
	event.Sequence = l.last
	event.UnixMillis = l.now().UnixMilli()
	l.events = append(l.events, event)
	if event.GetResult() != nil {
		l.done = true
	} else {
		l.bytes += proto.Size(event)
	}
	for len(l.events) > 1 && (len(l.events) > l.limit || l.bytes > maxLogBytes) {
		l.drop()
	}
	close(l.changed)
	l.changed = make(chan struct{})
}

// drop forgets the oldest event, which is not the result: that one is the last.
func (l *eventLog) drop() {
	oldest := l.events[0]
	if oldest.GetPhase() != nil {
		l.phase = oldest
	}
	l.bytes -= proto.Size(oldest)
	l.events[0] = nil
	l.events = l.events[1:]
}

// after returns the kept events with a greater sequence number, whether the log is
// complete, and a channel that is closed at the next change. Somebody who asks past
// the end of a complete log gets the result again: a watch always ends with it.
func (l *eventLog) after(sequence int64) (events []*runnerpb.OperationEvent, done bool, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.phase != nil && l.phase.GetSequence() > sequence {
		events = append(events, l.phase)
	}
	kept := len(l.events)
	first := l.last - int64(kept) + 1
	switch {
	case sequence < first:
		events = append(events, l.events...)
	case sequence < l.last:
		events = append(events, l.events[sequence-first+1:]...)
	case l.done:
		events = append(events, l.events[kept-1])
	}
	return events, l.done, l.changed
}

// size is what the log holds, in bytes, including the result.
func (l *eventLog) size() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.done {
		return l.bytes
	}
	return l.bytes + proto.Size(l.events[len(l.events)-1])
}

// clip mends what is not UTF-8, which a message cannot carry, and cuts long texts.
func clip(text string) string {
	if len(text) > maxTextBytes {
		cut := maxTextBytes
		for cut > maxTextBytes-utf8.UTFMax && !utf8.RuneStart(text[cut]) {
			cut--
		}
		text = text[:cut] + "…"
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}
