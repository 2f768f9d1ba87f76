package faults_test

import (
	"fmt"
	"os"
	"sync"
	"testing"
)

// reference is the story without a fault; the first test that needs it tells it.
var reference struct {
	sync.Mutex
	story *story
}

func clean(t *testing.T) *story {
	t.Helper()
	reference.Lock()
	defer reference.Unlock()
	if reference.story != nil {
		return reference.story
	}
	s := tell(t, func(point) blow { return nothing }, nil)
	order, _ := s.proxy.seen()
	t.Logf("without a fault the manager writes %v,\nthe runner's messages are %q,\nand the outcome is %+v", order, s.messages, s.told)
	if applies := count(s.told.Processes, "apply"); applies != len(s.approved)+1 {
		t.Errorf("the tool's processes are %q, want an apply for each of %d approved plans and one that destroys", s.told.Processes, len(s.approved))
	}
	if len(s.approved) != 2 {
		t.Errorf("%d plans were approved, want 2", len(s.approved))
	}
	if t.Failed() {
		t.FailNow()
	}
	reference.story = s
	return s
}

// chosen says whether a point is tried: all are if that is wanted, else those of the part.
func chosen(part bool) bool { return part || os.Getenv(allPoints) != "" }

// try tells the story with one blow of the manager's and compares it.
func try(t *testing.T, whose string, what blow, where point, compare func(t *testing.T, s, clean *story)) {
	t.Helper()
	reference := clean(t)
	t.Run(fmt.Sprintf("%s %s", what, where), func(t *testing.T) {
		t.Parallel()
		t.Cleanup(func() { suite.points.ended(t, whose) })
		once := sync.Once{}
		s := tell(t, func(here point) (falls blow) {
			if here == where {
				once.Do(func() { falls = what })
			}
			return falls
		}, nil)
		if s.proxy.strikes() != 1 {
			t.Errorf("the point was not reached")
		}
		compare(t, s, reference)
	})
}

func TestAManagerThatIsKilledAtAnyWriteDoesNothingTwice(t *testing.T) {
	order, _ := clean(t).proxy.seen()
	for _, where := range order {
		for _, what := range []blow{killBefore, killAfter} {
			if !chosen(what == killAfter) {
				continue
			}
			try(t, ofManager, what, where, func(t *testing.T, s, clean *story) {
				if s.killed != 1 {
					t.Errorf("the manager was killed %d times", s.killed)
				}
				s.same(clean)
			})
		}
	}
}

func TestAnAnswerThatIsLostOrNegativeChangesNothing(t *testing.T) {
	order, _ := clean(t).proxy.seen()
	for i, where := range order {
		for j, what := range []blow{lostAnswer, brokenAnswer, conflict, tooMany, unavailable} {
			if !chosen(i%3 == 0 && i/3 == j) {
				continue
			}
			try(t, ofServer, what, where, func(t *testing.T, s, clean *story) {
				if s.told.Writes[where.kind] == clean.told.Writes[where.kind]+1 && (what == lostAnswer || what == brokenAnswer) {
					s.told.Writes[where.kind]-- // it was written again
				}
				s.same(clean)
			})
		}
	}
}
