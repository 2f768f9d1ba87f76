//go:build linux

package main

import (
	"fmt"
	"io"
	"time"
)

// progress tells what happens, with the seconds since the beginning.
type progress struct {
	out   io.Writer
	begin time.Time
}

func newProgress(out io.Writer) *progress { return &progress{out: out, begin: time.Now()} }

func (p *progress) say(format string, args ...any) {
	fmt.Fprintf(p.out, "%6.1f s  %s\n", time.Since(p.begin).Seconds(), fmt.Sprintf(format, args...))
}
