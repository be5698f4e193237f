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
	ch.lock, ch.lockWaits = l, ch.writesWithin(l)
	ch.checkLock()
}

// checkLock answers once the device has no write to the blocks.
func (ch *channel) checkLock() {
	if len(ch.lockWaits) == 0 {
		ch.lockWaits = nil
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
				ch.lock = nil
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

// writesWithin finds the IOs of this channel that the device has and that change blocks of the
// lock. Those of commands that were given up do not count: the namespace is not ready while there
// are any.
func (ch *channel) writesWithin(l *rangeLock) map[*backend.IO]bool {
	found := map[*backend.IO]bool{}
	ch.each(func(_ *session, io *backend.IO) {
		if l.covers(io) {
			found[io] = true
		}
	})
	return found
}

// each calls fn with the IOs that the device has, at most as many as it takes, and their queues,
// but for those of commands that were given up.
func (ch *channel) each(fn func(*session, *backend.IO)) {
	for io := range ch.sent.All() {
		if s := ownerSession(io); s != nil {
			fn(s, io)
		}
	}
}
