package app

import (
	"slices"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/nvme"
)

type placedGroup struct {
	fabric.Group
	load, got int
}

func (g *placedGroup) Load() int { return g.load }
func (g *placedGroup) Adopt(fabric.Conn) error {
	g.load++
	g.got++
	return nil
}

type placedConn struct {
	fabric.Conn
	qid int
}

func (c placedConn) Info() *fabric.QueueInfo {
	return &fabric.QueueInfo{Transport: nvme.TransportTCP, QID: c.qid}
}

// Hosts with one I/O queue each spread over the reactors, although every second connection is an admin queue.
func TestPlace(t *testing.T) {
	s := &Server{}
	var groups []*placedGroup
	for range 2 {
		g := &placedGroup{}
		groups = append(groups, g)
		s.workers = append(s.workers, &worker{groups: map[nvme.TransportType]fabric.Group{nvme.TransportTCP: g}})
	}
	for range 8 {
		before := []int{groups[0].load, groups[1].load}
		s.place(placedConn{qid: -1}) // Connect tells that it is an admin queue
		for i, g := range groups {
			g.load = before[i]
		}
		s.place(placedConn{qid: -1})
	}
	if a, b := groups[0].load, groups[1].load; a != b {
		t.Errorf("I/O queues: %d and %d", a, b)
	}
	got := []int{groups[0].got, groups[1].got}
	s.place(placedConn{qid: 0})
	if got[0]++; !slices.Equal(got, []int{groups[0].got, groups[1].got}) {
		t.Errorf("an admin queue that is known as one went elsewhere than to the first reactor")
	}
}
