package target

import (
	"cmp"
	"slices"
	"sort"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

// A host that has lost a path sends its commands again on another one. A write that its device
// still has from the lost path must not overtake what came later (Base section 9.6), so these make
// each other wait, on all reactors:
//
//	stop, Close    nothing more of the queue reaches a device; what the device has is canceled
//	holdLate       what is not back yet becomes late writes
//	checkTimeouts  so do writes that take long, in case their host is cut off and nobody knows yet
//	block          keeps writes of other queues of the host to the same blocks from the device
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
// for left.
type lateWrites struct {
	s      *session
	host   reservation.HostHandle
	ranges []backend.Range // ascending, and apart
	left   int             // not back yet; reactor of the queue
}

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
	s.abortPending()
	h.endWaiting(s)
	s.cancelAll()
}

// holdLate makes what devices have of a queue late writes.
func (h *Handler) holdLate(s *session) {
	if s.outstanding > 0 {
		search := lateSearch{before: h.loop.Now(), over: true}
		search.add(s)
		search.announce()
		h.run()
	}
}

// lateSearch finds writes that become late: those that devices have since a time or before.
type lateSearch struct {
	before int64
	over   bool // the queue is over: nothing of it is pending
	found  []foundWrites
}

// foundWrites are the writes of one queue that a device has. Some of them may be late already, so
// that a queue has only one lateWrites for each namespace, however often it has new ones.
type foundWrites struct {
	s   *session
	ch  *channel
	ios []*backend.IO
}

// add searches a queue.
func (f *lateSearch) add(s *session) {
	if s.ctrl == nil {
		return
	}
	first := len(f.found)
	add := func(ch *channel, io *backend.IO, since int64) {
		if !changesBlocks(io) ||
			ch.late[io] == nil && (since > f.before || !f.over && ch.waits(io)) {
			return
		}
		list := f.found[first:]
		i := slices.IndexFunc(list, func(w foundWrites) bool { return w.ch == ch })
		if i < 0 {
			f.found = append(f.found, foundWrites{s, ch, []*backend.IO{io}})
			return
		}
		list[i].ios = append(list[i].ios, io)
	}
	for _, c := range s.cmds {
		switch {
		case !c.executing || c.since == 0:
		case c.compound == nil:
			add(c.ch, &c.io, c.since)
		default:
			for i := range c.compound.ios {
				if o := &c.compound.ios[i]; o.ch != nil {
					add(o.ch, &o.IO, o.since)
				}
			}
		}
	}
}

// announce makes late writes of what was found. It comes after the whole search: what goes on then
// becomes pending, and is not in the device.
func (f *lateSearch) announce() {
	for _, w := range f.found {
		if slices.ContainsFunc(w.ios, func(io *backend.IO) bool { return w.ch.late[io] == nil }) {
			w.ch.announceLate(w.s, w.ios)
		}
	}
}

// waits reports whether the device does not have an IO of the channel yet.
func (ch *channel) waits(io *backend.IO) bool { return io.Waits || ch.blocked[io] != nil }

// announceLate makes IOs of a queue late writes. They take the place of those that have some of
// them already.
func (ch *channel) announceLate(s *session, ios []*backend.IO) {
	if ch.late == nil {
		ch.late = map[*backend.IO]*lateWrites{}
	}
	w := &lateWrites{s: s, host: s.ctrl.identity, left: len(ios)}
	var gone []*lateWrites
	for _, io := range ios {
		if old := ch.late[io]; old != nil && old.isLast() {
			gone = append(gone, old)
		}
		ch.late[io] = w
		w.ranges = append(w.ranges, backend.Range{Off: io.Off, End: io.Off + io.Len})
	}
	w.ranges = union(w.ranges)
	ch.tellLate(w, gone)
}

// lateReturned notes that the device has given IOs back.
func (ch *channel) lateReturned(ios []*backend.IO) {
	var gone []*lateWrites
	for _, io := range ios {
		w := ch.late[io]
		if w == nil {
			continue
		}
		delete(ch.late, io)
		if w.isLast() {
			gone = append(gone, w)
		}
	}
	if gone != nil {
		ch.tellLate(nil, gone)
	}
}

// isLast counts down what is left, and reports whether that was the last one.
func (w *lateWrites) isLast() bool {
	w.left--
	return w.left == 0
}

// tellLate tells all reactors of late writes, unless w is nil, and of those that are gone. Those
// that open a channel later begin with what there is.
func (ch *channel) tellLate(w *lateWrites, gone []*lateWrites) {
	ns := ch.ns
	for _, h := range ns.users.setLate(w, gone) {
		if h == ch.h {
			ch.setLate(w, gone)
			continue
		}
		h.post(func() {
			if ch := h.channel(ns); ch != nil {
				ch.setLate(w, gone)
			}
		})
	}
}

// setLate adopts that. What has waited for those that are gone goes on, or waits for w.
func (ch *channel) setLate(w *lateWrites, gone []*lateWrites) {
	ch.avoids = exchangeLate(ch.avoids, w, gone)
	for _, o := range gone {
		ch.unblock(o, w)
	}
}

// exchangeLate adds w to a list, unless it is nil, and removes those that are gone.
func exchangeLate(list []*lateWrites, w *lateWrites, gone []*lateWrites) []*lateWrites {
	list = slices.DeleteFunc(list, func(o *lateWrites) bool { return slices.Contains(gone, o) })
	if w != nil {
		list = append(list, w)
	}
	return list
}

// blocks reports whether an IO has to wait for the late writes.
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

// union sorts ranges and joins those that overlap.
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
