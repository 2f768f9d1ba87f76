// Command quickstart shows the Terraform kind at work on a machine without a
// cluster: a real API server, the real manager, the real runner protocol and
// real OpenTofu. It plans, waits for an approval, applies, finds and corrects
// drift, and destroys everything again.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"
)

func main() {
	yes := flag.Bool("yes", false, "approve and go on without asking; the default when stdin is no terminal")
	keep := flag.Bool("keep", false, "keep everything running at the end and print how to use it")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *yes || !term.IsTerminal(int(os.Stdin.Fd())), *keep)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "quickstart: "+err.Error())
		os.Exit(1)
	}
	fmt.Println("\nquickstart: ok")
}

// run tells the story; whatever it started is ended when it returns.
func run(ctx context.Context, yes, keep bool) (err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	s := &stage{ask: !yes}
	defer func() { err = errors.Join(err, s.close()) }()
	type step struct {
		title string
		do    func(context.Context) error
	}
	last := step{"Delete the object; its deletion policy says to destroy", s.destroy}
	if keep {
		last = step{"Keep it running to play with", s.keep}
	}
	for _, step := range []step{
		{"Start an API server and the manager", s.start},
		{"Open a namespace for runners and publish a module as a source", s.publish},
		{"Declare a Terraform object; nothing happens without an approval", s.declare},
		{"Approve the plan, and only this plan", s.approve},
		{"Use the outputs", s.outputs},
		{"A new revision without effect on the module changes nothing", s.unrelated},
		{"Somebody changes the world by hand; the drift is found and corrected", s.drift},
		last,
	} {
		s.title(step.title)
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", strings.ToLower(step.title[:1])+step.title[1:], err)
		}
	}
	return nil
}

// confirm asks before a step that changes something, when somebody is there.
func (s *stage) confirm(question string) error {
	if !s.ask {
		return nil
	}
	fmt.Printf("\n%s [Y/n] ", question)
	line, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil {
		return err
	}
	if answer := strings.ToLower(strings.TrimSpace(line)); answer != "" && answer != "y" && answer != "yes" {
		return errors.New("stopped")
	}
	return nil
}
