package target

import (
	"bytes"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
)

const (
	// moveChunk is how much a command reads at a time into memory of the target, in bytes.
	moveChunk = int64(128 << 10)
	// moveWidth is how many such IOs of one command devices have at a time, if their turns come.
	moveWidth = 4
)

// move is the part of a compound that reads into memory of the target: for Compare, Verify, Copy
// and a fused Compare and Write. The memory is of the share of the host, and is waited for if there
// is none.
type move struct {
	from []extent
	// index and pos are where the next chunk is read: an extent, and how far into it, in bytes.
	index int
	pos   int64
	done  int64 // bytes of all extents before
	then  afterRead
	flags backend.Flags // of writes

	to     int64 // Copy: the first byte that is written
	failed int   // Copy: the first extent that was not copied

	second  *cmd       // the Write of a fused pair, otherwise nil
	lock    *rangeLock // of the pair
	writing bool       // the first command of the pair has succeeded
}

// afterRead is the step after a chunk has been read.
type afterRead uint8

const (
	thenNothing      afterRead = iota // Verify
	thenCompare                       // it is compared with the data of the command
	thenCompareWrite                  // and then overwritten with that of the second one
	thenCopy                          // it is written elsewhere
)

// extent is a range of bytes of a namespace.
type extent struct {
	ch       *channel
	off, len int64
}

// startMove begins the move v. m.ch is the namespace of the command.
func (h *Handler) startMove(c *cmd, v *move) *compound {
	m := h.newCompound(c)
	m.ch, m.move = c.ch, v
	if v.then != thenCompareWrite { // which is one block, and keeps others from it
		m.flow = c.flow
	}
	for _, x := range v.from {
		m.steps += int((x.len + moveChunk - 1) / moveChunk)
	}
	c.since = h.loop.Now()
	h.moves++
	h.startTimeouts()
	return m
}

// moveReady reports whether the next chunk can be read into the memory of o. If not, advance is
// called when it can. A pair acquires its lock when it has memory, so that other commands do not
// wait until its host has memory.
func (m *compound) moveReady(h *Handler, o *compoundIO) bool {
	switch l := m.move.lock; {
	case !m.hasMemory(h, o):
		return false
	case l == nil:
		return true
	default:
		l.acquire()
		return l.held
	}
}

// hasMemory reports whether o has memory for the next chunk. If not, and no outstanding IO would
// give some back, it waits. A command with data has memory of a transport meanwhile, so its wait
// may have the reserve: otherwise many of them would wait for one another.
func (m *compound) hasMemory(h *Handler, o *compoundIO) bool {
	r, n := m.cmd.req, int(m.move.chunk())
	switch {
	case len(o.data.Segs) > 0 || h.memory.Alloc(&o.data, r.Flow, n): // Granted, or now
		return true
	case m.outstanding > 0 || o.data.Waiting():
		return false
	case r.Length > 0 && h.memory.AllocReserve(&o.data, r.Flow, n):
		return true
	}
	o.data.Owner = o
	if r.Length > 0 {
		h.memory.WaitReserve(&o.data, r.Flow, n, h.loop.Now())
	} else {
		h.memory.Wait(&o.data, r.Flow, n, h.loop.Now())
	}
	return false
}

// Granted implements mem.WaitOwner.
func (o *compoundIO) Granted() { o.c.soon() }

// Expired implements mem.WaitOwner.
func (o *compoundIO) Expired() {
	o.c.status = nvme.CommandInterrupted // hosts retry (Base section 4.2.3.1)
	o.c.soon()
}

// soon calls advance, which must not be called by the pool, and then delivers completions.
func (m *compound) soon() {
	v, h := m.move, m.ch.h
	h.post(func() {
		if m.move == v {
			m.advance(h)
		}
	})
}

// chunk is the length of the next one.
func (v *move) chunk() int64 { return min(v.from[v.index].len-v.pos, moveChunk) }

// fill prepares the read of the next chunk.
func (v *move) fill(o *compoundIO) *channel {
	x := &v.from[v.index]
	o.Op, o.Flags, o.Off, o.Len, o.Segs = backend.OpRead, 0, x.off+v.pos, v.chunk(), o.data.Segs
	o.pos, o.extent = v.done, v.index
	v.pos += o.Len
	v.done += o.Len
	if v.pos == x.len {
		v.index, v.pos = v.index+1, 0
	}
	return x.ch
}

// goesOn carries on with a chunk that has been read. It returns false if the IO has nothing to do
// any more.
func (m *compound) goesOn(h *Handler, o *compoundIO) bool {
	v := m.move
	switch {
	case !m.status.OK():
		return false
	case m.cmd.s.isOver(): // a late write must not follow
		m.status = nvme.AbortedSQDeletion
		return false
	case v.then == thenCopy:
		return m.write(h, o, v.to+o.pos)
	case !equal(m.cmd.req.Segs, int(o.pos), o.Segs):
		m.status = nvme.CompareFailure | nvme.DNR
		return false
	case v.then == thenCompare:
		return false
	}
	v.writing = true
	mem.CopySegments(o.Segs, v.second.req.Segs)
	return m.write(h, o, o.Off)
}

// write makes an IO write the data in its memory. It reports whether that was possible.
func (m *compound) write(h *Handler, o *compoundIO, off int64) bool {
	o.Op, o.Flags, o.Off = backend.OpWrite, m.move.flags, off
	st := m.submit(h, m.ch, o)
	if !st.OK() {
		m.status, o.Op = st, backend.OpRead
	}
	return st.OK()
}

// equal reports whether a has the data of b from a position on.
func equal(a []mem.Segment, pos int, b []mem.Segment) bool {
	have := mem.NewCursor(a, pos)
	for i := range b {
		for rest := b[i].B; len(rest) > 0; {
			p := have.Next(len(rest))
			if len(p) == 0 || !bytes.Equal(p, rest[:len(p)]) {
				return false
			}
			rest = rest[len(p):]
		}
	}
	return true
}

// endMove frees the memory and the lock of the move of a compound. Its IOs are back.
func (m *compound) endMove(h *Handler) {
	for i := range m.ios {
		m.ios[i].data.Cancel()
		m.ios[i].data.Free()
	}
	if l := m.move.lock; l != nil {
		l.release()
	}
	m.move = nil
	if h.moves--; m.ch.state == channelClosed {
		h.stopTimeoutsIfIdle() // nothing else does
	}
}

// result is DW0 of a command that has failed: of a Copy, the first range that was not copied (NVM
// section 3.3.2).
func (v *move) result() uint64 {
	if v.then != thenCopy {
		return 0
	}
	return uint64(min(v.failed, v.index))
}

// statuses returns the statuses of the two commands of a pair that ends with st. If the first
// fails, the second fails as well (Base section 3.4.2).
func (v *move) statuses(st nvme.Status) (first, second nvme.Status) {
	switch {
	case st.OK(), st == notReady, st == nvme.AbortRequested, st == nvme.AbortedPreempt:
		return st, st
	case v.writing:
		return nvme.Success, st
	}
	return st, nvme.AbortedFailedFused
}
