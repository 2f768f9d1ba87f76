package integration_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/test/harness"
)

func TestBrokenHCLStallsWithTheToolsOwnWords(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, l *lab) {
		l.commit(map[string]string{"main.tf": "resource \"terraform_data\" \"a\" {\n"})
		l.create("", fromSource)
		o := l.await("the object to stall", func(o *infrav1.Terraform) bool { return conditions.IsStalled(o) })
		l.wantMessage(conditions.GetMessage(o, meta.ReadyCondition), "main.tf:1", "Unclosed configuration block")
		if notes := l.awaitEvent(infrav1.InitFailedReason); len(notes) != 1 {
			t.Errorf("events = %q, want one", notes)
		}
		l.commit(map[string]string{"main.tf": greeting})
		l.awaitReady()
	})
}

func TestAMissingSecretIsNamedAndHeals(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.create(greeting, func(o *infrav1.Terraform) {
		o.Spec.VariablesFrom = []infrav1.VariablesFrom{{Kind: infrav1.SecretKind, Name: "later"}}
	})
	_, message := l.awaitReason(infrav1.InputNotFoundReason)
	l.wantMessage(message, `Secret "later" not found`, "spec.variablesFrom[0]")
	l.secret("later", map[string]string{"name": "moon"})
	l.awaitReady()
}

func TestAnUnopenedNamespaceSaysHowToOpenIt(t *testing.T) {
	t.Parallel()
	l := unopened(t)
	l.create(greeting, nil)
	_, message := l.awaitReason(infrav1.ServiceAccountNotFoundReason)
	l.wantMessage(message, "terrace-runner", "kubectl apply -n "+l.namespace+" -k config/runner-namespace")
	if _, err := harness.OpenNamespace(l.ctx, suite.client, l.namespace); err != nil {
		t.Fatal(err)
	}
	l.awaitReady()
}

func TestBadArtifactsAreRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		artifact func(*testing.T) *meta.Artifact
		want     string
		stalled  bool
	}{
		"a corrupt archive": {artifact: func(t *testing.T) *meta.Artifact {
			a := storeFiles(t, tarEntry{name: "main.tf", text: greeting})
			a.Digest = "sha256:" + strings.Repeat("0", 64)
			return a
		}, want: "digest"},
		"a path that leaves the archive": {artifact: func(t *testing.T) *meta.Artifact {
			return storeFiles(t, tarEntry{name: "main.tf", text: greeting}, tarEntry{name: "../../evil", text: "x"})
		}, want: "invalid name", stalled: true},
		"a symbolic link": {artifact: func(t *testing.T) *meta.Artifact {
			return storeFiles(t, tarEntry{name: "main.tf", text: greeting}, tarEntry{name: "link", link: "/etc/passwd"})
		}, want: "symlink", stalled: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			l.publish(test.artifact(t))
			l.create("", fromSource)
			o, message := l.awaitReason(meta.ArtifactFailedReason)
			l.wantMessage(message, test.want)
			if conditions.IsStalled(o) != test.stalled {
				t.Errorf("stalled = %v, want %v: %s", conditions.IsStalled(o), test.stalled, message)
			}
			l.wantProcesses()
			l.commit(map[string]string{"main.tf": greeting})
			l.awaitReady()
		})
	}
}

type tarEntry struct{ name, text, link string }

func storeFiles(t *testing.T, entries ...tarEntry) *meta.Artifact {
	t.Helper()
	var b bytes.Buffer
	zw := gzip.NewWriter(&b)
	tw := tar.NewWriter(zw)
	for _, e := range entries {
		header := &tar.Header{Name: e.name, Mode: 0o644, Size: int64(len(e.text))}
		if e.link != "" {
			header.Typeflag, header.Linkname = tar.TypeSymlink, e.link
		}
		if err := tw.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write([]byte(e.text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	artifact, err := suite.sources.StoreArchive(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return artifact
}

func TestALargeArtifactIsStreamed(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	// The race detector takes several times the memory.
	program, err := build("manager")
	if err != nil {
		t.Fatal(err)
	}
	m := l.start(managerOptions{program: program, mode: harness.ModePod})
	noise := make([]byte, 60<<20)
	if _, err := rand.Read(noise); err != nil {
		t.Fatal(err)
	}
	artifact := storeFiles(t, tarEntry{name: "main.tf", text: greeting}, tarEntry{name: "noise", text: string(noise)})
	if *artifact.Size < 50<<20 {
		t.Fatalf("the artifact has %d bytes only", *artifact.Size)
	}
	l.commit(map[string]string{"main.tf": greeting}) // a small one first, for comparison
	l.create("", fromSource)
	l.awaitReady()
	before := peakMemory(t, m.PID())
	l.publish(artifact)
	l.await("the large artifact", func(o *infrav1.Terraform) bool {
		return harness.IsReady(o) && o.Status.Source.Revision == artifact.Revision
	})
	if grown := peakMemory(t, m.PID()) - before; grown > 32<<10 {
		t.Errorf("the manager grew by %d KiB for an artifact of 60 MiB", grown)
	}
}

// peakMemory is the largest resident size that a process ever had, in KiB.
func peakMemory(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(status), "VmHWM:")
	if !found {
		t.Fatal("no VmHWM in the process's status")
	}
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kib
}

// slow creates a resource at once and another one that takes long, and says when it is at it.
func slow(flag string) string {
	return `
resource "terraform_data" "quick" {}
resource "terraform_data" "slow" {
  depends_on = [terraform_data.quick]
  provisioner "local-exec" {
    command = "[ -e '` + flag + `' ] && exit 0; touch '` + flag + `'; sleep 300"
  }
}
`
}

func (l *lab) awaitFile(path string) {
	l.t.Helper()
	l.await(path, func(*infrav1.Terraform) bool {
		_, err := os.Stat(path)
		return err == nil
	})
}

func TestTheEndOfAManagerWithItsRunnerDoesNotCostTheState(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		end  func(*testing.T, *harness.Manager)
		lock bool // stands after the end
	}{
		"terminated": {end: func(t *testing.T, m *harness.Manager) {
			if err := m.Stop(); err != nil {
				t.Error(err)
			}
		}},
		"killed": {end: func(_ *testing.T, m *harness.Manager) { m.Kill() }, lock: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			m := l.ownEmbedded()
			flag := t.TempDir() + "/flag"
			l.create(slow(flag), nil)
			l.awaitFile(flag)
			test.end(t, m)
			if held := l.lockHolder() != ""; held != test.lock {
				t.Errorf("the state lock stands: %v, want %v", held, test.lock)
			}
			l.processes()
			l.ownEmbedded()
			o := l.awaitReady()
			if o.Status.ResourceCount == nil || *o.Status.ResourceCount != 2 {
				t.Errorf("resources = %v, want both", o.Status.ResourceCount)
			}
			if l.lockHolder() != "" {
				t.Error("the state lock still stands")
			}
			var applies, unlocks int
			for _, process := range l.processes() {
				applies += strings.Count(process, "apply")
				unlocks += strings.Count(process, "force-unlock")
			}
			if applies != 1 || (unlocks == 1) != test.lock {
				t.Errorf("%d applies and %d releases of the lock after the restart", applies, unlocks)
			}
		})
	}
}

func (l *lab) lockHolder() string {
	l.t.Helper()
	lease := &coordinationv1.Lease{}
	if err := suite.client.Get(l.ctx, client.ObjectKey{Namespace: l.namespace, Name: "lock-tfstate-default-tf"}, lease); err != nil {
		l.t.Fatal(err)
	}
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

func TestATimeoutInterruptsTheToolGracefully(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, l *lab) {
		flag := t.TempDir() + "/flag"
		l.create(slow(flag), func(o *infrav1.Terraform) { o.Spec.Timeout = &metav1.Duration{Duration: 10 * time.Second} })
		l.awaitFile(flag)
		o := l.awaitReady() // the second attempt is not slow any more
		if *o.Status.ResourceCount != 2 || l.lockHolder() != "" {
			t.Errorf("status = %+v", o.Status)
		}
		found := false
		for _, entry := range o.Status.History {
			found = found || entry.Result == infrav1.OperationCancelled && strings.Contains(entry.Message, "timeout of 10s")
		}
		if !found {
			t.Errorf("history = %+v, want the interruption and its reason", o.Status.History)
		}
	})
}

func TestSecretsStayOutOfLogsEventsAndStatus(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	m := l.own()
	const sentinel = "s3ntinel-value-7f21"
	l.secret("vars", map[string]string{"name": sentinel})
	l.create(`
variable "name" { sensitive = true }
resource "terraform_data" "a" { input = var.name }
resource "terraform_data" "fails" {
  depends_on = [terraform_data.a]
  provisioner "local-exec" {
    command = "echo 'cannot log in as ${nonsensitive(var.name)}' >&2; ps -ef; exit 1"
  }
}
output "token" {
  value     = var.name
  sensitive = true
}`, func(o *infrav1.Terraform) {
		o.Spec.VariablesFrom = []infrav1.VariablesFrom{{Kind: infrav1.SecretKind, Name: "vars"}}
	})
	o, message := l.awaitReason(infrav1.ApplyFailedReason)
	l.wantMessage(message, "local-exec")
	status := fmt.Sprintf("%+v", o.Status)
	log, pod := read(t, m.Log), read(t, suite.kubelet.PodLog(l.namespace, l.pods()[0].Name))
	for place, text := range map[string]string{"status": status, "log": log, "pod's log": pod, "events": strings.Join(l.awaitEvent(infrav1.ApplyFailedReason), "\n")} {
		if strings.Contains(text, sentinel) {
			t.Errorf("the value of a Secret is in the %s", place)
		}
		if text == "" {
			t.Errorf("there is no %s to look at", place)
		}
	}
	if cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", m.PID())); err != nil || bytes.Contains(cmdline, []byte(sentinel)) {
		t.Errorf("command line: %v", err)
	}
}
