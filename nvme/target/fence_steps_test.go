package target

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestFenceOfReadmitted: a preempt waits for the IOs of a host that it excludes, also if that host
// has access again before its commands are visited.
func TestFenceOfReadmitted(t *testing.T) {
	for _, begun := range []bool{false, true} {
		p := newBarrierTest(t)
		p.ok(p.b.io[0], acquire(2, nvme.WriteExclusiveRegistrantsOnly))
		p.hold(write(8, 'b'))
		h := p.raw[1]
		step, release := holdWalks(h) // as if there were other walks before
		c := p.send(p.a.io[0],
			preempt(nvme.ReservationPreempt, 1, 2, nvme.WriteExclusiveRegistrantsOnly))
		p.a.untilChanged(hasOneRegistrant)
		if begun {
			step()
		}
		d := p.send(p.b.io[0], register(2))
		p.a.untilChanged(func(s *nvme.ReservationStatus) bool { return s.REGCTL == 2 })
		release()
		p.w.Settle()
		testutil.True(t, !c.Done, "round begun %v: the preempt completes before the write", begun)
		p.dev.Release()
		p.allDone(append(p.all, c, d), nvme.Success)
		p.nothingLeft()
	}
}
