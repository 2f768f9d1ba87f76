//go:build !linux

package footprint

func unmapProgram() {}
