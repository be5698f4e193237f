package fabrictest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// patience is how long Until waits for other goroutines.
const patience = 2 * time.Minute

// Poller is a source of work of a reactor, as in internal/reactor.
type Poller interface {
	Poll(budget int) int
	Arm() bool
}

// World is a set of reactors that share a virtual clock. Nothing runs by itself: the goroutine that
// owns the World steps the reactors, so the test controls when a posted function, a timer or a poll
// runs. Only Post and Wake may come from other goroutines.
type World struct {
	Reactors []*Reactor
	now      int64
	wake     chan struct{}
}

// NewWorld makes n reactors with an arena of 64 MiB each.
func NewWorld(n int) (*World, error) {
	w := &World{now: int64(time.Second), wake: make(chan struct{}, 1)}
	for range n {
		arena, err := mem.NewArena("fabrictest", 64<<20)
		if err != nil {
			return nil, errors.Join(err, w.Close())
		}
		w.Reactors = append(w.Reactors, &Reactor{
			w: w, memory: mem.NewPool(arena, 0), steps: list.NewSteps(),
		})
	}
	return w, nil
}

// Close frees the arenas. It returns an error if a command still has memory.
func (w *World) Close() error {
	var errs []error
	for _, r := range w.Reactors {
		errs = append(errs, r.memory.Close())
	}
	return errors.Join(errs...)
}

// Step lets every reactor run its posted functions and poll once. It returns false if there was
// nothing to do.
func (w *World) Step() bool {
	worked := false
	for _, r := range w.Reactors {
		worked = r.step() || worked
	}
	return worked
}

// Settle steps until there is nothing to do.
func (w *World) Settle() {
	for w.Step() {
	}
}

// Until steps until cond holds, sleeping while there is nothing to do. It gives up after
// patience.
func (w *World) Until(cond func() bool) error {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for !cond() {
		if w.Step() {
			continue
		}
		select {
		case <-w.wake:
		case <-deadline.C:
			return fmt.Errorf("condition not met within %v", patience)
		}
	}
	return nil
}

// Advance moves the clock by d, runs the timers that become due in order, and settles.
func (w *World) Advance(d time.Duration) {
	end := w.now + int64(d)
	for fired := 0; ; fired++ {
		if fired > 1e6 {
			panic("fabrictest: a timer sets itself again and again at once")
		}
		w.Settle()
		var next *timer
		for _, r := range w.Reactors {
			for _, t := range r.timers {
				if t.at <= end && (next == nil || t.at < next.at) {
					next = t
				}
			}
		}
		if next == nil {
			break
		}
		w.now = max(w.now, next.at)
		next.r.drop(next)
		next.r.steps.Begin()
		next.fn()
	}
	w.now = end
	w.Settle()
}

// Tick moves the clock by d and runs the timers that are due by then, once, and nothing else.
func (w *World) Tick(d time.Duration) {
	w.now += int64(d)
	for _, r := range w.Reactors {
		for _, t := range slices.Clone(r.timers) {
			if t.at <= w.now {
				r.drop(t)
				r.steps.Begin()
				t.fn()
			}
		}
	}
}

// Reactor implements fabric.Loop.
type Reactor struct {
	w       *World
	memory  *mem.Pool
	pollers []Poller
	timers  []*timer
	steps   list.Steps

	mu     sync.Mutex
	posted []func()
}

type timer struct {
	r  *Reactor
	at int64
	fn func()
}

var _ fabric.Loop = (*Reactor)(nil)

// Memory is the reactor's data memory.
func (r *Reactor) Memory() *mem.Pool { return r.memory }

// Steps returns the steps made by the functions and pollers that the reactor calls.
func (r *Reactor) Steps() list.Steps { return r.steps }

// Attach adds a poller.
func (r *Reactor) Attach(p Poller) { r.pollers = append(r.pollers, p) }

func (r *Reactor) step() bool {
	r.mu.Lock()
	fns := r.posted
	r.posted = nil
	r.mu.Unlock()
	for _, fn := range fns {
		r.steps.Begin()
		fn()
	}
	n := len(fns)
	for _, p := range r.pollers {
		r.steps.Begin()
		polled := p.Poll(64)
		r.steps.Add(polled)
		n += polled
	}
	if n == 0 {
		for _, p := range r.pollers {
			if !p.Arm() {
				n++
			}
		}
	}
	return n > 0
}

// Post implements fabric.Loop.
func (r *Reactor) Post(fn func()) {
	r.mu.Lock()
	r.posted = append(r.posted, fn)
	r.mu.Unlock()
	r.Wake()
}

// Wake implements fabric.Loop.
func (r *Reactor) Wake() {
	select {
	case r.w.wake <- struct{}{}:
	default:
	}
}

// After implements fabric.Loop on the virtual clock.
func (r *Reactor) After(d int64, fn func()) (stop func()) {
	t := &timer{r: r, at: r.w.now + max(d, 0), fn: fn}
	r.timers = append(r.timers, t)
	return func() { r.drop(t) }
}

func (r *Reactor) drop(t *timer) {
	r.timers = slices.DeleteFunc(r.timers, func(o *timer) bool { return o == t })
}

// Timers is the number of timers that are set, for leak checks.
func (r *Reactor) Timers() int { return len(r.timers) }

// Now implements fabric.Loop.
func (r *Reactor) Now() int64 { return r.w.now }

// Clock implements fabric.Loop.
func (r *Reactor) Clock() int64 { return r.w.now }

var errNoDescriptors = errors.New("fabrictest: this reactor has no file descriptors")

// Watch and Unwatch implement fabric.Loop by refusing: there is nothing to watch here.
func (r *Reactor) Watch(int, uint32, func(uint32)) error { return errNoDescriptors }

// Unwatch implements fabric.Loop.
func (r *Reactor) Unwatch(int) error { return errNoDescriptors }
