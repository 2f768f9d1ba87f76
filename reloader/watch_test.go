package reloader_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	. "github.com/onsi/gomega"

	"github.com/terrace-dev/terrace/reloader"
)

// These tests run in bubbles of testing/synctest, where time passes only while everybody waits. The files are real.

func TestContentIsHandedOver(t *testing.T) {
	t.Parallel()
	inBubble(t, map[string]func(*scene){
		"at once at the start": func(s *scene) {
			s.write("1")
			s.watch()
			s.expectCalls(call{"1", 0})
		},
		"when it has been the same for a while": func(s *scene) {
			s.write("1")
			s.watch()
			s.change("2")
			s.expectCalls(call{"1", 0})
			s.pass(time.Second)
			s.expectCalls(call{"1", 0}, call{"2", start + quiet})
		},
		"once for a burst of changes": func(s *scene) {
			s.write("1")
			s.watch()
			for _, content := range []string{"2", "3", "4"} {
				s.change(content)
				s.pass(quiet / 2)
			}
			s.pass(time.Second)
			s.expectCalls(call{"1", 0}, call{"4", start + 2*quiet})
		},
		"in time although it never rests": func(s *scene) {
			s.write("1")
			s.watch(reloader.WithQuiet(100*ms, 450*ms))
			for _, content := range []string{"2", "3", "4", "5", "6", "7", "8"} {
				s.change(content)
				s.pass(80 * ms)
			}
			s.expectCalls(call{"1", 0}, call{"7", start + 450*ms})
		},
		"after as long again if it changed back before": func(s *scene) {
			s.write("1")
			s.watch()
			s.change("2")
			s.pass(quiet / 2)
			s.change("1")
			s.pass(time.Second)
			s.change("2")
			s.pass(time.Second)
			s.expectCalls(call{"1", 0}, call{"2", start + time.Second + 3*quiet/2})
		},
		"by polling if no event comes": func(s *scene) {
			s.write("1")
			s.watch()
			s.write("2")
			s.pass(time.Minute)
			s.expectCalls(call{"1", 0}, call{"2", reloader.DefaultPoll + quiet})
		},
		"if it changed before the system began to report": func(s *scene) {
			s.write("1")
			s.bell.onAdd = func() { s.write("2") }
			s.watch(reloader.WithoutPolling())
			s.expectCalls(call{"2", 0})
		},
		"with an empty volume": func(s *scene) {
			s.write("1")
			s.watch()
			if err := s.volume.Write(nil); err != nil {
				s.Fatal(err)
			}
			s.ring()
			s.pass(time.Second)
			s.expectCalls(call{"1", 0}, call{"", start + quiet})
		},
	})
}

func TestNothingIsHandedOver(t *testing.T) {
	t.Parallel()
	baseline := func(content string) reloader.Option {
		return reloader.WithBaseline(reloader.Snapshot{Files: map[string][]byte{"a": []byte(content)}})
	}
	inBubble(t, map[string]func(*scene){
		"if content is written again as it is": func(s *scene) {
			s.write("1")
			s.watch()
			s.volume.Write(nil)
			s.change("1") // a new version with the same content
			s.pass(time.Minute)
			s.expectCalls(call{"1", 0})
		},
		"if content changes back in time": func(s *scene) {
			s.write("1")
			s.watch()
			s.change("2")
			s.pass(quiet / 2)
			s.change("1")
			s.pass(time.Minute)
			s.expectCalls(call{"1", 0})
		},
		"if the program has it already": func(s *scene) {
			s.write("1")
			s.watch(baseline("1"))
			s.pass(time.Minute)
			s.expectCalls()
			s.change("2")
			s.pass(quiet)
			s.expectCalls(call{"2", start + time.Minute + quiet})
		},
		"twice if the program has something older": func(s *scene) {
			s.write("2")
			s.watch(baseline("1"))
			s.pass(time.Minute)
			s.expectCalls(call{"2", 0})
		},
	})
}

func TestOnlyEventsOfContentCauseALook(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		event string
		looks bool
	}{
		"the link to the version":   {"..data", true},
		"the volume itself":         {".", true},
		"the link before it counts": {"..data_tmp", false},
		"a new version":             {"..2026_01_01", false},
		"the link of a key":         {"a", false},
		"something beside it":       {"../other", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t)
				s.write("1")
				s.watch()
				s.bell.looks()
				s.bell.events <- fsnotify.Event{Name: filepath.Join(s.volume.Root, tt.event), Op: fsnotify.Create}
				s.pass(quiet)
				NewWithT(t).Expect(s.bell.looks() > 0).To(Equal(tt.looks))
			})
		})
	}
}

func TestManyEventsCauseFewLooks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.write("1")
		s.watch()
		s.bell.looks()
		for range 100 {
			s.ring()
		}
		s.pass(quiet)
		NewWithT(t).Expect(s.bell.looks()).To(BeNumerically("<=", 2))
	})
}

func TestACallbackThatFailsIsCalledAgain(t *testing.T) {
	t.Parallel()
	failing := errors.New("not today")
	inBubble(t, map[string]func(*scene){
		"later each time until it succeeds": func(s *scene) {
			s.write("1")
			s.react = func(context.Context, string) error {
				if len(s.calls()) < 8 {
					return failing
				}
				return nil
			}
			s.watch(reloader.WithBackoff(time.Second, 30*time.Second))
			s.pass(time.Hour)
			NewWithT(s).Expect(s.calls()).To(HaveLen(8))
			for i, pause := range []float64{1, 2, 4, 8, 16, 30, 30} {
				after := s.calls()[i+1].after - s.calls()[i].after
				NewWithT(s).Expect(after.Seconds()).To(And(BeNumerically(">=", 0.8*pause), BeNumerically("<=", pause)))
			}
			NewWithT(s).Expect(s.errors()).To(HaveLen(7))
			var failure *reloader.CallbackError
			NewWithT(s).Expect(errors.As(s.errors()[6], &failure)).To(BeTrue())
			NewWithT(s).Expect(failure.Attempt).To(Equal(7))
			NewWithT(s).Expect(failure).To(MatchError(failing))
		},
		"with newer content as soon as there is some": func(s *scene) {
			s.write("bad")
			s.react = func(_ context.Context, content string) error {
				if content == "bad" {
					return failing
				}
				return nil
			}
			s.watch(reloader.WithBackoff(time.Hour, time.Hour))
			s.change("good")
			s.pass(3 * time.Hour)
			s.expectCalls(call{"bad", 0}, call{"good", start + quiet})
		},
		"from the first pause for newer content": func(s *scene) {
			s.write("1")
			s.react = func(context.Context, string) error { return failing }
			s.watch(reloader.WithBackoff(time.Second, time.Hour))
			s.pass(20 * time.Minute)
			s.change("2")
			s.pass(quiet)
			before := len(s.calls())
			s.pass(time.Second)
			NewWithT(s).Expect(s.calls()[before:]).To(HaveLen(1))
		},
	})
}

func TestNewerContentReplacesWhatACallbackIsBusyWith(t *testing.T) {
	t.Parallel()
	hang := func(ctx context.Context) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	inBubble(t, map[string]func(*scene){
		"by ending its context": func(s *scene) {
			s.write("hang")
			var cause error
			s.react = func(ctx context.Context, content string) error {
				if content == "hang" {
					cause = hang(ctx)
					return cause
				}
				return nil
			}
			s.watch()
			s.pass(time.Hour)
			s.change("2")
			s.pass(time.Hour)
			s.expectCalls(call{"hang", 0}, call{"2", start + time.Hour + quiet})
			NewWithT(s).Expect(cause).To(MatchError(reloader.ErrSuperseded))
			NewWithT(s).Expect(s.errors()).To(BeEmpty(), "being superseded is no failure")
		},
		"after it has returned, with the latest of several": func(s *scene) {
			s.write("1")
			s.react = func(_ context.Context, content string) error {
				if content == "1" {
					time.Sleep(time.Minute)
				}
				return nil
			}
			s.watch()
			for _, content := range []string{"2", "3", "4"} {
				s.change(content)
				s.pass(time.Second)
			}
			s.pass(time.Hour)
			s.expectCalls(call{"1", 0}, call{"4", time.Minute})
		},
		"also if it is what it was before": func(s *scene) {
			s.write("1")
			s.react = func(ctx context.Context, content string) error {
				if content == "2" {
					return hang(ctx)
				}
				return nil
			}
			s.watch()
			s.change("2")
			s.pass(time.Second)
			s.change("1")
			s.pass(time.Second)
			s.expectCalls(call{"1", 0}, call{"2", start + quiet}, call{"1", start + time.Second + quiet})
		},
		"also if it is the same again, since half may be done": func(s *scene) {
			s.write("1")
			s.react = func(context.Context, string) error { time.Sleep(time.Minute); return nil }
			s.watch()
			s.change("2")
			s.pass(time.Second)
			s.change("1")
			s.pass(time.Hour)
			s.expectCalls(call{"1", 0}, call{"1", time.Minute})
		},
	})
}

func TestEventsThatFail(t *testing.T) {
	t.Parallel()
	inBubble(t, map[string]func(*scene){
		"by overflow are asked for anew": func(s *scene) {
			s.write("1")
			s.watch(reloader.WithoutPolling())
			s.write("2")
			s.bell.errors <- fsnotify.ErrEventOverflow
			s.pass(time.Second)
			s.expectCalls(call{"1", 0}, call{"2", start + 2*quiet})
			NewWithT(s).Expect(s.bell.opened).To(Equal(2))
			NewWithT(s).Expect(s.errors()).To(BeEmpty())
		},
		"by another error are asked for anew": func(s *scene) {
			s.write("1")
			s.watch(reloader.WithoutPolling())
			s.write("2")
			s.bell.errors <- errors.New("broken")
			s.pass(time.Second)
			s.expectCalls(call{"1", 0}, call{"2", start + 2*quiet})
			NewWithT(s).Expect(s.bell.opened).To(Equal(2))
			NewWithT(s).Expect(s.errors()).To(BeEmpty())
		},
		"while a watch ends are asked for anew": func(s *scene) {
			s.write("1")
			s.bell.onRemove = syscall.EINVAL
			s.watch(reloader.WithoutPolling())
			s.write("2")
			s.bell.events <- fsnotify.Event{Name: s.volume.Root, Op: fsnotify.Rename}
			s.pass(time.Second)
			s.expectCalls(call{"1", 0}, call{"2", start + quiet})
			NewWithT(s).Expect(s.bell.opened).To(Equal(2))
		},
		"by ending are asked for anew": func(s *scene) {
			s.write("1")
			s.watch(reloader.WithoutPolling())
			s.write("2")
			s.bell.end()
			s.pass(time.Second)
			s.expectCalls(call{"1", 0}, call{"2", start + 2*quiet})
		},
		"because the limit is reached are replaced by polling, and tried again": func(s *scene) {
			s.write("1")
			s.bell.fail(syscall.EMFILE)
			s.watch()
			s.write("2")
			s.pass(5 * time.Second)
			s.expectCalls(call{"1", 0}, call{"2", 2*time.Second + quiet})
			NewWithT(s).Expect(s.errors()).To(ConsistOf(And(MatchError(reloader.ErrPolling), MatchError(syscall.EMFILE))), "reported once")
			s.bell.fail(nil)
			s.pass(5 * time.Second)
			s.change("3")
			s.pass(quiet)
			s.expectCalls(call{"1", 0}, call{"2", 2*time.Second + quiet}, call{"3", start + 10*time.Second + quiet})
		},
	})
}

func TestAPathThatIsMissingIsWaitedFor(t *testing.T) {
	t.Parallel()
	inBubble(t, map[string]func(*scene){
		"at the start": func(s *scene) {
			os.Remove(s.volume.Root)
			s.watch()
			s.expectCalls()
			NewWithT(s).Expect(s.errors()).To(ConsistOf(MatchError(os.ErrNotExist)), "reported once")
			os.Mkdir(s.volume.Root, 0o755)
			s.write("1")
			s.pass(time.Minute)
			s.expectCalls(call{"1", 2*time.Second + quiet})
		},
		"and while it is set up, without calling with nothing": func(s *scene) {
			s.write("1")
			s.watch()
			os.RemoveAll(s.volume.Root)
			s.pass(time.Minute)
			os.Mkdir(s.volume.Root, 0o755)
			s.pass(time.Minute)
			s.expectCalls(call{"1", 0})
			s.write("2")
			s.pass(time.Minute)
			NewWithT(s).Expect(s.calls()).To(HaveLen(2))
			NewWithT(s).Expect(s.calls()[1].content).To(Equal("2"))
		},
	})
}

func TestWhatIsTooLargeIsReportedAndLeftAlone(t *testing.T) {
	t.Parallel()
	for name, limits := range map[string]reloader.Limits{
		"as a file":     {FileBytes: 10},
		"all together":  {TotalBytes: 17},
		"by the number": {Files: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				s := newScene(t)
				s.write("1")
				s.watch(reloader.WithLimits(limits))
				s.volume.Write(map[string]string{"a": strings.Repeat(secret, 2), "b": "2", "c": "345"})
				s.ring()
				s.pass(time.Minute + quiet) // not at the same time as a look
				s.expectCalls(call{"1", 0})
				g.Expect(s.errors()).To(ConsistOf(MatchError(reloader.ErrTooLarge)))
				g.Expect(s.errors()[0].Error()).To(And(ContainSubstring(s.volume.Root), Not(ContainSubstring(secret))))
				s.change("2")
				s.pass(quiet)
				s.expectCalls(call{"1", 0}, call{"2", start + time.Minute + 2*quiet})
			})
		})
	}
}

func TestWatchEndsWithItsContextAndWaitsForTheCallback(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.write("1")
		returned := false
		s.react = func(ctx context.Context, _ string) error {
			<-ctx.Done()
			time.Sleep(time.Minute)
			returned = true
			return ctx.Err()
		}
		s.watch()()
		NewWithT(t).Expect(returned).To(BeTrue())
		NewWithT(t).Expect(time.Since(s.began)).To(Equal(start + time.Minute))
		NewWithT(t).Expect(s.errors()).To(BeEmpty())
	})
}

func TestArgumentsThatMakeNoSenseAreErrors(t *testing.T) {
	t.Parallel()
	callback := func(context.Context, []reloader.Snapshot) error { return nil }
	dirs := []string{"/etc/app"}
	for name, tt := range map[string]struct {
		dirs     []string
		callback func(context.Context, []reloader.Snapshot) error
		option   reloader.Option
		message  string
	}{
		"no directory":           {nil, callback, nil, "no directory"},
		"an empty directory":     {[]string{"/etc/app", ""}, callback, nil, "directory 2 of 2"},
		"a directory twice":      {[]string{"/etc/app", "/etc/app"}, callback, nil, "twice"},
		"no callback":            {dirs, nil, nil, "callback"},
		"no quiet":               {dirs, callback, reloader.WithQuiet(0, time.Second), "quiet"},
		"less wait than quiet":   {dirs, callback, reloader.WithQuiet(time.Second, time.Millisecond), "quiet"},
		"no pause between looks": {dirs, callback, reloader.WithPoll(0), "polling"},
		"no pause":               {dirs, callback, reloader.WithBackoff(0, time.Second), "pauses"},
		"pauses that shrink":     {dirs, callback, reloader.WithBackoff(time.Second, time.Millisecond), "pauses"},
		"negative limits":        {dirs, callback, reloader.WithLimits(reloader.Limits{Files: -1}), "limits"},
		"no handler":             {dirs, callback, reloader.WithErrorHandler(nil), "handler"},
		"another baseline":       {dirs, callback, reloader.WithBaseline(reloader.Snapshot{}, reloader.Snapshot{}), "baseline"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var opts []reloader.Option
			if tt.option != nil {
				opts = append(opts, tt.option)
			}
			NewWithT(t).Expect(reloader.Watch(t.Context(), tt.dirs, tt.callback, opts...)).To(MatchError(ContainSubstring(tt.message)))
		})
	}
}
