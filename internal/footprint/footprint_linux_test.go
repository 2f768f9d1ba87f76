package footprint

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
)

const smaps = `00400000-01b97000 r-xp 00000000 fe:00 9995261                            /bin/manager
Size:              24156 kB
Rss:               19576 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
01b97000-035e8000 r--p 01797000 fe:00 9995261                            /bin/manager
Anonymous:             0 kB
035e8000-035e9000 r--p 01797000 fe:00 9995261                            /bin/manager
Anonymous:             4 kB
035e9000-03740000 rw-p 031e8000 fe:00 9995261                            /bin/manager
Anonymous:             0 kB
2db5cf800000-2db5d0800000 rw-p 00000000 00:00 0
Anonymous:             0 kB
7f8215b50000-7f8215f00000 r-xp 00000000 fe:00 17                         /lib/libc.so
Anonymous:             0 kB
`

func TestOnlyWhatNobodyWroteOfTheProgramIsGivenBack(t *testing.T) {
	t.Parallel()
	want := []mapping{{0x400000, 0x1b97000}, {0x1b97000, 0x35e8000}}
	if got := clean(strings.NewReader(smaps), "/bin/manager"); !reflect.DeepEqual(got, want) {
		t.Errorf("clean = %x, want %x", got, want)
	}
}

func TestAProgramGoesOnWithFewerPages(t *testing.T) {
	t.Parallel()
	before := mapped(t)
	Shrink()
	after := mapped(t)
	if after >= before {
		t.Errorf("%d KiB of files are mapped, %d before", after, before)
	}
}

// mapped is how much of files is in this process's memory, in KiB.
func mapped(t *testing.T) (size int) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "RssFile:")
	if _, err := fmt.Sscanf(rest, "%d kB", &size); err != nil {
		t.Fatal(err)
	}
	return size
}
