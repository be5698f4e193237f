package target

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

// TestFenceOfReadmitted: a preempt waits for the IOs of a host that it excludes, also if that host
// has access again before its commands are visited.
func TestFenceOfReadmitted(t *testing.T) {
	for _, begun := range []bool{false, true} {
		p := newBarrierTest(t)
		p.ok(p.b.io[0], acquire(2, nvme.WriteExclusiveRegistrantsOnly))
		p.hold(write(8, 'b'))
		h := p.raw[1]
		h.walking = true // as if there were other walks before
		if !begun {
			h.start(fenceWalk, &walk{next: func() int { return 0 }, done: func() {}})
		}
		c := p.send(p.a.io[0],
			preempt(nvme.ReservationPreempt, 1, 2, nvme.WriteExclusiveRegistrantsOnly))
		p.a.untilChanged(hasOneRegistrant)
		if begun {
			h.walkOn()
		}
		d := p.send(p.b.io[0], register(2))
		p.a.untilChanged(func(s *nvme.ReservationStatus) bool { return s.REGCTL == 2 })
		h.inPieces(h.walkOn, func() { h.walking = false })
		p.w.Settle()
		testutil.True(t, !c.Done, "round begun %v: the preempt completes before the write", begun)
		p.dev.Release()
		p.allDone(append(p.all, c, d), nvme.Success)
		p.nothingLeft()
	}
}

// TestSharedFences: fences that come while a round waits share it, up to a bound, and then another.
func TestSharedFences(t *testing.T) {
	const fences = 2*sharedFences + 1
	p := newBarrierTest(t)
	p.ok(p.b.io[0], acquire(2, nvme.WriteExclusive))
	h := p.raw[1]
	ch := h.channel(p.ns)
	h.walking = true
	h.start(fenceWalk, &walk{next: func() int { return 0 }, done: func() {}})
	drained := 0
	for range fences {
		ch.setAccess(ch.access, &fence{
			change: new(reservation.Change), drained: func() { drained++ },
		})
		testutil.MustTrue(t, len(ch.round.fences) <= sharedFences, "%d fences in a round",
			len(ch.round.fences))
	}
	rounds := -1 // without the walk before
	for range h.walks[fenceWalk].All() {
		rounds++
	}
	testutil.Equal(t, rounds, 3, "rounds")
	h.inPieces(h.walkOn, func() { h.walking = false })
	p.w.Settle()
	testutil.Equal(t, drained, fences, "fences have drained")
	p.nothingLeft()
}
