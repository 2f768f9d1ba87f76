//go:build faults

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// envFaults is the directory in which the crash-point tests say what happens to a
// runner: in a directory with the name of its namespace, where they find what it did.
const envFaults = "TERRACE_TEST_FAULTS"

// The files there: all messages, a line each, and at which of them, named as its line
// is, the process dies, or stands still until its pod is deleted.
const (
	faultsMessages = "messages"
	faultsDie      = "die"
	faultsStall    = "stall"
	faultsReached  = "reached"
)

// faults counts the messages of all processes of one namespace.
type faults struct {
	dir string
	mu  sync.Mutex
}

// interceptors count every message but those of health checks, and end the process
// at one of them: after it was received and before anything is done about it, or
// instead of sending it.
func interceptors() []grpc.ServerOption {
	f := &faults{dir: filepath.Join(os.Getenv(envFaults), os.Getenv(envPodNamespace))}
	return []grpc.ServerOption{grpc.UnaryInterceptor(f.unary), grpc.StreamInterceptor(f.stream)}
}

func (f *faults) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	f.message("receive", info.FullMethod)
	response, err := handle(ctx, request)
	f.message("send", info.FullMethod)
	return response, err
}

func (f *faults) stream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	return handle(server, &faultyStream{ServerStream: stream, faults: f, method: info.FullMethod})
}

type faultyStream struct {
	grpc.ServerStream
	faults *faults
	method string
}

func (s *faultyStream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if err == nil {
		s.faults.message("receive", s.method)
	}
	return err
}

func (s *faultyStream) SendMsg(m any) error {
	s.faults.message("send", s.method)
	return s.ServerStream.SendMsg(m)
}

// message writes a message down and does what is ordered to happen at it.
func (f *faults) message(direction, method string) {
	if strings.HasPrefix(method, "/"+grpc_health_v1.Health_ServiceDesc.ServiceName+"/") {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	kind := direction + " " + method[strings.LastIndex(method, "/")+1:]
	name := fmt.Sprintf("%s %d", kind, f.count(kind)+1)
	log, err := os.OpenFile(f.path(faultsMessages), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return // nobody asked
	}
	_, _ = log.WriteString(name + "\n")
	_ = log.Close()
	switch name {
	case f.ordered(faultsDie):
		_ = os.WriteFile(f.path(faultsReached), nil, 0o600)
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case f.ordered(faultsStall):
		_ = os.WriteFile(f.path(faultsReached), nil, 0o600)
		select {} // with the lock: no other message gets through either
	}
}

// count counts the messages of one kind, also those of earlier processes.
func (f *faults) count(kind string) int {
	text, _ := os.ReadFile(f.path(faultsMessages))
	return strings.Count("\n"+string(text), "\n"+kind+" ")
}

func (f *faults) ordered(order string) string {
	text, _ := os.ReadFile(f.path(order))
	return strings.TrimSpace(string(text))
}

func (f *faults) path(name string) string { return filepath.Join(f.dir, name) }
