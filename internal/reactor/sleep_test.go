package reactor

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestWait: a wait that keeps its P at first ends like any other wait.
func TestWait(t *testing.T) {
	for _, short := range []bool{false, true} {
		r := testutil.Value(New(Config{CPU: -1}))(t)
		t.Cleanup(func() { testutil.Check(t, r.Close()) })
		r.spin.short = short
		wait := func(ms int) int {
			for {
				n, err := r.wait(ms)
				if err == nil {
					return n
				}
				testutil.MustTrue(t, err == unix.EINTR, "%v", err)
			}
		}
		for _, ms := range []int{0, 1, 2, 5} {
			from := r.Clock()
			if n := wait(ms); n != 0 || r.Clock()-from < int64(ms)*1e6 {
				t.Errorf("short %v, %d ms: %d events, or too early", short, ms, n)
			}
		}
		for _, ms := range []int{-1, 0, 1, 1000} {
			testutil.Value(unix.Write(r.evfd, eventOne))(t)
			testutil.Equal(t, wait(ms), 1, "short %v, %d ms events", short, ms)
		}
	}
}

// TestAsleep: only the time of sleeps is counted.
func TestAsleep(t *testing.T) {
	r := testutil.Value(New(Config{CPU: -1}))(t)
	r.Attach(&poller{poll: func(int) int { return 1 }})
	for fired := 0; fired < 5; {
		if r.timers.Len() == 0 { // otherwise a signal has ended the sleep
			r.After(int64(5*time.Millisecond), func() { fired++ })
		}
		r.spin.empty, r.spin.since, r.spin.polling = 2, r.clock.read(), 0
		_, due := r.timers.First()
		before, n := r.stats.Asleep, fired
		testutil.Must(t, r.sleep())
		began := r.spin.since + r.spin.polling // it polled without work until it slept
		asleep := int64(r.stats.Asleep - before)
		if passed := r.clock.read() - began; fired > n && asleep < due-began || asleep > passed {
			t.Errorf("%d ns asleep of %d, due after %d", asleep, passed, due-began)
		}
		r.iterate()
		if s := r.Stats(); int64(s.Asleep-before) != asleep {
			t.Errorf("an iteration adds %d ns of sleep", int64(s.Asleep-before)-asleep)
		}
	}
	testutil.Check(t, r.Close())
}

// TestShortSleepsAreLearned: only after a short sleep is the next one expected to be short.
func TestShortSleepsAreLearned(t *testing.T) {
	var s spin
	s.init(0)
	for d, want := range map[time.Duration]bool{
		0: true, shortSleep - 1: true, shortSleep: false, time.Hour: false, shortSleep / 2: true,
	} {
		s.slept(int64(d))
		testutil.True(t, s.short == want, "after %v: %v", d, s.short)
	}
}

// TestYieldBeforeSleep: only a reactor that hardly sleeps yields, and not every time.
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
		r.yieldBeforeSleep(tc.now)
		testutil.True(t, r.yielded == tc.yielded, "%+v: yielded at %d", tc, r.yielded)
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
