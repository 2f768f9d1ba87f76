// Package footprint keeps the resident memory of our programs small.
package footprint

import (
	"os"
	"runtime/debug"
)

// collectAt is the garbage that a program may have, in percent of what it uses: none
// of ours is in a hurry, and there may be many runners.
const collectAt = 50

// CollectEarly has garbage collected early, unless the environment variable GOGC says when.
func CollectEarly() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(collectAt)
	}
}

// Shrink gives back what a program took to start: its garbage, and on Linux the pages
// of its own file that it has mapped, of which starting touches most and what comes
// later few. The kernel keeps them in its cache and maps those again that are needed,
// so it may be called at any time; it takes some milliseconds.
func Shrink() {
	debug.FreeOSMemory()
	unmapProgram()
}
