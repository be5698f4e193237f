package target

import (
	"cmp"
	"slices"
	"sort"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

// A host that has lost a path sends its commands again on another one. A write that its device
// still has from the lost path must not overtake later writes (Base section 9.6), so they wait for
// one another, on all reactors:
//
//	stop, Close    nothing more of the queue reaches a device; IOs in the device are canceled
//	holdLate       writes that are not back yet become late writes
//	checkTimeouts  so do writes that take long: their host may be cut off, still unnoticed
//	block          keeps writes of other queues of the host to the same blocks from the device
//	returned       the device has given the last one back, also if the command was given up
//
// Only a write that a device has is late, so these waits have an end that depends on nothing else.

const (
	// slowWrite is how long a write takes before another path of its host waits for it, in
	// nanoseconds. It is less than the shortest keep alive timeout: no host gives up a connected
	// path before that.
	slowWrite = timeoutInterval
	// quiesceTime is CQT in milliseconds. After it the devices have nothing of a queue of a lost
	// host, or the namespace is not ready.
	quiesceTime = (closeGrace + 2*timeoutInterval) / 1e6
)

// lateWrites are writes of one queue to a namespace that its device has. They do not change.
type lateWrites struct {
	s      *session
	host   reservation.HostHandle
	ranges []backend.Range // ascending, and apart
}

// stop ends the work of the queue at devices, because its host is lost. Commands that the host
// still sends are not carried out. Reactor of the queue.
func (s *session) stop() {
	if s.isOver() {
		return
	}
	s.stopped, s.closedAt = true, s.h.loop.Now()
	if s.qid == 0 {
		s.ctrl.selfTest.close()
	}
	s.h.end(s)
	s.h.run()
	s.h.holdLate(s, s.h.loop.Now())
	s.h.run()
}

// isOver says that the queue gives nothing more to devices.
func (s *session) isOver() bool { return s.closed || s.stopped }

// holdLate makes late writes of the writes of a queue that devices have since a time or before. It
// includes the writes that are late already, so that a queue has one lateWrites for each namespace.
// The caller runs the handler afterwards.
func (h *Handler) holdLate(s *session, before int64) {
	if s.outstanding == 0 {
		return
	}
	found := map[*channel][]*backend.IO{}
	for _, c := range s.cmds[:s.used] { // bound: the depth of the queue
		c.lateWrites(before, func(ch *channel, io *backend.IO) {
			found[ch] = append(found[ch], io)
		})
	}
	for ch, ios := range found {
		if slices.ContainsFunc(ios, func(io *backend.IO) bool { return !ch.isLate(io) }) {
			ch.announceLate(s, ios)
		}
	}
}

// lateWrites calls fn with the writes of a command that devices have since a time or before, or
// that are late.
func (c *cmd) lateWrites(before int64, fn func(*channel, *backend.IO)) {
	find := func(ch *channel, io *backend.IO, since int64) {
		if changesBlocks(io) && ch.has(io) && (since <= before || ch.isLate(io)) {
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

// announceLate makes IOs of a queue late writes. They replace the late writes that have some of
// them already.
func (ch *channel) announceLate(s *session, ios []*backend.IO) {
	w := &lateWrites{s: s, host: s.ctrl.identity}
	a := &await{done: func() { ch.tellLate(w, false) }}
	var gone []*await
	for _, io := range ios {
		x := ch.awaits(io)
		if old := x.by[byLate]; old != nil && old.less() {
			gone = append(gone, old)
		}
		x.await(byLate, a)
		w.ranges = append(w.ranges, backend.Range{Off: io.Off, End: io.Off + io.Len})
	}
	w.ranges = union(w.ranges)
	ch.tellLate(w, true)
	for _, old := range gone { // afterwards: writes that they keep away may have to wait for w
		old.done()
	}
}

// isLate reports whether an IO that the device has is a late write.
func (ch *channel) isLate(io *backend.IO) bool {
	x := ch.awaited[io]
	return x != nil && x.by[byLate] != nil
}

// tellLate tells all reactors that there are late writes, or no longer.
func (ch *channel) tellLate(w *lateWrites, there bool) {
	ch.ns.barrier(ch.h, func(f *freshChannel) {
		if f.late == nil {
			f.late = map[*lateWrites]bool{}
		}
		if f.late[w] = true; !there {
			delete(f.late, w)
		}
	}, func(ch *channel, drained func()) {
		if there {
			ch.avoid(w)
		} else {
			ch.unavoid(w)
		}
		drained()
	}, func() {})
}

// avoid keeps other writes of the host from the device.
func (ch *channel) avoid(w *lateWrites) {
	ch.avoids[w.host] = append(ch.avoids[w.host], &hold{by: w})
}

// unavoid ends that. It looks at the late writes of the host, of which each of its queues has one.
func (ch *channel) unavoid(w *lateWrites) {
	list := ch.avoids[w.host]
	i := slices.IndexFunc(list, func(o *hold) bool { return o.by == w })
	if i < 0 {
		return
	}
	ch.unhold(list[i])
	if list = slices.Delete(list, i, i+1); len(list) == 0 {
		delete(ch.avoids, w.host)
	} else {
		ch.avoids[w.host] = list
	}
}

// blocks implements blocker: it reports whether an IO has to wait for the late writes.
func (w *lateWrites) blocks(io *backend.IO) bool {
	s := ownerSession(io)
	if s == nil || s == w.s || s.ctrl.identity != w.host || !changesBlocks(io) {
		return false
	}
	i := sort.Search(len(w.ranges), func(i int) bool { return w.ranges[i].End > io.Off })
	return i < len(w.ranges) && w.ranges[i].Off < io.Off+io.Len
}

// changesBlocks reports whether an IO may change the content of the blocks that it names.
func changesBlocks(io *backend.IO) bool {
	return io.Op != backend.OpRead && io.Op != backend.OpFlush
}

// union sorts ranges and joins overlapping and adjacent ones.
func union(list []backend.Range) []backend.Range {
	slices.SortFunc(list, func(a, b backend.Range) int { return cmp.Compare(a.Off, b.Off) })
	joined := list[:1]
	for _, r := range list[1:] {
		if last := &joined[len(joined)-1]; r.Off <= last.End {
			last.End = max(last.End, r.End)
		} else {
			joined = append(joined, r)
		}
	}
	return joined
}
