package footprint

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// unmapProgram gives back the pages of the program's file. Errors leave things as they were.
func unmapProgram() {
	program, err := os.Executable()
	if err != nil {
		return
	}
	maps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return
	}
	defer maps.Close()
	for _, m := range clean(maps, program) {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, m.begin, m.end-m.begin, unix.MADV_DONTNEED)
	}
}

type mapping struct{ begin, end uintptr }

// clean finds, in what the kernel says of a process's memory (proc_pid_smaps(5)), where
// the file is mapped so that its pages can be had again: nothing writes there, and
// nothing did, as a linker does to what it makes read-only later.
func clean(smaps io.Reader, file string) (found []mapping) {
	var m mapping
	ours := false
	for lines := bufio.NewScanner(smaps); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		var begin, end uintptr
		if n, _ := fmt.Sscanf(lines.Text(), "%x-%x ", &begin, &end); n == 2 && len(fields) >= 5 {
			m = mapping{begin, end}
			ours = len(fields) == 6 && fields[5] == file && !strings.Contains(fields[1], "w")
		} else if ours && len(fields) == 3 && fields[0] == "Anonymous:" && fields[1] == "0" {
			found = append(found, m)
		}
	}
	return found
}
