package integration_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/test/harness"
)

const (
	stateSecret  = "tfstate-default-tf"
	recordSecret = "terrace-record-tf"
)

// remove deletes something in the namespace.
func (l *lab) remove(object client.Object, name string) {
	l.t.Helper()
	object.SetNamespace(l.namespace)
	object.SetName(name)
	if err := suite.client.Delete(l.ctx, object); err != nil {
		l.t.Fatal(err)
	}
}

// kept says which of the Secrets that a destruction needs have the finalizer.
func (l *lab) kept() (names []string) {
	l.t.Helper()
	list := &corev1.SecretList{}
	if err := suite.client.List(l.ctx, list, client.InNamespace(l.namespace)); err != nil {
		l.t.Fatal(err)
	}
	for _, secret := range list.Items {
		if slices.Contains(secret.Finalizers, infrav1.StateFinalizer) {
			names = append(names, secret.Name)
		}
	}
	return names
}

func (l *lab) wantKept(want ...string) {
	l.t.Helper()
	if got := l.kept(); !slices.Equal(got, want) {
		l.t.Errorf("Secrets with the finalizer: %q, want %q", got, want)
	}
}

// createFile makes an object whose resource is a file, from a source and a
// variable in a Secret, and waits until it is there.
func (l *lab) createFile(policy infrav1.DeletionPolicy) (file string) {
	l.t.Helper()
	file = filepath.Join(l.t.TempDir(), "f")
	l.secret("vars", map[string]string{"content": "secret content"})
	l.commit(map[string]string{"main.tf": strings.Replace(driftingFile(file), `"as declared"`, "var.content", 1) + "variable \"content\" {}\n"})
	l.create("", func(o *infrav1.Terraform) {
		fromSource(o)
		o.Spec.DeletionPolicy = policy
		o.Spec.VariablesFrom = []infrav1.VariablesFrom{{Kind: infrav1.SecretKind, Name: "vars"}}
	})
	l.awaitReady()
	if got := read(l.t, file); got != "secret content" {
		l.t.Fatalf("the file reads %q", got)
	}
	return file
}

func (l *lab) wantFile(file string, there bool) {
	l.t.Helper()
	if _, err := os.Stat(file); (err == nil) != there {
		l.t.Errorf("the file after the deletion: %v", err)
	}
}

func TestDeletionDestroysInAnyOrder(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		before func(*lab)
		policy infrav1.DeletionPolicy
		stays  bool
	}{
		"an ordinary object":  {policy: infrav1.DeletionDestroy},
		"an orphaning object": {policy: infrav1.DeletionOrphan, stays: true},
		"an object that orphans after all": {policy: infrav1.DeletionDestroy, stays: true, before: func(l *lab) {
			l.wantKept(recordSecret, stateSecret)
			l.change(func(o *infrav1.Terraform) { o.Spec.DeletionPolicy = infrav1.DeletionOrphan })
		}},
		"a suspended object": {policy: infrav1.DeletionDestroy, before: func(l *lab) { l.change(func(o *infrav1.Terraform) { o.Spec.Suspend = true }) }},
		"an object whose source is gone": {policy: infrav1.DeletionDestroy, before: func(l *lab) {
			l.remove(&sourcev1.ExternalArtifact{}, "repo")
		}},
		"an object whose variables are gone": {policy: infrav1.DeletionDestroy, before: func(l *lab) {
			l.remove(&corev1.Secret{}, "vars")
		}},
		"an object whose source and variables are gone with its runner": {policy: infrav1.DeletionDestroy, before: func(l *lab) {
			l.remove(&sourcev1.ExternalArtifact{}, "repo")
			l.remove(&corev1.Secret{}, "vars")
			pod := l.pods()[0].Name
			l.deletePod(pod)
			l.awaitPodGone(pod)
		}},
		"an object whose state and record are deleted first": {policy: infrav1.DeletionDestroy, before: func(l *lab) {
			l.remove(&corev1.Secret{}, stateSecret)
			l.remove(&corev1.Secret{}, recordSecret)
			l.wantKept(recordSecret, stateSecret)
		}},
		"an object whose latest commit is broken": {policy: infrav1.DeletionDestroy, before: func(l *lab) {
			l.commit(map[string]string{"main.tf": "resource {"})
			l.await("the failure", func(o *infrav1.Terraform) bool { return conditions.IsStalled(o) })
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			file := l.createFile(test.policy)
			if test.before != nil {
				test.before(l)
			}
			l.delete()
			l.awaitGone()
			l.wantFile(file, test.stays)
			l.wantKept()
			for _, name := range []string{recordSecret, stateSecret} {
				if there := l.has(name); there != (test.stays && name == stateSecret) {
					t.Errorf("Secret %s after the deletion: %v", name, there)
				}
			}
		})
	}
}

// has says whether a Secret is there. The garbage collector of records is not in this
// control plane, so that what is owned by the object counts as gone.
func (l *lab) has(name string) bool {
	l.t.Helper()
	secret := &corev1.Secret{}
	err := suite.client.Get(l.ctx, client.ObjectKey{Namespace: l.namespace, Name: name}, secret)
	if client.IgnoreNotFound(err) != nil {
		l.t.Fatal(err)
	}
	return err == nil && len(secret.OwnerReferences) == 0
}

func TestDestructionCanNeedAnApproval(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, l *lab) {
		file := filepath.Join(t.TempDir(), "f")
		l.create(driftingFile(file), func(o *infrav1.Terraform) {
			o.Spec.DeletionPolicy, o.Spec.Approval.Destroy = infrav1.DeletionDestroy, infrav1.DestroyApprovalRequired
		})
		l.awaitReady()
		l.delete()
		o, message := l.awaitReason(infrav1.ApprovalRequiredReason)
		l.wantMessage(message, o.Status.Plan.ID)
		if _, err := os.Stat(file); err != nil {
			t.Fatal("something was destroyed before the approval")
		}
		l.annotate(infrav1.ApproveAnnotation, o.Status.Plan.ID)
		l.awaitGone()
		l.wantFile(file, false)
	})
}

// TestABlockedDeletionSaysTheWayOut deletes what the runner needs before the object.
func TestABlockedDeletionSaysTheWayOut(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		block, mend func(*lab)
		want        []string
		stays       bool
	}{
		"the ServiceAccount, and it comes back": {
			block: removeAccount, mend: reopen, want: []string{"terrace-runner", "does not exist", "kubectl apply -n"},
		},
		"the ServiceAccount, and the resources stay": {
			block: removeAccount, mend: orphanAfterAll, want: []string{"does not exist"}, stays: true,
		},
		"the RoleBinding, and it comes back": {
			block: func(l *lab) { l.remove(l.binding(), "terrace-runner") }, mend: reopen, want: []string{"may not"},
		},
		"the RoleBinding, and the resources stay": {
			block: func(l *lab) { l.remove(l.binding(), "terrace-runner") }, mend: orphanAfterAll, want: []string{"may not"}, stays: true,
		},
		"its template is invalid, and is mended": {
			block: func(l *lab) {
				l.change(func(o *infrav1.Terraform) { o.Spec.Runner.Template = podSpec(`{"restartPolicy": "Always"}`) })
			},
			mend: func(l *lab) { l.change(func(o *infrav1.Terraform) { o.Spec.Runner.Template = nil }) },
			want: []string{"spec.runner.template", "restartPolicy"},
		},
		"its template is invalid, and the resources stay": {
			block: func(l *lab) {
				l.change(func(o *infrav1.Terraform) { o.Spec.Runner.Template = podSpec(`{"restartPolicy": "Always"}`) })
			},
			mend: orphanAfterAll, want: []string{"spec.runner.template"}, stays: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			file := l.createFile(infrav1.DeletionDestroy)
			test.block(l)
			l.delete()
			o, message := l.awaitReason(infrav1.DeletionBlockedReason)
			l.wantMessage(message, append(test.want, "1 resources could not be destroyed", "set spec.deletionPolicy to Orphan")...)
			if conditions.IsStalled(o) {
				t.Error("a deletion that is tried again is stalled")
			}
			l.wantFile(file, true)
			test.mend(l)
			l.awaitGone()
			l.wantFile(file, test.stays)
		})
	}
}

// removeAccount removes the runner's account, and its pod, which could go on with its token.
func removeAccount(l *lab) {
	l.remove(&corev1.ServiceAccount{}, "terrace-runner")
	pod := l.pods()[0].Name
	l.deletePod(pod)
	l.awaitPodGone(pod)
}

func reopen(l *lab) {
	if _, err := harness.OpenNamespace(l.ctx, suite.client, l.namespace); err != nil {
		l.t.Fatal(err)
	}
}

func orphanAfterAll(l *lab) {
	l.change(func(o *infrav1.Terraform) { o.Spec.DeletionPolicy = infrav1.DeletionOrphan })
}

func TestADestructionSurvivesItsPod(t *testing.T) {
	t.Parallel()
	for name, options := range map[string][]client.DeleteOption{"that is deleted": nil, "that is deleted by force": {force()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			flag := t.TempDir() + "/flag"
			l.create(strings.Replace(slow(flag), "command =", "when = destroy\n    command =", 1), func(o *infrav1.Terraform) {
				o.Spec.DeletionPolicy = infrav1.DeletionDestroy
			})
			l.awaitReady()
			l.processes()
			l.delete()
			l.awaitFile(flag)
			l.deletePod(l.pod(), options...)
			l.awaitGone()
			processes := l.processes()
			if count(processes, "apply") != 2 || count(processes, "force-unlock") > len(options) {
				t.Errorf("tool processes = %q", processes)
			}
			l.wantKept()
			if l.has(stateSecret) {
				t.Error("the state is still there")
			}
		})
	}
}

func TestAnObjectThatNeverPlannedGoesAtOnce(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testing.T) *lab{"in a namespace without runners": unopened, "without its source": newLab} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := open(t)
			l.create("", func(o *infrav1.Terraform) {
				fromSource(o)
				o.Spec.DeletionPolicy = infrav1.DeletionDestroy
			})
			l.awaitReason(infrav1.SourceNotFoundReason)
			l.delete()
			l.awaitGone()
			if suite.kubelet.Started(l.namespace, "") != 0 {
				t.Error("that took a pod")
			}
		})
	}
}

func TestDeletionDuringAPlanStopsIt(t *testing.T) {
	t.Parallel()
	for _, policy := range []infrav1.DeletionPolicy{infrav1.DeletionDestroy, infrav1.DeletionOrphan} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			g := newGate(t)
			l.create(greeting, func(o *infrav1.Terraform) {
				o.Spec.DeletionPolicy, o.Spec.Runner.Template = policy, podSpec(g.holding("plan"))
			})
			g.await(l)
			l.delete()
			l.awaitGone() // although nobody opens the gate
			if processes := l.processes(); count(processes, "apply") != 0 {
				t.Errorf("tool processes = %q", processes)
			}
			l.wantKept()
		})
	}
}

func TestDeletionDuringAnApplyWaitsForIt(t *testing.T) {
	t.Parallel()
	for policy, want := range map[infrav1.DeletionPolicy][]string{
		infrav1.DeletionDestroy: {"init", "plan", "show", "apply", "plan", "apply"},
		infrav1.DeletionOrphan:  {"init", "plan", "show", "apply"},
	} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			g := newGate(t)
			l.create(g.gated(), func(o *infrav1.Terraform) { o.Spec.DeletionPolicy = policy })
			g.await(l)
			l.delete()
			l.await("the object to wait", func(o *infrav1.Terraform) bool {
				return strings.Contains(conditions.GetMessage(o, "Reconciling"), "Deletion waits for the running apply")
			})
			g.open(l)
			l.awaitGone()
			l.wantProcesses(want...)
			l.wantKept()
			if l.has(stateSecret) != (policy == infrav1.DeletionOrphan) {
				t.Errorf("the state is there: %v", l.has(stateSecret))
			}
		})
	}
}

func TestAnObjectCanBeReplacedAtOnce(t *testing.T) {
	t.Parallel()
	for _, policy := range []infrav1.DeletionPolicy{infrav1.DeletionDestroy, infrav1.DeletionOrphan} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			file := l.createFile(policy)
			before := l.object
			again := &infrav1.Terraform{ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: "tf"}, Spec: *before.Spec.DeepCopy()}
			l.delete()
			l.eventually("the name to be free", func() bool { return suite.client.Create(l.ctx, again.DeepCopy()) == nil })
			l.object = l.get()
			o := l.awaitReady()
			if o.UID == before.UID {
				t.Fatal("it is the same object")
			}
			if got := read(t, file); got != "secret content" {
				t.Errorf("the file reads %q", got)
			}
			applies := count(l.processes(), "apply")
			if adopted := policy == infrav1.DeletionOrphan; adopted != (applies == 0) {
				t.Errorf("the new object applied %d times", applies)
			}
			l.delete()
			l.awaitGone()
			l.wantFile(file, policy == infrav1.DeletionOrphan)
		})
	}
}
