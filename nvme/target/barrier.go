package target

import (
	"errors"
	"slices"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

// channelBarrier is the part of a channel that keeps IOs from its device.
type channelBarrier struct {
	quiesce    quiesce
	onQuiesced func() // called when that is reached
	changed    bool   // the namespace has changed once: pending IOs may be from before

	lock    *hold                              // of the range lock; nil if there is none
	avoids  map[reservation.HostHandle][]*hold // of late writes, of all reactors
	awaited map[*backend.IO]*awaited           // nil if nothing is
}

// A barrier of a namespace keeps IOs from its device, on all reactors, and waits for the IOs that
// the device has already. It has four uses:
//
//	             IOs kept away              IOs waited for
//	quiesce      all wait in pending        all, and zero-copy reads and writes
//	range lock   writes to its blocks held  the same writes
//	fence        of hosts without access    theirs, and all that were given up
//	             refused
//	late writes  writes of the host to the  the late writes
//	             same blocks held
//
// These are its parts:
//
//	barrier  tells every reactor that has a channel; channels opened later begin with it
//	hold     has the IOs that are kept from the device of one channel
//	search   finds IOs that the device has
//	await    counts IOs until the device has given them back
//	drained  is called by each reactor; done is called after the last one

// barrier changes the initial state of new channels, and has every reactor that has a channel call
// set. done is called once each of them has called drained, by any of them. here is the reactor of
// the caller, which calls set at once; nil if there is none, or if that does not matter.
func (ns *namespace) barrier(here *Handler, fresh func(*freshChannel),
	set func(ch *channel, drained func()), done func(),
) {
	left := new(atomic.Int32)
	left.Store(1)
	drained := func() {
		if left.Add(-1) == 0 {
			done()
		}
	}
	for _, h := range ns.users.set(fresh) { // bound: reactors
		left.Add(1)
		tell := func() {
			if ch := h.channel(ns); ch != nil {
				set(ch, drained)
			} else {
				drained() // it was closed because the namespace is retired
			}
		}
		if h == here {
			tell()
		} else {
			h.post(tell)
		}
	}
	drained()
}

// blocker reports whether an IO must not reach the device. It belongs to all reactors.
type blocker interface{ blocks(io *backend.IO) bool }

// hold has the IOs of a channel that a range lock or late writes keep from the device. They are not
// pending meanwhile: hosts decide how many there are, so they are looked at only when it ends.
type hold struct {
	by  blocker
	ios list.List[backend.IO]
}

// block reports whether an IO must not reach the device yet, and holds it then. It compares it with
// the lock and with the late writes of its host, which has one for each of its queues.
func (ch *channel) block(io *backend.IO) bool {
	if ch.lock != nil && ch.lock.by.blocks(io) {
		ch.add(io, &ch.lock.ios)
		return true
	}
	s := ownerSession(io)
	if s == nil || len(ch.avoids) == 0 {
		return false
	}
	list := ch.avoids[s.ctrl.identity]
	i := slices.IndexFunc(list, func(o *hold) bool { return o.by.blocks(io) })
	if i >= 0 {
		ch.add(io, &list[i].ios)
	}
	return i >= 0
}

// unhold ends a hold. Its IOs become pending again, in pieces.
func (ch *channel) unhold(o *hold) {
	ch.h.inPieces(func() int {
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
	byFence // the first one that waits for it
	byLate
	awaitKinds
)

// awaited has the waits for an IO that the device has.
type awaited struct {
	by      [awaitKinds]*await
	aborted bool // by a fence
}

// awaits returns the waits for an IO that the device has, to be changed by the caller.
func (ch *channel) awaits(io *backend.IO) *awaited {
	x := ch.awaited[io]
	if x == nil {
		if ch.awaited == nil {
			ch.awaited = map[*backend.IO]*awaited{}
		}
		x = new(awaited)
		ch.awaited[io] = x
	}
	return x
}

// await makes a wait for an IO.
func (x *awaited) await(kind int, a *await) {
	x.by[kind] = a
	a.left++
}

// returned counts IOs that the device has given back, at most batchSize, and returns the waits that
// have ended. The caller calls done of these once it is done with the IOs.
func (ch *channel) returned(ios []*backend.IO) (ended []*await) {
	for _, io := range ios {
		x := ch.awaited[io]
		if x == nil {
			continue
		}
		delete(ch.awaited, io)
		if x.aborted && errors.Is(io.Err, backend.ErrAborted) {
			io.Err = errPreempted
		}
		for _, a := range x.by {
			if a != nil && a.less() {
				ended = append(ended, a)
			}
		}
	}
	if len(ch.awaited) == 0 {
		ch.awaited = nil
	}
	return ended
}

// search makes the lock wait for the IOs of the device that finds accepts. A namespace has one lock
// at a time, so a channel has one search.
func (ch *channel) search(a *await, finds func(*backend.IO) bool) {
	a.left++
	ch.sent, ch.unseen = ch.unseen, ch.sent
	ch.h.inPieces(func() int {
		io := ch.unseen.Pop()
		if io == nil {
			return 0
		}
		if ch.add(io, ch.sent); finds(io) {
			ch.awaits(io).await(byLock, a)
		}
		return 1
	}, func() {
		if a.less() {
			a.done()
		}
	})
}
