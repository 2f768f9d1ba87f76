//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

// identity is what is known of the node's first process. Its id alone may come to
// belong to another process.
type identity struct {
	PID   int
	Start string
}

// identify describes a process that runs.
func identify(pid int) (*identity, error) {
	_, start, err := processState(pid)
	return &identity{PID: pid, Start: start}, err
}

// namespace opens the namespace of the node's processes. As long as it is open no
// other one gets its name. Processes of containers are in namespaces below it.
func (id *identity) namespace() (file *os.File, name string, err error) {
	path := filepath.Join("/proc", strconv.Itoa(id.PID), "ns", "pid")
	if file, err = os.Open(path); err != nil {
		return nil, "", err
	}
	name, err = os.Readlink(path)
	return file, name, err
}

// readIdentity returns that of the cluster's node, or nil if none was started.
func (s *site) readIdentity() (*identity, error) {
	content, err := os.ReadFile(s.run("node.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil //nolint:nilnil // there is no node
	}
	if err != nil {
		return nil, err
	}
	id := new(identity)
	return id, json.Unmarshal(content, id)
}

func (s *site) writeIdentity(id *identity) error {
	content, err := json.Marshal(id)
	if err != nil {
		return err
	}
	return os.WriteFile(s.run("node.json"), content, 0o600)
}

// alive says whether the process runs still. Of one that has ended all threads and,
// since it is the first of its namespace, all other processes in there are gone.
func (id *identity) alive() bool {
	if id == nil {
		return false
	}
	state, start, err := processState(id.PID)
	return err == nil && start == id.Start && state != "Z" && state != "X"
}

// whileAlive returns a context that also ends with the process: who talks to a node
// that is gone may wait for ever.
func (id *identity) whileAlive(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		_ = wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(context.Context) (bool, error) {
			return !id.alive(), nil
		})
	}()
	return ctx, cancel
}

// processState returns the state of a process, and when it started.
func processState(pid int) (state, start string, err error) {
	content, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return "", "", err
	}
	// The name, in parentheses, may hold anything.
	fields := strings.Fields(string(content[bytes.LastIndexByte(content, ')')+1:]))
	const stateField, startField = 0, 19
	if len(fields) <= startField {
		return "", "", fmt.Errorf("process %d has no state", pid)
	}
	return fields[stateField], fields[startField], nil
}

// spawn starts the node's first process. It outlives this one.
func (s *site) spawn(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	log, err := os.Create(s.log("node"))
	if err != nil {
		return err
	}
	defer log.Close()
	outside, err := os.Open("/proc/self/ns/net")
	if err != nil {
		return err
	}
	defer outside.Close()

	cmd := exec.Command(self, s.arguments("node")...) // without the context: it stays
	cmd.Dir = s.root
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{outside} // by which the node puts one end of the link out here
	cmd.SysProcAttr = &unix.SysProcAttr{
		Setsid:     true,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the node (it takes root): %w", err)
	}
	go func() { _ = cmd.Wait() }()
	id, err := identify(cmd.Process.Pid)
	if err != nil {
		return errors.Join(err, cmd.Process.Kill())
	}
	if err := s.writeIdentity(id); err != nil {
		return errors.Join(err, cmd.Process.Kill())
	}
	if err := poll(ctx, 30*time.Second, func() bool { return s.linked() || !id.alive() }); err != nil {
		return fmt.Errorf("the node does not make its link: %w", err)
	}
	if !id.alive() {
		return errors.New("the node ended")
	}
	return ip(ctx, s.nodeRoot(), nil,
		fmt.Sprintf("address add %s/%d dev %s", s.MachineIP, nodeBits, s.device()),
		fmt.Sprintf("link set %s up", s.device()),
		fmt.Sprintf("route add %s via %s", s.Pods, s.NodeIP),
		fmt.Sprintf("route add %s via %s", s.Services, s.NodeIP),
	)
}

// kill ends the node, and returns when everything in it is gone.
func (id *identity) kill(ctx context.Context) error {
	if !id.alive() {
		return nil
	}
	if err := unix.Kill(id.PID, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("ending the node: %w", err)
	}
	err := poll(ctx, 30*time.Second, func() bool { return !id.alive() })
	if err != nil {
		return fmt.Errorf("the node, process %d, does not end: %w", id.PID, err)
	}
	return nil
}

// poll returns when the condition holds, or with an error after the timeout.
func poll(ctx context.Context, timeout time.Duration, condition func() bool) error {
	return wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, timeout, true, func(context.Context) (bool, error) {
		return condition(), nil
	})
}
