package dispatch

import (
	"errors"
	"slices"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

// channelBarrier is the part of a channel that keeps IOs from its device.
type channelBarrier struct {
	quiesce    Level
	onQuiesced func()      // called when that is reached
	flush      *backend.IO // to be given to the device before that; nil: none
	changed    bool        // the namespace has changed once: pending IOs may be from before

	// holds are by the host of the IOs that they keep away, or allHosts.
	holds   map[reservation.HostHandle][]*hold
	awaited int // IOs that the device has and that have waits
}

// allHosts is the host of a blocker that keeps IOs of any host away.
var allHosts reservation.HostHandle

// blocker keeps IOs from the device. It belongs to all reactors, and does not change.
type blocker interface {
	// host returns the host of the IOs that it keeps away, or allHosts.
	host() reservation.HostHandle
	// blocks reports whether an IO of a queue, which may be nil, must not reach the device.
	blocks(io *backend.IO, q *Queue) bool
}

// hold has the IOs of a channel that a blocker keeps from the device. They are not pending
// meanwhile: hosts decide how many there are, so they are looked at only when it ends.
type hold struct {
	by  blocker
	ios list.List[backend.IO]
}

// hold has a blocker keep IOs from the device on all reactors, which call wait; see barrier.
func (ns *Namespace) hold(here *Channels, b blocker, wait func(ch *Channel, drained func()),
	done func(),
) {
	ns.barrier(here, func(f *fresh) {
		if f.holds == nil {
			f.holds = map[blocker]bool{}
		}
		f.holds[b] = true
	}, func(ch *Channel, drained func()) {
		ch.hold(b)
		wait(ch, drained)
	}, done)
}

// release ends hold.
func (ns *Namespace) release(here *Channels, b blocker) {
	ns.barrier(here, func(f *fresh) { delete(f.holds, b) }, func(ch *Channel, drained func()) {
		ch.release(b)
		drained()
	}, func() {})
}

func (ch *Channel) hold(b blocker) {
	ch.holds[b.host()] = append(ch.holds[b.host()], &hold{by: b})
}

// release ends a hold. It looks at the holds for the same host, which has one for each of its
// queues. The IOs become pending again, in pieces.
func (ch *Channel) release(b blocker) {
	list := ch.holds[b.host()]
	i := slices.IndexFunc(list, func(o *hold) bool { return o.by == b })
	o := list[i]
	if list = slices.Delete(list, i, i+1); len(list) == 0 {
		delete(ch.holds, b.host())
	} else {
		ch.holds[b.host()] = list
	}
	ch.r.inPieces(func() int {
		io := o.ios.First()
		if io == nil {
			return 0
		}
		ch.takeOut(io)
		ch.add(io, &ch.pending)
		ch.pollOrSettle()
		return 1
	}, func() {})
}

// block reports whether an IO must not reach the device yet, and holds it then. It adds the number
// of holds to compared.
func (ch *Channel) block(io *backend.IO, compared *int) bool {
	q := ch.r.Queue(io)
	blocks := func(o *hold) bool { return o.by.blocks(io, q) }
	list := ch.holds[allHosts]
	i := slices.IndexFunc(list, blocks)
	if i < 0 && q != nil {
		list = ch.holds[q.Host]
		i = slices.IndexFunc(list, blocks)
	}
	*compared += len(list)
	if i >= 0 {
		ch.add(io, &list[i].ios)
	}
	return i >= 0
}

// await waits until the device has given IOs back.
type await struct {
	left int    // IOs, and searches that may find others
	done func() // called when there are none
}

// less counts one down, and reports whether it was the last one.
func (a *await) less() bool {
	a.left--
	return a.left == 0
}

// The kinds of waits for an IO, at most one of each.
const (
	byLock  = iota
	byFence // the first one that waits for it: others end after that
	byLate
	awaitKinds
)

// awaited has the waits for an IO that the device has. It is IO.Awaited.
type awaited struct {
	by      [awaitKinds]*await
	aborted bool // by a fence
}

// waitsFor returns the waits for an IO, nil if there are none.
func waitsFor(io *backend.IO) *awaited {
	x, _ := io.Awaited.(*awaited)
	return x
}

// awaits returns the waits for an IO that the device has; the caller changes them. If there are
// none yet, it makes them in x.
func (ch *Channel) awaits(io *backend.IO, x *awaited) *awaited {
	if io.Awaited == nil {
		io.Awaited = x
		ch.awaited++
	}
	return waitsFor(io)
}

// await makes a wait for an IO.
func (x *awaited) await(kind int, a *await) {
	x.by[kind] = a
	a.left++
}

// returned counts IOs that the device has given back, at most batchSize, and returns the waits that
// have ended. The caller calls done of these once it is done with the IOs.
func (ch *Channel) returned(ios []*backend.IO) (ended []*await) {
	for _, io := range ios {
		x := waitsFor(io)
		if x == nil {
			continue
		}
		io.Awaited = nil
		ch.awaited--
		if x.aborted && errors.Is(io.Err, backend.ErrAborted) {
			io.Err = ErrPreempted
		}
		for _, a := range x.by {
			if a != nil && a.less() {
				ended = append(ended, a)
			}
		}
	}
	return ended
}

// search makes the lock wait for the IOs of the device that finds accepts. A namespace has one lock
// at a time, so a channel has one search.
func (ch *Channel) search(a *await, finds func(*backend.IO) bool) {
	a.left++
	ch.sent, ch.unseen = ch.unseen, ch.sent
	ch.r.inPieces(func() int {
		io := ch.unseen.Pop()
		if io == nil {
			return 0
		}
		if ch.add(io, ch.sent); finds(io) {
			ch.awaits(io, new(awaited)).await(byLock, a)
		}
		return 1
	}, func() {
		if a.less() {
			a.done()
		}
	})
}
