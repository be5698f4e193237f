package target

import (
	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// prepareCompare checks a Compare command. Its data comes from the host (NVM section 3.3.1).
func prepareCompare(c *cmd) nvme.Status {
	if _, st := c.extent(backend.OpRead); !st.OK() {
		return st
	}
	return c.transfer()
}

// prepareVerify checks a Verify command, which reads without a transfer (NVM section 3.3.5). There
// is no limit: VSL is 0 (NVM section 4.1.5.4).
func prepareVerify(c *cmd) nvme.Status {
	if _, st := c.extent(backend.OpRead); !st.OK() {
		return st
	}
	return c.expect(0)
}

func executeCompare(h *Handler, c *cmd) {
	if !h.postpones(c) {
		h.startMove(c, c.reads(thenCompare)).advance(h)
	}
}

func executeVerify(h *Handler, c *cmd) {
	if !h.postpones(c) {
		h.startMove(c, c.reads(thenNothing)).advance(h)
	}
}

// reads is a move that reads the blocks of the command.
func (c *cmd) reads(then afterRead) *move {
	return &move{from: []extent{{c.ch, c.io.Off, c.io.Len}}, then: then}
}

// compareAndWrite carries out a fused pair. Its blocks are at most one atomic unit, which is one
// chunk.
func (h *Handler) compareAndWrite(a, b *cmd) {
	v := a.reads(thenCompareWrite)
	v.second, v.flags = b, b.io.Flags
	m := h.startMove(a, v)
	b.compound = m
	v.lock = &rangeLock{h: h, ns: a.ch.ns, owner: m, off: a.io.Off, len: a.io.Len}
	v.lock.onHeld = func() {
		if m.move == v {
			m.advance(h)
		}
	}
	m.advance(h)
}
