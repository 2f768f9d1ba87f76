package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"os"
	"time"

	"github.com/terrace-dev/terrace/test/bench/measure"
	"github.com/terrace-dev/terrace/test/controlplane"
)

// counts are what was done.
type counts struct{ processes, manager, runner int }

func (c *counts) add(o counts) {
	c.processes, c.manager, c.runner = c.processes+o.processes, c.manager+o.manager, c.runner+o.runner
}

// count returns what was done since the last call: processes of the tool, the
// manager's writes outside its own namespace, and those of runners and their tools.
func (l *lab) count() (c counts, err error) {
	text, err := os.ReadFile(l.callsOf(l.image))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return c, err
	}
	all := bytes.Count(text, []byte("\n"))
	c.processes, l.calls[l.image] = all-l.calls[l.image], all
	c.manager, c.runner, err = l.audit.Writes()
	return c, err
}

// counted is count after the manager has written its last event, which it does in the
// background: when nothing more came for two seconds.
func (l *lab) counted(ctx context.Context) (sum counts, err error) {
	for last := time.Now(); time.Since(last) < 2*time.Second; {
		select {
		case <-ctx.Done():
			return sum, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
		c, err := l.count()
		if err != nil {
			return sum, err
		}
		if c != (counts{}) {
			last = time.Now()
		}
		sum.add(c)
	}
	return sum, nil
}

// entry is a line of the manager's log.
type entry struct {
	Time                          time.Time `json:"ts"`
	Msg, Name, Action, Cause, Pod string
}

// log returns the lines of the manager's log so far.
func (l *lab) log() (iter.Seq[entry], error) {
	text, err := os.ReadFile(l.Manager.Log)
	return func(yield func(entry) bool) {
		for line := range bytes.Lines(text) {
			var e entry
			if json.Unmarshal(line, &e) == nil && !yield(e) {
				return
			}
		}
	}, err
}

// cycles are the times from the decision to plan to the decision that nothing is
// to be done, of requested cycles, as the manager's log tells them: what a cycle
// takes without the request and the answer, as at the end of an interval.
func (l *lab) cycles() ([]time.Duration, error) {
	entries, err := l.log()
	if err != nil {
		return nil, err
	}
	var times []time.Duration
	began := map[string]time.Time{}
	for e := range entries {
		if e.Msg != "decided" {
			continue
		}
		if at, found := began[e.Name]; found {
			times = append(times, e.Time.Sub(at))
			delete(began, e.Name)
		}
		if e.Action == "Plan" && e.Cause == "Requested" {
			began[e.Name] = e.Time
		}
	}
	if len(times) == 0 {
		return nil, errors.New("the manager's log tells of no requested cycle")
	}
	return times, nil
}

// starts are the times from the creation of a runner's pod, as the API server
// recorded it, to the first answer of the runner, as the manager's log tells it.
func (l *lab) starts() ([]time.Duration, error) {
	events, err := controlplane.ReadAuditLog(l.audit.Path)
	if err != nil {
		return nil, err
	}
	created := map[string]time.Time{}
	for _, e := range events {
		if e.Verb == "create" && e.ObjectRef != nil && e.ObjectRef.Resource == "pods" && e.User.Username == measure.ManagerUser {
			created[e.ObjectRef.Name] = e.Received
		}
	}
	entries, err := l.log()
	if err != nil {
		return nil, err
	}
	var times []time.Duration
	for e := range entries {
		if at, found := created[e.Pod]; found && e.Msg == "a runner answers for the first time" {
			times = append(times, e.Time.Sub(at))
		}
	}
	if len(times) == 0 {
		return nil, errors.New("the manager's log tells of no runner that answers")
	}
	return times, nil
}
