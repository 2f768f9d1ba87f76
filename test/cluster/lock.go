//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

// lock waits until no other process of this machine holds the name, and holds it. The
// lock is a socket without a file: the kernel takes it away with the process.
func lock(ctx context.Context, p *progress, name string) (release func(), err error) {
	var socket net.Listener
	told := false
	err = wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		var err error
		socket, err = new(net.ListenConfig).Listen(ctx, "unix", "@terrace-"+name)
		if !errors.Is(err, unix.EADDRINUSE) {
			return err == nil, err
		}
		if !told {
			told = true
			p.say("waiting: another command works on %s", name)
		}
		return false, nil
	})
	if err != nil {
		return nil, fmt.Errorf("waiting for other commands to end: %w", err)
	}
	return func() { _ = socket.Close() }, nil
}

// lock is for commands that change the cluster. Clusters of another clone of the
// repository with the same name count: they would have the same interface.
func (s *site) lock(ctx context.Context, p *progress) (release func(), err error) {
	return lock(ctx, p, "cluster-"+s.Name)
}

// lockFiles is for what all clusters of this clone share: images and packages in bin/.
func (s *site) lockFiles(ctx context.Context, p *progress) (release func(), err error) {
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(s.root))
	return lock(ctx, p, fmt.Sprintf("images-%x", sum.Sum64()))
}
