package reconcile

import "time"

// Backoff is an exponential delay between attempts.
type Backoff struct {
	// Base is the delay after the first failure; it must be positive.
	Base time.Duration
	// Max bounds the delay. A Max below Base counts as Base.
	Max time.Duration
}

// Delay returns Base*2^(failures-1), at most Max. It never overflows, and counts
// less than one failure as one.
func (b Backoff) Delay(failures int64) time.Duration {
	limit := max(b.Max, b.Base)
	delay := b.Base
	for i := int64(1); i < failures && delay < limit; i++ {
		if delay > limit/2 {
			return limit
		}
		delay *= 2
	}
	return min(delay, limit)
}
