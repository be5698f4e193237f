package compound

import (
	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/list"
)

const (
	// turnWork is how much work a reactor begins in a poll, in bytes, and the turn of an owner: a
	// chunk. A piece to be zeroed or deallocated counts no more: most storage does not touch the
	// bytes.
	turnWork = Chunk
	// leastWork is the least that a turn counts, also if nothing could begin in it.
	leastWork = int64(4 << 10)
	// flowWork is how much work of a flow is outstanding before it begins no more. It is enough for
	// the speed of the disk, and does not fill the queue in front of it.
	flowWork = int64(1 << 20)
)

// Flow has the compounds of the commands of one host for one namespace that take turns.
type Flow struct {
	owner       *Owner
	work        list.List[Compound] // that may begin something, in the order of their turns
	reads       list.List[IO]       // chunks that have been read, and wait for their other half
	turn        list.Node[Flow]     // in Owner.flows
	outstanding int64               // work that was begun and has not ended, in bytes
}

// NewFlow returns a flow with the owner of its turns.
func NewFlow(o *Owner) Flow { return Flow{owner: o} }

// Poll begins the work of one poll, and returns the number of pieces.
func (p *Pool) Poll() (n int) {
	for left := turnWork; left > 0 && !p.turns.Empty(); n++ {
		left -= p.turns.First().takeTurn(p)
	}
	return n
}

// Ready reports whether Poll would begin something.
func (p *Pool) Ready() bool { return !p.turns.Empty() }

// takeTurn does a piece of the work of the first owner in Pool.turns, and returns the bytes that it
// counts. An owner that has nothing more to begin loses the rest of its turn.
func (o *Owner) takeTurn(p *Pool) int64 {
	f := o.flows.Pop()
	work := max(f.takeTurn(p), leastWork)
	f.schedule(p)
	o.left -= work
	switch {
	case o.flows.Empty():
		p.turns.Remove(&o.turn)
	case o.left <= 0:
		p.turns.Remove(&o.turn)
		p.turns.Push(o, &o.turn)
		o.left += turnWork
	}
	return work
}

// takeTurn does a piece of the work of the flow. Chunks that were read come first: they have
// memory.
func (f *Flow) takeTurn(p *Pool) int64 {
	if o := f.reads.Pop(); o != nil {
		work, m := o.work, o.Compound
		if o.isRead = false; !m.goesOn(o) {
			m.putIdle(o)
			m.advance()
		}
		return work
	}
	before := f.outstanding
	if m := f.work.Pop(); m != nil {
		if m.Since == 0 {
			m.Since = p.Now()
		}
		if !m.mayBegin() || m.begin() {
			m.advance()
		}
	}
	return f.outstanding - before
}

// schedule lists the flow, and its owner, for their turns if the flow has something to begin.
func (f *Flow) schedule(p *Pool) {
	if f.turn.Listed() || f.reads.Empty() && (f.work.Empty() || f.outstanding >= flowWork) {
		return
	}
	o := f.owner
	o.flows.Push(f, &f.turn)
	if !o.turn.Listed() {
		o.left = turnWork
		p.turns.Push(o, &o.turn)
	}
}

// push lets a compound wait for its turn. Its time limit does not run while devices have nothing of
// it.
func (f *Flow) push(m *Compound) {
	if m.turn.Listed() {
		return
	}
	if m.outstanding == 0 {
		m.Since = 0
	}
	f.work.Push(m, &m.turn)
	f.schedule(m.pool)
}

// pushRead lets a chunk that has been read wait for its turn. No device has it.
func (f *Flow) pushRead(o *IO) {
	o.Channel, o.isRead = nil, true
	f.reads.Push(o, &o.node)
	f.schedule(o.Compound.pool)
}

// begun counts a piece that was begun.
func (f *Flow) begun(o *IO) {
	o.work = min(o.Len, turnWork)
	f.outstanding += o.work
}

// returned counts a piece that has ended.
func (f *Flow) returned(o *IO) {
	f.outstanding -= o.work
	o.work = 0
	f.schedule(o.Compound.pool)
}

// withdrawTurn ends the wait of a compound for its turn, if it waits.
func (m *Compound) withdrawTurn() {
	if m.turn.Listed() {
		m.flow.work.Remove(&m.turn)
	}
}

// withdrawReads makes the chunks idle that have been read and wait for their turn.
func (m *Compound) withdrawReads() {
	for i := range m.ios {
		if o := &m.ios[i]; o.isRead {
			m.flow.reads.Remove(&o.node)
			o.isRead = false
			m.putIdle(o)
		}
	}
}

// isPaid reports whether limits allow the next piece, and asks them if need be. A compound waits
// for each, with nothing outstanding: other hosts that share a limit would have to wait for all of
// a large one at once. The first piece of a Write Zeroes and the first range of a Dataset
// Management were counted before, and so was all of a Compare and of a pair.
func (m *Compound) isPaid() bool {
	n, v := int64(0), m.read
	switch {
	case m.taken || m.flush != nil:
		return true
	case v == nil && m.zero.op == backend.OpDiscard:
	case v == nil:
		p := m.zero.next(m.zero.ranges[m.next])
		n = p.End - p.Off
	case v.Then == Compare || v.Then == CompareAndWrite:
		return true
	case v.Then == Copy:
		n = 2 * v.chunk()
	default:
		n = v.chunk()
	}
	if m.taken = m.Command.Takes(n, m.outstanding == 0); !m.taken && m.outstanding == 0 {
		m.Since = 0 // no device has anything
	}
	return m.taken
}

// Admitted goes on with a compound that limits have kept waiting.
func (m *Compound) Admitted() {
	m.Since, m.taken = m.pool.Now(), true
	m.advance()
}
