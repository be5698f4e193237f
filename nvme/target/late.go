package target

import (
	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
)

// When a host may have lost a path, its writes that devices still have become late writes, see
// package dispatch:
//
//	stop, Close    nothing more of the queue reaches a device; IOs in the device are canceled, and
//	               the others are late
//	checkTimeouts  so are writes that take long: their host may be cut off, still unnoticed

const (
	// slowWrite is the time after which other paths of the host wait for a write, in nanoseconds.
	// It is less than the shortest keep alive timeout: no host gives up a connected path before
	// that.
	slowWrite = timeoutInterval
	// quiesceTime is CQT in milliseconds. After it the devices have nothing of a queue of a lost
	// host, or the namespace is not ready.
	quiesceTime = (closeGrace + 2*timeoutInterval) / 1e6
)

// stop ends the work of the queue at devices, because its host is lost. Commands that the host
// still sends are not carried out. Reactor of the queue.
func (s *session) stop() {
	if s.queue.Over {
		return
	}
	s.stopped, s.queue.Over, s.closedAt = true, true, s.h.loop.Now()
	if s.qid == 0 {
		s.ctrl.selfTest.close()
	}
	s.h.end(s)
	s.h.run()
	s.h.holdLate(s, s.h.loop.Now())
	s.h.run()
}

// holdLate makes late writes of the writes of a queue that devices have since a time or before. It
// includes the writes that are late already. The caller runs the handler afterwards.
func (h *Handler) holdLate(s *session, before int64) {
	found := map[*channel][]*backend.IO{}
	for _, c := range s.cmds[:s.used] { // bound: the depth of the queue
		c.lateWrites(before, func(ch *channel, io *backend.IO) {
			found[ch] = append(found[ch], io)
		})
	}
	for ch, ios := range found {
		ch.HoldLate(&s.queue, ios)
	}
}

// lateWrites calls fn with the writes of a command that are late, or that devices got at the given
// time or earlier.
func (c *cmd) lateWrites(before int64, fn func(*channel, *backend.IO)) {
	find := func(ch *channel, io *backend.IO, since int64) {
		if dispatch.ChangesBlocks(io) && ch.Has(io) && (since <= before || ch.IsLate(io)) {
			fn(ch, io)
		}
	}
	switch {
	case !c.executing || c.began() == 0:
	case c.compound == nil:
		find(c.ch, &c.io, c.since)
	default:
		for o := range c.compound.IOs() {
			find(o.Channel.(*channel), &o.IO, o.Since)
		}
	}
}
