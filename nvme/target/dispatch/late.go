package dispatch

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
//	HoldLate  writes of a queue become late writes
//	hold      keeps writes of other queues of the host to the same blocks from the device
//	returned  the device has given the last one back, also if the command was given up
//
// Only a write that a device has is late, so these waits have an end that depends on nothing else.

// lateWrites are writes of one queue to a namespace that its device has. They do not change.
type lateWrites struct {
	q      *Queue
	ranges []backend.Range // ascending, and apart
}

// HoldLate makes late writes of writes of a queue that the device has, unless they are late
// already. They replace the late writes that have some of them already: a queue has one lateWrites,
// so ios include its other late writes. The caller has the reactor call Process afterwards.
func (ch *Channel) HoldLate(q *Queue, ios []*backend.IO) {
	if !slices.ContainsFunc(ios, func(io *backend.IO) bool { return !ch.IsLate(io) }) {
		return
	}
	w := &lateWrites{q: q, ranges: make([]backend.Range, len(ios))}
	a := &await{done: func() { ch.ns.release(ch.r, w) }}
	var gone []*await
	waits := make([]awaited, len(ios))
	for i, io := range ios {
		x := ch.awaits(io, &waits[i])
		if old := x.by[byLate]; old != nil && old.less() {
			gone = append(gone, old)
		}
		x.await(byLate, a)
		w.ranges[i] = backend.Range{Off: io.Off, End: io.Off + io.Len}
	}
	w.ranges = union(w.ranges)
	ch.ns.hold(ch.r, w, func(_ *Channel, drained func()) { drained() }, func() {})
	for _, old := range gone { // afterwards: writes that they keep away may have to wait for w
		old.done()
	}
}

// IsLate reports whether an IO that the device has is a late write.
func (ch *Channel) IsLate(io *backend.IO) bool {
	x := waitsFor(io)
	return x != nil && x.by[byLate] != nil
}

func (w *lateWrites) host() reservation.HostHandle { return w.q.Host }

// blocks reports whether an IO has to wait for the late writes.
func (w *lateWrites) blocks(io *backend.IO, q *Queue) bool {
	if q == w.q || !ChangesBlocks(io) {
		return false
	}
	i := sort.Search(len(w.ranges), func(i int) bool { return w.ranges[i].End > io.Off })
	return i < len(w.ranges) && w.ranges[i].Off < io.Off+io.Len
}

// ChangesBlocks reports whether an IO may change the content of the blocks that it names.
func ChangesBlocks(io *backend.IO) bool {
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
