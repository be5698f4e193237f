package target

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/backend"
)

// rangeLock keeps writes to some blocks of a namespace from its device, on every reactor, while a
// fused Compare and Write is carried out there:
//
//	acquire    waits for the lock before it, and then asks every reactor that has a channel
//	lockRange  from now on writes to the blocks wait in pending; when the device has none of them
//	           any more, the reactor answers
//	held       every reactor has answered: nobody else changes the blocks
//	release    the writes go on, and the next lock is acquired
//
// Reads need no lock: what the pair writes is no larger than what a racing read sees untorn. Nor
// does a flush. If a device does not answer, the lock is not held: the pair times out as any other
// command, and the namespace is not ready until the writes are back.
type rangeLock struct {
	h       *Handler // of the pair
	ns      *namespace
	owner   *compound    // whose writes pass
	off     int64        // bytes
	len     int64        // bytes
	waiting atomic.Int32 // reactors that have not answered
	onHeld  func()
	// acquired, held and released belong to the reactor of h. A lock may be released before it is
	// held.
	acquired, held, released bool
}

// rangeLocks are those of a namespace in the order in which they are acquired; the first is held,
// or about to be.
type rangeLocks struct {
	mu    sync.Mutex
	queue []*rangeLock
}

// acquire begins to acquire the lock, once. onHeld is called on the reactor of the lock when it is
// held.
func (l *rangeLock) acquire() {
	if l.acquired {
		return
	}
	l.acquired = true
	q := &l.ns.locks
	q.mu.Lock()
	q.queue = append(q.queue, l)
	first := len(q.queue) == 1
	q.mu.Unlock()
	if first {
		l.ask()
	}
}

// ask asks every reactor that has a channel. Those that open one later begin with the lock.
func (l *rangeLock) ask() {
	handlers := l.ns.users.setLock(l)
	l.waiting.Store(int32(len(handlers)))
	for _, h := range handlers {
		h.post(func() { h.lockRange(l) })
	}
}

// lockRange keeps writes from the channel of this reactor, and answers when the device has none.
func (h *Handler) lockRange(l *rangeLock) {
	ch := h.channel(l.ns)
	if ch == nil { // it was closed because the namespace is retired
		l.answer()
		return
	}
	ch.lock, ch.lockWaits = l, true
	ch.checkLock()
}

// checkLock answers once the device has no write to the blocks.
func (ch *channel) checkLock() {
	if !ch.writesWithin(ch.lock) {
		ch.lockWaits = false
		ch.lock.answer()
	}
}

// answer counts the answer of a reactor. Any reactor.
func (l *rangeLock) answer() {
	if l.waiting.Add(-1) > 0 {
		return
	}
	l.h.post(func() {
		l.held = true
		if l.released {
			l.unlock()
			return
		}
		l.onHeld()
	})
}

// release ends the lock, now or as soon as it is held. Reactor of the lock.
func (l *rangeLock) release() {
	l.released = true
	if l.held {
		l.unlock()
	}
}

// unlock lets the writes go on and acquires the next lock.
func (l *rangeLock) unlock() {
	for _, h := range l.ns.users.setLock(nil) {
		h.post(func() {
			if ch := h.channel(l.ns); ch != nil && ch.lock == l {
				ch.lock, ch.lockedBy = nil, nil
				ch.unblock(nil, nil)
			}
		})
	}
	q := &l.ns.locks
	q.mu.Lock()
	q.queue = slices.Delete(q.queue, 0, 1)
	var next *rangeLock
	if len(q.queue) > 0 {
		next = q.queue[0]
	}
	q.mu.Unlock()
	if next != nil {
		next.ask()
	}
}

// covers says whether an IO changes blocks of the lock.
func (l *rangeLock) covers(io *backend.IO) bool {
	return changesBlocks(io) &&
		io.Off < l.off+l.len && l.off < io.Off+io.Len
}

// blocks says whether the lock keeps an IO from the device.
func (l *rangeLock) blocks(io *backend.IO) bool {
	if o, ok := io.Owner.(*compoundIO); ok && o.c == l.owner {
		return false
	}
	return l.covers(io)
}

// writesWithin says whether the device has an IO of this channel that changes blocks of the lock.
// IOs of commands that were given up do not count: the namespace is not ready while there are any.
func (ch *channel) writesWithin(l *rangeLock) bool {
	switch {
	case ch.inflight == 0:
		return false
	case ch.lockedBy != nil && ch.lockedBy.writesWithin(ch, l): // as most often the last time
		return true
	}
	for s := range ch.h.sessions.All() {
		if s.outstanding == 0 || s.ctrl == nil || s.ctrl.sub != ch.ns.sub {
			continue
		}
		for _, c := range s.cmds[:s.used] {
			if c.writesWithin(ch, l) {
				ch.lockedBy = c
				return true
			}
		}
	}
	return false
}

// writesWithin says whether the device has such an IO of this command.
func (c *cmd) writesWithin(ch *channel, l *rangeLock) bool {
	has := func(io *backend.IO) bool {
		return l.covers(io) && ch.blocked[io] == nil && !slices.Contains(ch.pending, io)
	}
	switch m := c.compound; {
	case !c.executing:
	case m == nil:
		return c.ch == ch && c.since != 0 && has(&c.io)
	default:
		for i := range m.ios {
			if o := &m.ios[i]; o.ch == ch && has(&o.IO) {
				return true
			}
		}
	}
	return false
}
