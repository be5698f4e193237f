package target

import (
	"sync"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
)

// rangeLock keeps writes to some blocks of a namespace from its device, on every reactor, while a
// fused Compare and Write is carried out there:
//
//	acquire    waits for the locks before it, and then asks every reactor that has a channel
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
	node                     list.Node[rangeLock] // in hostLocks.locks
}

// rangeLocks are those of a namespace. Hosts take turns: however many pairs one of them has, a pair
// of another one waits for one of each.
type rangeLocks struct {
	mu    sync.Mutex
	busy  bool                        // a lock is held, or about to be
	hosts map[subnet.Owner]*hostLocks // of the others
	turns list.List[hostLocks]
}

// hostLocks are the locks that pairs of a host wait for, oldest first.
type hostLocks struct {
	owner subnet.Owner
	locks list.List[rangeLock]
	node  list.Node[hostLocks]
}

// push adds a lock of a host. It returns true if that need not wait.
func (q *rangeLocks) push(l *rangeLock, o subnet.Owner) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.busy {
		q.busy = true
		return true
	}
	t := q.hosts[o]
	if t == nil {
		if q.hosts == nil {
			q.hosts = map[subnet.Owner]*hostLocks{}
		}
		t = &hostLocks{owner: o}
		q.hosts[o] = t
		q.turns.Push(t, &t.node)
	}
	t.locks.Push(l, &l.node)
	return false
}

// pop returns the lock that comes next, nil if there is none.
func (q *rangeLocks) pop() *rangeLock {
	q.mu.Lock()
	defer q.mu.Unlock()
	t := q.turns.Pop()
	if t == nil {
		q.busy = false
		return nil
	}
	l := t.locks.Pop()
	if t.locks.Empty() {
		delete(q.hosts, t.owner)
	} else {
		q.turns.Push(t, &t.node)
	}
	return l
}

// acquire begins to acquire the lock, once. onHeld is called on the reactor of the lock when it is
// held.
func (l *rangeLock) acquire() {
	if l.acquired {
		return
	}
	l.acquired = true
	if l.ns.locks.push(l, l.owner.cmd.s.host.payer.key) {
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
	if next := l.ns.locks.pop(); next != nil {
		next.ask()
	}
}

// covers reports whether an IO changes blocks of the lock.
func (l *rangeLock) covers(io *backend.IO) bool {
	return changesBlocks(io) &&
		io.Off < l.off+l.len && l.off < io.Off+io.Len
}

// blocks reports whether the lock keeps an IO from the device.
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
