package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

const mebibyte = 1 << 20

// accounts lays files out as a cgroup.
func accounts(t *testing.T, files map[string]string) cgroup {
	t.Helper()
	c := cgroup{root: t.TempDir()}
	for name, text := range files {
		path := filepath.Join(c.root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func v2(limit string, usage, cached int64) map[string]string {
	return map[string]string{
		"memory.max": limit + "\n", "memory.current": fmt.Sprintln(usage),
		"memory.stat": fmt.Sprintf("anon 1\ninactive_file %d\nactive_file 7\n", cached),
	}
}

func v1(limit string, usage, cached int64) map[string]string {
	return map[string]string{
		"memory/memory.limit_in_bytes": limit + "\n", "memory/memory.usage_in_bytes": fmt.Sprintln(usage),
		"memory/memory.stat": fmt.Sprintf("inactive_file 3\ntotal_inactive_file %d\n", cached),
	}
}

func TestProcessesThatMemoryKilledAreCounted(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"cgroup v2":   {map[string]string{"memory.events": "oom 5\noom_kill 3\noom_group_kill 0\n"}, 3},
		"cgroup v1":   {map[string]string{"memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"}, 4},
		"no accounts": {nil, 0},
	} {
		if got := accounts(t, test.files).kills(); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}

func TestMemoryDecidesWhatFits(t *testing.T) {
	t.Parallel()
	const limit = 2048 * mebibyte
	exactly := fmt.Sprint(limit)
	for name, test := range map[string]struct {
		files    map[string]string
		podLimit int64
		asked    int32
		capacity int32
		watched  bool // whether the accounts are this pod's
		room     bool
	}{
		"a limit with much room":                   {files: v2(exactly, 100*mebibyte, 0), podLimit: limit, capacity: 4, watched: true, room: true},
		"a limit with little room":                 {files: v2(exactly, 1600*mebibyte, 0), podLimit: limit, capacity: 4, watched: true},
		"little room, but what fills it is cached": {files: v2(exactly, 2000*mebibyte, 900*mebibyte), podLimit: limit, capacity: 4, watched: true, room: true},
		"cgroup v1 with much room":                 {files: v1(exactly, 100*mebibyte, 0), podLimit: limit, capacity: 4, watched: true, room: true},
		"cgroup v1 with little room":               {files: v1(exactly, 2000*mebibyte, 100*mebibyte), podLimit: limit, capacity: 4, watched: true},
		"cgroup v1 with a cache":                   {files: v1(exactly, 2000*mebibyte, 900*mebibyte), podLimit: limit, capacity: 4, watched: true, room: true},
		"a large limit":                            {files: v2(fmt.Sprint(16*limit), 0, 0), podLimit: 16 * limit, capacity: 64, watched: true, room: true},
		"a limit rounded to pages":                 {files: v2(fmt.Sprint(limit-4096), 0, 0), podLimit: limit, capacity: 4, watched: true, room: true},
		"less than one operation needs":            {files: v2(fmt.Sprint(256*mebibyte), 0, 0), podLimit: 256 * mebibyte, capacity: 1, watched: true},
		"a capacity that was asked for":            {files: v2(exactly, 0, 0), podLimit: limit, asked: 9, capacity: 9, watched: true, room: true},
		"no limit: the node's memory is told":      {files: v2("max", 0, 0), podLimit: 64 * limit, capacity: 4, room: true},
		"no limit, in cgroup v1":                   {files: v1("9223372036854771712", 0, 0), podLimit: 64 * limit, capacity: 4, room: true},
		"nothing is told":                          {files: v2("max", 0, 0), capacity: 4, room: true},
		"no container of its own":                  {files: v2(fmt.Sprint(8*limit), 0, 0), podLimit: limit / 2, capacity: 2, room: true},
		"no accounts":                              {podLimit: limit / 4, capacity: 1, room: true},
		"accounts that are no numbers":             {files: map[string]string{"memory.max": "lots"}, podLimit: limit, capacity: 4, room: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := accounts(t, test.files)
			watched := c.enforced(test.podLimit)
			if watched != test.watched {
				t.Errorf("watched = %v, want %v", watched, test.watched)
			}
			if got := capacity(test.asked, test.podLimit, watched); got != test.capacity {
				t.Errorf("capacity = %d, want %d", got, test.capacity)
			}
			if got := c.room(); got != test.room {
				t.Errorf("room = %v, want %v", got, test.room)
			}
		})
	}
}
