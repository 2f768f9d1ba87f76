package runner

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/stats"
)

// presence counts who needs the server: connections, which have been
// authenticated when gRPC tells of them, and operations that have not ended.
type presence struct {
	mu    sync.Mutex
	count int
	since time.Time // when the last one left
}

var _ stats.Handler = (*presence)(nil)

func newPresence() *presence { return &presence{since: time.Now()} }

func (p *presence) enter() { p.add(1) }

func (p *presence) leave() { p.add(-1) }

func (p *presence) add(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.count += n
	p.since = time.Now()
}

// quiet is for how long nobody has needed the server.
func (p *presence) quiet() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.count > 0 {
		return 0
	}
	return time.Since(p.since)
}

// idle returns a channel that is closed once nobody has needed the server for this
// long, and never if that is 0. It stops looking when ctx ends.
func (p *presence) idle(ctx context.Context, timeout time.Duration) <-chan struct{} {
	if timeout <= 0 {
		return nil
	}
	idle := make(chan struct{})
	go func() {
		for {
			left := timeout - p.quiet()
			if left <= 0 {
				close(idle)
				return
			}
			select {
			case <-time.After(left):
			case <-ctx.Done():
				return
			}
		}
	}()
	return idle
}

// HandleConn implements stats.Handler.
func (p *presence) HandleConn(_ context.Context, event stats.ConnStats) {
	switch event.(type) {
	case *stats.ConnBegin:
		p.enter()
	case *stats.ConnEnd:
		p.leave()
	}
}

// TagConn implements stats.Handler.
func (p *presence) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// TagRPC implements stats.Handler.
func (p *presence) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements stats.Handler.
func (p *presence) HandleRPC(context.Context, stats.RPCStats) {}
