package runners

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	infrav1 "github.com/terrace-dev/terrace/api/v1alpha1"
	"github.com/terrace-dev/terrace/internal/operation"
	"github.com/terrace-dev/terrace/internal/reconcile"
	"github.com/terrace-dev/terrace/runner"
	"github.com/terrace-dev/terrace/runner/runnerpb"
)

// recertify is how often the Secret of a pod that does not come up is written again:
// somebody may have deleted it.
const recertify = 5 * time.Second

// lease is one operation's hold on a pod. It implements operation.Runner.
type lease struct {
	pool    *Pool
	pod     *pod
	started bool // the runner may have the operation already
	// deadline is when the pod has to be up. It outlasts calls of Await, since a
	// container that ends again and again runs for a moment in between.
	deadline time.Time

	release sync.Once
}

var _ operation.Runner = (*lease)(nil)

// Name implements operation.Runner.
func (l *lease) Name() string { return l.pod.name.Name }

// Release implements operation.Runner. A pod whose runner could not be reached to
// the end gets no other operation.
func (l *lease) Release() {
	l.release.Do(func() {
		p, k := l.pool, l.pod
		p.mu.Lock()
		defer p.mu.Unlock()
		k.leases--
		k.idleSince = time.Now()
		if k.client != nil && !k.reached {
			k.retiring, k.idle = true, 0
		}
		p.poke()
	})
}

// Await implements operation.Runner.
func (l *lease) Await(ctx context.Context, report func(string)) error {
	if l.deadline.IsZero() {
		l.deadline = time.Now().Add(l.pool.options.StartTimeout)
	}
	missing := time.After(l.certifyAfter())
	for {
		now, changed, reached := l.look()
		switch {
		case now.Phase == gone, now.Phase == ending && !l.started:
			return l.lost(now)
		case reached:
			l.deadline = time.Time{}
			return nil
		case now.Phase != starting:
			err := l.connect(ctx, changed)
			if err != nil && isClosed(changed) {
				continue // the pod is not any more what did not answer
			}
			return err
		case time.Now().After(l.deadline):
			return l.giveUp(ctx, now)
		}
		report(fmt.Sprintf("runner pod %s: %s", l.pod.name.Name, now.Message))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-missing:
			missing = time.After(recertify)
			if err := l.pool.certify(ctx, l.pod.name, l.pod.uid); err != nil {
				log.FromContext(ctx).Error(err, "the certificate of a runner could not be written yet", "pod", l.pod.name)
			}
		}
	}
}

// certifyAfter is how long a pod that starts is waited for before its Secret is written
// again: not at all if another manager made the pod, which may have ended in between.
func (l *lease) certifyAfter() time.Duration {
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	if l.pod.made {
		return recertify
	}
	return 0
}

func (l *lease) look() (now state, changed <-chan struct{}, reached bool) {
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	return l.pod.state, l.pod.changed, l.pod.reached
}

// lost says what it means for the operation that the pod is gone.
func (l *lease) lost(now state) error {
	l.pool.mu.Lock()
	served := l.pod.served
	l.pool.mu.Unlock()
	switch {
	case l.started:
		return operation.ErrLost
	case served:
		return operation.ErrNotStarted
	default:
		return reconcile.Retry(now.Reason, fmt.Errorf("runner pod %s ended before it could be used: %s", l.pod.name, now.Message))
	}
}

// giveUp removes a pod that does not come up.
func (l *lease) giveUp(ctx context.Context, now state) error {
	p := l.pool
	p.mu.Lock()
	l.pod.retiring = true
	l.pod.become(state{Phase: gone, Reason: now.Reason, Message: now.Message})
	p.mu.Unlock()
	text := fmt.Sprintf("runner pod %s did not start within %s: %s", l.pod.name, p.options.StartTimeout, now.Message)
	if err := p.remove(ctx, l.pod, text); err != nil {
		log.FromContext(ctx).Error(err, "a runner pod that does not start could not be removed", "pod", l.pod.name)
	}
	if l.started {
		return operation.ErrLost
	}
	return reconcile.Retry(now.Reason, errors.New(text))
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// connect returns when the runner answers, or says that it does not. A change of the
// pod ends the attempt.
func (l *lease) connect(ctx context.Context, changed <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	go func() {
		select {
		case <-changed:
			cancel()
		case <-ctx.Done():
		}
	}()
	_, err := l.pool.connect(ctx, l.pod)
	if err != nil && l.strange() {
		return reconcile.Retry(infrav1.RunnerUnreachableReason, fmt.Errorf(
			"whoever answers for runner pod %s does not have the certificate that was made for it, so the pod is replaced; has its Secret been tampered with? %s", l.pod.name, err.Error()))
	}
	return err
}

// strange says whether waiting for the runner is in vain: it was never reached, and
// somebody else is in its place. One that was reached before, or may have the
// operation, is waited for.
func (l *lease) strange() bool {
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	return !l.started && !l.pod.served && l.pod.client != nil && l.pod.client.Stranger()
}

// connect dials the pod, if nobody did, and returns what its runner says of itself.
func (p *Pool) connect(ctx context.Context, k *pod) (*runnerpb.HandshakeResponse, error) {
	client, err := p.dial(k)
	if err != nil {
		return nil, err
	}
	said, err := client.Connect(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	if k.client != client { // the pod moved on meanwhile
		return nil, fmt.Errorf("runner pod %s: %w", k.name, runner.ErrUnavailable)
	}
	k.reached = err == nil
	if err != nil {
		return nil, fmt.Errorf("runner pod %s: %w", k.name, err)
	}
	if !k.served {
		log.FromContext(ctx).Info("a runner answers for the first time", "pod", k.name.Name)
	}
	k.served = true
	p.poke()
	return said, nil
}

// dial returns the pod's client, which connects at its first call.
func (p *Pool) dial(k *pod) (*runner.Client, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if k.client != nil {
		return k.client, nil
	}
	if k.state.IP == "" {
		return nil, fmt.Errorf("runner pod %s has no address yet: %w", k.name, runner.ErrUnavailable)
	}
	target := net.JoinHostPort(k.state.IP, strconv.Itoa(runner.Port))
	// Waiting for a runner that does not answer is the lease's business: it sees the pod.
	client, err := runner.Dial(target, p.options.Authority.ClientConfig(serverName(k.name)), runner.ClientOptions{RetryAttempts: 1})
	if err != nil {
		return nil, err
	}
	k.client = client
	return client, nil
}

// call calls the runner and notes whether it could be reached. The error of a call
// to a pod that is gone is operation.ErrLost, whatever it was.
func (l *lease) call(do func(*runner.Client) error) error {
	p, k := l.pool, l.pod
	p.mu.Lock()
	client := k.client
	p.mu.Unlock()
	err := runner.ErrUnavailable
	if client != nil {
		err = do(client)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err == nil:
	case k.state.Phase == gone:
		return operation.ErrLost
	case k.client != client: // closed, because the pod has another address now
		return fmt.Errorf("runner pod %s moved: %w", k.name, runner.ErrUnavailable)
	case errors.Is(err, runner.ErrUnavailable):
		k.reached = false
	}
	return err
}

// Upload implements operation.Runner.
func (l *lease) Upload(ctx context.Context, digest string, archive io.Reader) (size int64, err error) {
	err = l.call(func(c *runner.Client) error {
		size, err = c.Upload(ctx, digest, archive)
		return err
	})
	return size, err
}

// Start implements operation.Runner.
func (l *lease) Start(ctx context.Context, request *runnerpb.StartOperationRequest) (needSource bool, err error) {
	err = l.call(func(c *runner.Client) error {
		l.started = true // from here on an answer may be lost
		needSource, err = c.Start(ctx, request)
		return err
	})
	if needSource {
		l.started = false
	}
	return needSource, err
}

// Watch implements operation.Runner.
func (l *lease) Watch(ctx context.Context, id string, after int64, handle func(*runnerpb.OperationEvent)) (result *runnerpb.Result, err error) {
	err = l.call(func(c *runner.Client) error {
		result, err = c.Watch(ctx, id, after, handle)
		return err
	})
	return result, err
}

// Cancel implements operation.Runner.
func (l *lease) Cancel(ctx context.Context, id string) error {
	return l.call(func(c *runner.Client) error { return c.Cancel(ctx, id) })
}
