//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"text/tabwriter"

	"golang.org/x/sys/unix"
)

// status tells what runs. It fails if the cluster is not up, and says what ended.
func status(ctx context.Context, s *site, out io.Writer) error {
	id, err := s.livingNode()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "cluster %s is up, its first process is %d\n\n", s.Name, id.PID)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	var waiting []string
	for _, c := range append(s.foundation(), s.others()...) {
		state := "serves"
		if !s.serves(c.name) {
			state = "starts"
			waiting = append(waiting, c.name)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", c.name, state, id.version(ctx, c))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if len(waiting) > 0 {
		return fmt.Errorf("cluster %s is not ready: %s", s.Name, strings.Join(waiting, ", "))
	}
	return nil
}

// livingNode returns the node of a cluster that is up; the error says why it is not.
func (s *site) livingNode() (*identity, error) {
	id, err := s.readIdentity()
	switch {
	case errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("only root can look: %w", err)
	case err != nil:
		return nil, err
	case id == nil:
		return nil, fmt.Errorf("cluster %s is not up", s.Name)
	}
	component, _ := s.failure()
	if id.alive() && component == "" {
		return id, nil
	}
	err = fmt.Errorf("cluster %s is not up any more: %s", s.Name, s.howItEnded(id))
	if component != "" {
		err = s.showLog(err, component)
	}
	return nil, err
}

// howItEnded says why a node that was started is not, or cannot be used any more.
func (s *site) howItEnded(id *identity) string {
	component, how := s.failure()
	switch {
	case component != "":
		return how
	case id.alive():
		return "its files or its link are gone"
	case id.Boot != bootID():
		return "the machine has started anew since"
	default:
		return "its first process was ended"
	}
}

func writeFailure(file, component string, failure error) error {
	return os.WriteFile(file, []byte(component+"\n"+failure.Error()), 0o600)
}

// failure returns the component that failed, and how, if that is known.
func (s *site) failure() (component, how string) {
	content, err := os.ReadFile(s.run("failure"))
	if err != nil {
		return "", ""
	}
	component, how, _ = strings.Cut(string(content), "\n")
	return component, how
}

// serves says whether the node has seen the component serve.
func (s *site) serves(component string) bool {
	_, err := os.Stat(s.run("ready", component))
	return err == nil
}

// version is what the program, as the node has it, says of itself.
func (id *identity) version(ctx context.Context, c component) string {
	cmd := exec.CommandContext(ctx, c.program, "--version")
	cmd.SysProcAttr = &unix.SysProcAttr{Chroot: id.root()}
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "?"
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return line
}
