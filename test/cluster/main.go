//go:build linux

// Command cluster brings a Kubernetes cluster of one node up on this machine, and
// takes it down again. It is real: etcd, the API server and all the rest of what
// Kubernetes is made of run as processes, in namespaces of their own, so that the
// machine and its network stay as they are. Nothing is pulled or installed: the
// programs are built from Go modules, and containerd, runc and the network plugins are
// unpacked from Debian packages. The images are put together from files.
//
// It takes root, on Linux.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	flag "github.com/spf13/pflag"
	"golang.org/x/sys/unix"
)

const usage = `usage: cluster [flags] COMMAND

  up              start the cluster, or what is missing of it, with the product's images
  down            remove every trace of it
  status          say what of it runs, or what has ended
  check           say whether this machine can have it
  kubeconfig      print the file that kubectl needs
  load [IMAGE]    make images anew, all or those named, and give them to the node
  images [IMAGE]  make images, in bin/images, without a cluster

flags:
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("cluster", flag.ContinueOnError)
	name := flags.String("name", "terrace", "The name of the cluster, its node and its network interface.")
	network := flags.String("network", "10.123.0.0/16", "The network of node, pods and services. Nothing else may use it.")
	replace := flags.StringToString("replace", nil, "Programs of the node to be replaced by others: kubelet=/path/of/another.")
	flags.Usage = func() { fmt.Fprint(os.Stderr, usage, flags.FlagUsages()) }
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return err
	case flags.NArg() == 0:
		flags.Usage()
		return errors.New("which command?")
	}
	root, err := findRoot()
	if err != nil {
		return err
	}
	s, err := newSite(root, *name, *network)
	if err != nil {
		return err
	}
	s.replaced = *replace
	return command(ctx, s, flags.Args(), out)
}

func command(ctx context.Context, s *site, args []string, out io.Writer) error {
	p := newProgress(out)
	switch args[0] {
	case "up":
		if err := up(ctx, s, p); err != nil {
			return err
		}
		fmt.Fprintf(out, "\nexport KUBECONFIG=%s\n", s.kubeconfig())
		return nil
	case "down":
		if err := down(ctx, s, p); err != nil {
			return err
		}
		p.say("cluster %s is down", s.Name)
		return nil
	case "status":
		return status(ctx, s, out)
	case "check":
		return s.check()
	case "kubeconfig":
		fmt.Fprintln(out, s.kubeconfig())
		return nil
	case "load":
		return loadImages(ctx, s, p, args[1:])
	case "images":
		return makeImages(ctx, s, p, args[1:])
	case "node": // started by up
		return runNode(ctx, s)
	default:
		return fmt.Errorf("there is no command %s", args[0])
	}
}

func loadImages(ctx context.Context, s *site, p *progress, names []string) error {
	release, err := s.lock(ctx, p)
	if err != nil {
		return err
	}
	defer release()
	id, err := s.livingNode()
	if err != nil {
		return err
	}
	shop, err := newWorkshop(s)
	if err != nil {
		return err
	}
	if len(names) == 0 {
		names = imageNames()
	}
	ctx, cancel := id.whileAlive(ctx)
	defer cancel()
	return s.load(ctx, shop, id, p, names...)
}

func makeImages(ctx context.Context, s *site, p *progress, names []string) error {
	shop, err := newWorkshop(s)
	if err != nil {
		return err
	}
	if len(names) == 0 {
		names = imageNames()
	}
	release, err := s.lockFiles(ctx, p)
	if err != nil {
		return err
	}
	defer release()
	for _, name := range names {
		if _, err := shop.make(ctx, name); err != nil {
			return err
		}
		p.say("%s: %s", name, strings.TrimPrefix(shop.file(name, ".tar"), s.root+"/"))
	}
	return nil
}
