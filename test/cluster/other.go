//go:build !linux

// Command cluster says that it takes Linux.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "cluster: a node is made of namespaces and control groups, which takes Linux (a virtual machine will do)")
	os.Exit(1)
}
