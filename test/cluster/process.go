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
	PID int
	// Start is when it started, since the machine did.
	Start string
	// Boot is different each time that the machine starts.
	Boot string
}

// identify describes a process that runs.
func identify(pid int) (*identity, error) {
	_, start, err := processState(pid)
	return &identity{PID: pid, Start: start, Boot: bootID()}, err
}

// identifySelf is for the node, while it sees the machine's processes still: its own
// id is another one there.
func identifySelf() (*identity, error) {
	link, err := os.Readlink("/proc/self")
	if err != nil {
		return nil, err
	}
	pid, err := strconv.Atoi(link)
	if err != nil {
		return nil, err
	}
	return identify(pid)
}

func bootID() string {
	content, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "" // then start times have to do
	}
	return string(bytes.TrimSpace(content))
}

// root is what the node sees as the root of the file system.
func (id *identity) root() string { return filepath.Join("/proc", strconv.Itoa(id.PID), "root") }

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

// readIdentity returns that of the cluster's node, or nil if none was started. Who
// removes the file of a cluster that is up leaves the link to find it by.
func (s *site) readIdentity() (*identity, error) {
	content, err := os.ReadFile(s.run("node.json"))
	if errors.Is(err, os.ErrNotExist) {
		return s.linkIdentity(), nil
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
	if id == nil || id.Boot != bootID() {
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

// spawn starts the node's first process, which outlives this one, and returns when it
// has made its link.
func (s *site) spawn(ctx context.Context) (err error) {
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
		return fmt.Errorf("starting the node: %w", err)
	}
	go func() { _ = cmd.Wait() }()
	id, err := identify(cmd.Process.Pid)
	if err != nil {
		return errors.Join(err, cmd.Process.Kill())
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, id.kill(context.WithoutCancel(ctx)))
		}
	}()
	if err := poll(ctx, 30*time.Second, func() bool { return s.linked() || !id.alive() }); err != nil {
		return fmt.Errorf("the node does not make its link: %w", err)
	}
	if !id.alive() {
		return errors.New("the node ended")
	}
	return nil
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
