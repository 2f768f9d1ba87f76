package runners

import (
	"context"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/terrace-dev/terrace/internal/pki"
)

const (
	// postpone is how long a pod is left alone that the loop could not do its work for.
	postpone = time.Minute
	// lookTimeout is how long an idle runner may take to say that it is idle.
	lookTimeout = 10 * time.Second
)

// chore is what the loop does for a pod.
type chore int

const (
	nothing chore = iota
	collect       // the object of a pod without processes
	retire        // an idle pod
	renew         // the certificate of a runner
)

// loop does the chores of the pods, each when it is due, until the context ends. One
// that takes its time does not hold up the others.
func (p *Pool) loop(ctx context.Context) {
	var work sync.WaitGroup
	defer work.Wait()
	for {
		changed := p.options.Authority.Changed()
		next := p.tend(ctx, &work)
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-p.wake:
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// tend begins what is due and returns the time until something is due again.
func (p *Pool) tend(ctx context.Context, work *sync.WaitGroup) time.Duration {
	now, next := time.Now(), time.Hour
	due := map[*pod]chore{}
	p.mu.Lock()
	for _, k := range p.pods {
		what, at := k.chore(p.options.Authority.Generation())
		if what == nothing {
			continue
		}
		if at.Before(k.postponed) {
			at = k.postponed
		}
		if at.After(now) {
			next = min(next, at.Sub(now))
			continue
		}
		k.postponed = now.Add(postpone)
		if what == renew { // while the old one is good
			k.postponed = now.Add(min(postpone, max(time.Until(k.client.PeerCertificate().NotAfter)/4, time.Second)))
		}
		next = min(next, k.postponed.Sub(now))
		due[k] = what
	}
	p.mu.Unlock()
	for k, what := range due {
		work.Go(func() {
			if err := p.do(ctx, k, what); err != nil && ctx.Err() == nil {
				log.FromContext(ctx).Info("a runner pod is looked after again later", "pod", k.name, "error", err.Error())
			}
		})
	}
	return next
}

// chore says what is due next for the pod, and when; the caller holds the pool's lock.
func (k *pod) chore(generation string) (what chore, at time.Time) {
	switch k.state.Phase {
	case gone:
		return collect, time.Time{}
	case ending:
		return nothing, time.Time{}
	default:
	}
	if k.leases == 0 {
		what, at = retire, k.idleSince.Add(max(k.idle, linger))
		if k.retiring {
			at = k.idleSince
		}
	}
	if k.client == nil || !k.reached || k.client.PeerCertificate() == nil {
		return what, at
	}
	renewal := pki.RenewAt(k.client.PeerCertificate())
	if generation != "" && k.generation != generation {
		renewal = time.Time{}
	}
	if what == nothing || renewal.Before(at) {
		return renew, renewal
	}
	return what, at
}

func (p *Pool) do(ctx context.Context, k *pod, what chore) error {
	switch what {
	case collect:
		p.mu.Lock()
		why := k.state.Message
		p.mu.Unlock()
		return p.remove(ctx, k, why)
	case retire:
		return p.retire(ctx, k)
	case renew:
		return p.renew(ctx, k)
	default:
		return nil
	}
}

// retire removes an idle pod. Its runner is asked first: it may work for somebody who
// asked a manager before this one.
func (p *Pool) retire(ctx context.Context, k *pod) error {
	p.mu.Lock()
	if k.leases > 0 {
		p.mu.Unlock()
		return nil
	}
	before := k.retiring
	k.retiring = true
	up := k.state.Phase == running
	p.mu.Unlock()
	if up && p.busy(ctx, k) {
		p.mu.Lock()
		defer p.mu.Unlock()
		k.retiring, k.idleSince = before, time.Now()
		return nil
	}
	return p.remove(ctx, k, "it is idle")
}

// busy says whether operations run in the pod. One that does not answer is not busy:
// it gets the time to end of its own when it is deleted.
func (p *Pool) busy(ctx context.Context, k *pod) bool {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	said, err := p.connect(ctx, k)
	if err != nil {
		return false
	}
	for _, op := range said.GetOperations() {
		if !op.GetDone() {
			return true
		}
	}
	return false
}

// renew gives a runner a new certificate and the authorities of today, over the
// connection that stands.
func (p *Pool) renew(ctx context.Context, k *pod) error {
	leaf, err := p.options.Authority.Issue(ctx, serverName(k.name))
	if err != nil {
		return err
	}
	client, err := p.dial(k)
	if err != nil {
		return err
	}
	if err := client.Rotate(ctx, leaf.Certificate, leaf.Key, leaf.Authorities); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	k.generation, k.postponed = leaf.Generation, time.Time{}
	return nil
}
