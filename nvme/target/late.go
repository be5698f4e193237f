package target

import (
	"slices"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/backend"
)

// A host that has lost a path sends its commands again on another one. A write that its device
// still has from the lost path must not overtake what came later (Base section 9.6), so these make
// each other wait, on all reactors:
//
//	stop, Close    nothing more of the queue reaches a device; what the device has is canceled
//	holdLate       what is not back yet becomes late writes
//	slowWrites     so do writes that take long, in case their host is cut off and nobody knows yet
//	blocked        keeps writes of other queues of the host to the same blocks in pending
//	lateReturned   the device has given the last one back, also if the command was given up
//
// Only what a device has is late, so these waits have an end that depends on nothing else.

const (
	// slowWrite is how long a write takes before another path of its host waits for it, in
	// nanoseconds: less than the shortest keep alive timeout, before which no host gives a path up
	// whose connection is there.
	slowWrite = timeoutInterval
	// quiesceTime is CQT in milliseconds: after it a queue whose host is lost has nothing at
	// devices, or the namespace is not ready.
	quiesceTime = (closeGrace + 2*timeoutInterval) / 1e6
)

// lateWrites are writes of one queue to a namespace that its device has. They do not change, but
// for over.
type lateWrites struct {
	s      *session
	hostID [16]byte
	ranges []byteRange
	left   int // not back yet; reactor of the queue
	over   atomic.Bool
}

type byteRange struct{ off, len int64 }

// stop ends what the queue does at devices, because its host is lost: what it may still send is not
// carried out. Reactor of the queue.
func (s *session) stop() {
	if s.isOver() {
		return
	}
	s.stopped, s.closedAt = true, s.h.loop.Now()
	if s.qid == 0 {
		s.ctrl.selfTest.close()
	}
	s.h.endIO(s)
	s.h.run()
	s.h.holdLate(s)
}

// isOver says that the queue gives nothing more to devices.
func (s *session) isOver() bool { return s.closed || s.stopped }

// endIO takes back what the queue has at devices, or waits to give them. The caller runs the
// handler afterwards.
func (h *Handler) endIO(s *session) {
	for _, ch := range h.channels {
		if ch != nil && len(ch.pending) > 0 {
			ch.abortPending(s)
		}
	}
	h.endWaiting(s)
	s.cancelAll()
}

// holdLate makes what devices have of a queue late writes.
func (h *Handler) holdLate(s *session) {
	if s.outstanding > 0 && s.ctrl != nil {
		h.findLate(s, h.loop.Now())
	}
}

// slowWrites does the same for writes that take long, unless there is no other path for them.
func (h *Handler) slowWrites(s *session, now int64) {
	slow := func(c *cmd) bool { return c.executing && c.since != 0 && now-c.since >= slowWrite }
	if s.ctrl != nil && slices.ContainsFunc(s.cmds, slow) && s.ctrl.sub.hasOther(s.ctrl) {
		h.findLate(s, now-slowWrite)
	}
}

// hasOther says whether the host of a controller has another one.
func (s *subsystem) hasOther(c *controller) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.controllers {
		if o != c && o.hostID == c.hostID {
			return true
		}
	}
	return false
}

// findLate makes late writes of those that were given to devices at a time or before.
func (h *Handler) findLate(s *session, before int64) {
	found := map[*channel]map[*backend.IO]bool{}
	add := func(ch *channel, io *backend.IO) {
		if !changesBlocks(io) || ch.late[io] != nil {
			return
		}
		if found[ch] == nil {
			found[ch] = map[*backend.IO]bool{}
		}
		found[ch][io] = true
	}
	for _, c := range s.cmds {
		switch {
		case !c.executing || c.since == 0 || c.since > before:
		case c.compound == nil:
			add(c.ch, &c.io)
		default:
			for i := range c.compound.ios {
				if o := &c.compound.ios[i]; o.ch != nil {
					add(o.ch, &o.IO)
				}
			}
		}
	}
	for ch, ios := range found {
		for _, io := range ch.pending {
			delete(ios, io)
		}
		if len(ios) > 0 {
			ch.announceLate(&lateWrites{s: s, hostID: s.ctrl.hostID}, ios)
		}
	}
}

// announceLate tells all reactors. Those that open a channel later begin with what there is.
func (ch *channel) announceLate(w *lateWrites, ios map[*backend.IO]bool) {
	if ch.late == nil {
		ch.late = map[*backend.IO]*lateWrites{}
	}
	for io := range ios {
		ch.late[io] = w
		w.ranges = append(w.ranges, byteRange{io.Off, io.Len})
	}
	w.left = len(ios)
	ns := ch.ns
	for _, h := range ns.users.addLate(w) {
		if h == ch.h {
			ch.avoids = append(ch.avoids, w)
			continue
		}
		h.post(func() {
			if ch := h.channel(ns); ch != nil && !w.isOver() {
				ch.avoids = append(ch.avoids, w)
			}
		})
	}
}

// lateReturned notes that the device has given IOs back.
func (ch *channel) lateReturned(ios []*backend.IO) {
	for _, io := range ios {
		w := ch.late[io]
		if w == nil {
			continue
		}
		delete(ch.late, io)
		if w.left--; w.left > 0 {
			continue
		}
		w.over.Store(true)
		ns := ch.ns
		for _, h := range ns.users.dropLate() {
			h.post(func() {
				if ch := h.channel(ns); ch != nil {
					ch.avoids = slices.DeleteFunc(ch.avoids, (*lateWrites).isOver)
					ch.allBlocked = false
					h.schedule(ch)
				}
			})
		}
	}
}

func (w *lateWrites) isOver() bool { return w.over.Load() }

// blocks says whether an IO has to wait for a late write.
func (w *lateWrites) blocks(io *backend.IO) bool {
	s := ownerSession(io)
	return s != nil && s != w.s && s.ctrl.hostID == w.hostID && changesBlocks(io) &&
		!w.isOver() && slices.ContainsFunc(w.ranges, func(r byteRange) bool {
		return io.Off < r.off+r.len && r.off < io.Off+io.Len
	})
}

// changesBlocks says whether an IO may change the content of the blocks that it names.
func changesBlocks(io *backend.IO) bool {
	return io.Op != backend.OpRead && io.Op != backend.OpFlush
}

// blocked says whether an IO must not reach the device yet.
func (ch *channel) blocked(io *backend.IO) bool {
	return ch.lock != nil && ch.lock.blocks(io) ||
		slices.ContainsFunc(ch.avoids, func(w *lateWrites) bool { return w.blocks(io) })
}

// pushUnblocked submits what is not blocked. It returns how many IOs.
func (ch *channel) pushUnblocked() (n int) {
	i := 0
	for i < len(ch.pending) {
		if ch.blocked(ch.pending[i]) {
			i++
			continue
		}
		if ch.dev.Submit(ch.pending[i:i+1]) == 0 {
			break // the device is full
		}
		ch.submitted(1)
		ch.pending = slices.Delete(ch.pending, i, i+1)
		n++
	}
	ch.allBlocked = i == len(ch.pending)
	return n
}
