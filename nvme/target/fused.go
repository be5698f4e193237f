package target

import "github.com/nvmf-target/nvmf-target/nvme"

// pairWait is how long a fused command waits for the other one, in nanoseconds. Hosts send them one
// after the other (Base section 3.4.2), so only a lost packet, or data that has to be transferred,
// comes between.
const pairWait = int64(10e9)

// pair is a fused operation: Compare and Write, which are adjacent in their queue (Base section
// 3.4.2, NVM section 3.2). The command that arrives first waits in Handler.halves until its data
// and the other command have arrived. If one is refused, so is the other. Of a pair that is carried
// out, the first one completes first.
type pair struct {
	first, second *cmd
	// lost is the status of a command of the pair that comes later; 0 if it does not fail.
	lost nvme.Status
}

// fuse finds the pair of a command that has FUSE set, or that arrives instead of a second command.
func (s *session) fuse(c *cmd) {
	p, sqe := s.fused, &c.req.SQE
	s.fused = nil
	fuse := sqe.FUSE()
	if s.qid == 0 || sqe.Opcode() == nvme.FabricsOpcode {
		fuse = 0 // refused as a field that such commands do not have
	}
	if p != nil && fuse == 2 {
		p.second, c.pair = c, p
		return
	}
	if p != nil {
		p.lost = nvme.AbortedMissingFused
		s.h.post(func() {
			if p.waits(p.first) {
				s.h.failPair(p.first, nvme.AbortedMissingFused)
			}
		})
	}
	switch {
	case fuse == 1:
		s.fused = &pair{first: c}
		c.pair = s.fused
	case fuse == 2 && c.req.Status.OK():
		c.req.Status = nvme.AbortedMissingFused
	}
}

// waits reports whether a command of the pair waits for the other one.
func (p *pair) waits(c *cmd) bool { return c != nil && c.pair == p && c.delayed.Listed() }

// prepareFused checks a command of a pair. Only Compare and Write can be fused (FUSES).
func (c *cmd) prepareFused() nvme.Status {
	want := nvme.NVMCompare
	if c == c.pair.second {
		want = nvme.NVMWrite
	}
	if c.req.SQE.Opcode() != want {
		return invalidField
	}
	if st := c.op.prepare(c); !st.OK() {
		return st
	}
	// Writes are atomic up to a physical block, or a logical one if that is larger.
	if g := c.ch.ns.Geometry(); c.io.Len > int64(max(g.Info.PhysicalBlockSize, 1<<g.Shift)) {
		return nvme.AtomicWriteUnitExceeded | nvme.DNR // ACWU, NACWU (NVM section 4.1.5.1)
	}
	if c == c.pair.first && c.limited { // for both, so that they stay together
		c.waitsAtLimit(2 * c.io.Len)
	}
	return nvme.Success
}

// executeFused starts the pair if both commands have arrived.
func (h *Handler) executeFused(c *cmd) {
	p := c.pair
	switch {
	case p.lost != 0:
		c.pair = nil
		h.endFused(c, p.lost)
	case !c.req.Status.OK():
		h.failPair(c, c.req.Status)
	case p.waits(p.first):
		p.first.delayed.Remove()
		h.runPair(p)
	case p.waits(p.second):
		p.second.delayed.Remove()
		h.runPair(p)
	default:
		h.halves.Push(c, &c.delayed)
	}
}

// endHalf ends a command that waits for the other one, unless that waits at a limit.
func (h *Handler) endHalf(c *cmd) {
	if first := c.pair.first; first != nil && first.pair == c.pair && first.waits() &&
		!c.s.queue.Over {
		c.delayed.Remove()
		h.halves.Push(c, &c.delayed)
		return
	}
	h.failPair(c, nvme.AbortedMissingFused)
}

// failPair ends a command of a pair, and with it the other one: now, or when it arrives.
func (h *Handler) failPair(c *cmd, st nvme.Status) {
	p := c.pair
	p.lost = nvme.AbortedFailedFused
	for _, o := range [...]*cmd{p.first, p.second} {
		switch {
		case p.waits(o):
			o.delayed.Remove()
		case o != c:
			continue
		}
		o.pair = nil
		if o == c {
			h.endFused(o, st)
		} else {
			h.endFused(o, nvme.AbortedFailedFused)
		}
	}
}

// endFused completes a fused command that is not executed, with the status of its own refusal if it
// was refused, or else with st.
func (h *Handler) endFused(c *cmd, st nvme.Status) {
	if own := c.req.Status; !own.OK() {
		st = own
	}
	h.finishAs(c, 0, st)
}

// runPair carries out a pair when both commands have arrived.
func (h *Handler) runPair(p *pair) {
	a, b := p.first, p.second
	a.pair, b.pair = nil, nil
	// the ranges of the two are the same (NVM section 3.2)
	if a.ch != b.ch || a.io.Off != b.io.Off || a.io.Len != b.io.Len {
		h.finish(a, 0, invalidField)
		h.finish(b, 0, invalidField)
		return
	}
	h.compareAndWrite(a, b)
}
