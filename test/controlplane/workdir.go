package controlplane

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const workDirPrefix = "terrace-controlplane-"

// workDir is a temporary directory that is locked as long as its owner lives.
// A program that was killed cannot remove its directory: the next one does.
type workDir struct {
	path   string
	lock   *os.File
	closer []func() error
}

func newWorkDir() (*workDir, error) {
	removeAbandoned()
	path, err := os.MkdirTemp("", workDirPrefix)
	if err != nil {
		return nil, err
	}
	lock, err := lockDir(path)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(path))
	}
	return &workDir{path: path, lock: lock}, nil
}

// file returns the path of a file in the directory.
func (d *workDir) file(name string) string { return filepath.Join(d.path, name) }

// onClose has f called when the directory goes away.
func (d *workDir) onClose(f func() error) { d.closer = append(d.closer, f) }

func (d *workDir) close() error {
	var errs []error
	for _, f := range d.closer {
		errs = append(errs, f())
	}
	return errors.Join(append(errs, os.RemoveAll(d.path), d.lock.Close())...)
}

// removeAbandoned removes the directories whose owner is gone. Those of the last
// minute are left alone: their owner may be about to lock them.
func removeAbandoned() {
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), workDirPrefix+"*"))
	if err != nil {
		return
	}
	for _, dir := range dirs {
		if info, err := os.Stat(dir); err != nil || time.Since(info.ModTime()) < time.Minute {
			continue
		}
		if lock, err := lockDir(dir); err == nil {
			_ = os.RemoveAll(dir)
			_ = lock.Close()
		}
	}
}

// lockDir takes the lock of a directory, or fails if somebody has it. The kernel
// frees the lock when the process ends; children do not inherit it.
func lockDir(path string) (*os.File, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}
