package target

import (
	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
)

// compoundPool has the compounds of a reactor, and the owners of their work.
type compoundPool struct {
	compounds list.List[compound] // free
	spare     int                 // the number of these
	inUse     int                 // the number of others, but for the target's own
	moves     int                 // compounds with a move
	turns     list.List[owner]    // with work that waits for its turn
}

const (
	// compoundWidth is how many IOs of one command the devices have at a time.
	compoundWidth = 8
	// flushLook is how many namespaces a Flush of all looks at in a turn.
	flushLook = 64
	// mostSpare is how many compounds, of 6 KiB each, a reactor keeps for the next commands, and
	// mostCompounds how many there are at a time, but for the first of each owner.
	mostSpare     = 64
	mostCompounds = 512
)

// compound carries out a command that takes several IOs: Write Zeroes, Dataset Management, Flush of
// every namespace, and commands that read into memory of the target (move). It comes from a free
// list of its handler.
type compound struct {
	cmd *cmd // nil once the command was given up
	// owner is the owner that it counts for; nil: it is the target's own.
	owner *owner
	// flow is where it takes turns; nil if it does not.
	flow        *flow
	turn        list.Node[compound] // in flow.work while it waits for its turn
	paid        bool                // limits allow the next piece
	ios         [compoundWidth]compoundIO
	idle        list.List[compoundIO]
	outstanding int // IOs that are not idle
	steps       int // chunks of a move, ranges, or namespaces to check, and then to flush
	next        int // the first one of these that is not submitted as a whole
	status      nvme.Status
	ch          *channel     // but for Flush
	zero        zero         // Write Zeroes and Dataset Management
	flush       []*namespace // Flush
	flushGoesOn bool         // in a turn of its own
	move        *move        // nil for these three
	node        list.Node[compound]
}

// compoundIO is one IO of a compound, and the owner of that IO.
type compoundIO struct {
	backend.IO
	c     *compound
	ch    *channel // nil unless a device has it or will have it
	since int64    // when it was given to the device; cmd.since is that of the last one
	node  list.Node[compoundIO]
	// data is the memory of the IO of a move, pos how many bytes of the command are before it. free
	// gives the memory back if the command was given up.
	data   mem.Allocation
	pos    int64
	extent int   // of a move
	read   bool  // it is in flow.reads: it has been read, and nothing was done with that yet
	copied bool  // it has been written
	work   int64 // its part of flow.outstanding, in bytes
	free   func()
}

func (h *Handler) newCompound(c *cmd) *compound {
	m := h.compounds.Pop()
	if m != nil {
		h.spare--
	} else {
		m = &compound{zero: zero{ranges: make([]backend.Range, 0, nvme.MaxDSMRanges)}}
		for i := range m.ios {
			o := &m.ios[i]
			o.Owner, o.c = o, m
			m.idle.Push(o, &o.node)
		}
	}
	m.cmd, c.compound = c, m
	if c.then == nil {
		m.owner = c.s.host.payer
		m.owner.compounds++
		h.inUse++
	}
	return m
}

// mayHave reports whether an owner may have another compound within its share. It may always have
// one besides its compounds of commands that were given up.
func (h *Handler) mayHave(o *owner) bool {
	return o.compounds == o.stuck || !subnet.Exceeds(o.compounds, 1, mostCompounds-h.inUse-1)
}

// postpones reports whether a command waits until its owner may have another compound. Its request
// keeps its resources. The command is executed anew afterwards.
func (h *Handler) postpones(c *cmd) bool {
	if c.then != nil || h.mayHave(c.s.host.payer) {
		return false
	}
	c.s.host.payer.postponed.Push(c, &c.postponed)
	return true
}

// release ends the use of a compound by its owner.
func (h *Handler) release(o *owner) {
	o.compounds--
	h.inUse--
	h.executePostponed(o)
}

// executePostponed executes some postponed commands of an owner, if it may have a compound.
func (h *Handler) executePostponed(o *owner) {
	if o.resumes {
		return
	}
	o.resumes = true
	for n := 0; !o.postponed.Empty() && h.mayHave(o); n++ {
		if n == qos.AdmitMost { // they have failed at once
			h.post(func() {
				o.resumes = false
				h.executePostponed(o)
			})
			return
		}
		c := o.postponed.First()
		h.stopWaiting(c)
		c.waited(h)
		c.op.execute(h, c)
	}
	o.resumes = false
}

// putIdle makes an IO free for the next step.
func (m *compound) putIdle(o *compoundIO) {
	if v := m.move; v != nil && !o.copied {
		v.failed = min(v.failed, o.extent)
	}
	o.ch, o.Segs, o.copied = nil, nil, false
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
func (m *compound) advance(h *Handler) {
	for n := 0; m.mayBegin(); n++ {
		if m.flow != nil {
			m.flow.push(m)
			return
		}
		if n == flushLook {
			m.flushOn(h)
			return
		}
		if !m.begin(h) {
			return // it comes back
		}
	}
	m.withdrawTurn()
	if m.outstanding == 0 {
		m.end(h)
	}
}

// mayBegin reports whether devices may get another IO of the command: unless they have enough, one
// has failed, or the queue has ended.
func (m *compound) mayBegin() bool {
	width := compoundWidth
	if m.move != nil {
		width = moveWidth
	}
	return m.cmd != nil && m.next < m.steps && m.outstanding < width && m.status.OK() &&
		!m.cmd.s.isOver()
}

// begin submits the next IO. It returns false if that has to wait for something, after which
// advance is called.
func (m *compound) begin(h *Handler) bool {
	o := m.idle.First()
	if !m.ready(h, o) {
		return false
	}
	ch := m.fill(h, o)
	if ch == nil {
		return true // there is nothing to flush
	}
	switch st := m.submit(h, ch, o); {
	case st.OK():
		m.idle.Remove(&o.node)
		m.outstanding++
		if m.flow != nil {
			m.flow.begun(o)
		}
	case m.move != nil:
		m.status, m.move.failed = st, min(m.move.failed, o.extent)
	case st == notReady || o.Op == backend.OpWriteZeroes:
		m.status = st
	} // or else the namespace was removed meanwhile: there is nothing to flush or to deallocate
	return true
}

// ready reports whether the next IO may begin, with o. If not, advance is called when it may.
func (m *compound) ready(h *Handler, o *compoundIO) bool {
	return m.isPaid() && (m.move == nil || m.moveReady(h, o))
}

// submit hands an IO to the device of a channel.
func (m *compound) submit(h *Handler, ch *channel, o *compoundIO) nvme.Status {
	if ch.ns.geo.Load().unready {
		return notReady
	}
	if !h.submit(ch, &o.IO) {
		return invalidNamespace
	}
	o.ch, o.since = ch, h.loop.Now()
	m.cmd.since = o.since
	return nvme.Success
}

// end completes the command, unless it was given up, and makes the compound free.
func (m *compound) end(h *Handler) {
	c, st, v := m.cmd, m.status, m.move
	if m.next < m.steps && st.OK() {
		st = nvme.AbortedSQDeletion
	}
	if v != nil {
		m.endMove(h)
	}
	o := m.owner
	if o != nil && c == nil {
		o.stuck--
	}
	m.cmd, m.owner, m.ch, m.flow, m.flush, m.paid = nil, nil, nil, nil, nil, false
	m.next, m.steps, m.status = 0, 0, nvme.Success
	m.zero = zero{ranges: m.zero.ranges[:0]}
	if h.spare < mostSpare { // hosts decide how many there are at a time
		h.compounds.Push(m, &m.node)
		h.spare++
	}
	if o != nil {
		defer h.release(o)
	}
	if c == nil {
		return
	}
	switch {
	case v == nil, st.OK() && v.second == nil:
		h.compoundDone(c, 0, st)
	case v.second == nil:
		h.compoundDone(c, v.result(), st)
	default:
		first, second := v.statuses(st)
		h.compoundDone(c, 0, first)
		h.compoundDone(v.second, 0, second)
	}
}

func (h *Handler) compoundDone(c *cmd, result uint64, st nvme.Status) {
	c.compound = nil
	h.finishAs(c, result, st)
}

// fill prepares the next IO and returns its channel, or nil if there is nothing to flush.
func (m *compound) fill(h *Handler, o *compoundIO) *channel {
	io := &o.IO
	switch {
	case m.move != nil:
		m.next++
		m.paid = false
		return m.move.fill(o)
	case m.flush == nil:
		m.fillZero(o)
		return m.ch
	}
	at, n := m.next, len(m.flush)
	m.next++
	ns := m.flush[at%n]
	var flushes bool
	if flushes, m.status = m.cmd.flushes(ns); !flushes || at < n {
		return nil
	}
	io.Op, io.Flags, io.Off, io.Len = backend.OpFlush, 0, 0, 0
	if ch := h.channel(ns); ch != nil {
		return ch
	}
	return h.openChannel(ns)
}

// ioDone takes an IO back. The first error becomes the status of the command, except that a device
// need not be able to deallocate (NVM section 3.3.3).
func (m *compound) ioDone(h *Handler, o *compoundIO, st nvme.Status) {
	switch {
	case m.cmd == nil:
		o.ch.orphanBack()
	case m.move != nil && st.OK() && m.status.OK() && o.Op == backend.OpRead &&
		m.move.then != thenNothing:
		if m.flow != nil {
			m.flow.pushRead(o)
			return
		}
		if m.goesOn(h, o) {
			return
		}
	}
	o.copied = st.OK() && o.Op == backend.OpWrite
	if !st.OK() && m.status.OK() && (o.Op != backend.OpDiscard || st != invalidOpcode) {
		m.status = st
		if m.cmd != nil && (o.Op == backend.OpRead || o.Op == backend.OpWriteZeroes) {
			m.cmd.io.Err = o.Err // it may name the block
		}
	}
	m.putIdle(o)
	if m.flush != nil && m.mayBegin() {
		m.flushOn(h)
		return
	}
	m.advance(h)
}

// flushOn lets a Flush go on in a turn of its own: there may be thousands of namespaces.
func (m *compound) flushOn(h *Handler) {
	if m.flushGoesOn {
		return
	}
	m.flushGoesOn = true
	c := m.cmd
	h.post(func() {
		if m.flushGoesOn = false; m.cmd == c {
			m.advance(h)
		}
	})
}

// abort withdraws the IOs that devices have not got yet, and cancels the others. The command
// completes when all IOs are back.
func (m *compound) abort(h *Handler) {
	m.withdrawReads()
	for i := range m.ios {
		switch o := &m.ios[i]; {
		case o.ch == nil:
		case o.ch.withdraw(&o.IO):
			m.status = nvme.AbortRequested
			m.putIdle(o)
		default:
			o.ch.cancel(&o.IO)
		}
	}
	m.advance(h)
}

// giveUp completes the command. IOs that devices have come back to ioDone, and then the compound is
// free.
func (m *compound) giveUp(h *Handler) {
	// Flush has one IO for each namespace, Dataset Management all of them for the same.
	var counted *namespace
	m.withdrawReads()
	for i := range m.ios {
		o := &m.ios[i]
		if o.ch == nil {
			continue
		}
		ns, withdrawn := o.ch.ns, o.ch.withdraw(&o.IO)
		// Without a timeout, one that was not submitted waited for another namespace.
		if ns != counted && (!withdrawn || ns.cfg.Load().timeout > 0) {
			counted = ns
			ns.timedOut()
		}
		if withdrawn {
			m.putIdle(o)
			continue
		}
		if m.move != nil {
			o.free = o.data.HandOver()
		}
		if m.flow != nil {
			m.flow.returned(o) // the others must see that the namespace is not ready
		}
		o.ch.orphaned(&o.IO)
		o.ch.cancel(&o.IO)
	}
	c, owner := m.cmd, m.owner
	if owner != nil {
		owner.stuck++
	}
	m.cmd, c.compound = nil, nil
	h.finish(c, 0, notReady)
	if v := m.move; v != nil && v.second != nil {
		v.second.compound = nil
		h.finish(v.second, 0, notReady)
	}
	m.advance(h)
	if owner != nil {
		h.executePostponed(owner)
	}
}

func flushAll(h *Handler, c *cmd) {
	if h.postpones(c) {
		return
	}
	flushThose(h, c, c.s.ctrl.sub.namespaces.Load().list)
}

// flushes reports whether a Flush of all namespaces flushes one of them. The status is the reason
// why all of it fails if not; it is Success if the host does not see the namespace.
func (c *cmd) flushes(ns *namespace) (bool, nvme.Status) {
	host := c.s.ctrl.identity
	a := ns.reservations.Access()
	st := c.s.port.ana.Load().Of(ns.anaGroup()).Status()
	switch {
	case !c.flushesAll(): // after a change of the write protection
		return true, nvme.Success
	case !ns.cfg.Load().visible(c.s.ctrl.hostNQN):
		return false, nvme.Success
	case a != nil && !a.Permits(host, groupWrite):
		return false, reservationConflict // of any is one of all (Base section 8.1.22)
	}
	return st.OK(), st
}

// flushesAll reports whether the command is a Flush of all namespaces.
func (c *cmd) flushesAll() bool {
	return c.s.qid != 0 && c.req.SQE.Opcode() == nvme.NVMFlush &&
		c.req.SQE.NSID() == nvme.NSIDAll
}

// willFlush reports whether a namespace has not been flushed yet. They are in ascending order.
func (m *compound) willFlush(ns *namespace) bool {
	at := max(m.next-len(m.flush), 0)
	return at < len(m.flush) && m.flush[at].nsid <= ns.nsid
}

// flushThose flushes namespaces and completes the command.
func flushThose(h *Handler, c *cmd, list []*namespace) {
	m := h.newCompound(c)
	m.flush = list
	m.steps = 2 * len(m.flush) // nothing is flushed if one refuses
	m.advance(h)
}

// prepareDSM accepts a buffer longer than the ranges: Linux always sends 4096 bytes.
func prepareDSM(c *cmd) nvme.Status {
	if _, st := c.bind(); !st.OK() {
		return st
	}
	r := c.req
	need := uint32(r.SQE.DSM().Ranges() * nvme.DSMRangeSize)
	if r.HostLength < need || r.HostLength > nvme.MaxDSMRanges*nvme.DSMRangeSize {
		return invalidLength
	}
	return c.expect(r.HostLength)
}

func executeDSM(h *Handler, c *cmd) {
	if h.postpones(c) {
		return
	}
	dsm := c.req.SQE.DSM()
	m := h.newCompound(c)
	m.ch = c.ch
	g := c.ch.ns.geo.Load()
	data := mem.NewCursor(c.req.Segs, 0)
	for range dsm.Ranges() {
		var r nvme.DSMRange
		data.CopyTo(r[:])
		n := uint64(r.Blocks())
		switch {
		case n == 0:
		case r.SLBA() >= g.blocks || n > g.blocks-r.SLBA():
			m.status = outOfRange
		default:
			m.zero.add(int64(r.SLBA()<<g.shift), int64(n<<g.shift))
		}
	}
	if !dsm.Deallocate() || !g.info.Discard { // all attributes are advisory (NVM section 3.3.3)
		m.zero.ranges = m.zero.ranges[:0]
	}
	m.startZero(h, backend.OpDiscard, 0)
}
