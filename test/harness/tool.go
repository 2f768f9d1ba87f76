package harness

import (
	"fmt"
	"os"
)

// CountTool writes a program that runs the tool and leaves one line per process
// in the file calls: the directory it runs in and its command. The question for
// the version does not count.
func CountTool(path, tool, calls string) error {
	script := fmt.Sprintf("#!/bin/sh\n[ \"$1\" = version ] || echo \"$PWD $1\" >>'%s'\nexec '%s' \"$@\"\n", calls, tool)
	return os.WriteFile(path, []byte(script), 0o700)
}
