package harness

import (
	"fmt"
	"os"
)

// Variables of the environment by which a test holds up the program of CountTool:
// processes of the command that HoldVariable names make a file at.<pid> in the
// directory GateVariable, and wait until it has a file called go. The path lacks its
// first slash: a test kubelet takes paths for those in the pod.
const (
	HoldVariable = "TERRACE_TEST_HOLD"
	GateVariable = "TERRACE_TEST_GATE"
)

// CountTool writes a program that runs the tool and leaves one line per process
// in the file calls: the directory it runs in and its command. The question for
// the version does not count.
func CountTool(path, tool, calls string) error {
	script := fmt.Sprintf(`#!/bin/sh
[ "$1" = version ] || echo "$PWD $1" >>'%s'
if [ "$1" = "$%s" ]; then
	: >"/$%s/at.$$"
	while [ ! -e "/$%s/go" ]; do sleep 0.1; done
fi
exec '%s' "$@"
`, calls, HoldVariable, GateVariable, GateVariable, tool)
	return os.WriteFile(path, []byte(script), 0o700)
}
