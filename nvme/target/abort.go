package target

import (
	"slices"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// abortLimit is ACL+1: how many Abort commands may be under way.
const abortLimit = 4

// abort carries out Abort (Base section 5.1.1). What a backend has begun is not aborted: DW0 bit 0
// says so, and the command completes by itself.
func abort(h *Handler, cm *cmd) {
	c := cm.s.ctrl
	a := cm.req.SQE.Abort()
	qid, cid := a.SQID(), a.CID()
	if c.aborts >= abortLimit {
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
	i := slices.IndexFunc(c.events.requests, func(r *cmd) bool { return r.req.SQE.CID() == cid })
	if i < 0 {
		return false
	}
	r := c.events.requests[i]
	c.events.requests = slices.Delete(c.events.requests, i, i+1)
	c.h.finish(r, 0, nvme.AbortRequested)
	return true
}

// abort aborts a command of this queue that its device has not seen yet. Reactor of the session.
func (s *session) abort(cid uint16) bool {
	for _, c := range s.cmds {
		if !c.busy || c.req.SQE.CID() != cid || c.ns == nil || c.ns.slot >= len(s.h.channels) {
			continue
		}
		if s.h.finishDelayed(func(d *delayed) bool {
			if d.c == c {
				d.st = nvme.AbortRequested
			}
			return d.c == c
		}) > 0 {
			return true
		}
		if ch := s.h.channels[c.ns.slot]; ch != nil && ch.remove(&c.io) {
			c.io.Segs = nil
			s.h.finish(c, 0, nvme.AbortRequested)
			return true
		}
	}
	return false
}
