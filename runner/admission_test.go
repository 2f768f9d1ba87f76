package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestRoom takes place in a bubble: it waits for no real second.
func TestRoom(t *testing.T) {
	t.Parallel()
	type step struct {
		at   time.Duration
		name string
	}
	for name, test := range map[string]struct {
		capacity int
		free     func(time.Duration) bool // whether there is room, by the time since the start
		lasts    time.Duration            // each of three operations
		want     []step                   // which runs when
	}{
		"all of them run while there is room": {
			capacity: 3, free: func(time.Duration) bool { return true }, lasts: time.Minute,
			want: []step{{0, "0"}, {0, "1"}, {0, "2"}},
		},
		"without room one runs after the other": {
			capacity: 3, free: func(time.Duration) bool { return false }, lasts: time.Minute,
			want: []step{{0, "0"}, {time.Minute, "1"}, {2 * time.Minute, "2"}},
		},
		"room that appears is used within a second": {
			capacity: 3, free: func(at time.Duration) bool { return at >= 10*time.Second }, lasts: time.Minute,
			want: []step{{0, "0"}, {10 * time.Second, "1"}, {10 * time.Second, "2"}},
		},
		"room does not exceed the capacity": {
			capacity: 2, free: func(at time.Duration) bool { return at >= 10*time.Second }, lasts: time.Minute,
			want: []step{{0, "0"}, {10 * time.Second, "1"}, {time.Minute, "2"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				a := newAdmission(test.capacity, func() bool { return test.free(time.Since(begun)) })
				ran := make(chan step, 3)
				for i := range 3 {
					go func() {
						if err := a.enter(t.Context(), func() {}); err != nil {
							t.Error(err)
							return
						}
						ran <- step{time.Since(begun), fmt.Sprint(i)}
						time.Sleep(test.lasts)
						a.leave()
					}()
					synctest.Wait() // that is the order of arrival
				}
				var got []step
				for range 3 {
					got = append(got, <-ran)
				}
				if !slices.Equal(got, test.want) {
					t.Errorf("ran %v, want %v", got, test.want)
				}
				time.Sleep(test.lasts)
			})
		})
	}
}

func TestWaitingForRoomDoesNotCountAsRunning(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		server := NewServer(newEngine(t, untilInterrupted), Options{Room: func() bool { asked.Add(1); return false }})
		begun := time.Now()
		for i := range 2 {
			request := plan(fmt.Sprint("op-", i), fmt.Sprint("u", i))
			request.TimeoutSeconds = 60
			if _, err := server.StartOperation(t.Context(), request); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		for i := range 2 {
			resultOf(t, server, fmt.Sprint("op-", i))
			if took, want := time.Since(begun), time.Duration(i+1)*time.Minute; took != want {
				t.Errorf("operation %d ended after %v, want %v", i, took, want)
			}
		}
		if n := asked.Load(); n < 50 || n > 61 {
			t.Errorf("it was asked %d times in a minute", n)
		}
	})
}

func TestWaitingForRoomEnds(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*Server) error{
		ReasonCancelled: func(server *Server) error {
			op, _ := server.operations.get("op-1")
			op.cancel(ErrCancelled)
			return nil
		},
		ReasonShutdown: func(server *Server) error { return server.Shutdown(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				engine := newEngine(t, untilInterrupted)
				server := NewServer(engine, Options{Room: func() bool { return false }})
				for i := range 2 {
					if _, err := server.StartOperation(t.Context(), plan(fmt.Sprint("op-", i), fmt.Sprint("u", i))); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
				}
				if err := end(server); err != nil {
					t.Error(err)
				}
				if reason := resultOf(t, server, "op-1").GetFailure().GetReason(); reason != name || engine.ran("op-1") != 0 {
					t.Errorf("ended because of %s after %d runs", reason, engine.ran("op-1"))
				}
				if err := server.Shutdown(t.Context()); err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
		})
	}
}
