package reactor

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestWait: a wait that naps first ends when one that does not would.
func TestWait(t *testing.T) {
	for _, brief := range []bool{false, true} {
		r, err := New(Config{CPU: -1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		})
		r.spin.brief = brief
		wait := func(ms int) int {
			for {
				n, err := r.wait(ms)
				if err == nil {
					return n
				}
				if err != unix.EINTR {
					t.Fatal(err)
				}
			}
		}
		for _, ms := range []int{0, 1, 2, 5} {
			from := time.Now()
			if n := wait(ms); n != 0 || time.Since(from) < time.Duration(ms)*time.Millisecond {
				t.Errorf("brief %v, %d ms: %d events after %v", brief, ms, n, time.Since(from))
			}
		}
		for _, ms := range []int{-1, 0, 1, 1000} {
			if _, err := unix.Write(r.evfd, eventOne); err != nil {
				t.Fatal(err)
			}
			if n := wait(ms); n != 1 {
				t.Errorf("brief %v, %d ms: %d events", brief, ms, n)
			}
		}
	}
}

// TestNapsAreLearned: only sleeps that were short are expected to be so again.
func TestNapsAreLearned(t *testing.T) {
	var s spin
	s.init(0)
	for _, d := range []time.Duration{0, nap - 1, nap, time.Hour, nap / 2} {
		if s.slept(int64(d)); s.brief != (d < nap) {
			t.Errorf("after %v: %v", d, s.brief)
		}
	}
}

// TestGiveWay: only a reactor that hardly sleeps gives way of itself, and not each time.
func TestGiveWay(t *testing.T) {
	r := &Reactor{}
	for _, tc := range []struct {
		brief     bool
		now, gave int64
	}{
		{false, int64(turn) + 1, 0},
		{true, int64(turn), 0},
		{true, int64(turn) + 1, int64(turn) + 1},
		{true, 2*int64(turn) + 1, int64(turn) + 1},
		{true, 2*int64(turn) + 2, 2*int64(turn) + 2},
	} {
		r.spin.brief = tc.brief
		if r.giveWay(tc.now); r.gave != tc.gave {
			t.Errorf("%+v: gave way at %d", tc, r.gave)
		}
	}
}

// TestEndTurn: a busy reactor that is not pinned gives way of itself, once in each turn.
func TestEndTurn(t *testing.T) {
	for _, cpu := range []int{-1, 0} {
		r := &Reactor{cfg: Config{CPU: cpu}}
		for _, tc := range []struct{ now, gave int64 }{
			{int64(turn), 0},
			{int64(turn) + 1, int64(turn) + 1},
			{2*int64(turn) + 1, int64(turn) + 1},
			{2*int64(turn) + 2, 2*int64(turn) + 2},
		} {
			if cpu >= 0 {
				tc.gave = 0
			}
			r.clock.now = tc.now
			if r.endTurn(); r.gave != tc.gave {
				t.Errorf("CPU %d, at %d: gave way at %d, not %d", cpu, tc.now, r.gave, tc.gave)
			}
		}
	}
}
