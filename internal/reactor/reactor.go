// Package reactor implements the loop that owns queues, backend channels, timers and descriptors.
//
// A Reactor is one goroutine on one OS thread, pinned to a CPU if configured. It polls while there
// is work and for a short, adaptive time afterwards. Then it arms its pollers and sleeps in
// epoll_wait, so that an idle reactor takes no CPU time:
//
//	Run:  mailbox -> pollers -> (now and then: timers, descriptors) -> again
//	      no work for the spin time -> Arm all -> sleep until Wake, descriptor or timer -> again
//
// Everything that a Reactor calls runs on its goroutine and must not block. GOMAXPROCS must exceed
// the number of running reactors, so that other goroutines always have a P (processor of the Go
// runtime) to run on; the application sets it. With a smaller GOMAXPROCS the loop still works, but
// yields before each sleep, which costs two thread switches.
package reactor

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// Poller is a source of work: the group of a transport, or the handler of the controller.
type Poller interface {
	// Poll advances about budget commands at most and returns the steps made; 0 means no work.
	Poll(budget int) int
	// Arm prepares to sleep: from now on, every event that needs a Poll wakes the reactor. It
	// returns false if there is work already. It may be called again, with or without a Poll in
	// between, after another poller has refused or the reactor has slept.
	Arm() bool
}

// Config describes a Reactor.
type Config struct {
	// Index numbers the reactors of a process, for logs.
	Index int
	// CPU is the processor to which Run pins its thread, -1 for none.
	CPU int
	// Spin is the longest time without work before a sleep, of which the loop learns how much pays.
	Spin time.Duration
}

const (
	// budget is the number of steps that one poller makes before the next one's turn.
	budget = 64
	// idleTicks is the cost of an iteration without work, in steps of work; see clock.every.
	idleTicks = 8

	maxEvents = 128
	// postsMost and timersMost are the posted functions and timers that an iteration runs.
	postsMost  = 64
	timersMost = 64
	// pollFDsEvery is the number of times that a busy loop reads the clock for each poll of
	// descriptors. Pollers that need events sooner poll for themselves.
	pollFDsEvery = 4
)

// The states of Reactor.state.
const (
	awake    = iota // polling
	notified        // polling, and Wake was called: poll at least once more before sleeping
	asleep          // in epoll_wait or about to: Wake must write to the eventfd
)

// Reactor is one loop. Only its goroutine calls it, or any before Run, unless noted.
type Reactor struct {
	cfg  Config
	epfd int
	evfd int

	// The only fields that other goroutines access.
	state   atomic.Uint32
	waking  atomic.Int32 // calls of Wake that may write to evfd
	mailbox list.Inbox[post]
	_       [64]byte

	pollers []Poller
	stopped bool
	starved bool // there are no more Ps than reactors
	// yield gives the CPU to other threads between polls without work; nil if they have other CPUs.
	yield func()

	clock clock
	spin  spin
	began int64 // time of the call of Run
	// yielded is the time of the last call of Gosched because the time slice was over.
	yielded int64

	timers     list.Heap[timer]
	watches    watches
	housekeeps uint // calls of housekeep
	events     [maxEvents]unix.EpollEvent

	stats Stats
	steps stepTimes // time and work of steps, with the build tag invariants
}

// Stats are counters since the start of Run, for tests and metrics. Reactor only.
type Stats struct {
	// Iterations counts the iterations of the loop, Empty the ones without work.
	Iterations, Empty uint64
	// Sleeps counts the sleeps in epoll_wait and Asleep their time. Otherwise it polled.
	Sleeps uint64
	Asleep time.Duration
	// Up is the time since the start. Polling is the part of it in which the loop polled without
	// finding work, apart from pauses too short to tell.
	Up, Polling time.Duration
	// Steps is the work of each poller, in the order of Attach.
	Steps []uint64
}

// post is one function in the mailbox.
type post struct {
	fn   func()
	node list.Node[post]
}

// running counts reactors in Run, to tell whether processors are scarce.
var running atomic.Int32

// New makes a reactor. Close frees it.
func New(cfg Config) (*Reactor, error) {
	epfd, evfd, err := sys.EpollEvent()
	if err != nil {
		return nil, fmt.Errorf("reactor %d: %w", cfg.Index, err)
	}
	r := &Reactor{cfg: cfg, epfd: epfd, evfd: evfd, steps: stepTimes{count: list.NewSteps()}}
	if singleCPU() {
		r.yield = yield
	}
	r.clock.init()
	r.spin.init(cfg.Spin.Nanoseconds())
	return r, nil
}

// Close frees the descriptors after Run, and after the last Post. Wake does nothing then.
func (r *Reactor) Close() error {
	for r.state.Store(notified); r.waking.Load() > 0; {
		runtime.Gosched() // a call of Wake has not returned
	}
	return errors.Join(unix.Close(r.evfd), unix.Close(r.epfd))
}

// Index returns the number of the reactor. Any goroutine may call it.
func (r *Reactor) Index() int { return r.cfg.Index }

// EventFD returns the eventfd that ends the sleep. Any goroutine may call it, until Close.
func (r *Reactor) EventFD() int { return r.evfd }

// Stats returns the counters.
func (r *Reactor) Stats() Stats {
	now := r.clock.read()
	r.spin.busy(now)
	s := r.stats
	if r.began > 0 {
		s.Up = time.Duration(now - r.began)
	}
	s.Polling, s.Steps = time.Duration(r.spin.polling), slices.Clone(s.Steps)
	return s
}

// Attach adds p to the pollers. The loop polls it from the next iteration on at the latest.
func (r *Reactor) Attach(p Poller) {
	r.pollers, r.stats.Steps = append(r.pollers, p), append(r.stats.Steps, 0)
}

// Steps counts the steps of functions and pollers of the reactor. Any goroutine may call it.
func (r *Reactor) Steps() list.Steps { return r.steps.count }

// Post runs fn on the reactor soon, after functions that the same goroutine has posted before. Any
// goroutine may call it, even before Run. A function posted after Run has returned never runs.
func (r *Reactor) Post(fn func()) {
	p := &post{fn: fn}
	r.mailbox.Push(p, &p.node)
	r.Wake()
}

// Wake makes the reactor poll everything at least once more before it sleeps, and ends its sleep.
// Any goroutine may call it, including the reactor. It costs one atomic load if the reactor is
// awake and has been woken already.
func (r *Reactor) Wake() {
	for {
		switch r.state.Load() {
		case notified:
			return
		case awake:
			if r.state.CompareAndSwap(awake, notified) {
				return
			}
		default:
			// The state stays asleep, so that no wake-up depends on a goroutine that is preempted
			// right here. Surplus writes only add to the counter.
			r.waking.Add(1)
			sleeps := r.state.Load() == asleep // otherwise it may be closed
			if sleeps {
				_, _ = unix.Write(r.evfd, eventOne)
			}
			if r.waking.Add(-1); sleeps {
				return
			}
		}
	}
}

// eventOne is 1 as for eventfd(2). The counter has room for 2^64 writes and is never read.
var eventOne = binary.NativeEndian.AppendUint64(nil, 1)

// Run is the loop. With Config.CPU it locks the goroutine to its thread and pins the thread.
// Otherwise code that needs to stay on one thread locks the goroutine itself. Run returns when ctx
// is done, or with an error if the thread cannot be pinned or epoll fails. It may be called once.
func (r *Reactor) Run(ctx context.Context) error {
	if r.cfg.CPU >= 0 {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		unpin, err := pin(r.cfg.CPU)
		if err != nil {
			return fmt.Errorf("reactor %d: %w", r.cfg.Index, err)
		}
		defer unpin()
	}
	r.starved = int(running.Add(1)) >= runtime.GOMAXPROCS(0)
	defer running.Add(-1)
	posted := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		r.Post(func() { r.stopped = true })
		close(posted)
	})
	defer func() {
		if !cancel() {
			<-posted // it must not write to the eventfd after Close
		}
	}()

	defer func() { r.steps.report(r.cfg.Index) }()
	r.began = r.clock.read()
	for !r.stopped {
		if r.iterate() {
			continue
		}
		if err := r.spinOrSleep(); err != nil {
			return fmt.Errorf("reactor %d: %w", r.cfg.Index, err)
		}
	}
	return nil
}

// iterate polls everything once and reports whether there was work.
func (r *Reactor) iterate() bool {
	work := 0
	if !r.mailbox.Empty() {
		work = r.runPosts()
	}
	for i := 0; i < len(r.pollers); i++ {
		r.steps.begin()
		n := r.pollers[i].Poll(budget)
		r.steps.count.Add(n)
		r.steps.end(r.pollers[i])
		r.stats.Steps[i] += uint64(n)
		work += n
	}
	r.stats.Iterations++
	ticks := work
	if work == 0 {
		r.stats.Empty++
		ticks = idleTicks
	}
	if r.clock.tick(ticks) {
		work += r.housekeep()
	}
	if work == 0 {
		return false
	}
	r.spin.busy(r.clock.now)
	return true
}

// housekeep reads the clock, runs due timers and, every few calls, takes the events of descriptors.
// It returns the number of callbacks that it ran.
func (r *Reactor) housekeep() int {
	r.clock.adapt()
	n := r.runTimers()
	r.yieldWhenBusy()
	if r.housekeeps++; r.housekeeps%pollFDsEvery == 0 && r.watches.n > 0 {
		n += r.pollEvents()
	}
	return n
}

// spinOrSleep follows an iteration without work. It returns while spinning pays, and else sleeps.
func (r *Reactor) spinOrSleep() error {
	if !r.spin.done(r.clock.now) {
		if r.yield != nil {
			r.yield() // the awaited event cannot happen while the loop has the only CPU
		}
		if r.starved && r.spin.empty%spinYield == 0 {
			runtime.Gosched()
		}
		return nil
	}
	// The reactor polls once more after a wake-up; a later one sets the state again.
	if r.state.CompareAndSwap(notified, awake) {
		return nil
	}
	for _, p := range r.pollers {
		if !p.Arm() {
			return nil
		}
	}
	// Wake is called after the caller has published work. Before this swap it makes the swap fail;
	// after the swap it writes to the eventfd.
	if !r.state.CompareAndSwap(awake, asleep) {
		return nil
	}
	return r.sleep()
}

// sleep blocks until a descriptor, a wake-up or a timer, and runs the callbacks.
func (r *Reactor) sleep() error {
	before := r.clock.read()
	r.spin.busy(before)
	r.stats.Sleeps++
	r.yieldBeforeSleep(before)
	n, err := r.wait(r.untilTimer(before))
	// Awake before any callback, so that a Wake from now on costs no system call.
	r.state.Store(awake)
	asleep := r.clock.read() - before
	r.stats.Asleep += time.Duration(asleep)
	r.spin.slept(asleep)
	if err != nil && err != unix.EINTR {
		return fmt.Errorf("epoll_wait: %w", err)
	}
	r.dispatch(n)
	r.runTimers()
	return nil
}

// runPosts runs the functions in the mailbox, oldest first, at most postsMost of them. Functions
// that they post run after the pollers, so that work in pieces does not keep the pollers waiting.
func (r *Reactor) runPosts() (n int) {
	newest := r.mailbox.Newest()
	for n < postsMost {
		p := r.mailbox.Pop()
		if p == nil {
			break
		}
		r.steps.begin()
		p.fn()
		r.steps.end(p.fn)
		if n++; p == newest {
			break
		}
	}
	return n
}
