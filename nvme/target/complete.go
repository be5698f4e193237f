package target

import (
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// completions are the sessions that have something to deliver.
type completions struct {
	completed list.List[session] // have completions to deliver
	running   bool
	worked    bool // completed has more than zero-copy reads, which take no time
}

// finish completes a command: exactly once, with every byte of the CQE written. The next deliver
// passes it to the queue.
func (h *Handler) finish(c *cmd, result uint64, st nvme.Status) {
	s, r := c.s, c.req
	if c.then != nil {
		h.finishOwn(c, st)
		return
	}
	if st.OK() {
		s.moved[r.Dir] += uint64(r.Length)
	} else {
		st = s.failed(c, st)
	}
	r.CQE.Fill(result, s.nextSQHD(), r.SQE.CID(), st)
	c.traced = c.s.trace.Add(r, uint16(st))
	if c.io.Segs != nil {
		c.freeSegs(h)
	}
	c.executing, c.since, c.req, c.op, c.ch = false, 0, nil, nil, nil
	s.outstanding--
	h.worked = h.worked || !r.ZeroCopy || r.Dir != fabric.ControllerToHost
	s.done = append(s.done, r)
	if !s.completed.Listed() {
		h.completed.Push(s, &s.completed)
	}
}

// finishOwn completes a command of the target itself.
func (h *Handler) finishOwn(c *cmd, st nvme.Status) {
	s := c.s
	c.executing, c.since, c.req, c.op, c.ch = false, 0, nil, nil, nil
	s.outstanding--
	c.then(st)
	c.io.Err = nil
	if s.closed {
		h.post(s.endIfIdle)
	}
}

// nextSQHD moves the head of the submission queue past one entry and returns the new SQHD.
func (s *session) nextSQHD() uint16 {
	if s.noFlowControl {
		return 0xFFFF
	}
	if s.size == 0 {
		return 0
	}
	if s.sqhd++; s.sqhd == s.size {
		s.sqhd = 0
	}
	return uint16(s.sqhd)
}

// failed records an unsuccessful command in the error log. The returned status has the More bit set
// if it did (Base figure 100).
func (s *session) failed(c *cmd, st nvme.Status) nvme.Status {
	err := c.io.Err
	c.io.Err = nil // the next command of this request may fail before it has an IO
	switch st.Code() {
	case nvme.AbortRequested, nvme.AbortedSQDeletion:
		return st
	}
	// Connect makes no entry, not even a second one on a queue (Base section 6.3).
	if s.ctrl == nil || c.isConnect() {
		return st
	}
	s.h.debugFailure(c, st)
	s.logError(&c.req.SQE, st, c.failedLBA(err))
	return st | nvme.More
}

// deliver publishes the counters of zero-copy reads and passes completed commands to their queues.
func (h *Handler) deliver() {
	h.dispatch.Publish()
	var now int64
	for s := h.completed.Pop(); s != nil; s = h.completed.Pop() {
		if h.worked { // maybe since the last Complete
			h.worked, now = false, h.loop.Clock()
		}
		batch := s.done
		s.done, s.spare = s.spare[:0], batch
		if now != 0 {
			for _, r := range batch {
				r.Spent(fabric.StageBackend, now)
			}
		}
		s.q.Complete(batch)
		clear(batch)
		s.afterCompletion()
	}
}

// WriterWaits implements fabric.Handler.
func (h *Handler) WriterWaits(req *fabric.Request) bool {
	c := req.Command.(*cmd)
	return c.zeroCopy.WriterWaits(&c.io)
}

// EndZeroCopy implements fabric.Handler: memory that was attached to a request goes back, unless
// the device has made it the content of its blocks.
func (h *Handler) EndZeroCopy(req *fabric.Request) {
	c := req.Command.(*cmd)
	ch := c.zeroCopy
	c.zeroCopy = nil
	ch.EndZeroCopy(&c.io, req.Segs)
}
