package measure

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Memory is what a process has in main memory, in MiB: all of it, and without what
// it shares with its file.
type Memory struct{ Resident, Anonymous, Peak float64 }

// MemoryOf returns that of a process.
func MemoryOf(pid int) (m Memory, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return m, err
	}
	for name, value := range map[string]*float64{"VmRSS:": &m.Resident, "RssAnon:": &m.Anonymous, "VmHWM:": &m.Peak} {
		_, rest, found := strings.Cut(string(text), name)
		if !found {
			return m, fmt.Errorf("process %d has no %s", pid, name)
		}
		kib, err := strconv.Atoi(strings.Fields(rest)[0])
		if err != nil {
			return m, err
		}
		*value = float64(kib) / 1024
	}
	return m, nil
}

// Settled is the memory of a process once it has changed by no more than half a MiB
// for ten seconds, or after a minute.
func Settled(ctx context.Context, pid int) (m Memory, err error) {
	var since, began = time.Now(), time.Now()
	var level float64
	for time.Since(since) < 10*time.Second && time.Since(began) < time.Minute {
		if m, err = MemoryOf(pid); err != nil {
			return m, err
		}
		if m.Resident > level+0.5 || m.Resident < level-0.5 {
			since, level = time.Now(), m.Resident
		}
		select {
		case <-ctx.Done():
			return m, ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
	return m, nil
}

// Note says what else is known of it.
func (m Memory) Note() string {
	return fmt.Sprintf("%.3g anonymous; %.3g at its peak", m.Anonymous, m.Peak)
}
