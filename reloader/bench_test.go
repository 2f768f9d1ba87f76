package reloader_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/terrace-dev/terrace/reloader"
	"github.com/terrace-dev/terrace/reloader/internal/atomicwriter"
)

// BenchmarkWatch is the time from the moment at which the kubelet swaps a version in until the callback runs with it. It is that of the quiet and little else.
func BenchmarkWatch(b *testing.B) {
	for _, quiet := range []time.Duration{time.Millisecond, 10 * time.Millisecond, reloader.DefaultQuiet} {
		b.Run("quiet="+quiet.String(), func(b *testing.B) {
			called := make(chan time.Time, 1)
			volume := newVolume(b, inMemory(b), map[string]string{"a": "start"})
			ctx, cancel := context.WithCancel(b.Context())
			done := make(chan error, 1)
			go func() {
				done <- reloader.Watch(ctx, []string{volume.Root}, func(context.Context, []reloader.Snapshot) error {
					called <- time.Now()
					return nil
				}, reloader.WithQuiet(quiet, time.Minute))
			}()
			<-called

			var swapped time.Time
			volume.At = func(step atomicwriter.Step) {
				if step == atomicwriter.Swapped {
					swapped = time.Now()
				}
			}
			var total, longest time.Duration
			version := 0
			for b.Loop() {
				version++
				if err := volume.Write(map[string]string{"a": strconv.Itoa(version)}); err != nil {
					b.Fatal(err)
				}
				latency := (<-called).Sub(swapped)
				total, longest = total+latency, max(longest, latency)
			}
			b.ReportMetric(float64(total.Microseconds())/float64(version)/1000, "ms/swap")
			b.ReportMetric(float64(longest.Microseconds())/1000, "ms-longest")
			cancel()
			if err := <-done; err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkRead is what one look costs.
func BenchmarkRead(b *testing.B) {
	volume := newVolume(b, inMemory(b), map[string]string{"ca.crt": "1", "tls.crt": "2", "tls.key": "3"})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := reloader.Read(volume.Root); err != nil {
			b.Fatal(err)
		}
	}
}
