package target

import (
	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/compound"
	"github.com/nvmf-target/nvmf-target/nvme/target/controllers"
)

// Refusals of a Copy command (NVM section 3.3.2).
const (
	copyTooLarge     = nvme.CommandSizeLimitExceeded | nvme.DNR
	copyIncompatible = nvme.IncompatibleNamespace | nvme.DNR
	copyNotFast      = nvme.FastCopyNotPossible | nvme.DNR
	copyOverlaps     = nvme.OverlappingIORange | nvme.DNR
)

// prepareCopy checks a Copy command without its source ranges. It accepts a buffer longer than
// these, as Dataset Management does.
func prepareCopy(c *cmd) nvme.Status {
	g, st := c.bind()
	if !st.OK() {
		return st
	}
	sqe := c.req.SQE.Copy()
	need := uint32(sqe.Ranges() * nvme.CopyRangeSize)
	switch bit := sqe.Format().Bit(); {
	case bit&controllers.CopyFormats == 0:
		return invalidField
	case bit != nvme.CopyRanges.Bit() && uint32(bit)&c.s.ctrl.CopyFormats.Load() == 0:
		return invalidField // CDFE (Base section 5.1.25.1.14)
	case c.req.HostLength < need || c.req.HostLength > controllers.CopyRanges*nvme.CopyRangeSize:
		return invalidLength
	}
	flags := c.req.SQE.RW().Flags()
	c.io.Op, c.io.Flags = backend.OpWrite, 0
	if c.durable(g, flags); flags&nvme.RWDirective != 0 {
		return invalidField // no directives (Base section 8.1.8)
	}
	return c.expect(c.req.HostLength)
}

// executeCopy checks all source ranges, and then copies one after the other, from SDLBA on.
func executeCopy(h *Handler, c *cmd) {
	if h.postpones(c) {
		return
	}
	v := &compound.Read{Then: compound.Copy, Flags: c.io.Flags}
	data := mem.NewCursor(c.req.Segs, 0)
	total := uint64(0)
	for range c.req.SQE.Copy().Ranges() {
		var r nvme.CopyRange
		data.CopyTo(r[:])
		x, st := c.copySource(&r)
		total += uint64(r.Blocks())
		if st.OK() && total > uint64(controllers.MCL(c.ch.ns.Geometry())) {
			st = copyTooLarge
		}
		if !st.OK() {
			h.finishAs(c, 0, st) // nothing of range 0 was copied
			return
		}
		v.From = append(v.From, x)
	}
	if st := c.copyDestination(v, total); !st.OK() {
		h.finishAs(c, 0, st)
		return
	}
	h.newCompound(c)
	h.read(c, v)
}

// copySource finds and checks a source range.
func (c *cmd) copySource(r *nvme.CopyRange) (compound.Extent, nvme.Status) {
	ch, sqe := c.ch, &c.req.SQE
	if sqe.Copy().Format() == nvme.CopyNamespaces {
		if r.FastOnly() {
			return compound.Extent{}, copyNotFast
		}
		ns := c.s.ctrl.Namespace(r.SNSID())
		if ns == nil {
			return compound.Extent{}, controllers.NoNamespace(r.SNSID())
		}
		if ch = c.s.h.channelTo(ns); ch == nil {
			return compound.Extent{}, inactiveNamespace // it is being removed
		}
	}
	if st := c.s.port.ANA.Load().Of(ch.ns.Attributes().ANAGroup).Status(); !st.OK() {
		return compound.Extent{}, st
	}
	if a := ch.Access; a != nil && !a.Permits(c.s.ctrl.Identity, groupRead) {
		return compound.Extent{}, reservationConflict
	}
	g, n := ch.ns.Geometry(), uint64(r.Blocks())
	switch {
	case g.Unready:
		return compound.Extent{}, notReady
	case g.Shift != c.ch.ns.Geometry().Shift, ch != c.ch && ch.ns.Attributes().Limiter != nil:
		return compound.Extent{}, copyIncompatible // reads do not wait at limits of others
	case n > uint64(controllers.MSSRL(g)):
		return compound.Extent{}, copyTooLarge
	case r.SLBA() >= g.Blocks || n > g.Blocks-r.SLBA():
		return compound.Extent{}, outOfRange
	}
	return compound.Extent{
		Channel: ch, Off: int64(r.SLBA() << g.Shift), Len: int64(n << g.Shift),
	}, nvme.Success
}

// copyDestination checks where the ranges are copied to.
func (c *cmd) copyDestination(v *compound.Read, total uint64) nvme.Status {
	g, slba := c.ch.ns.Geometry(), c.req.SQE.SLBA()
	if slba >= g.Blocks || total > g.Blocks-slba {
		return outOfRange
	}
	v.To = int64(slba << g.Shift)
	end := v.To + int64(total<<g.Shift)
	for _, x := range v.From {
		if x.Channel == c.ch && x.Off < end && v.To < x.Off+x.Len {
			return copyOverlaps
		}
	}
	return nvme.Success
}
