package group

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Engine is an instance of a gateway: its connections to the storage.
type Engine interface {
	State
	Lease
	Fence
	// Instance returns a random ID, and the addresses of all connections of this instance.
	Instance() (id string, addrs []string)
	// FencedItself reports whether a fence of this instance may be its own, for I/O that hangs.
	FencedItself() bool
	// Close ends the connections. It waits for operations that have begun.
	Close()
}

// Images is the storage that a group gives access to. One goroutine at a time calls its methods.
type Images interface {
	// Open opens the images on the connections of the engine.
	Open(ctx context.Context, e Engine) error
	// Close closes the images, some of which may not be open. When it has returned, no I/O of
	// theirs is under way.
	Close()
	// Access tells hosts of the access. It is called when that changes: before I/O ends and the
	// images are closed, and after they have been opened. It does not wait.
	Access(Access)
}

// Group runs a machine. Any goroutine may call its methods.
type Group struct {
	cfg     Config
	connect func() (Engine, error)
	images  Images
	log     *slog.Logger

	results chan *Result
	wake    chan struct{}
	stop    context.CancelFunc
	ended   chan struct{}
	left    chan struct{} // closed when this gateway has withdrawn
	actions sync.WaitGroup

	asking sync.Mutex // held by Forget, Fence, Reserve and HasHeir

	reported Status // in the log

	differences []string      // between gateways; guarded by mu
	differsAt   time.Duration // when they last changed; guarded by mu
	holder      string        // the last that was seen; guarded by mu
	holderSince time.Duration // guarded by mu

	mu      sync.Mutex
	machine *Machine
	access  Access
	engine  Engine
	itself  bool // the engine before this one may have fenced itself
	// unwatch ends the watch of the engine; watched waits for that.
	unwatch context.CancelFunc
	watched sync.WaitGroup
}

// Start runs a group. connect makes an engine, and may take a while.
func Start(cfg Config, connect func() (Engine, error), images Images, log *slog.Logger) *Group {
	ctx, stop := context.WithCancel(context.Background())
	g := &Group{
		cfg: cfg, connect: connect, images: images, log: log, machine: New(cfg),
		results: make(chan *Result, 3), wake: make(chan struct{}, 1), stop: stop,
		ended: make(chan struct{}), left: make(chan struct{}), unwatch: func() {},
	}
	go g.run(ctx)
	return g
}

// boottime returns the time since the machine was booted. It goes on while the machine sleeps.
func boottime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // it cannot fail
	return time.Duration(ts.Nano())
}

// Hosts reports whether hosts that use the group are connected here.
func (g *Group) Hosts(connected bool) {
	g.change(func(m *Machine, now time.Duration) { m.Hosts(now, connected) })
}

// Describe publishes the facts of this gateway.
func (g *Group) Describe(f *Facts) {
	data := f.bytes()
	g.change(func(m *Machine, now time.Duration) { m.Describe(now, data) })
}

// Drain gives the group away and does not take it until Drain is called with false.
func (g *Group) Drain(on bool) {
	g.change(func(m *Machine, now time.Duration) { m.Drain(now, on) })
}

// Forget removes a gateway from the record, if it is there and does not hold the group: its
// processes have ended for good. It waits until that is done. One that runs takes part again.
func (g *Group) Forget(ctx context.Context, gateway string) error {
	return g.ask(ctx, func(m *Machine, now time.Duration) { m.Forget(now, gateway) },
		func(m *Machine) bool { return m.forget == "" })
}

// Fence takes the group over from a gateway that holds it, whether its lease is over or not. It
// waits until another one is the holder. After an error that may still come.
func (g *Group) Fence(ctx context.Context, gateway string) error {
	return g.ask(ctx, func(m *Machine, now time.Duration) { m.Fence(now, gateway) },
		func(m *Machine) bool { return m.evict == "" })
}

// Reserve lists an object in the record of the group, which this gateway holds, see
// Machine.Reserve. It waits until the record has it.
func (g *Group) Reserve(ctx context.Context, object string) error {
	if g.Reserved(object) {
		return nil
	}
	begin := func(m *Machine, now time.Duration) { m.Reserve(now, object) }
	g.change(begin) // before it waits for others, which share one write
	err := g.ask(ctx, begin, func(m *Machine) bool {
		return m.Reserved(object) || m.phase != opening && m.phase != serving
	})
	if err == nil && !g.Reserved(object) {
		err = errors.New("this gateway does not hold the group")
	}
	return err
}

// Reserved reports whether the record lists an object.
func (g *Group) Reserved(object string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.machine.Reserved(object)
}

// HasHeir reports whether another gateway that is present could take the group.
func (g *Group) HasHeir(ctx context.Context) (has bool, err error) {
	err = g.ask(ctx, (*Machine).Ask, func(m *Machine) bool {
		has = !m.asking && m.HasHeir()
		return !m.asking
	})
	return has, err
}

// ask begins a change, and waits until it is done.
func (g *Group) ask(ctx context.Context, begin func(*Machine, time.Duration),
	done func(*Machine) bool,
) error {
	g.asking.Lock()
	defer g.asking.Unlock()
	g.change(begin)
	look := time.NewTicker(g.cfg.Poll / 40)
	defer look.Stop()
	for {
		g.mu.Lock()
		ended := done(g.machine)
		g.mu.Unlock()
		if ended {
			return nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			g.change(func(m *Machine, _ time.Duration) { m.removal = removal{} })
			return fmt.Errorf("the record of the group cannot be changed now: %w", ctx.Err())
		}
	}
}

func (g *Group) change(fn func(*Machine, time.Duration)) {
	g.mu.Lock()
	fn(g.machine, boottime())
	g.mu.Unlock()
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// Status returns the current status.
func (g *Group) Status() Status {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := boottime()
	s := g.machine.Status(now)
	if s.Holder == g.holder && g.holderSince > 0 {
		s.HeldFor = now - g.holderSince
	}
	s.Differences = g.differences
	return s
}

// Sizes returns the fact of this name of the gateway that holds the group, "" if it is not known.
func (s *Status) Sizes() string {
	if in := s.holder(); in != nil {
		return in.facts().Sizes
	}
	return ""
}

// holder returns the instance that holds the group, nil if it is not known.
func (s *Status) holder() *Instance {
	for i := range s.Instances {
		if s.Instances[i].Gateway == s.Holder {
			return &s.Instances[i]
		}
	}
	return nil
}

// Stop gives the group away, and withdraws this gateway. If that takes longer than ctx
// allows, images may stay open, and another gateway fences this one.
func (g *Group) Stop(ctx context.Context) {
	g.change((*Machine).Leave)
	select {
	case <-g.left:
	case <-ctx.Done():
	}
	g.stop()
	<-g.ended
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		g.actions.Wait()
		g.watched.Wait()
		if g.engine != nil && !g.machine.open {
			g.engine.Close()
		}
	}()
	select {
	case <-closed:
	case <-ctx.Done():
	}
}

// run is the goroutine of the group.
func (g *Group) run(ctx context.Context) {
	defer close(g.ended)
	tick := time.NewTicker(min(g.cfg.Retry, g.cfg.Poll/2) / 2)
	defer tick.Stop()
	gone := g.left
	for {
		if g.step(ctx) && gone != nil {
			close(gone)
			gone = nil
		}
		select {
		case r := <-g.results:
			g.mu.Lock()
			g.machine.Done(boottime(), r)
			if r.Record != nil {
				now := r.Record.differences(g.cfg.Gateway, g.machine.facts)
				if !slices.Equal(now, g.differences) {
					g.differences, g.differsAt = now, boottime()
				}
			}
			g.mu.Unlock()
		case <-g.wake:
		case <-tick.C:
		case <-ctx.Done(): // which ends the watch as well
			return
		}
	}
}

// step begins the actions that are due. It reports whether this gateway has left.
func (g *Group) step(ctx context.Context) bool {
	g.mu.Lock()
	now := boottime()
	actions := g.machine.Poll(now)
	access := g.machine.Access(now)
	changed := access != g.access
	g.access = access
	status, gone := g.machine.Status(now), g.machine.Left()
	status.Differences = g.differences
	if now < g.differsAt+settle { // a change that has not come to all gateways yet
		status.Differences = g.reported.Differences
	}
	if status.Holder != g.holder || g.holderSince == 0 {
		g.holder, g.holderSince = status.Holder, now
	}
	g.mu.Unlock()
	g.report(&status)
	if changed {
		g.images.Access(access)
	}
	for i := range actions {
		g.actions.Go(func() {
			r := g.do(ctx, &actions[i])
			r.Op = actions[i].Op
			select {
			case g.results <- r:
			case <-ctx.Done():
			}
		})
	}
	return gone
}

// report logs changes of the status.
func (g *Group) report(s *Status) {
	if s.Phase != g.reported.Phase {
		g.log.Info("the group is "+s.Phase, "holder", s.Holder, "reason", s.Reason)
	}
	if s.Strangers != g.reported.Strangers {
		g.log.Error("another client of the storage has fenced this gateway", "hint", "Find it: no "+
			"gateway of the group has. With Ceph it ran ceph osd blocklist add, or took the "+
			"exclusive lock of an image, as rbd rm does.")
	}
	if s.Problem != g.reported.Problem && s.Problem != "" {
		g.log.Warn("the group has a problem", "err", s.Problem)
	}
	if !slices.Equal(s.Differences, g.reported.Differences) && len(s.Differences) > 0 {
		g.log.Warn("the settings of gateways of the group conflict", "differences",
			strings.Join(s.Differences, "; "))
	}
	g.reported = *s
}

// do carries out an action.
func (g *Group) do(ctx context.Context, a *Action) (r *Result) {
	r = &Result{}
	switch a.Op {
	case OpConnect:
		return g.doConnect(ctx)
	case OpOpen:
		r.Err = g.images.Open(ctx, g.engine)
		return r
	case OpClose:
		g.images.Close()
		return r
	}
	e := g.engine
	ctx, cancel := context.WithTimeout(ctx, max(g.cfg.Lease, patience))
	defer cancel()
	switch a.Op {
	case OpRead:
		var data []byte
		if data, r.Version, r.Err = e.Get(ctx); r.Err == nil {
			r.Record, r.Err = ParseRecord(data, r.Version)
		}
		if r.Err == nil {
			r.Lessee, r.Err = e.Lessee(ctx)
		}
	case OpWrite:
		var data []byte
		if data, r.Err = a.Record.Bytes(); r.Err == nil {
			r.Version, r.Err = e.Put(ctx, data, a.Version)
		}
	case OpAsk:
		r.Present, r.Err = e.Present(ctx)
	case OpFence:
		var addrs []string
		for i := range a.Instances {
			addrs = append(addrs, a.Instances[i].Addrs...)
		}
		r.Left, r.Err = e.Fence(ctx, addrs, g.cfg.FenceFor)
	case OpAcquire:
		if a.Over != "" {
			r.Err = e.Break(ctx, a.Over)
		}
		if r.Err == nil {
			r.Err = e.Acquire(ctx, g.cfg.Lease)
		}
	case OpRelease:
		r.Err = e.Release(ctx)
	case OpRenew:
		r.Err = e.Renew(ctx, g.cfg.Lease)
	}
	return r
}

// settle is the time for which differences are not in the log.
const settle = 10 * time.Second

// patience is the time that the storage has to answer.
const patience = 10 * time.Second

// doConnect replaces the engine, and watches the record with the new one.
func (g *Group) doConnect(ctx context.Context) *Result {
	g.unwatch()
	g.watched.Wait()
	if g.engine != nil {
		g.itself = g.engine.FencedItself()
		g.engine.Close()
		g.engine = nil
	}
	e, err := g.connect()
	if err != nil {
		return &Result{Err: err}
	}
	g.engine = e
	watch, cancel := context.WithCancel(ctx)
	g.unwatch = cancel
	g.watched.Go(func() {
		keepWatching(watch, e, g.cfg.Poll, func() { g.change((*Machine).Notified) })
	})
	id, addrs := e.Instance()
	return &Result{FencedItself: g.itself, Instance: &Instance{
		ID: id, Gateway: g.cfg.Gateway, Home: g.cfg.Home, Addrs: addrs,
	}}
}

// keepWatching watches a record until ctx ends. It is read without the watch as well, but later.
func keepWatching(ctx context.Context, e Engine, retry time.Duration, changed func()) {
	for ctx.Err() == nil {
		_ = e.Watch(ctx, changed)
		changed() // the reason may be a fence
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
	}
}
