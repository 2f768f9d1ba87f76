package reloader_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"sync/atomic"

	"github.com/terrace-dev/terrace/reloader"
)

// A program reads its configuration when it starts, and from then on whenever it changes.
func ExampleWatch() {
	dir, err := os.MkdirTemp("", "etc-app") // stands for the mount path of a ConfigMap, such as /etc/app
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	greeting := filepath.Join(dir, "greeting")
	if err := os.WriteFile(greeting, []byte("hello"), 0o600); err != nil {
		fmt.Println(err)
		return
	}

	ctx, stop := context.WithCancel(context.Background())
	err = reloader.Watch(ctx, []string{dir}, func(_ context.Context, snapshots []reloader.Snapshot) error {
		content := string(snapshots[0].Files["greeting"])
		if content == "" {
			return errors.New("greeting is empty, going on with the previous one") // it is called again
		}
		fmt.Println(content)
		if content == "good bye" {
			stop() // other programs run until they are told to end
			return nil
		}
		return os.WriteFile(greeting, []byte("good bye"), 0o600)
	})
	fmt.Println(err)
	// Output:
	// hello
	// good bye
	// <nil>
}

// A server takes a certificate and its key from one snapshot, so that they belong together, and serves connections with the latest.
func ExampleWatch_certificate() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	var current atomic.Pointer[tls.Certificate]
	load := func(_ context.Context, snapshots []reloader.Snapshot) error {
		files := snapshots[0].Files
		certificate, err := tls.X509KeyPair(files["tls.crt"], files["tls.key"])
		if err != nil {
			return err // the previous certificate stays
		}
		current.Store(&certificate)
		return nil
	}
	initial, err := reloader.Read("/etc/tls")
	if err != nil {
		slog.Error("no certificate", "error", err)
		return
	}
	if err := load(ctx, []reloader.Snapshot{initial}); err != nil {
		slog.Error("no certificate", "error", err)
		return
	}
	go func() {
		err := reloader.Watch(ctx, []string{"/etc/tls"}, load,
			reloader.WithBaseline(initial), // loaded already
			reloader.WithErrorHandler(func(err error) { slog.Warn("certificate", "error", err) }))
		if err != nil {
			slog.Error("not watching", "error", err)
		}
	}()
	_ = tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return current.Load(), nil },
	}
}
