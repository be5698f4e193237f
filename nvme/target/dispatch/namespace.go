package dispatch

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

// Storage is the storage of a namespace. All reactors call it.
type Storage interface {
	// Name names the namespace in logs.
	Name() (nqn string, nsid uint32)
	// Device returns the current device.
	Device() backend.Device
	// Check returns the reason why the namespace, as it is now, no longer takes an IO; nil: it
	// does.
	Check(io *backend.IO) error
	// Mark returns a channel that looks for marks of uncorrectable blocks before it passes IOs to
	// dev, or nil if there are no marks. wake makes the reactor poll.
	Mark(dev backend.Channel, wake func()) backend.Channel
}

// Namespace has the channels to the storage of a namespace, one on each reactor that uses it.
// Storage and Reservations are set before its use. Any goroutine may call its methods.
type Namespace struct {
	Storage      Storage
	Reservations *reservation.Namespace

	locks locks

	mu       sync.Mutex
	retired  bool // no more channels
	fresh    fresh
	channels []*Channel // also closed ones, since totals survive them
}

// fresh is the state in which a new channel begins: the other channels have it by then.
type fresh struct {
	quiesce Level
	changed bool
	holds   map[blocker]bool
}

// join adds a channel. It returns false if the namespace is retired.
func (ns *Namespace) join(ch *Channel) (fresh, bool) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if ns.retired {
		return fresh{}, false
	}
	ns.channels = append(ns.channels, ch)
	f := ns.fresh
	f.holds = maps.Clone(f.holds)
	return f, true
}

// set changes the initial state of later channels, and returns the channels that have joined.
func (ns *Namespace) set(change func(*fresh)) []*Channel {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	change(&ns.fresh)
	return ns.channels
}

// Channels returns the channels that were opened, including closed ones.
func (ns *Namespace) Channels() []*Channel { return ns.set(func(*fresh) {}) }

// Retired reports whether the namespace is retired.
func (ns *Namespace) Retired() bool {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	return ns.retired
}

// Retire admits no more channels, and returns the channels that were opened.
func (ns *Namespace) Retire() []*Channel {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	ns.retired = true
	return ns.channels
}

// barrier changes the initial state of new channels, and has every reactor that has a channel call
// set. done is called once each of them has called drained, by any of them. here is the reactor of
// the caller, which calls set at once; nil if there is none, or if that does not matter.
func (ns *Namespace) barrier(here *Channels, change func(*fresh),
	set func(ch *Channel, drained func()), done func(),
) {
	left := new(atomic.Int32)
	left.Store(1)
	drained := func() {
		if left.Add(-1) == 0 {
			done()
		}
	}
	for _, ch := range ns.set(change) { // bound: reactors
		left.Add(1)
		tell := func() {
			if ch.state == stateClosed { // the namespace is retired
				drained()
			} else {
				set(ch, drained)
			}
		}
		if ch.r == here {
			tell()
		} else {
			ch.r.Post(tell)
		}
	}
	drained()
}

// ErrorKinds is how many kinds of errors are counted.
const ErrorKinds = 8

// The indices of Counters: successful operations by backend.Op, and then these.
const (
	// read, then written: 512 bytes each (Base section 5.1.12.1.3)
	Sectors = int(backend.OpWriteUncorrectable) + 1
	Busy    = Sectors + 2 // nanoseconds with I/O outstanding
	Errors  = Busy + 1    // failed operations by kind, see CountError
)

// Counters are the counters of a namespace.
type Counters [Errors + ErrorKinds]uint64

// Add adds others.
func (t *Counters) Add(o *Counters) {
	for i, n := range o {
		t[i] += n
	}
}

// stats are the counters of one channel: own is written by its reactor, and published once per
// batch to where other goroutines read them. Errors are counted there at once.
type stats struct {
	own, stored [Errors]uint64
	published   [len(Counters{})]atomic.Uint64
}

// publish stores the changed counters: an atomic store costs more than a count.
func (s *stats) publish() {
	for i, n := range &s.own {
		if n != s.stored[i] {
			s.stored[i] = n
			s.published[i].Store(n)
		}
	}
}

// count counts a successful operation on n bytes.
func (ch *Channel) count(op backend.Op, n int64) {
	ch.stats.own[op]++
	if op <= backend.OpWrite {
		ch.stats.own[Sectors+int(op)] += uint64(n) >> 9
	}
}

// CountRead counts a zero-copy read of n bytes, which Publish makes visible.
func (ch *Channel) CountRead(n int64) {
	ch.count(backend.OpRead, n)
	if !ch.counted.Listed() {
		ch.r.counted.Push(ch, &ch.counted)
	}
}

// CountError counts a failed operation by the kind of its error.
func (ch *Channel) CountError(kind int) { ch.stats.published[Errors+kind].Add(1) }

// Total sums the published counters of all channels.
func (ns *Namespace) Total() (t Counters) {
	for _, ch := range ns.Channels() {
		for i := range t {
			t[i] += ch.stats.published[i].Load()
		}
	}
	return t
}
