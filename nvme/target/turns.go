package target

import "github.com/nvmf-target/nvmf-target/backend"

// A few commands make the target work for as long as they like: Copy, Verify, Compare, Write Zeroes
// and Dataset Management (compounds), and the Verify commands of self-tests. They are cut into
// pieces, and a reactor begins a piece in each poll, so that other commands never wait for more:
//
//	Handler.turns  hosts, or networks of hosts with unproven NQNs, which take turns by bytes
//	owner.turns    the flows of one of these, to its namespaces, which take turns by pieces
//	flow.work      the commands of a flow, which take turns by pieces
//
// Devices have a bounded part of the work of a flow at a time. For other hosts it makes no
// difference how many commands and queues a host has.

const (
	// turnWork is how much work a reactor begins in a poll, in bytes, and the turn of a host: a
	// chunk of a move. A piece to be zeroed or deallocated counts no more, since storage does not
	// touch the bytes, and takes about as long.
	turnWork = moveChunk
	// leastWork is the least that a turn counts, also if nothing could begin in it.
	leastWork = int64(4 << 10)
	// flowWork is how much work of a flow is outstanding before it begins no more. It is enough for
	// the speed of the disk, and does not fill the queue in front of it.
	flowWork = int64(1 << 20)
)

// takeTurns begins the work of one poll. It returns the number of pieces. The caller runs the
// handler afterwards.
func (h *Handler) takeTurns() (n int) {
	for left := turnWork; left > 0 && !h.turns.Empty(); n++ {
		left -= h.turns.First().takeTurn(h)
	}
	return n
}

// takeTurn does a piece of the work of one that is the first on Handler.turns, and returns
// how many bytes it counts. A host that has nothing more to begin loses the rest of its turn.
func (t *owner) takeTurn(h *Handler) int64 {
	f := t.turns.Pop()
	work := max(f.takeTurn(h), leastWork)
	f.schedule()
	t.left -= work
	switch {
	case t.turns.Empty():
		h.turns.Remove(&t.turn)
	case t.left <= 0:
		h.turns.Remove(&t.turn)
		h.turns.Push(t, &t.turn)
		t.left += turnWork
	}
	return work
}

// takeTurn does a piece of the work of the flow. Chunks that were read come first: they have
// memory.
func (f *flow) takeTurn(h *Handler) int64 {
	if o := f.reads.Pop(); o != nil {
		work, m := o.work, o.c
		if o.read = false; !m.goesOn(h, o) {
			m.putIdle(o)
			m.advance(h)
		}
		return work
	}
	before := f.outstanding
	if m := f.work.Pop(); m != nil {
		if m.cmd.since == 0 {
			m.cmd.since = h.loop.Now()
		}
		if !m.mayBegin() || m.begin(h) {
			m.advance(h)
		}
	}
	return f.outstanding - before
}

// schedule lists the flow, and its host, for their turns if the flow has something to begin.
func (f *flow) schedule() {
	if f.turn.Listed() || f.reads.Empty() && (f.work.Empty() || f.outstanding >= flowWork) {
		return
	}
	t, h := f.host.payer, f.ch.h
	t.turns.Push(f, &f.turn)
	if !t.turn.Listed() {
		t.left = turnWork
		h.turns.Push(t, &t.turn)
	}
}

// push lets a compound wait for its turn. While devices have nothing of it, io_timeout does not
// run.
func (f *flow) push(m *compound) {
	if m.turn.Listed() {
		return
	}
	if m.outstanding == 0 {
		m.cmd.since = 0
	}
	f.work.Push(m, &m.turn)
	f.schedule()
}

// pushRead lets a chunk that has been read wait for its turn. No device has it.
func (f *flow) pushRead(o *compoundIO) {
	o.ch, o.read = nil, true
	f.reads.Push(o, &o.node)
	f.schedule()
}

// begun counts a piece that was begun.
func (f *flow) begun(o *compoundIO) {
	o.work = min(o.Len, turnWork)
	f.outstanding += o.work
}

// returned counts a piece that has ended.
func (f *flow) returned(o *compoundIO) {
	f.outstanding -= o.work
	o.work = 0
	f.schedule()
}

// withdrawTurn ends the wait of a compound for its turn, if it waits.
func (m *compound) withdrawTurn() {
	if m.turn.Listed() {
		m.flow.work.Remove(&m.turn)
	}
}

// withdrawReads makes the chunks idle that have been read and wait for their turn.
func (m *compound) withdrawReads() {
	for i := range m.ios {
		if o := &m.ios[i]; o.read {
			m.flow.reads.Remove(&o.node)
			o.read = false
			m.putIdle(o)
		}
	}
}

// isPaid reports whether limits allow the next piece, and asks them if need be. A compound waits
// for each, with nothing outstanding: other hosts that share a limit would have to wait for all of
// a large one at once. The first piece of a Write Zeroes and the first range of a Dataset
// Management were counted before, and so was all of a Compare and of a pair.
func (m *compound) isPaid() bool {
	c, v := m.cmd, m.move
	n := int64(0)
	switch {
	case m.paid || !c.limited || m.flush != nil:
		return true
	case v == nil && m.zero.op == backend.OpDiscard:
	case v == nil:
		p := m.zero.next(m.zero.ranges[m.next])
		n = p.End - p.Off
	case v.then == thenCompare || v.then == thenCompareWrite:
		return true
	case v.then == thenCopy:
		n = 2 * v.chunk()
	default:
		n = v.chunk()
	}
	if m.outstanding > 0 {
		m.paid = c.flow.limits.Take(n, c.s.h.loop.Now())
		return m.paid
	}
	if m.paid = !c.waitsAtLimit(n); !m.paid {
		c.req.Deferred, c.since = false, 0 // the queue goes on, and no device has anything
	}
	return m.paid
}
