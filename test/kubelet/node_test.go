package kubelet

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestStopLeavesNothing(t *testing.T) {
	l := openLab(t) // not in parallel, because of the goroutines
	current := goleak.IgnoreCurrent()
	l.own()
	pod := l.run("trap '' TERM; "+escape+"echo up; while :; do sleep 0.05; done", withGrace(3600))
	l.awaitLog("up\n")
	child := l.awaitChild()
	l.kubelet.Stop()
	l.kubelet.Stop() // once more does no harm
	l.wantNothingLeft(pod, child)
	if _, err := os.Stat(l.kubelet.work); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the pods' files outlive Stop: %v", err)
	}
	if !strings.Contains(l.kubelet.LastLog(l.namespace, "pod"), "up") {
		t.Error("the pod's log does not outlive Stop")
	}
	goleak.VerifyNone(t, current)
}

func TestAKubeletThatStartsLaterTakesOver(t *testing.T) {
	l := newLab(t)
	l.own()
	l.run(forever)
	before := l.awaitRunning()
	l.kubelet.Stop()
	l.own()
	after := l.await("a restart", func(p *corev1.Pod) bool {
		return p.Status.ContainerStatuses[0].RestartCount == 1 && isTrue(p, corev1.PodReady)
	})
	if before.UID != after.UID {
		t.Error("the pod is another")
	}
}

// breaker cuts watches and has the API server say that they cannot be resumed.
type breaker struct {
	next http.RoundTripper
	mu   sync.Mutex
	cut  func()
	down chan struct{} // watches and lists wait for it to be closed
}

func (b *breaker) RoundTrip(r *http.Request) (*http.Response, error) {
	watch := r.URL.Query().Get("watch") == "true" || r.URL.Query().Get("watch") == "1"
	if !watch && (r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/pods")) {
		return b.next.RoundTrip(r)
	}
	b.mu.Lock()
	down := b.down
	b.mu.Unlock()
	if down != nil {
		select {
		case <-down:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
		if watch && r.URL.Query().Get("sendInitialEvents") == "" {
			return &http.Response{StatusCode: http.StatusGone, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
		}
	}
	response, err := b.next.RoundTrip(r)
	if err == nil && watch {
		body := response.Body
		b.mu.Lock()
		b.cut = func() { _ = body.Close() }
		b.mu.Unlock()
		response.Body = body
	}
	return response, err
}

// blind cuts the watch; nothing is seen until see is called, and then by a list only.
func (b *breaker) blind() (see func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	down := make(chan struct{})
	b.down = down
	b.cut()
	return func() { close(down) }
}

func TestWhatHappenedBetweenTwoListsIsMadeUpFor(t *testing.T) {
	l := newLab(t)
	b := &breaker{}
	l.own(func(o *Options) {
		config := *o.Config
		config.WrapTransport = func(next http.RoundTripper) http.RoundTripper { b.next = next; return b }
		o.Config = &config
	})
	force := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
	first := l.run(escape + forever)
	l.awaitLog("up\n")
	child := l.awaitChild()

	see := b.blind()
	l.delete(force)
	second := l.run("echo second" + forever)
	see()
	l.awaitLog("second\n")
	if pod := l.awaitRunning(); pod.UID != second.UID {
		t.Errorf("pod %s runs, want %s", pod.UID, second.UID)
	}
	eventually(t, "the first pod's end", func() bool { return len(processesOf(Mark+"="+string(first.UID))) == 0 })
	l.wantNothingLeft(first, child)
	if got := l.kubelet.Started(l.namespace, ""); got != 2 {
		t.Errorf("%d containers were started, want 2", got)
	}

	see = b.blind()
	l.delete(force)
	see()
	eventually(t, "the second pod's end", func() bool { return len(processesOf(Mark+"="+string(second.UID))) == 0 })
}

// helperVariable turns the test binary into a kubelet's process that starts one
// container, prints its process id, and waits to be killed.
const helperVariable = "TERRACE_TEST_KUBELET_HELPER"

func helper() {
	isolation, _ := findIsolation()
	k := &Kubelet{isolation: isolation, threads: newSpawner()}
	p, err := k.startProcess(exec.Command("sleep", "1000"), &pod{name: "pod", uid: "helper", dir: "/nowhere"}, func() {})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(p.pid())
	select {}
}

func TestContainersEndWithTheKubeletsProcess(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helperVariable+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	if !lives(pid) {
		t.Errorf("process %d ended too early", pid)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	eventually(t, "the container to end with it", func() bool { return !lives(pid) })
}

func TestStartSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	if _, err := startKubelet("wrong", func(o *Options) { o.LabelSelector = "===" }); err == nil {
		t.Error("a selector that is none is accepted")
	}
}

func TestExpand(t *testing.T) {
	t.Parallel()
	env := map[string]string{"IP": "::1", "EMPTY": ""}
	lookup := func(name string) (string, bool) { value, found := env[name]; return value, found }
	for text, want := range map[string]string{
		"--listen=$(IP)": "--listen=::1", "$(EMPTY)": "", "$(UNKNOWN)": "$(UNKNOWN)", "$$(IP)": "$(IP)", "$$$(IP)": "$::1",
		"$IP": "$IP", "$(IP": "$(IP", "$": "$", "a$(IP)$(IP)": "a::1::1", "": "", "$(UNKNOWN$(IP))": "$(UNKNOWN$(IP))",
	} {
		if got := expand(text, lookup); got != want {
			t.Errorf("expand(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestTranslate(t *testing.T) {
	t.Parallel()
	paths := pathMap{{"/var/lib/terrace", "/tmp/1/data"}, {"/etc/tls", "/tmp/1/tls"}, {"/tmp", "/tmp/1/tmp"}}
	for text, want := range map[string]string{
		"--tls-dir=/etc/tls":       "--tls-dir=/tmp/1/tls",
		"/var/lib/terrace/home":    "/tmp/1/data/home",
		"/tmp":                     "/tmp/1/tmp",
		"/tmp:/etc/tls,/tmp/x":     "/tmp/1/tmp:/tmp/1/tls,/tmp/1/tmp/x",
		"/var/tmp /tmpfile /tmp.d": "/var/tmp /tmpfile /tmp.d",
		"/etc/tls-old":             "/etc/tls-old",
		"file:///tmp":              "file:///tmp",
		"plain":                    "plain",
	} {
		if got := paths.translate(text); got != want {
			t.Errorf("translate(%q) = %q, want %q", text, got, want)
		}
	}
}
