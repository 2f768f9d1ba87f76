package main

import (
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

// newLogger writes JSON with the manager's keys.
func newLogger(out io.Writer, level slog.Level) *slog.Logger {
	return slog.New(slog.NewJSONHandler(out, &slog.HandlerOptions{
		Level: level,
		ReplaceAttr: func(groups []string, attr slog.Attr) slog.Attr {
			switch {
			case len(groups) > 0:
			case attr.Key == slog.TimeKey:
				return slog.String("ts", attr.Value.Time().UTC().Format(time.RFC3339Nano))
			case attr.Key == slog.LevelKey:
				return slog.String(slog.LevelKey, strings.ToLower(attr.Value.String()))
			}
			return attr
		},
	}))
}

// adoptLogger sends what the Kubernetes libraries say the same way.
func adoptLogger(log *slog.Logger) {
	klog.SetSlogLogger(log.With("logger", "kubernetes"))
	ctrllog.SetLogger(logr.FromSlogHandler(log.Handler()))
}
