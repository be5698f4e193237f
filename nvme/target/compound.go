package target

import (
	"cmp"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/compound"
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// Commands that take several IOs are checked here. Package compound carries them out.

// postpones reports whether a command has to wait until its host may have another compound. Its
// request keeps its resources, and the command is executed again afterwards.
func (h *Handler) postpones(c *cmd) bool {
	c.postponed.Command = c
	return c.then == nil && h.compounds.Postpones(&c.s.host.Payer.Owner, &c.postponed)
}

// newCompound returns a compound for a command that is not postponed.
func (h *Handler) newCompound(c *cmd) *compound.Compound {
	o := &c.s.host.Payer.Owner
	if c.then != nil {
		o = nil // it is the target's own
	}
	c.compound = h.compounds.New(c, o)
	return c.compound
}

// resumePostponed executes a command that was postponed.
func (h *Handler) resumePostponed(p *compound.Postponed) {
	c := p.Command.(*cmd)
	c.waited(h)
	c.op.execute(h, c)
}

// Over implements compound.Command.
func (c *cmd) Over() bool { return c.s.queue.Over }

// Takes implements compound.Command.
func (c *cmd) Takes(n int64, mayWait bool) bool {
	switch {
	case !c.limited:
		return true
	case !mayWait:
		return c.flow.Limits.Take(n, c.s.h.loop.Now())
	case !c.waitsAtLimit(n):
		return true
	}
	c.req.Deferred = false // the queue goes on
	return false
}

// Failed implements compound.Command.
func (c *cmd) Failed(err error) { c.io.Err = err }

// Done implements compound.Command.
func (c *cmd) Done(result uint64, st nvme.Status) {
	h := c.s.h
	c.compound = nil
	if c.ch != nil && c.ch.Closed() {
		h.stopTimeoutsIfIdle() // nothing else does
	}
	h.finishAs(c, result, st)
}

// GivenUp implements compound.Command.
func (c *cmd) GivenUp() {
	c.compound = nil
	c.s.h.finish(c, 0, notReady)
}

// read begins a command that reads into memory of the target.
func (h *Handler) read(c *cmd, v *compound.Read) {
	v.Flow, v.Reserve, v.Data = c.req.Flow, c.req.Length > 0, c.req.Segs
	flow := &c.flow.Turns
	if v.Then == compound.CompareAndWrite { // which is one block, and keeps others from it
		flow = nil
	}
	h.startTimeouts()
	c.compound.Read(c.ch, flow, v)
}

// reads is a read of the blocks of the command.
func (c *cmd) reads(then compound.Then) *compound.Read {
	all := compound.Extent{Channel: c.ch, Off: c.io.Off, Len: c.io.Len}
	return &compound.Read{From: []compound.Extent{all}, Then: then}
}

func executeCompare(h *Handler, c *cmd) {
	if !h.postpones(c) {
		h.newCompound(c)
		h.read(c, c.reads(compound.Compare))
	}
}

// prepareVerify checks a Verify command, which reads without a transfer (NVM section 3.3.5). There
// is no limit: VSL is 0 (NVM section 4.1.5.4).
func prepareVerify(c *cmd) nvme.Status {
	if _, st := c.extent(backend.OpRead); !st.OK() {
		return st
	}
	return c.expect(0)
}

func executeVerify(h *Handler, c *cmd) {
	if !h.postpones(c) {
		h.newCompound(c)
		h.read(c, c.reads(compound.Verify))
	}
}

// compareAndWrite carries out a fused pair. Its blocks are at most one atomic unit, and one chunk.
func (h *Handler) compareAndWrite(a, b *cmd) {
	m := h.newCompound(a)
	b.compound = m
	v := a.reads(compound.CompareAndWrite)
	v.Second, v.Overwrite, v.Flags = b, b.req.Segs, b.io.Flags
	v.Lock = &dispatch.Lock{
		Namespace: &a.ch.ns.Namespace, Owner: m, Host: a.s.host.Payer.Key, Post: h.post,
		Blocks: backend.Range{Off: a.io.Off, End: a.io.Off + a.io.Len}, OnHeld: v.GoOn,
	}
	h.read(a, v)
}

func executeWriteZeroes(h *Handler, c *cmd) {
	if !h.postpones(c) {
		m := h.newCompound(c)
		m.Add(c.io.Off, c.io.Len)
		m.Zero(c.ch, &c.flow.Turns, backend.OpWriteZeroes, c.io.Flags)
	}
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
	m := h.newCompound(c)
	dsm, g := c.req.SQE.DSM(), c.ch.ns.Geometry()
	discards := dsm.Deallocate() && g.Info.Discard // all is advice (NVM section 3.3.3)
	data := mem.NewCursor(c.req.Segs, 0)
	for range dsm.Ranges() {
		var r nvme.DSMRange
		data.CopyTo(r[:])
		n := uint64(r.Blocks())
		switch {
		case n == 0:
		case r.SLBA() >= g.Blocks || n > g.Blocks-r.SLBA():
			m.Refuse(outOfRange)
			return
		case discards:
			m.Add(int64(r.SLBA()<<g.Shift), int64(n<<g.Shift))
		}
	}
	m.Zero(c.ch, &c.flow.Turns, backend.OpDiscard, 0)
}

func flushAll(h *Handler, c *cmd) {
	if !h.postpones(c) {
		flushThose(h, c, c.s.ctrl.sub.Namespaces.Load().List)
	}
}

// flushThose flushes namespaces, which are in ascending order, and completes the command.
func flushThose(h *Handler, c *cmd, list []*namespaces.Namespace) {
	h.newCompound(c).Flush(2*len(list), &flush{c: c, list: list})
}

// flush flushes namespaces. Its steps check all of them first: nothing is flushed if one refuses.
type flush struct {
	c    *cmd
	list []*namespaces.Namespace
	// conflict is the refusal by a reservation. An ANA state of any namespace comes before it.
	conflict nvme.Status
}

// Step implements compound.Flusher.
func (f *flush) Step(i int) (compound.Channel, nvme.Status) {
	h, ns := f.c.s.h, f.list[i%len(f.list)]
	flushes, st := f.c.flushes(ns)
	if last := len(f.list) - 1; i <= last {
		if st == reservationConflict {
			f.conflict, st = st, nvme.Success
		}
		if i == last {
			st = cmp.Or(st, f.conflict)
		}
		return nil, st
	}
	switch {
	case st == reservationConflict:
		return nil, nvme.AbortedPreempt // it was allowed before, see package dispatch
	case !flushes:
		return nil, st
	}
	ch := h.channelTo(ns)
	if ch == nil {
		return nil, nvme.Success // it was removed
	}
	return ch, nvme.Success
}

// Uses implements compound.Flusher.
func (f *flush) Uses(ch compound.Channel, i int) bool {
	at := max(i-len(f.list), 0)
	return at < len(f.list) && f.list[at].ID.NSID <= ch.(*channel).ns.ID.NSID
}

// flushes reports whether a Flush of all namespaces flushes one of them. The status is the reason
// why all of it fails if not; it is Success if the host does not see the namespace.
func (c *cmd) flushes(ns *namespaces.Namespace) (bool, nvme.Status) {
	host := c.s.ctrl.Identity
	a := ns.Reservations.Access()
	st := c.s.port.ANA.Load().Of(ns.Attributes().ANAGroup).Status()
	switch {
	case !c.flushesAll(): // after a change of the write protection
		return true, nvme.Success
	case !ns.Attributes().Visible(c.s.ctrl.HostNQN):
		return false, nvme.Success
	case !st.OK():
		return false, st
	case a != nil && !a.Permits(host, groupWrite):
		return false, reservationConflict // of any is one of all (Base section 8.1.22)
	}
	return true, nvme.Success
}

// flushesAll reports whether the command is a Flush of all namespaces.
func (c *cmd) flushesAll() bool {
	return c.s.qid != 0 && c.req.SQE.Opcode() == nvme.NVMFlush &&
		c.req.SQE.NSID() == nvme.NSIDAll
}
