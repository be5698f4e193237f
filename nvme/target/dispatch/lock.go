package dispatch

import (
	"sync"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
	"github.com/nvmf-target/nvmf-target/nvme/target/compound"
)

// Lock keeps writes to some blocks of a namespace from its device, on every reactor, while a fused
// Compare and Write is carried out there:
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
//
// The caller fills in the exported fields. The lock belongs to the reactor of Post.
type Lock struct {
	Namespace *Namespace
	Blocks    backend.Range
	// Owner is the compound with the writes that pass.
	Owner *compound.Compound
	// Host is the host that takes turns with others.
	Host subnet.Owner
	// Post runs a function on the reactor of the lock, on which OnHeld is called.
	Post   func(func())
	OnHeld func()

	// A lock may be released before it is held.
	acquired, held, released bool
	node                     list.Node[Lock] // in hostLocks.locks
}

// locks are the range locks of a namespace. Hosts take turns: however many pairs one host has,
// a pair of another host waits for one of each.
type locks struct {
	mu    sync.Mutex
	busy  bool                        // a lock is held, or about to be
	hosts map[subnet.Owner]*hostLocks // of the others
	turns list.List[hostLocks]
}

// hostLocks are the locks that pairs of a host wait for, oldest first.
type hostLocks struct {
	host  subnet.Owner
	locks list.List[Lock]
	node  list.Node[hostLocks]
}

// push adds a lock. It returns true if that need not wait.
func (q *locks) push(l *Lock) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.busy {
		q.busy = true
		return true
	}
	t := q.hosts[l.Host]
	if t == nil {
		if q.hosts == nil {
			q.hosts = map[subnet.Owner]*hostLocks{}
		}
		t = &hostLocks{host: l.Host}
		q.hosts[l.Host] = t
		q.turns.Push(t, &t.node)
	}
	t.locks.Push(l, &l.node)
	return false
}

// pop returns the lock that comes next, nil if there is none.
func (q *locks) pop() *Lock {
	q.mu.Lock()
	defer q.mu.Unlock()
	t := q.turns.Pop()
	if t == nil {
		q.busy = false
		return nil
	}
	l := t.locks.Pop()
	if t.locks.Empty() {
		delete(q.hosts, t.host)
	} else {
		q.turns.Push(t, &t.node)
	}
	return l
}

// Acquire implements compound.Lock. OnHeld is called when the lock is held.
func (l *Lock) Acquire() bool {
	if !l.acquired {
		l.acquired = true
		if l.Namespace.locks.push(l) {
			l.Namespace.setLock(l)
		}
	}
	return l.held
}

// setLock makes l, nil for none, the lock of the namespace, in place of the one before.
func (ns *Namespace) setLock(l *Lock) {
	ns.barrier(nil, func(f *fresh) { f.lock = l },
		func(ch *Channel, drained func()) { ch.setLock(l, drained) },
		func() {
			if l != nil {
				l.Post(l.nowHeld)
			}
		})
}

// setLock keeps writes to the blocks of l from the device, and no longer writes to the blocks of
// the lock before.
func (ch *Channel) setLock(l *Lock, drained func()) {
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
		return l.covers(io) && ch.r.Queue(io) != nil // see Orphaned
	})
}

func (l *Lock) nowHeld() {
	l.held = true
	if l.released {
		l.unlock()
		return
	}
	l.OnHeld()
}

// Release implements compound.Lock: it ends the lock, now or as soon as it is held. Reactor of the
// lock.
func (l *Lock) Release() {
	l.released = true
	if l.held {
		l.unlock()
	}
}

// unlock lets the writes go on and sets the next lock.
func (l *Lock) unlock() {
	l.Namespace.setLock(nil) // first: after pop others may set theirs
	if next := l.Namespace.locks.pop(); next != nil {
		l.Namespace.setLock(next)
	}
}

// covers reports whether an IO changes blocks of the lock.
func (l *Lock) covers(io *backend.IO) bool {
	return ChangesBlocks(io) && io.Off < l.Blocks.End && l.Blocks.Off < io.Off+io.Len
}

// blocks implements blocker.
func (l *Lock) blocks(io *backend.IO, _ *Queue) bool {
	if o, ok := io.Owner.(*compound.IO); ok && o.Compound == l.Owner {
		return false
	}
	return l.covers(io)
}
