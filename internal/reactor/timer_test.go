package reactor

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestTimersInOrder(t *testing.T) {
	r := start(t, Config{CPU: -1})
	type firing struct{ least, most, got int64 } // due between least and most
	var fired []firing
	done := make(chan struct{})
	const n = 50
	do(t, r, func() {
		for _, i := range rand.Perm(n) {
			d := int64(i) * int64(time.Millisecond)
			f := firing{least: r.clock.read() + d}
			r.After(d, func() {
				f.got = r.clock.read()
				if fired = append(fired, f); len(fired) == n {
					close(done)
				}
			})
			f.most = r.clock.read() + d
		}
	})
	testutil.Receive(t, "the last timer", done)
	for i, f := range fired {
		testutil.True(t, i <= 0 || fired[i-1].least <= f.most, "out of order: %v", fired)
		testutil.True(t, f.got >= f.least, "a timer fired %v early", time.Duration(f.least-f.got))
	}
}

func TestTimerStop(t *testing.T) {
	r := start(t, Config{CPU: -1})
	done := make(chan struct{})
	ran := map[string]bool{}
	do(t, r, func() {
		mark := func(name string) func() { return func() { ran[name] = true } }
		stop := r.After(int64(time.Millisecond), mark("stopped"))
		stop()
		stop()
		var stopLater func()
		stopSelf := func() {}
		stopSelf = r.After(int64(time.Millisecond), func() {
			mark("kept")()
			stopSelf()
			stopLater()
		})
		stopLater = r.After(int64(time.Millisecond)+1, mark("stopped by another timer"))
		stopNever := r.After(math.MaxInt64, mark("never"))
		r.After(-5, mark("in the past"))
		r.After(int64(5*time.Millisecond), func() { stopNever(); close(done) })
	})
	testutil.Receive(t, "the last timer", done)
	testutil.True(t, len(ran) == 2 && ran["kept"] && ran["in the past"], "ran: %v", ran)
	do(t, r, func() { testutil.Equal(t, r.timers.Len(), 0, "timers are left") })
}

// TestTimerWhileBusy: timers fire although there is always work, and a timer that starts another at
// once does not block the loop.
func TestTimerWhileBusy(t *testing.T) {
	r := start(t, Config{CPU: -1}, &poller{poll: func(int) int { return 1 }})
	done := make(chan struct{})
	n := 0
	var again func()
	again = func() {
		if n++; n == 100 {
			close(done)
			return
		}
		r.After(0, again)
	}
	r.Post(again)
	testutil.Receive(t, "the hundredth timer", done)
}

// TestPace: the clock is read about every half millisecond for any length of a step, and not more
// often than needed.
func TestPace(t *testing.T) {
	for _, tc := range []struct {
		step, least, worst int64 // nanoseconds
	}{
		{10, 0, 10 * maxEvery},
		{1e3, 200e3, 1e6},
		{10e3, 200e3, 1e6},
		{200e3, 200e3, 1e6},
		{1e9, 1e9, 1e9},
	} {
		for _, every := range []int{1, maxEvery} {
			for range 10 {
				every = pace(every, int64(every)*tc.step)
			}
			if d := int64(every) * tc.step; d < tc.least || d > tc.worst {
				t.Errorf("steps of %d ns: every %d of them, %d ns", tc.step, every, d)
			}
		}
	}
}

func TestTimeout(t *testing.T) {
	for _, tc := range []struct {
		at   int64
		want int
	}{{5, 0}, {10, 0}, {11, 1}, {10 + 1e6, 1}, {11 + 1e6, 2}, {math.MaxInt64, math.MaxInt32}} {
		var r Reactor
		testutil.Equal(t, r.untilTimer(10), -1, "no timer: timeout")
		var e timer
		r.timers.Set(&e, &e.place, tc.at)
		testutil.Equal(t, r.untilTimer(10), tc.want, "deadline %d: timeout", tc.at)
	}
}
