package reloader_test

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/terrace-dev/terrace/reloader"
)

// The limit is that of a user namespace of its own, which takes no privileges on most systems.
func TestWatchPollsWhileTheLimitOfInotifyIsReached(t *testing.T) {
	t.Parallel()
	if os.Getenv(limitedEnv) == "" {
		output, err := limited(t).CombinedOutput()
		if err != nil && len(output) == 0 {
			t.Skipf("needs user namespaces: %s", err)
		}
		if err != nil {
			t.Fatalf("%s\n%s", err, output)
		}
		if strings.Contains(string(output), "--- SKIP") {
			t.Skipf("needs user namespaces:\n%s", output)
		}
		return
	}
	g := NewWithT(t)
	if err := os.WriteFile(inotifyLimit, []byte("0"), 0); err != nil {
		t.Skip(err)
	}
	volume := newVolume(t, t.TempDir(), map[string]string{"a": "1"})
	app := watching(t, volume.Root, reloader.WithPoll(10*time.Millisecond))
	app.expect("a=1")
	g.Expect(<-app.errors).To(MatchError(reloader.ErrPolling))
	write(t, volume.Root, map[string]string{"a": "2"})
	app.expect("a=2")
	g.Expect(inotifyWatches(t)).To(BeZero())

	g.Expect(os.WriteFile(inotifyLimit, []byte("10"), 0)).To(Succeed())
	g.Eventually(func() int { return inotifyWatches(t) }, deadline, "1ms").Should(BeNumerically(">", 0), "it is tried again")
	write(t, volume.Root, map[string]string{"a": "3"})
	app.expect("a=3")
}

const (
	limitedEnv   = "TERRACE_TEST_LIMITED"
	inotifyLimit = "/proc/sys/user/max_inotify_instances"
)

// limited is this test in a user namespace of its own.
func limited(t *testing.T) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), self, "-test.run=^"+t.Name()+"$", "-test.v")
	command.Env = append(os.Environ(), limitedEnv+"=1")
	command.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	return command
}
