//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/terrace-dev/terrace/test/bench/measure"
	"github.com/terrace-dev/terrace/test/controlplane"
	"github.com/terrace-dev/terrace/test/harness"
)

// answers are the times from the creation of a runner's pod, as the API server
// recorded it, to the first answer of the runner, as the manager's log tells it.
func (l *lab) answers(ctx context.Context, events []controlplane.AuditEvent) ([]time.Duration, error) {
	created := map[string]time.Time{}
	for _, e := range events {
		if e.Verb == "create" && e.ObjectRef != nil && e.ObjectRef.Resource == "pods" && e.User.Username == measure.ManagerUser {
			created[e.ObjectRef.Name] = e.Received
		}
	}
	log, err := l.command(ctx, "logs", "-n", harness.ManagerNamespace, "deployment/terrace-manager")
	if err != nil {
		return nil, err
	}
	var times []time.Duration
	for line := range strings.Lines(log) {
		var entry struct {
			Time     time.Time `json:"ts"`
			Msg, Pod string
		}
		if json.Unmarshal([]byte(line), &entry) != nil || entry.Msg != "a runner answers for the first time" {
			continue
		}
		if at, found := created[entry.Pod]; found {
			times = append(times, entry.Time.Sub(at))
		}
	}
	if len(times) == 0 {
		return nil, errors.New("the manager's log tells of no runner that answers")
	}
	return times, nil
}

// inside are the times between the writes that an unchanged cycle begins and ends
// with: from the moment that the API server has taken the request to the moment that
// the manager's answer is there.
func (l *lab) inside(events []controlplane.AuditEvent) ([]time.Duration, error) {
	var times []time.Duration
	asked := map[string]time.Time{} // by namespace: each has one object that is asked
	for _, e := range events {
		if e.ObjectRef == nil || e.ObjectRef.Resource != "terraforms" || e.Verb != "patch" || !strings.HasPrefix(e.ObjectRef.Namespace, l.id) {
			continue
		}
		namespace := e.ObjectRef.Namespace
		at, waits := asked[namespace]
		switch {
		case e.User.Username != measure.ManagerUser:
			asked[namespace] = e.Staged
		case waits && e.ObjectRef.Subresource == "status":
			times = append(times, e.Received.Sub(at))
			delete(asked, namespace)
		}
	}
	if len(times) == 0 {
		return nil, errors.New("the audit log tells of no requested cycle")
	}
	return times, nil
}
