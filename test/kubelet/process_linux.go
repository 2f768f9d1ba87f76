package kubelet

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// isolation is how containers get a hostname of their own.
type isolation struct {
	flags uintptr // of clone; 0 is not at all
	setup string  // the program that sets a hostname
}

// findIsolation finds out, by trying, what this machine lets us do.
var findIsolation = sync.OnceValues(func() (isolation, error) {
	setup, err := exec.LookPath("hostname")
	if err != nil {
		return isolation{}, err
	}
	var errs []error
	for _, flags := range []uintptr{syscall.CLONE_NEWUTS, syscall.CLONE_NEWUSER | syscall.CLONE_NEWUTS} {
		i := isolation{flags: flags, setup: setup}
		cmd := exec.Command(setup)
		i.apply(cmd, "terrace-test")
		cmd.SysProcAttr.Pdeathsig = 0 // this thread may end any time
		out, err := cmd.CombinedOutput()
		if err == nil && string(bytes.TrimSpace(out)) == "terrace-test" {
			return i, nil
		}
		errs = append(errs, fmt.Errorf("%w: %s", err, out))
	}
	return isolation{}, errors.Join(errs...)
})

// works says whether containers have a hostname, and a UTS namespace, of their own.
func (i isolation) works() bool { return i.flags != 0 }

// apply completes a command: a process group of its own, which the kernel kills
// when this process ends, and the hostname.
func (i isolation) apply(cmd *exec.Cmd, hostname string) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if !i.works() {
		return
	}
	cmd.SysProcAttr.Cloneflags = i.flags
	if i.flags&syscall.CLONE_NEWUSER != 0 {
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	cmd.Args = append([]string{"sh", "-c", `"$1" "$0" && shift && exec "$@"`, hostname, i.setup, cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
}

// awaitExit returns when a child has ended. It stays a zombie, and so its id, and
// that of its group, cannot become another's.
func awaitExit(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, syscall.EINTR) {
			return
		}
	}
}

// kinship recognises the processes that a container started, wherever they went:
// by their process group, by their UTS namespace, which nobody leaves by accident,
// or else by their environment and by their working directory, among the pod's files.
type kinship struct {
	pid  int
	mark []byte
	dir  string
	uts  *os.File // open, so that its number is not given to another
	id   os.FileInfo
}

func newKinship(pid int, uid, dir string, i isolation) kinship {
	k := kinship{pid: pid, mark: []byte(Mark + "=" + uid), dir: dir + "/"}
	if !i.works() {
		return k
	}
	if f, err := os.Open(fmt.Sprintf("/proc/%d/ns/uts", pid)); err == nil {
		if k.id, err = f.Stat(); err == nil {
			k.uts = f
		}
	}
	return k
}

func (k kinship) close() {
	if k.uts != nil {
		_ = k.uts.Close()
	}
}

// find returns the relatives that live, without the program itself.
func (k kinship) find() []*os.Process {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var found []*os.Process
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == k.pid || pid == os.Getpid() || !k.contains(pid) {
			continue
		}
		// Once we hold it the id cannot become another's; until then it may have.
		if p, err := os.FindProcess(pid); err == nil && k.contains(pid) {
			found = append(found, p)
		}
	}
	return found
}

func (k kinship) contains(pid int) bool {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return false
	}
	// After the name, in brackets: state, parent, group.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 3 || fields[0][0] == 'Z' || fields[0][0] == 'X' {
		return false
	}
	if string(fields[2]) == strconv.Itoa(k.pid) {
		return true
	}
	if k.uts != nil {
		if id, err := os.Stat(filepath.Join(dir, "ns", "uts")); err == nil {
			return os.SameFile(id, k.id)
		}
	}
	if cwd, err := os.Readlink(filepath.Join(dir, "cwd")); err == nil && strings.HasPrefix(cwd+"/", k.dir) {
		return true
	}
	environ, err := os.ReadFile(filepath.Join(dir, "environ"))
	return err == nil && marked(environ, k.mark)
}

// marked says whether a variable is in an environment as /proc has it.
func marked(environ, variable []byte) bool {
	for one := range bytes.SplitSeq(environ, []byte{0}) {
		if bytes.Equal(one, variable) {
			return true
		}
	}
	return false
}

// sweep kills all relatives and returns when there are none, or when they cannot
// be killed.
func (k kinship) sweep() {
	for range 1000 {
		left := k.find()
		if len(left) == 0 {
			return
		}
		for _, p := range left {
			_ = p.Kill()
			_ = p.Release()
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// claim takes an address that no other process has claimed: the kernel frees the
// name of an abstract socket when its process ends.
func claim(ip string) (release func(), err error) {
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: "@terrace-test-pod-" + ip, Net: "unixgram"})
	if err != nil {
		return nil, err
	}
	return func() { _ = socket.Close() }, nil
}
