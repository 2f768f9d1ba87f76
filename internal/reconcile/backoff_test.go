package reconcile

import (
	"math"
	"testing"
	"time"
)

func TestBackoffDelay(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		backoff  Backoff
		failures int64
		want     time.Duration
	}{
		"the first failure waits for the base":        {Backoff{30 * time.Second, time.Hour}, 1, 30 * time.Second},
		"no failure counts as one":                    {Backoff{30 * time.Second, time.Hour}, 0, 30 * time.Second},
		"a negative count counts as one":              {Backoff{30 * time.Second, time.Hour}, math.MinInt64, 30 * time.Second},
		"each failure doubles":                        {Backoff{30 * time.Second, time.Hour}, 4, 4 * time.Minute},
		"the maximum is kept":                         {Backoff{30 * time.Second, time.Hour}, 8, time.Hour},
		"the thirtieth failure does not overflow":     {Backoff{15 * time.Second, time.Hour}, 30, time.Hour},
		"the last possible failure does not overflow": {Backoff{time.Nanosecond, math.MaxInt64}, math.MaxInt64, math.MaxInt64},
		"a maximum below the base counts as the base": {Backoff{time.Minute, time.Second}, 9, time.Minute},
		"no maximum counts as the base":               {Backoff{time.Minute, 0}, 9, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := test.backoff.Delay(test.failures); got != test.want {
				t.Errorf("Delay(%d) = %v, want %v", test.failures, got, test.want)
			}
		})
	}
}

func TestBackoffNeverShrinks(t *testing.T) {
	t.Parallel()
	backoff := Backoff{Base: 7 * time.Second, Max: math.MaxInt64}
	last := time.Duration(0)
	for failures := range int64(200) {
		delay := backoff.Delay(failures)
		if delay < last || delay <= 0 {
			t.Fatalf("Delay(%d) = %v after %v", failures, delay, last)
		}
		last = delay
	}
}
