package engine

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/wiretest"
)

// TestReads: endpoints that wait for room get it in their order. None waits for longer than
// readTime until the one before it has given up its room.
func TestReads(t *testing.T) {
	mem := wiretest.New(wiretest.Options{Manual: true})
	d := device(t, mem, "a", addrA, Options{})
	e := d.Engine(0)
	all := e.reads.all
	var got []int
	var eps [3]*endpoint
	var rooms [3]Reservation
	for i := range eps {
		eps[i] = attach(t, e, &endpoint{onRun: func(ep *endpoint) bool {
			if !rooms[i].node.Listed() && e.ReserveReads(&ep.Handle, &rooms[i], all) {
				got = append(got, i)
			}
			return false
		}})
		eps[i].Kick()
	}
	testutil.EqualSlices(t, got, []int{0}, "reservations")
	for i := range 2 { // nobody gives up its room
		mem.Advance(readTime)
		e.Step()
		testutil.EqualSlices(t, got, []int{0, 1, 2}[:i+2], "reservations")
		e.Step() // the next one asks again
	}
	// An endpoint asks when all room is free and the first that waits has not run yet.
	eps[0].Kick()
	e.Do(func() {
		e.ReleaseReads(&rooms[2])
		testutil.True(t, !e.ReserveReads(&eps[1].Handle, &rooms[1], all), "room out of turn")
	})
	testutil.EqualSlices(t, got, []int{0, 1, 2, 0}, "reservations")
	e.Do(func() { e.ReleaseReads(&rooms[0]) })
	testutil.EqualSlices(t, got, []int{0, 1, 2, 0, 1}, "reservations")
}
