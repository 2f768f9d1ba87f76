// Command gitserver serves git repositories over HTTP to everybody, for end to end
// tests: it stands in for the place where people keep their modules. Who can run
// programs in its container writes to them:
//
//	gitserver                         serve
//	gitserver commit REPOSITORY       make the files of the tar archive on stdin the new
//	                                  content of main, and print the commit
//	gitserver remove REPOSITORY       remove the repository
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/fluxcd/pkg/tar"
)

const (
	// root is where repositories are: a volume.
	root = "/srv/git"
	// address is what is listened to.
	address = ":8080"
	// branch is the only one.
	branch = "main"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "gitserver:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 0:
		return serve(ctx)
	case len(args) == 2 && args[0] == "commit":
		return commit(ctx, repository(args[1]), os.Stdin, os.Stdout)
	case len(args) == 2 && args[0] == "remove":
		return os.RemoveAll(repository(args[1]))
	default:
		return fmt.Errorf("what does %q mean?", args)
	}
}

// repository returns the directory of a repository.
func repository(name string) string {
	return filepath.Join(root, filepath.Base(name)+".git")
}

// serve has git answer all requests until the context ends.
func serve(ctx context.Context) error {
	git, err := exec.LookPath("git")
	if err != nil {
		return err
	}
	server := &http.Server{
		Addr:              address,
		ReadHeaderTimeout: 10 * time.Second,
		Handler: &cgi.Handler{
			Path: git,
			Args: []string{"http-backend"},
			Env:  []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1"},
		},
	}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// commit makes the files of an archive the content of the branch, with their modes.
func commit(ctx context.Context, dir string, archive io.Reader, out io.Writer) error {
	files, err := os.MkdirTemp("", "files-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(files)
	if err := tar.Untar(archive, files, tar.WithSkipGzip()); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"init", "--quiet", "--bare", "--initial-branch=" + branch, dir}, // does nothing again
		{"--git-dir=" + dir, "--work-tree=" + files, "add", "--all", "--force", "."},
		{"--git-dir=" + dir, "--work-tree=" + files, "commit", "--quiet", "--allow-empty", "--message=files of a test"},
		{"--git-dir=" + dir, "rev-parse", branch},
	} {
		cmd := exec.CommandContext(ctx, "git", args...)
		cmd.Dir = files
		cmd.Env = append(os.Environ(), "GIT_AUTHOR_NAME=test", "GIT_AUTHOR_EMAIL=test@localhost",
			"GIT_COMMITTER_NAME=test", "GIT_COMMITTER_EMAIL=test@localhost")
		cmd.Stdout, cmd.Stderr = out, os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
		}
	}
	return nil
}
