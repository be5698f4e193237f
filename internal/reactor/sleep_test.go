package reactor

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestWait: a wait that keeps its P at first ends when another one would.
func TestWait(t *testing.T) {
	for _, short := range []bool{false, true} {
		r, err := New(Config{CPU: -1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		})
		r.spin.short = short
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
				t.Errorf("short %v, %d ms: %d events after %v", short, ms, n, time.Since(from))
			}
		}
		for _, ms := range []int{-1, 0, 1, 1000} {
			if _, err := unix.Write(r.evfd, eventOne); err != nil {
				t.Fatal(err)
			}
			if n := wait(ms); n != 1 {
				t.Errorf("short %v, %d ms: %d events", short, ms, n)
			}
		}
	}
}

// TestAsleep: the time of sleeps is counted, and no other.
func TestAsleep(t *testing.T) {
	r := start(t, Config{CPU: -1})
	look := func() (s Stats) {
		do(t, r, func() { s = r.Stats() })
		return s
	}
	const pause = 50 * time.Millisecond
	from, before, slept := time.Now(), look(), make(chan struct{})
	do(t, r, func() { r.After(int64(pause), func() { close(slept) }) })
	wait(t, "the timer", slept)
	do(t, r, func() { // work
		for end := time.Now().Add(pause); time.Now().Before(end); {
		}
	})
	asleep, passed := look().Asleep-before.Asleep, time.Since(from)
	if asleep < pause/2 || asleep > passed-pause {
		t.Errorf("%v asleep in %v", asleep, passed)
	}
}

// TestShortSleepsAreLearned: only sleeps that were short are expected to be so again.
func TestShortSleepsAreLearned(t *testing.T) {
	var s spin
	s.init(0)
	for _, d := range []time.Duration{0, shortSleep - 1, shortSleep, time.Hour, shortSleep / 2} {
		if s.slept(int64(d)); s.short != (d < shortSleep) {
			t.Errorf("after %v: %v", d, s.short)
		}
	}
}

// TestYieldBeforeSleep: only a reactor that hardly sleeps yields, and not each time.
func TestYieldBeforeSleep(t *testing.T) {
	r := &Reactor{}
	for _, tc := range []struct {
		short        bool
		now, yielded int64
	}{
		{false, int64(timeSlice) + 1, 0},
		{true, int64(timeSlice), 0},
		{true, int64(timeSlice) + 1, int64(timeSlice) + 1},
		{true, 2*int64(timeSlice) + 1, int64(timeSlice) + 1},
		{true, 2*int64(timeSlice) + 2, 2*int64(timeSlice) + 2},
	} {
		r.spin.short = tc.short
		if r.yieldBeforeSleep(tc.now); r.yielded != tc.yielded {
			t.Errorf("%+v: yielded at %d", tc, r.yielded)
		}
	}
}

// TestYieldWhenBusy: a busy reactor that is not pinned yields once per time slice.
func TestYieldWhenBusy(t *testing.T) {
	for _, cpu := range []int{-1, 0} {
		r := &Reactor{cfg: Config{CPU: cpu}}
		for _, tc := range []struct{ now, yielded int64 }{
			{int64(timeSlice), 0},
			{int64(timeSlice) + 1, int64(timeSlice) + 1},
			{2*int64(timeSlice) + 1, int64(timeSlice) + 1},
			{2*int64(timeSlice) + 2, 2*int64(timeSlice) + 2},
		} {
			if cpu >= 0 {
				tc.yielded = 0
			}
			r.clock.now = tc.now
			if r.yieldWhenBusy(); r.yielded != tc.yielded {
				t.Errorf("CPU %d, at %d: yielded at %d, not %d", cpu, tc.now, r.yielded, tc.yielded)
			}
		}
	}
}
