package target

import (
	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/controllers"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// prepareRead checks a Read, or a Compare, whose data comes from the host (NVM section 3.3.1).
func prepareRead(c *cmd) nvme.Status {
	if _, st := c.extent(backend.OpRead); !st.OK() {
		return st
	}
	return c.transfer()
}

func prepareWrite(c *cmd) nvme.Status {
	g, st := c.extent(backend.OpWrite)
	if !st.OK() {
		return st
	}
	flags := c.req.SQE.RW().Flags()
	c.durable(g, flags)
	if flags&nvme.RWDirective != 0 {
		return invalidField // no directives (Base section 8.1.8)
	}
	return c.transfer()
}

func prepareWriteZeroes(c *cmd) nvme.Status {
	g, st := c.extent(backend.OpWriteZeroes)
	if !st.OK() {
		return st
	}
	flags := c.req.SQE.RW().Flags()
	if c.durable(g, flags); flags&nvme.RWDeallocate != 0 {
		c.io.Flags |= backend.Unmap
	}
	return c.expect(0) // MDTS does not apply without data, and WZSL is 0 (NVM section 4.1.5.4)
}

func prepareFlush(c *cmd) nvme.Status {
	if c.req.SQE.NSID() == nvme.NSIDAll { // all: VWC bits 2:1 are 11b (Base section 7.2)
		return c.expect(0)
	}
	if _, st := c.bind(); !st.OK() {
		return st
	}
	c.io.Op, c.io.Flags, c.io.Off, c.io.Len = backend.OpFlush, 0, 0, 0
	return c.expect(0)
}

// extent validates SLBA and NLB and fills in the IO. Nothing is multiplied before it is in range.
func (c *cmd) extent(op backend.Op) (*namespaces.Geometry, nvme.Status) {
	g, st := c.bind()
	if !st.OK() {
		return nil, st
	}
	sqe := &c.req.SQE
	slba, nlb := sqe.SLBA(), uint64(sqe.NLB())
	if slba >= g.Blocks || nlb > g.Blocks-slba {
		return nil, outOfRange
	}
	c.io.Op, c.io.Flags = op, 0
	c.io.Off, c.io.Len = int64(slba<<g.Shift), int64(nlb<<g.Shift)
	return g, nvme.Success
}

// bind finds the namespace of the command and this reactor's channel to it, and opens one if there
// is none. The command keeps the channel: if the namespace is replaced while data moves, Execute
// fails and the new namespace is not touched.
func (c *cmd) bind() (*namespaces.Geometry, nvme.Status) {
	ns := c.namespace()
	if ns == nil {
		return nil, controllers.NoNamespace(c.req.SQE.NSID())
	}
	g := ns.Geometry()
	if g.Unready {
		return nil, notReady
	}
	if c.ch = c.s.h.channelTo(ns); c.ch == nil {
		return nil, inactiveNamespace // the namespace is being removed
	}
	if a := c.ch.Access; a != nil && !a.Permits(c.s.ctrl.Identity, c.op.group) {
		return nil, reservationConflict
	}
	if g.ReadOnly && c.op.changes != changeNone && c.op.changes.apply(c) {
		return nil, writeProtected
	}
	f := c.s.h.shares.FlowTo(c.s.host, &c.ch.shares)
	c.flow, c.req.Flow, c.latency = f, &f.Flow, f.Latency
	c.limited = f.Limits.Limited()
	return g, nvme.Success
}

// namespace looks up the namespace that the command names.
func (c *cmd) namespace() *namespaces.Namespace { return c.s.ctrl.Namespace(c.req.SQE.NSID()) }

// apply reports whether the command changes blocks of its namespace.
func (g change) apply(c *cmd) bool {
	return g == changeBlocks || c.req.SQE.DSM().Deallocate()
}

// durable decides whether the write must be durable when it completes.
func (c *cmd) durable(g *namespaces.Geometry, flags nvme.RWFlags) {
	if flags&nvme.RWFUA != 0 || g.Info.VolatileCache && c.s.ctrl.WriteThrough.Load() {
		c.io.Flags |= backend.FUA
	}
}

// transfer checks the length of a read or write.
func (c *cmd) transfer() nvme.Status {
	if c.io.Len > int64(c.s.ctrl.Settings.MaxTransfer) {
		return invalidField // MDTS (Base section 5.1.13.2.1)
	}
	return c.expect(uint32(c.io.Len))
}

// expect sets direction and length of a request, and requires exactly n bytes of data.
func (c *cmd) expect(n uint32) nvme.Status {
	r := c.req
	switch {
	case r.HostLength != n:
		return invalidLength
	case n == 0:
		return nvme.Success
	case c.op.dir == fabric.ControllerToHost && r.InCapsule:
		return invalidField // capsules carry data to the controller only
	}
	r.Dir, r.Length = c.op.dir, n
	return nvme.Success
}

func prepareNoData(c *cmd) nvme.Status { return c.expect(0) }

// prepareWriteUncorrectable checks a Write Uncorrectable command, which transfers nothing (NVM
// section 3.3.7). It may mark as much as may be marked in all; see package marks.
func prepareWriteUncorrectable(c *cmd) nvme.Status {
	_, st := c.extent(backend.OpWriteUncorrectable)
	switch {
	case !st.OK():
		return st
	case c.req.SQE.RW().Flags()&nvme.RWDirective != 0:
		return invalidField // no directives (Base section 8.1.8)
	}
	return c.expect(0)
}

func executeWriteUncorrectable(h *Handler, c *cmd) {
	c.ch.ns.Marks.Begin()
	executeIO(h, c)
}
