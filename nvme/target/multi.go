package target

import (
	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// multiWidth is how many IOs of one command are with the backend at a time.
const multiWidth = 8

// multi carries out a command that takes several IOs: Dataset Management, and Flush of every
// namespace. It comes from a free list of its handler.
type multi struct {
	c        *cmd // nil once the command was given up
	ios      [multiWidth]multiIO
	idle     [multiWidth]*multiIO // those not submitted
	nidle    int
	steps    int // IOs to submit
	next     int // the first not submitted
	status   nvme.Status
	ns       *namespace // Dataset Management
	ranges   []nvme.DSMRange
	flush    []*namespace // Flush
	nextFree *multi
}

// multiIO is one IO of a multi, which is its owner.
type multiIO struct {
	backend.IO
	m  *multi
	ns *namespace // nil if it is idle
}

func (h *Handler) newMulti(c *cmd) *multi {
	m := h.multis
	if m == nil {
		m = &multi{ranges: make([]nvme.DSMRange, 0, nvme.MaxDSMRanges)}
		for i := range m.ios {
			m.ios[i].Owner, m.ios[i].m = &m.ios[i], m
			m.idle[i] = &m.ios[i]
		}
		m.nidle = multiWidth
	} else {
		h.multis = m.nextFree
	}
	m.c, m.next, m.steps, m.status, m.nextFree = c, 0, 0, nvme.Success, nil
	c.multi = m
	return m
}

// step submits what may be submitted and completes the command when everything is back.
func (m *multi) step(h *Handler) {
	for m.c != nil && m.next < m.steps && m.nidle > 0 && m.status.OK() && !m.c.s.closed {
		o := m.idle[m.nidle-1]
		ns := m.fill(&o.IO, m.next)
		m.next++
		if ns != nil && ns.geo.Load().unready {
			m.status = notReady
			break
		}
		if ns == nil || !h.submit(ns, &o.IO) {
			continue // nothing to do, or the namespace went away meanwhile
		}
		o.ns, m.c.since = ns, h.loop.Now()
		m.nidle--
	}
	if m.nidle < multiWidth {
		return
	}
	c, st := m.c, m.status
	if m.next < m.steps && st.OK() {
		st = nvme.AbortedSQDeletion
	}
	m.c, m.ns, m.flush, m.ranges = nil, nil, nil, m.ranges[:0]
	m.nextFree, h.multis = h.multis, m
	switch {
	case c == nil: // given up
	case st == notReady:
		c.multi = nil
		h.finishLater(c, st)
	default:
		c.multi = nil
		h.finish(c, 0, st)
	}
}

// fill makes IO number i. It returns nil if there is nothing to do for it.
func (m *multi) fill(io *backend.IO, i int) *namespace {
	if m.flush != nil {
		io.Op, io.Flags, io.Off, io.Len = backend.OpFlush, 0, 0, 0
		return m.flush[i]
	}
	r := &m.ranges[i]
	if r.Blocks() == 0 {
		return nil
	}
	shift := m.ns.geo.Load().shift
	io.Op, io.Flags = backend.OpDiscard, 0
	io.Off, io.Len = int64(r.SLBA()<<shift), int64(uint64(r.Blocks())<<shift)
	return m.ns
}

// ioDone takes an IO back. The first error is the status of the command; a device that cannot
// deallocate has done its duty, since Dataset Management is advice (NVM section 3.3.3).
func (m *multi) ioDone(h *Handler, o *multiIO) {
	if m.c == nil {
		o.ns.returned(h.t.log)
	}
	o.ns = nil
	m.idle[m.nidle] = o
	m.nidle++
	st := ioStatus(&o.IO)
	if !st.OK() && m.status.OK() &&
		!(o.Op == backend.OpDiscard && st.Code() == nvme.InvalidOpcode) {
		m.status = st
	}
	m.step(h)
}

func flushAll(h *Handler, c *cmd) {
	m := h.newMulti(c)
	m.flush = c.s.ctrl.sub.namespaces.Load().list
	m.steps = len(m.flush)
	m.step(h)
}

// prepareDSM accepts a buffer longer than the ranges: Linux always sends 4096 bytes.
func prepareDSM(c *cmd) nvme.Status {
	ns := c.namespace()
	if ns == nil {
		return invalidNamespace
	}
	c.ns = ns
	r := c.req
	need := uint32(r.SQE.DSM().Ranges() * nvme.DSMRangeSize)
	if r.HostLength < need || r.HostLength > nvme.MaxDSMRanges*nvme.DSMRangeSize {
		return invalidLength
	}
	switch g := ns.geo.Load(); {
	case g.unready:
		return notReady
	case r.SQE.DSM().Deallocate() && g.readOnly:
		return writeProtected
	}
	return c.expect(r.HostLength)
}

func executeDSM(h *Handler, c *cmd) {
	dsm := c.req.SQE.DSM()
	if !dsm.Deallocate() {
		h.finish(c, 0, nvme.Success) // the other attributes are hints
		return
	}
	m := h.newMulti(c)
	m.ns = c.ns
	blocks := c.ns.geo.Load().blocks
	st := nvme.Success
	for i := range dsm.Ranges() {
		var r nvme.DSMRange
		copyOut(r[:], c.req.Segs, i*nvme.DSMRangeSize)
		if n := uint64(r.Blocks()); n > 0 && (r.SLBA() >= blocks || n > blocks-r.SLBA()) {
			st = outOfRange
		}
		m.ranges = append(m.ranges, r)
	}
	m.status, m.steps = st, len(m.ranges)
	m.step(h)
}

// copyOut fills dst from segs, beginning at byte off, and returns how many bytes there were.
func copyOut(dst []byte, segs []mem.Segment, off int) int {
	n := 0
	for i := range segs {
		b := segs[i].B
		if off >= len(b) {
			off -= len(b)
			continue
		}
		n += copy(dst[n:], b[off:])
		off = 0
	}
	return n
}
