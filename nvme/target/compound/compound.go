package compound

import (
	"iter"
	"slices"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// NotReady is the status of commands for storage that is offline or does not answer. Hosts retry,
// on another path if they have one, until it is back (Base section 4.2.3.4, 00h), where Namespace
// Not Ready would make them fail after a few attempts.
const NotReady = nvme.InternalPathError

const (
	// width is how many IOs of one command the devices have at a time.
	width = 8
	// flushLook is how many steps a Flush takes in a turn.
	flushLook = 64
)

// Command is a command that a compound carries out. It completes once, by Done or GivenUp.
type Command interface {
	// Over reports whether its queue has ended, so that devices get nothing more of it.
	Over() bool
	// Takes takes n bytes from the limits of the command, and reports whether they allow it. If
	// not, and mayWait is set, the command waits, and Compound.Admitted follows.
	Takes(n int64, mayWait bool) bool
	// Failed notes the error of a device, which may name the block.
	Failed(err error)
	// Done completes the command. result is DW0.
	Done(result uint64, st nvme.Status)
	// GivenUp completes the command with NotReady.
	GivenUp()
}

// Channel is the channel to the device of a namespace.
type Channel interface {
	// Submit gives an IO to the device, or refuses it. IO.Done follows.
	Submit(io *backend.IO) nvme.Status
	// Withdraw takes back an IO, or returns false if the device has it.
	Withdraw(io *backend.IO) bool
	// Cancel asks the device to give an IO back.
	Cancel(io *backend.IO)
	// Orphaned: the device has an IO of a command that is given up. OrphanBack: it gave it back.
	Orphaned(io *backend.IO)
	OrphanBack()
}

// Flusher has namespaces to flush. Each Flush has one of its own, which is comparable.
type Flusher interface {
	// Step takes a step, from 0 on. It returns the channel to be flushed, nil if there is none, and
	// otherwise a status with which the command ends, or Success.
	Step(i int) (Channel, nvme.Status)
	// Uses reports whether a step from i on may flush a channel.
	Uses(ch Channel, i int) bool
}

// Compound carries out a command. It comes from the free list of its pool, and returns there when
// the command is completed and devices have none of its IOs.
type Compound struct {
	// Command is nil once the command was given up, and Since the time at which a device was given
	// the last IO, 0 if no device has any. Others read them.
	Command Command
	Since   int64

	pool        *Pool
	owner       *Owner              // that it counts for; nil: it is the target's own
	flow        *Flow               // where it takes turns; nil if it does not
	turn        list.Node[Compound] // in Flow.work while it waits for its turn
	taken       bool                // limits allow the next piece
	ios         [width]IO
	idle        list.List[IO]
	outstanding int // IOs that are not idle
	steps       int // chunks that are read, ranges, or steps of flush
	next        int // the first one of these that is not submitted as a whole
	status      nvme.Status
	ch          Channel // but for Flush
	zero        zero    // Write Zeroes and Dataset Management
	flush       Flusher // Flush
	flushGoesOn bool    // in a turn of its own
	read        *Read   // nil for these three
	node        list.Node[Compound]
}

// IO is one IO of a compound, and the owner of that IO.
type IO struct {
	backend.IO
	// Channel is nil unless a device has the IO or will have it, and Since the time at which it was
	// given to the device. Others read these fields.
	Compound *Compound
	Channel  Channel
	Since    int64

	node list.Node[IO]
	// data is the memory of a chunk, pos how many bytes of the command are before it. free gives
	// the memory back if the command was given up.
	data   mem.Allocation
	pos    int64
	extent int   // of Read.From
	isRead bool  // it is in Flow.reads: it has been read, and nothing was done with that yet
	copied bool  // it has been written
	work   int64 // its part of Flow.outstanding, in bytes
	free   func()
}

// IOs yields the IOs that devices have or will have. The loop may end them.
func (m *Compound) IOs() iter.Seq[*IO] {
	return func(yield func(*IO) bool) {
		for i := range m.ios {
			if o := &m.ios[i]; o.Channel != nil && !yield(o) {
				return
			}
		}
	}
}

// Flush takes n steps of f.
func (m *Compound) Flush(n int, f Flusher) {
	m.flush, m.steps = f, n
	m.advance()
}

// flushOn lets a Flush go on in a turn of its own: there may be thousands of namespaces.
func (m *Compound) flushOn() {
	if m.flushGoesOn {
		return
	}
	m.flushGoesOn = true
	f := m.flush
	m.pool.Post(func() {
		if m.flush == f { // its command may have another one by now
			m.flushGoesOn = false
			m.advance()
		}
	})
}

// putIdle makes an IO free for the next step.
func (m *Compound) putIdle(o *IO) {
	if v := m.read; v != nil && !o.copied {
		v.failed = min(v.failed, o.extent)
	}
	o.Channel, o.Segs, o.copied = nil, nil, false
	if o.data.Free(); o.free != nil {
		o.free()
		o.free = nil
	}
	m.idle.Push(o, &o.node)
	m.outstanding--
	if m.flow != nil {
		m.flow.returned(o)
	}
}

// advance begins the IOs of the compound that may begin, in its turn if the compound takes turns.
// It completes the command when devices have none of its IOs.
func (m *Compound) advance() {
	for n := 0; m.mayBegin(); n++ {
		if m.flow != nil {
			m.flow.push(m)
			return
		}
		if n == flushLook {
			m.flushOn()
			return
		}
		if !m.begin() {
			return // it comes back
		}
	}
	m.withdrawTurn()
	if m.outstanding == 0 {
		m.end()
	}
}

// mayBegin reports whether devices may get another IO of the command: unless they have enough, one
// has failed, or the queue has ended.
func (m *Compound) mayBegin() bool {
	most := width
	if m.read != nil {
		most = readWidth
	}
	return m.Command != nil && m.next < m.steps && m.outstanding < most && m.status.OK() &&
		!m.Command.Over()
}

// begin submits the next IO. It returns false if that has to wait; then advance is called.
func (m *Compound) begin() bool {
	o := m.idle.First()
	if !m.isPaid() || m.read != nil && !m.readReady(o) {
		return false
	}
	ch := m.fill(o)
	if ch == nil {
		return true // there is nothing to flush
	}
	switch st := m.submit(ch, o); {
	case st.OK():
		m.idle.Remove(&o.node)
		m.outstanding++
		if m.flow != nil {
			m.flow.begun(o)
		}
	case m.read != nil:
		m.status, m.read.failed = st, min(m.read.failed, o.extent)
	case st == NotReady || o.Op == backend.OpWriteZeroes:
		m.status = st
	} // or else the namespace was removed meanwhile: there is nothing to flush or to deallocate
	return true
}

// submit hands an IO to the device of a channel.
func (m *Compound) submit(ch Channel, o *IO) nvme.Status {
	st := ch.Submit(&o.IO)
	if st.OK() {
		o.Channel, o.Since = ch, m.pool.Now()
		m.Since = o.Since
	}
	return st
}

// fill prepares the next IO and returns its channel, or nil if there is nothing to flush.
func (m *Compound) fill(o *IO) Channel {
	switch {
	case m.read != nil:
		m.next++
		m.taken = false
		return m.read.fill(o)
	case m.flush == nil:
		m.fillZero(o)
		return m.ch
	}
	o.Op, o.Flags, o.Off, o.Len = backend.OpFlush, 0, 0, 0
	var ch Channel
	ch, m.status = m.flush.Step(m.next)
	m.next++
	return ch
}

// end completes the command, unless it was given up, and makes the compound free.
func (m *Compound) end() {
	c, st, v, p := m.Command, m.status, m.read, m.pool
	if m.next < m.steps && st.OK() {
		st = nvme.AbortedSQDeletion
	}
	if v != nil {
		m.endRead()
	}
	o := m.owner
	if o != nil && c == nil {
		o.stuck--
	}
	m.Command, m.owner, m.ch, m.flow, m.flush, m.taken = nil, nil, nil, nil, nil, false
	m.next, m.steps, m.status, m.Since, m.flushGoesOn = 0, 0, nvme.Success, 0, false
	m.zero = zero{ranges: m.zero.ranges[:0]}
	if p.spare < mostSpare { // hosts decide how many there are at a time
		p.free.Push(m, &m.node)
		p.spare++
	}
	if o != nil {
		defer p.release(o)
	}
	if c == nil {
		return
	}
	switch {
	case v == nil, st.OK() && v.Second == nil:
		c.Done(0, st)
	case v.Second == nil:
		c.Done(v.result(), st)
	default:
		first, second := v.statuses(st)
		c.Done(0, first)
		v.Second.Done(0, second)
	}
}

// Done takes an IO back from its channel. The first error becomes the status of the command, except
// that a device need not be able to deallocate (NVM section 3.3.3).
func (o *IO) Done(st nvme.Status) {
	m := o.Compound
	switch {
	case m.Command == nil:
		o.Channel.OrphanBack()
	case m.read != nil && st.OK() && m.status.OK() && o.Op == backend.OpRead &&
		m.read.Then != Verify:
		if m.flow != nil {
			m.flow.pushRead(o)
			return
		}
		if m.goesOn(o) {
			return
		}
	}
	o.copied = st.OK() && o.Op == backend.OpWrite
	if !st.OK() && m.status.OK() && (o.Op != backend.OpDiscard || st != invalidOpcode) {
		m.status = st
		if m.Command != nil && (o.Op == backend.OpRead || o.Op == backend.OpWriteZeroes) {
			m.Command.Failed(o.Err)
		}
	}
	m.putIdle(o)
	if m.flush != nil && m.mayBegin() {
		m.flushOn()
		return
	}
	m.advance()
}

// invalidOpcode is the status of an IO that the device does not support.
const invalidOpcode = nvme.InvalidOpcode | nvme.DNR

// Uses reports whether the compound reads or writes through a channel.
func (m *Compound) Uses(ch Channel) bool {
	switch {
	case m.flush != nil:
		return m.flush.Uses(ch, m.next)
	case m.read != nil && slices.ContainsFunc(m.read.From,
		func(x Extent) bool { return x.Channel == ch }):
		return true
	}
	return m.ch == ch
}

// Refuse makes the compound begin nothing more. It ends when devices have nothing of it.
func (m *Compound) Refuse(st nvme.Status) {
	if m.status.OK() {
		m.status = st
	}
	if m.outstanding == 0 {
		m.advance()
	}
}

// Abort withdraws the IOs that devices have not got yet, and cancels the others. The command
// completes when all IOs are back, with st unless that is Success.
func (m *Compound) Abort(st nvme.Status) {
	if !st.OK() {
		m.status = st
	}
	m.withdrawReads()
	for o := range m.IOs() {
		if o.Channel.Withdraw(&o.IO) {
			m.status = nvme.AbortRequested
			m.putIdle(o)
		} else {
			o.Channel.Cancel(&o.IO)
		}
	}
	m.advance()
}

// GiveUp completes the command. The compound is free when devices have given back its IOs.
func (m *Compound) GiveUp() {
	m.withdrawReads()
	for o := range m.IOs() {
		if o.Channel.Withdraw(&o.IO) {
			m.putIdle(o)
			continue
		}
		if m.read != nil {
			o.free = o.data.HandOver()
		}
		if m.flow != nil {
			m.flow.returned(o) // the others must see that the namespace is not ready
		}
		o.Channel.Orphaned(&o.IO)
		o.Channel.Cancel(&o.IO)
	}
	c, o := m.Command, m.owner
	if o != nil {
		o.stuck++
	}
	m.Command = nil
	c.GivenUp()
	if v := m.read; v != nil && v.Second != nil {
		v.Second.GivenUp()
	}
	m.advance()
	if o != nil {
		m.pool.resume(o)
	}
}
