package reactor

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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
	do(t, r, func() { testutil.Equal(t, len(r.timers), 0, "timers are left") })
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
		h := timerHeap{{at: tc.at}}
		testutil.Equal(t, h.timeout(10), tc.want, "deadline %d: timeout", tc.at)
	}
	testutil.Equal(t, (timerHeap{}).timeout(0), -1, "no timer: timeout")
}

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
		if len(r.timers) == 0 { // otherwise a signal has ended the sleep
			r.After(int64(5*time.Millisecond), func() { fired++ })
		}
		r.spin.empty, r.spin.since, r.spin.vain = 2, r.clock.read(), 0
		due, before, n := r.timers[0].at, r.stats.Asleep, fired
		testutil.Must(t, r.sleep())
		began := r.spin.since + r.spin.vain // it polled in vain until it slept
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

func pipe(t *testing.T) (rd, wr int) {
	t.Helper()
	var p [2]int
	testutil.Must(t, unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK))
	t.Cleanup(func() { _, _ = unix.Close(p[0]), unix.Close(p[1]) })
	return p[0], p[1]
}

func put(t *testing.T, fd int) {
	t.Helper()
	testutil.Check(t, testutil.Err(unix.Write(fd, []byte{1})))
}

func TestWatch(t *testing.T) {
	for name, busy := range map[string]int{"idle": 0, "busy": 1} {
		t.Run(name, func(t *testing.T) {
			r := start(t, Config{CPU: -1}, &poller{poll: func(int) int { return busy }})
			rd, wr := pipe(t)
			got := make(chan uint32)
			var buf [16]byte
			do(t, r, func() {
				testutil.Check(t, r.Watch(rd, unix.EPOLLIN, func(ev uint32) {
					_, _ = unix.Read(rd, buf[:])
					got <- ev
				}))
			})
			for range 20 {
				put(t, wr)
				testutil.MustEqual(t, testutil.Receive(t, "the event", got), unix.EPOLLIN, "event")
			}
			do(t, r, func() { testutil.Check(t, r.Unwatch(rd)) })
			put(t, wr)
			do(t, r, func() {})
			do(t, r, func() { testutil.Equal(t, r.watches.n, 0, "watches are left") })
		})
	}
}

// TestUnwatchWithinBatch: two descriptors are ready. The first callback unwatches the other
// descriptor, closes it, and watches a new one with the same number. Neither the old nor the new
// function may be called for the old event.
func TestUnwatchWithinBatch(t *testing.T) {
	r := start(t, Config{CPU: -1})
	var rd, wr [2]int
	for i := range rd {
		rd[i], wr[i] = pipe(t)
		put(t, wr[i])
	}
	var calls []int
	do(t, r, func() {
		for i := range rd {
			testutil.Check(t, r.Watch(rd[i], unix.EPOLLIN, func(uint32) {
				calls = append(calls, i)
				other := rd[1-i]
				testutil.Check(t, errors.Join(r.Unwatch(other), r.Unwatch(rd[i])))
				// same number, another file, not readable
				testutil.Check(t, unix.Dup2(mustEventfd(t), other))
				testutil.Check(t, r.Watch(other, unix.EPOLLIN,
					func(uint32) { t.Error("called for an event of its predecessor") }))
			}))
		}
		testutil.Equal(t, r.pollEvents(), 1, "functions were called")
	})
	testutil.Equal(t, len(calls), 1, "calls: %v", calls)
}

func mustEventfd(t *testing.T) int {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	testutil.Check(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

func TestWatchErrors(t *testing.T) {
	r := start(t, Config{CPU: -1})
	rd, _ := pipe(t)
	do(t, r, func() {
		fn := func(uint32) {}
		for what, got := range map[string]struct{ err, want error }{
			"watch -1":          {r.Watch(-1, unix.EPOLLIN, fn), unix.EBADF},
			"watch closed":      {r.Watch(1<<19, unix.EPOLLIN, fn), unix.EBADF},
			"watch":             {r.Watch(rd, unix.EPOLLIN, fn), nil},
			"watch again":       {r.Watch(rd, unix.EPOLLIN, fn), unix.EEXIST},
			"unwatch unwatched": {r.Unwatch(rd + 1), unix.ENOENT},
			"unwatch -1":        {r.Unwatch(-1), unix.ENOENT},
		} {
			testutil.True(t, errors.Is(got.err, got.want), "%s: %v, want %v", what, got.err,
				got.want)
		}
		testutil.Check(t, r.Unwatch(rd))
	})
}

// TestEventFDIsWork: a write of the kernel to the eventfd while the reactor is awake makes it poll
// again before it asks pollers whether it may sleep.
func TestEventFDIsWork(t *testing.T) {
	r := testutil.Value(New(Config{CPU: -1}))(t)
	defer func() { testutil.Check(t, r.Close()) }()
	for round := range 3 {
		testutil.Value(unix.Write(r.EventFD(), eventOne))(t)
		testutil.Equal(t, r.pollEvents(), 1, "events in round %d", round)
		testutil.Equal(t, r.pollEvents(), 0, "events in round %d, again", round)
	}
}
