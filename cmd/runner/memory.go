package main

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strconv"
)

const (
	// operationBudget is the memory that one operation gets: a tool with its providers.
	operationBudget = 512 << 20
	// defaultCapacity is how many operations run at once when no limit says how many fit.
	defaultCapacity = 4
	// unlimited is the least that cgroup v1 says when there is no limit; it depends on the page size.
	unlimited = 1 << 60
)

// cgroup reads the container's memory accounts, of cgroup v2 or v1.
type cgroup struct {
	root string // /sys/fs/cgroup
}

// limit returns the container's memory limit in bytes, false if there is none or nobody knows.
func (c cgroup) limit() (int64, bool) {
	limit, ok := c.number("memory.max", "memory/memory.limit_in_bytes")
	return limit, ok && limit < unlimited
}

// usage returns what the container uses in bytes, without the file cache that the
// kernel gives up before it kills.
func (c cgroup) usage() (int64, bool) {
	usage, ok := c.number("memory.current", "memory/memory.usage_in_bytes")
	if !ok {
		return 0, false
	}
	if cached := c.stat("memory.stat", "inactive_file"); cached > 0 {
		usage -= cached
	} else {
		usage -= c.stat("memory/memory.stat", "total_inactive_file")
	}
	return max(usage, 0), true
}

// kills counts the processes of the container that the kernel killed because memory
// ran out; 0 if nobody knows.
func (c cgroup) kills() int64 {
	return max(c.stat("memory.events", "oom_kill"), c.stat("memory/memory.oom_control", "oom_kill"))
}

// number reads the first of the files that has one.
func (c cgroup) number(files ...string) (int64, bool) {
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join(c.root, file))
		if err != nil {
			continue
		}
		number, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
		return number, err == nil // v2 says "max" for none
	}
	return 0, false
}

// stat returns an entry of a file with a name and a number in each line, 0 without it.
func (c cgroup) stat(file, key string) int64 {
	text, err := os.ReadFile(filepath.Join(c.root, file))
	if err != nil {
		return 0
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		if name, value, ok := bytes.Cut(lines.Bytes(), []byte(" ")); ok && string(name) == key {
			number, err := strconv.ParseInt(string(value), 10, 64)
			if err != nil {
				return 0
			}
			return number
		}
	}
	return 0
}

// enforced says whether the pod's limit is the container's. If not, the pod has
// none, and what it was told is the node's memory; or this is no container of its
// own, and the accounts are of something else.
func (c cgroup) enforced(podLimit int64) bool {
	limit, ok := c.limit()
	return ok && podLimit > 0 && limit <= podLimit
}

// capacity returns how many operations fit: what was asked for, or one per
// operationBudget of the limit (0: unknown), at least one. Without a limit that
// somebody enforces it is at most defaultCapacity.
func capacity(asked int32, limit int64, enforced bool) int32 {
	switch fit := int32(min(max(limit/operationBudget, 1), 1024)); {
	case asked > 0:
		return asked
	case limit <= 0:
		return defaultCapacity
	case !enforced:
		return min(fit, defaultCapacity)
	default:
		return fit
	}
}

// room says whether what the container has left is enough for one more operation.
// If nobody knows it says yes. Limits may change while the pod runs.
func (c cgroup) room() bool {
	limit, limited := c.limit()
	usage, known := c.usage()
	return !limited || !known || limit-usage >= operationBudget
}
