package target

import (
	"math/bits"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// mdts is the controllers' MDTS, in powers of two of 4 KiB (CAP.MPSMIN).
func (c *SubsystemConfig) mdts() uint8 {
	return uint8(
		bits.TrailingZeros(uint(c.MaxTransfer)) - 12)
}

// namespace looks up the namespace that the command names.
func (c *cmd) namespace() *namespace { return c.s.ctrl.sub.namespaces.Load().get(c.req.SQE.NSID()) }

// extent validates SLBA and NLB and fills in the IO. Nothing is multiplied before it is in range.
// It returns the bytes meant.
func (c *cmd) extent(op backend.Op) (uint64, *geometry, nvme.Status) {
	ns := c.namespace()
	if ns == nil {
		return 0, nil, invalidNamespace
	}
	g := ns.geo.Load()
	if g.unready {
		return 0, nil, notReady
	}
	sqe := &c.req.SQE
	slba, nlb := sqe.SLBA(), uint64(sqe.NLB())
	if slba >= g.blocks || nlb > g.blocks-slba {
		return 0, nil, outOfRange
	}
	n := nlb << g.shift
	c.ns = ns
	c.io.Op, c.io.Flags = op, 0
	c.io.Off, c.io.Len = int64(slba<<g.shift), int64(n)
	return n, g, nvme.Success
}

// transfer answers a read or write of n bytes.
func (c *cmd) transfer(n uint64) nvme.Status {
	if n > uint64(c.s.ctrl.sub.cfg.MaxTransfer) {
		return invalidField // MDTS (Base section 5.1.13.2.1)
	}
	return c.expect(uint32(n))
}

func prepareRead(c *cmd) nvme.Status {
	n, _, st := c.extent(backend.OpRead)
	if !st.OK() {
		return st
	}
	if st := c.transfer(n); !st.OK() {
		return st
	}
	c.lend()
	return nvme.Success
}

func prepareWrite(c *cmd) nvme.Status {
	n, g, st := c.extent(backend.OpWrite)
	if !st.OK() {
		return st
	}
	flags := c.req.SQE.RW().Flags()
	if st := c.writable(g, flags); !st.OK() {
		return st
	}
	if flags&nvme.RWDirective != 0 {
		return invalidField // no directives (Base section 8.1.8)
	}
	if st := c.transfer(n); !st.OK() {
		return st
	}
	c.reserve()
	return nvme.Success
}

func prepareWriteZeroes(c *cmd) nvme.Status {
	_, g, st := c.extent(backend.OpWriteZeroes)
	if !st.OK() {
		return st
	}
	flags := c.req.SQE.RW().Flags()
	if st := c.writable(g, flags); !st.OK() {
		return st
	}
	if flags&nvme.RWDeallocate != 0 {
		c.io.Flags |= backend.Unmap
	}
	return c.expect(0) // no MDTS: there is no data, and WZSL is 0 (NVM section 4.1.5.4)
}

// writable refuses writes to read-only namespaces and decides whether the write must be durable
// when it completes.
func (c *cmd) writable(g *geometry, flags nvme.RWFlags) nvme.Status {
	if g.readOnly {
		return writeProtected
	}
	if flags&nvme.RWFUA != 0 || g.volatile && c.s.ctrl.writeThrough.Load() {
		c.io.Flags |= backend.FUA
	}
	return nvme.Success
}

// executeIO hands the prepared IO to the backend.
func executeIO(h *Handler, c *cmd) {
	c.io.Segs = c.req.Segs
	if c.req.InCapsule && c.ns.timeout > 0 {
		c.takeCapsule(h)
	}
	c.since = h.loop.Now()
	if !h.submit(c.ns, &c.io) {
		c.io.Segs = nil
		h.finish(c, 0, invalidNamespace)
	}
}

func prepareFlush(c *cmd) nvme.Status {
	if nsid := c.req.SQE.NSID(); nsid != nvme.NSIDAll {
		switch c.ns = c.namespace(); {
		case c.ns == nil:
			return invalidNamespace
		case c.ns.geo.Load().unready:
			return notReady
		}
	} else {
		c.ns = nil // every namespace: VWC bits 2:1 are 11b (Base section 7.2)
	}
	return c.expect(0)
}

func executeFlush(h *Handler, c *cmd) {
	if c.ns == nil {
		flushAll(h, c)
		return
	}
	c.io.Op, c.io.Flags, c.io.Off, c.io.Len = backend.OpFlush, 0, 0, 0
	executeIO(h, c)
}
