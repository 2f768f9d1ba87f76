package faults_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions/check"
	"github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
)

// outcome is what is compared. Of plans it has their number among those that were
// approved, since their ids depend on where the file is.
type outcome struct {
	Checkpoints []checkpoint
	Writes      map[string]int // of the manager, by kind
	Processes   []string       // of tools, in their order
	Pods        []string
	Left        []string // Secrets, ConfigMaps and held Leases
}

// checkpoint is what the object says where nothing happens until the story goes on.
type checkpoint struct {
	Name       string
	Conditions []string
	Applied    string
	History    []string
	Outputs    string
	File       string
	Approved   int // plans so far
	Left       []string
}

// checkpoint notes what there is now.
func (s *story) checkpoint(name string) {
	s.t.Helper()
	o := &infrav1.Terraform{}
	if err := suite.client.Get(s.ctx, client.ObjectKeyFromObject(s.object), o); err != nil {
		s.t.Fatal(err)
	}
	check.NewChecker(suite.client, &check.Conditions{
		NegativePolarity: []string{meta.StalledCondition, meta.ReconcilingCondition},
	}).WithT(gomega.NewWithT(s.t)).CheckErr(context.Background(), o)
	c := checkpoint{Name: name, Approved: len(s.approved), Outputs: s.outputs(), Left: s.left()}
	for _, condition := range o.Status.Conditions {
		c.Conditions = append(c.Conditions, fmt.Sprintf("%s=%s %s", condition.Type, condition.Status, condition.Reason))
	}
	slices.Sort(c.Conditions)
	if o.Status.Applied != nil {
		c.Applied = s.plan(o.Status.Applied.PlanID)
	}
	for _, entry := range o.Status.History {
		c.History = append(c.History, fmt.Sprintf("%s %s %s", entry.Type, entry.Result, s.plan(entry.PlanID)))
		if entry.Type == infrav1.OperationApply && !slices.Contains(s.approved, entry.PlanID) {
			s.t.Errorf("%s: plan %s was applied and not approved", name, entry.PlanID)
		}
	}
	text, _ := os.ReadFile(s.file)
	c.File = string(text)
	s.told.Checkpoints = append(s.told.Checkpoints, c)
}

// plan names a plan by when it was approved.
func (s *story) plan(id string) string {
	if i := slices.Index(s.approved, id); i >= 0 {
		return fmt.Sprintf("plan %d", i+1)
	}
	return "a plan"
}

// outputs are those in the Secret.
func (s *story) outputs() string {
	secret := &corev1.Secret{}
	if err := suite.client.Get(s.ctx, client.ObjectKey{Namespace: s.namespace, Name: "out"}, secret); err != nil {
		return ""
	}
	return fmt.Sprintf("%s, %s", secret.Data["content"], secret.Data["token"])
}

// left lists what is in the namespace, by kind and name.
func (s *story) left() []string {
	s.t.Helper()
	var found []string
	secrets, maps, leases := &corev1.SecretList{}, &corev1.ConfigMapList{}, &coordinationv1.LeaseList{}
	for _, list := range []client.ObjectList{secrets, maps, leases} {
		if err := suite.client.List(s.ctx, list, client.InNamespace(s.namespace)); err != nil {
			s.t.Fatal(err)
		}
	}
	for _, o := range secrets.Items {
		name := o.Name
		if o.Type == corev1.SecretTypeTLS {
			name = "of a runner" // it has the pod's random name
		}
		found = append(found, "Secret "+name)
	}
	for _, o := range maps.Items {
		found = append(found, "ConfigMap "+o.Name)
	}
	for _, o := range leases.Items {
		if o.Spec.HolderIdentity != nil && *o.Spec.HolderIdentity != "" {
			found = append(found, "held Lease "+o.Name)
		}
	}
	slices.Sort(found)
	return found
}

// pods lists the pods, with what their containers went through.
func (s *story) pods() []string {
	s.t.Helper()
	list := &corev1.PodList{}
	if err := suite.client.List(s.ctx, list, client.InNamespace(s.namespace)); err != nil {
		s.t.Fatal(err)
	}
	var found []string
	for _, pod := range list.Items {
		restarts := int32(0)
		for _, c := range pod.Status.ContainerStatuses {
			restarts += c.RestartCount
		}
		found = append(found, fmt.Sprintf("%s, restarted %d times", pod.Status.Phase, restarts))
	}
	return found
}

// processes are the object's tool processes.
func (s *story) processes() []string {
	s.t.Helper()
	text, err := os.ReadFile(suite.calls)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		s.t.Fatal(err)
	}
	var calls []string
	for line := range bytes.Lines(text) {
		dir, command, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
		if strings.Contains(dir, string(s.object.UID)) {
			calls = append(calls, command)
		}
	}
	return calls
}

// end notes how it ended. The last manager is told to end first, when it is up:
// what it still does counts.
func (s *story) end() {
	s.t.Helper()
	m := s.running()
	if err := m.AwaitReady(s.ctx); err != nil {
		s.t.Fatal(err)
	}
	if err := m.Stop(); err != nil {
		s.t.Error(err)
	}
	if _, err := os.Stat(s.file); err == nil {
		s.t.Error("the file was not destroyed")
	}
	_, s.told.Writes = s.proxy.seen()
	s.told.Processes, s.told.Pods, s.told.Left = s.processes(), s.pods(), s.left()
	text, err := os.ReadFile(filepath.Join(s.orders, "messages"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.messages = strings.Split(strings.TrimSpace(string(text)), "\n")
}

// same compares everything with the clean story.
func (s *story) same(clean *story) {
	s.t.Helper()
	s.sameCheckpoints(clean)
	for name, values := range map[string][2]any{
		"the manager's writes":   {s.told.Writes, clean.told.Writes},
		"the tool's processes":   {s.told.Processes, clean.told.Processes},
		"the pods":               {s.told.Pods, clean.told.Pods},
		"what is left":           {s.told.Left, clean.told.Left},
		"the number of approved": {len(s.approved), len(clean.approved)},
	} {
		if !reflect.DeepEqual(values[0], values[1]) {
			s.t.Errorf("%s: %v; without the fault %v", name, values[0], values[1])
		}
	}
}

func (s *story) sameCheckpoints(clean *story) {
	s.t.Helper()
	for i, want := range clean.told.Checkpoints {
		if got := s.told.Checkpoints[i]; !reflect.DeepEqual(got, want) {
			s.t.Errorf("%s: %+v;\nwithout the fault %+v", want.Name, got, want)
		}
	}
}

// settled waits for what the garbage collector, which the kubelet plays, still has to do.
func (s *story) settled(clean *story) {
	s.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if s.told.Left, s.told.Pods = s.left(), s.pods(); len(s.told.Left) <= len(clean.told.Left) {
			return
		}
	}
}
