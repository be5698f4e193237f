package dispatch

import (
	"sync"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
	"github.com/nvmf-target/nvmf-target/nvme/target/compound"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

// Lock keeps writes to some blocks of a namespace from its device, on every reactor, while a fused
// Compare and Write is carried out there:
//
//	Acquire  waits for the locks before it, and is then set on every reactor that has a channel
//	set      from now on writes to the blocks are held; when the device has none of them any more,
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
	node                     list.Node[Lock] // in locks.others
}

// locks are the range locks of a namespace. Hosts take turns: however many pairs one host has,
// a pair of another host waits for one of each.
type locks struct {
	mu     sync.Mutex
	busy   bool                           // a lock is held, or about to be
	others list.Turns[subnet.Owner, Lock] // that wait
}

// push adds a lock. It returns true if that need not wait.
func (q *locks) push(l *Lock) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.busy {
		q.others.Push(l.Host, l, &l.node)
		return false
	}
	q.busy = true
	return true
}

// pop returns the lock that comes next, nil if there is none.
func (q *locks) pop() *Lock {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.others.Pop()
	q.busy = l != nil
	return l
}

// Acquire implements compound.Lock. OnHeld is called when the lock is held.
func (l *Lock) Acquire() bool {
	if !l.acquired {
		l.acquired = true
		if l.Namespace.locks.push(l) {
			l.set()
		}
	}
	return l.held
}

// set has the writes to the blocks held, and waits for the writes that devices have.
func (l *Lock) set() {
	l.Namespace.hold(nil, l, func(ch *Channel, drained func()) {
		ch.search(&await{done: drained}, func(io *backend.IO) bool {
			return l.covers(io) && ch.r.Queue(io) != nil // see Orphaned
		})
	}, func() { l.Post(l.nowHeld) })
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
	l.Namespace.release(nil, l) // first: after pop others may set theirs
	if next := l.Namespace.locks.pop(); next != nil {
		next.set()
	}
}

// covers reports whether an IO changes blocks of the lock.
func (l *Lock) covers(io *backend.IO) bool {
	return ChangesBlocks(io) && io.Off < l.Blocks.End && l.Blocks.Off < io.Off+io.Len
}

func (l *Lock) host() reservation.HostHandle { return allHosts }

// blocks reports whether an IO of another compound changes blocks of the lock.
func (l *Lock) blocks(io *backend.IO, _ *Queue) bool {
	if o, ok := io.Owner.(*compound.IO); ok && o.Compound == l.Owner {
		return false
	}
	return l.covers(io)
}
