package target

import (
	"sync"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
	"github.com/nvmf-target/nvmf-target/nvme/target/compound"
)

// rangeLock keeps writes to some blocks of a namespace from its device, on every reactor, while a
// fused Compare and Write is carried out there:
//
//	Acquire  waits for the locks before it, and is then set on every reactor that has a channel
//	setLock  from now on writes to the blocks are held; when the device has none of them any more,
//	         the reactor has drained
//	held     every reactor has: nobody else changes the blocks
//	Release  the writes go on, and the next lock is set
//
// Reads need no lock: the write of the pair is no larger than a racing read sees untorn. Flushes
// need none either. If a device does not answer, the lock is not held: the pair times out as any
// other command, and the namespace is not ready until the writes are back.
type rangeLock struct {
	h      *Handler // of the pair
	ns     *namespace
	owner  *compound.Compound // its writes pass
	host   subnet.Owner
	off    int64 // bytes
	len    int64 // bytes
	onHeld func()
	// acquired, held and released belong to the reactor of h. A lock may be released before it is
	// held.
	acquired, held, released bool
	node                     list.Node[rangeLock] // in hostLocks.locks
}

// rangeLocks are the range locks of a namespace. Hosts take turns: however many pairs one host has,
// a pair of another host waits for one of each.
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

// Acquire implements compound.Lock. onHeld is called on the reactor of the lock when it is held.
func (l *rangeLock) Acquire() bool {
	if !l.acquired {
		l.acquired = true
		if l.ns.locks.push(l, l.host) {
			l.ns.setLock(l)
		}
	}
	return l.held
}

// setLock makes l, nil for none, the lock of the namespace, in place of the one before.
func (ns *namespace) setLock(l *rangeLock) {
	ns.barrier(nil, func(f *freshChannel) { f.lock = l },
		func(ch *channel, drained func()) { ch.setLock(l, drained) },
		func() {
			if l != nil {
				l.h.post(l.nowHeld)
			}
		})
}

// setLock keeps writes to the blocks of l from the device, and no longer writes to the blocks of
// the lock before.
func (ch *channel) setLock(l *rangeLock, drained func()) {
	if ch.lock != nil {
		ch.unhold(ch.lock)
		ch.lock = nil
	}
	if l == nil {
		drained()
		return
	}
	ch.lock = &hold{by: l}
	ch.search(&await{done: drained}, func(io *backend.IO) bool {
		return l.covers(io) && ownerSession(io) != nil // see orphaned
	})
}

func (l *rangeLock) nowHeld() {
	l.held = true
	if l.released {
		l.unlock()
		return
	}
	l.onHeld()
}

// Release implements compound.Lock: it ends the lock, now or as soon as it is held. Reactor of the
// lock.
func (l *rangeLock) Release() {
	l.released = true
	if l.held {
		l.unlock()
	}
}

// unlock lets the writes go on and sets the next lock.
func (l *rangeLock) unlock() {
	l.ns.setLock(nil) // first: after pop others may set theirs
	if next := l.ns.locks.pop(); next != nil {
		l.ns.setLock(next)
	}
}

// covers reports whether an IO changes blocks of the lock.
func (l *rangeLock) covers(io *backend.IO) bool {
	return changesBlocks(io) &&
		io.Off < l.off+l.len && l.off < io.Off+io.Len
}

// blocks implements blocker.
func (l *rangeLock) blocks(io *backend.IO) bool {
	if o, ok := io.Owner.(*compound.IO); ok && o.Compound == l.owner {
		return false
	}
	return l.covers(io)
}
