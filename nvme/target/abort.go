package target

import (
	"slices"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/controllers"
)

// abort carries out Abort (Base section 5.1.1). A command that its device does not have yet is
// aborted at once. A device that has it is asked to cancel it: if that is not done at once, DW0
// bit 0 is set, and the command completes on its own, aborted or not.
func abort(h *Handler, cm *cmd) {
	c := cm.s.ctrl
	a := cm.req.SQE.Abort()
	qid, cid := a.SQID(), a.CID()
	if c.aborts >= controllers.AbortLimit {
		h.finish(cm, 0, nvme.AbortLimitExceeded)
		return
	}
	if qid == 0 {
		h.finish(cm, abortResult(c.abortEvent(cid)), nvme.Success)
		return
	}
	c.mu.Lock()
	s := c.queues[qid]
	c.mu.Unlock()
	if s == nil {
		h.finish(cm, abortResult(false), nvme.Success)
		return
	}
	c.aborts++
	s.h.post(func() {
		done := s.abort(cid)
		h.post(func() {
			c.aborts--
			h.finish(cm, abortResult(done), nvme.Success)
		})
	})
}

func abortResult(done bool) uint64 {
	if done {
		return 0
	}
	return uint64(nvme.AbortNotDone)
}

// abortEvent aborts an outstanding Asynchronous Event Request.
func (c *controller) abortEvent(cid uint16) bool {
	i := slices.IndexFunc(c.requests, func(r *cmd) bool { return r.req.SQE.CID() == cid })
	if i < 0 {
		return false
	}
	r := c.requests[i]
	c.requests = slices.Delete(c.requests, i, i+1)
	c.h.finish(r, 0, nvme.AbortRequested)
	return true
}

// abort aborts a command of this queue, and delivers its completion before that of the Abort
// command. It returns false if there is none, or its device has it. Reactor of the session.
func (s *session) abort(cid uint16) bool {
	i := slices.IndexFunc(s.cmds[:s.used], func(c *cmd) bool { // bound: the depth of the queue
		return (c.executing || c.parked()) && c.req.SQE.CID() == cid
	})
	if i < 0 {
		return false
	}
	c, h := s.cmds[i], s.h
	r := c.req
	switch {
	case c.awaiting != nil:
		return false // it may be made already
	case c.waits():
		h.abortWaiting(c, nvme.AbortRequested)
		h.run()
		return true
	case c.pair != nil:
		h.failPair(c, nvme.AbortRequested)
	case c.delayed.Listed():
		h.finishDelayed(c, nvme.AbortRequested)
	case c.compound != nil:
		c.compound.Abort(nvme.AbortRequested)
	case c.ch == nil:
		return false // no device is involved
	case c.ch.Withdraw(&c.io):
		h.finish(c, 0, nvme.AbortRequested)
	default:
		c.ch.Cancel(&c.io)
	}
	h.dispatch.Process() // a canceled IO may be back already
	done := c.req == nil && r.CQE.Status() == nvme.AbortRequested
	h.run()
	return done
}
