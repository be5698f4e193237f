package target

import (
	"slices"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/list"
)

// blockedIO is an IO that must not reach the device before late writes are back, or the range lock
// is released. It is not in pending meanwhile: hosts choose how many there are, so they are looked
// at only when that happens.
type blockedIO struct {
	io   *backend.IO
	by   *lateWrites // nil: the lock
	node list.Node[blockedIO]
}

// block reports whether an IO must not reach the device yet, and keeps it then.
func (ch *channel) block(io *backend.IO) bool {
	if ch.lock != nil && ch.lock.blocks(io) {
		ch.keep(io, nil)
		return true
	}
	i := slices.IndexFunc(ch.avoids, func(w *lateWrites) bool { return w.blocks(io) })
	if i >= 0 {
		ch.keep(io, ch.avoids[i])
	}
	return i >= 0
}

// keep makes an IO wait for late writes, nil: for the lock.
func (ch *channel) keep(io *backend.IO, by *lateWrites) {
	if ch.blocked == nil {
		ch.blocked = map[*backend.IO]*blockedIO{}
		ch.blockers = map[*lateWrites]*list.List[blockedIO]{}
	}
	if ch.blockers[by] == nil {
		ch.blockers[by] = new(list.List[blockedIO])
	}
	b := &blockedIO{io: io, by: by}
	ch.blocked[io] = b
	ch.blockers[by].Push(b, &b.node)
}

// unkeep ends the wait of an IO, and reports whether it has waited.
func (ch *channel) unkeep(io *backend.IO) bool {
	b := ch.blocked[io]
	if b == nil {
		return false
	}
	ch.blockers[b.by].Remove(&b.node)
	delete(ch.blocked, io)
	return true
}

// unblock makes what has waited for late writes that are gone, nil: for the lock, pending again. If
// others are in their place, next, it may wait for these.
func (ch *channel) unblock(gone, next *lateWrites) {
	l := ch.blockers[gone]
	if l == nil {
		return
	}
	delete(ch.blockers, gone)
	for b := l.Pop(); b != nil; b = l.Pop() {
		delete(ch.blocked, b.io)
		if next != nil && next.blocks(b.io) {
			ch.keep(b.io, next)
		} else {
			ch.putIn(b.io)
		}
	}
	ch.h.schedule(ch)
}
