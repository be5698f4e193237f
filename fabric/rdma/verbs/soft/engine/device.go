package engine

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
	"github.com/nvmf-target/nvmf-target/internal/list"
)

// Options describe a device.
type Options struct {
	// Name is the name of the device, soft0 if empty.
	Name string
	// Engines is the number of completion vectors. 0 means 1, and the device has at most
	// wire.MaxEngines.
	Engines int
	// Background runs a goroutine per engine that steps it when its socket has work, for users that
	// do not poll their completion queues all the time. Completion channels are then exact: they
	// become readable only for a completion.
	Background bool
	// Stuck makes the destruction of queue pairs fail, for tests; nil: it does not.
	Stuck *atomic.Bool

	// pause is the time for which background goroutines leave packets to one that polls, 1 ms if 0.
	pause time.Duration
}

// Device is a soft RDMA device: a verbs.Device. It has the sockets of one wire.Network.
type Device struct {
	attr    verbs.DeviceAttr
	engines []*Engine
	manager wire.Conn
	opts    Options
	err     atomic.Pointer[error]

	qps, cqs, srqs, mrs atomic.Int32
	table               *[keySlots]atomic.Pointer[mr]

	singles singles

	helpers  sync.WaitGroup // goroutines of engines
	waiting  sync.WaitGroup // goroutines of engines that wait for sockets (Options.Background)
	stopping atomic.Bool

	mu       sync.Mutex // of watchers and events
	watchers []*watcher
	events   []verbs.AsyncEvent
	telling  bool // a goroutine delivers events
}

// Limits of a device. They bound memory; no step on the path of a packet depends on them.
const (
	maxQP, maxCQ, maxSRQ = 1 << 16, 1 << 16, 1 << 16
	maxWR                = 1 << 15
	maxCQE               = 1 << 22
	maxSGE               = 32
	// maxReads is the number of READs served and issued at once on a queue pair.
	maxReads = 16
)

// New opens the sockets of a device. Close closes them.
func New(net wire.Network, o Options) (*Device, error) {
	o.Name = cmp.Or(o.Name, "soft0")
	o.pause = cmp.Or(o.pause, time.Millisecond)
	o.Engines = min(max(o.Engines, 1), wire.MaxEngines)
	conns, err := net.Open(o.Engines)
	if err != nil {
		return nil, fmt.Errorf("%s: open its sockets: %w", o.Name, err)
	}
	d := &Device{
		opts: o, manager: conns[o.Engines],
		table: new([keySlots]atomic.Pointer[mr]),
		attr: verbs.DeviceAttr{
			Name: o.Name, MaxQP: maxQP, MaxQPWR: maxWR, MaxSGE: maxSGE, MaxSGERD: maxSGE,
			MaxCQ: maxCQ, MaxCQE: maxCQE, MaxMR: maxMR, MaxMRSize: 1 << 48,
			MaxQPRdAtom: maxReads, MaxQPInitRdAtom: maxReads,
			MaxSRQ: maxSRQ, MaxSRQWR: maxWR, MaxSRQSGE: len(verbs.RecvWR{}.SGE),
			NumCompVectors: o.Engines, Node: -1,
			// The system takes consecutive packets of one length together.
			WritesFirst: true, Unlocked: true,
		},
	}
	for i, c := range conns[:o.Engines] {
		e := &Engine{
			dev: d, index: i, conn: conn{Conn: c}, endpoints: make(map[uint32]*Handle),
			helper: make(chan struct{}, 1), count: list.NewSteps(),
		}
		e.deadlines.Steps = e.count
		e.reads.init(e, c.ReceiveBuffer()/2)
		d.engines = append(d.engines, e)
	}
	if o.Background {
		for _, e := range d.engines {
			e.sleepers.Add(1)
			e.owed, e.arming = make(chan struct{}, 1), make(chan struct{}, 1)
			d.helpers.Go(e.finish)
			d.waiting.Go(e.background)
		}
	}
	return d, nil
}

// background steps the engine whenever its socket has work and nobody has polled lately. It leaves
// no note for another goroutine that holds the engine: packets that a peer sends must not keep that
// one busy for ever.
func (e *Engine) background() {
	fds := []unix.PollFd{{Fd: int32(e.conn.FD()), Events: unix.POLLIN}}
	rest := time.NewTimer(e.dev.opts.pause)
	for !e.dev.stopping.Load() {
		if _, err := unix.Poll(fds, -1); err != nil && err != unix.EINTR {
			e.dev.fail(fmt.Errorf("wait for the socket of engine %d: %w", e.index, err))
			return
		}
		if e.attended.Swap(false) {
			rest.Reset(e.dev.opts.pause)
			select { // a caller that arms may sleep, and new packets are for this goroutine
			case <-rest.C:
			case <-e.arming:
			}
			continue
		}
		if e.held.Load() {
			runtime.Gosched()
			continue
		}
		e.step.Store(true)
		e.enter(math.MaxInt, false) // nothing else waits for this goroutine
	}
}

// finish makes a turn for packets that a poll has left for the next one, in case there is none.
func (e *Engine) finish() {
	for range e.owed {
		time.Sleep(time.Millisecond)
		if e.left.Load() {
			e.Step()
		}
	}
}

// nudge wakes a goroutine of the engine that waits at ch.
func nudge(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default: // it has not begun yet
	}
}

// Close ends the engines and closes the sockets, including the one of the communication manager.
// The caller has destroyed all objects of the device, and calls no method during or after Close.
func (d *Device) Close() error {
	d.stopping.Store(true)
	for _, e := range d.engines {
		close(e.helper)
		if e.owed != nil {
			close(e.owed)
			close(e.arming)
		}
	}
	d.helpers.Wait() // the turn of a helper would take the wake away
	for _, e := range d.engines {
		e.conn.Wake()
	}
	d.waiting.Wait()
	errs := []error{d.manager.Close()}
	for _, e := range d.engines {
		errs = append(errs, e.conn.Close())
	}
	return errors.Join(errs...)
}

// Attr describes the device (ibv_query_device).
func (d *Device) Attr() verbs.DeviceAttr { return d.attr }

// Engine returns the engine of a completion vector.
func (d *Device) Engine(vector int) *Engine { return d.engines[vector%len(d.engines)] }

// Manager returns the socket of the communication manager. The device closes it.
func (d *Device) Manager() wire.Conn { return d.manager }

// Err returns the reason why the device has failed, nil if it has not.
func (d *Device) Err() error {
	if err := d.err.Load(); err != nil {
		return *err
	}
	return nil
}

// maxSingles is the largest number of addresses that a device remembers, since peers choose them.
const maxSingles = 1024

// SingleTime is the time after which packets to an address share sends again, although that has
// failed before: the reason may have been other losses.
const SingleTime = time.Hour

// singles are the addresses to which packets must not share sends, and until when.
type singles struct {
	mu    sync.Mutex
	addrs map[netip.Addr]time.Duration
}

// SendSingly remembers for SingleTime that packets to an address do not arrive if they share sends.
// Any goroutine may call it.
func (d *Device) SendSingly(to netip.Addr) {
	s := &d.singles
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.addrs == nil || len(s.addrs) == maxSingles {
		s.addrs = make(map[netip.Addr]time.Duration)
	}
	s.addrs[to] = d.manager.Now() + SingleTime
}

// SendsSingly reports whether SendSingly was called for an address. It may have been forgotten. Any
// goroutine may call it.
func (d *Device) SendsSingly(to netip.Addr) bool {
	s := &d.singles
	s.mu.Lock()
	defer s.mu.Unlock()
	return d.manager.Now() < s.addrs[to]
}

// watcher is a call of Watch.
type watcher struct {
	fn   func(verbs.AsyncEvent)
	stop atomic.Bool
}

// Watch calls fn with the asynchronous events that are raised from now on. See verbs.Device.
func (d *Device) Watch(fn func(verbs.AsyncEvent)) (stop func(), err error) {
	w := &watcher{fn: fn}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.watchers = append(slices.Clone(d.watchers), w)
	return func() {
		w.stop.Store(true)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.watchers = slices.DeleteFunc(slices.Clone(d.watchers), func(x *watcher) bool {
			return x == w
		})
	}, nil
}

// Raise reports an event to the watchers, in another goroutine. Any goroutine may call it, also
// with an engine held. The caller bounds the number of its events: every object raises each at most
// once.
func (d *Device) Raise(ev verbs.AsyncEvent) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.watchers) == 0 {
		return
	}
	d.events = append(d.events, ev)
	if !d.telling {
		d.telling = true
		go d.tell()
	}
}

// tell delivers events until there are none.
func (d *Device) tell() {
	for {
		d.mu.Lock()
		events, watchers := d.events, d.watchers
		d.events = nil
		d.telling = len(events) > 0
		d.mu.Unlock()
		if len(events) == 0 {
			return
		}
		for _, ev := range events {
			for _, w := range watchers {
				if !w.stop.Load() {
					w.fn(ev)
				}
			}
		}
	}
}

// uses counts the users of an object: it can be freed when there are none.
type uses struct{ n atomic.Int32 }

// Hold keeps the object from being destroyed until Release. EINVAL if it has been destroyed.
func (u *uses) Hold() error {
	for n := u.n.Load(); n >= 0; n = u.n.Load() {
		if u.n.CompareAndSwap(n, n+1) {
			return nil
		}
	}
	return unix.EINVAL
}

// Release undoes Hold.
func (u *uses) Release() { u.n.Add(-1) }

// free makes Hold fail. EBUSY while the object is held, EINVAL if it has been freed.
func (u *uses) free() error {
	switch {
	case u.n.CompareAndSwap(0, -1):
		return nil
	case u.n.Load() < 0:
		return unix.EINVAL
	}
	return unix.EBUSY
}

// reserve counts an object of the device. ENOMEM if there are as many as allowed.
func reserve(n *atomic.Int32, most int) error {
	if n.Add(1) > int32(most) {
		n.Add(-1)
		return unix.ENOMEM
	}
	return nil
}
