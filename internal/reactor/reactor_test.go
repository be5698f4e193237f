package reactor

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// spins are the relevant configurations: sleep at once, and spin first.
var spins = map[string]time.Duration{"no spin": 0, "spin": 50 * time.Microsecond, "default": -1}

func TestPostOrder(t *testing.T) {
	r := start(t, Config{CPU: -1})
	var got []int
	do(t, r, func() {
		for i := range 100 {
			r.Post(func() { got = append(got, i) })
		}
	})
	do(t, r, func() {})
	for i, v := range got {
		testutil.MustEqual(t, v, i, "position %d", i)
	}
	testutil.MustEqual(t, len(got), 100, "of 100 ran")
}

// TestPostsLeavePollersTheirTurn: a function that posts itself again runs once between two polls.
func TestPostsLeavePollersTheirTurn(t *testing.T) {
	polls := 0
	r := start(t, Config{CPU: -1}, &poller{poll: func(int) int { polls++; return 0 }})
	done := make(chan struct{})
	left, last := 100, -1
	var piece func()
	piece = func() {
		testutil.True(t, polls != last, "it runs twice between two polls")
		if last, left = polls, left-1; left > 0 {
			r.Post(piece)
		} else {
			close(done)
		}
	}
	r.Post(piece)
	testutil.Receive(t, "the last piece", done)
}

func TestPostBeforeRun(t *testing.T) {
	r := testutil.Value(New(Config{CPU: -1}))(t)
	ctx, cancel := context.WithCancel(context.Background())
	ran := false
	r.Post(func() { ran = true; cancel() })
	err := r.Run(ctx)
	testutil.True(t, err == nil && ran, "%v %v", err, ran)
	testutil.Check(t, r.Close())
}

// TestNoLostPost posts from many goroutines, each waiting for its own function: a lost wake-up
// hangs it.
func TestNoLostPost(t *testing.T) {
	for name, spin := range spins {
		t.Run(name, func(t *testing.T) {
			r := start(t, Config{CPU: -1, Spin: spin})
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					done := make(chan struct{})
					for range 500 {
						r.Post(func() { done <- struct{}{} })
						select {
						case <-done:
						case <-time.After(testutil.Patience):
							t.Error("a posted function never ran")
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// TestNoLostWake publishes work that a poller finds only in memory, and wakes the reactor.
func TestNoLostWake(t *testing.T) {
	for name, spin := range spins {
		t.Run(name, func(t *testing.T) {
			var asked, answered [8]atomic.Int64
			var bell [8]chan struct{}
			for i := range bell {
				bell[i] = make(chan struct{}, 1)
			}
			p := &poller{poll: func(int) (work int) {
				for i := range asked {
					if n := asked[i].Load(); n != answered[i].Load() {
						answered[i].Store(n)
						bell[i] <- struct{}{}
						work++
					}
				}
				return work
			}}
			r := start(t, Config{CPU: -1, Spin: spin}, p)
			var wg sync.WaitGroup
			for i := range asked {
				wg.Go(func() {
					for range 500 {
						asked[i].Add(1)
						r.Wake()
						select {
						case <-bell[i]:
						case <-time.After(testutil.Patience):
							t.Errorf("worker %d: a wake-up was lost", i)
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// TestWakeBeforeSleep: work published at the last moment, after the poll that would have found it,
// still keeps the reactor awake.
func TestWakeBeforeSleep(t *testing.T) {
	for name, spin := range spins {
		for _, when := range []string{"poll", "arm"} {
			t.Run(name+" "+when, func(t *testing.T) {
				done := make(chan struct{})
				var r *Reactor
				var published, found int
				consumer := &poller{poll: func(int) int {
					if found == published {
						return 0
					}
					if found++; found == 10 {
						close(done)
					}
					return 1
				}}
				publish := func(now string) {
					if now == when && published == found && published < 10 {
						published++
						r.Wake()
					}
				}
				producer := &poller{ // runs after the consumer
					poll: func(int) int { publish("poll"); return 0 },
					arm:  func() bool { publish("arm"); return true },
				}
				r = start(t, Config{CPU: -1, Spin: spin})
				r.Post(func() { r.Attach(consumer); r.Attach(producer) })
				testutil.Receive(t, "the work that came in the last moment", done)
			})
		}
	}
}

// TestArmRefuses: a poller that finds work while it is armed keeps the reactor awake.
func TestArmRefuses(t *testing.T) {
	var left atomic.Int64
	done := make(chan struct{})
	armed := 0
	p := &poller{
		poll: func(int) int {
			if armed == 0 {
				return 0
			}
			armed = 0
			if left.Add(-1) == 0 {
				close(done)
			}
			return 1
		},
		arm: func() bool {
			if left.Load() > 0 {
				armed = 1
				return false
			}
			return true
		},
	}
	r := start(t, Config{CPU: -1}, p)
	left.Store(1000)
	r.Wake()
	testutil.Receive(t, "the last piece of work", done)
	do(t, r, func() {
		if s := r.Stats(); s.Sleeps > s.Iterations {
			t.Errorf("%+v", s)
		}
	})
}

// TestIdle: without work the thread sleeps until a timer is due, once or twice; make soak measures
// that it takes no CPU time.
func TestIdle(t *testing.T) {
	for name, spin := range spins {
		t.Run(name, func(t *testing.T) {
			r := start(t, Config{CPU: -1, Spin: spin}, &poller{})
			do(t, r, func() {
				runtime.LockOSThread() // the measured thread
				r.After(int64(time.Hour), func() {})
			})
			idle, rounds := 100*time.Millisecond, 3
			if testutil.Soaking() {
				idle, rounds = 400*time.Millisecond, 5
			}
			least := int64(idle)
			for range rounds {
				used, sleeps := timeOf(t, r, idle)
				testutil.True(t, sleeps <= 3, "%d sleeps without work, want one or two", sleeps)
				least = min(least, int64(used))
				testutil.Until(t, "the reactor sleeps", func() bool {
					return r.state.Load() == asleep
				})
			}
			testutil.True(t, !testutil.Soaking() || least <= int64(idle)/200,
				"%v of CPU time in %v without work, %d times in a row", time.Duration(least), idle,
				rounds)
		})
	}
}

// timeOf returns the CPU time of the thread of the reactor and its number of sleeps while d passes.
func timeOf(t *testing.T, r *Reactor, d time.Duration) (used time.Duration, sleeps uint64) {
	done := make(chan struct{})
	do(t, r, func() {
		before, slept := threadTime(t), r.Stats().Sleeps
		r.After(int64(d), func() {
			used, sleeps = time.Duration(threadTime(t)-before), r.Stats().Sleeps-slept
			close(done)
		})
	})
	testutil.Receive(t, "the timer", done)
	return used, sleeps
}

func threadTime(t *testing.T) int64 {
	var ru unix.Rusage
	testutil.Check(t, unix.Getrusage(unix.RUSAGE_THREAD, &ru))
	return ru.Utime.Nano() + ru.Stime.Nano()
}

// TestOthersRun: a reactor that always has work does not keep goroutines from running.
func TestOthersRun(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	r := start(t, Config{CPU: -1}, &poller{poll: func(int) int { return 1 }})
	for range 3 {
		do(t, r, func() {})
	}
	runtime.GC()
}

func TestPin(t *testing.T) {
	var set unix.CPUSet
	testutil.Must(t, unix.SchedGetaffinity(0, &set))
	cpu := 0
	for !set.IsSet(cpu) {
		cpu++
	}
	r := start(t, Config{CPU: cpu})
	do(t, r, func() {
		var now unix.CPUSet
		if err := unix.SchedGetaffinity(0, &now); err != nil || now.Count() != 1 ||
			!now.IsSet(cpu) {
			t.Errorf("on %s, %v, want CPU %d", cpuList(&now), err, cpu)
		}
	})

	for _, cpu := range []int{1023, 1 << 20} {
		bad := testutil.Value(New(Config{Index: 7, CPU: cpu}))(t)
		testutil.Fails(t, bad.Run(t.Context()), "reactor 7: pin to CPU 1", "pinned to CPU %d", cpu)
		testutil.Check(t, bad.Close())
	}
}

func TestRunEndsWithContext(t *testing.T) {
	for range 100 {
		r := testutil.Value(New(Config{CPU: -1}))(t)
		ctx, cancel := context.WithCancel(context.Background())
		go cancel()
		testutil.Check(t, r.Run(ctx))
		testutil.Check(t, r.Close())
	}
}

func TestIterationDoesNotAllocate(t *testing.T) {
	r := start(t, Config{CPU: -1})
	work := 0
	p := &poller{poll: func(int) int { return work }}
	do(t, r, func() {
		r.Attach(p)
		r.After(int64(time.Hour), func() {})
		for work = range 2 {
			if n := testutil.AllocsPerRun(1000, func() { r.iterate(); r.Wake(); r.Now() }); n != 0 {
				t.Errorf("an iteration with %d steps of work allocates %v times", work, n)
			}
		}
	})
}

// TestYield: on a machine with one CPU the loop yields after every poll without work, and never
// while there is work.
func TestYield(t *testing.T) {
	r := testutil.Value(New(Config{CPU: -1, Spin: time.Millisecond}))(t)
	ctx, cancel := context.WithCancel(context.Background())
	polls, yields := 0, 0
	r.yield = func() { yields++ }
	r.Attach(&poller{
		poll: func(int) int {
			if polls++; polls <= 100 {
				return 1
			}
			testutil.True(t, polls != 101 || yields == 0,
				"the loop yielded %d times while there was work", yields)
			return 0
		},
		arm: func() bool { cancel(); return true },
	})
	testutil.Check(t, r.Run(ctx))
	if idle := polls - 100; yields < idle/2 || yields == 0 {
		t.Errorf("the loop yielded %d times in %d polls without work", yields, idle)
	}
	testutil.Check(t, r.Close())
}

// TestWakeClosed: a reactor that is closed does not write to a descriptor that may be another
// file's by now. Close waits for a Wake that is about to write.
func TestWakeClosed(t *testing.T) {
	r := testutil.Value(New(Config{}))(t)
	r.waking.Add(1)
	closed := make(chan error, 1)
	go func() { closed <- r.Close() }()
	testutil.Until(t, "Close has begun", func() bool { return r.state.Load() == notified })
	testutil.True(t, len(closed) == 0, "Close does not wait")
	r.waking.Add(-1)
	testutil.Check(t, testutil.Receive(t, "the end of Close", closed))
	r.Wake()
	testutil.Equal(t, r.state.Load(), notified, "the state of a closed reactor")
}
