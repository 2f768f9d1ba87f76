//go:build !faults

package main

import "google.golang.org/grpc"

// interceptors are for the crash-point tests (build tag faults) alone.
func interceptors() []grpc.ServerOption { return nil }
