package workers

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/ratelog"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

func TestMain(m *testing.M) { testutil.Main(m) }

type placedGroup struct {
	fabric.Group
	load, got int
	err       error
}

func (g *placedGroup) Load() int { return g.load }
func (g *placedGroup) Adopt(fabric.Conn) error {
	g.load++
	g.got++
	return g.err
}

type placedConn struct {
	fabric.Conn
	qid int
}

type nearConn struct {
	placedConn
	cpu int
}

func (c nearConn) CPU() int { return c.cpu }

func (c placedConn) Info() *fabric.QueueInfo {
	return &fabric.QueueInfo{Transport: nvme.TransportTCP, QID: c.qid}
}

// TestRefusedConnections: connections that a reactor refuses do not fill the log.
func TestRefusedConnections(t *testing.T) {
	log := new(testutil.Log)
	g := &placedGroup{err: errors.New("no room")}
	ws := &Workers{peers: ratelog.New(log.Logger())}
	ws.list = []*worker{{groups: map[nvme.TransportType]fabric.Group{nvme.TransportTCP: g}}}
	for range 10_000 {
		ws.Place(placedConn{qid: 1})
	}
	n := strings.Count(log.String(), "\n")
	testutil.True(t, n != 0 && n <= 100, "%d lines about %d connections", n, g.got)
}

// TestPlace: hosts with one I/O queue each spread over the reactors, although every second
// connection is an admin queue.
func TestPlace(t *testing.T) {
	ws := &Workers{}
	var groups []*placedGroup
	for range 2 {
		g := &placedGroup{}
		groups = append(groups, g)
		ws.list = append(ws.list,
			&worker{groups: map[nvme.TransportType]fabric.Group{nvme.TransportTCP: g}})
	}
	for range 8 {
		before := []int{groups[0].load, groups[1].load}
		ws.Place(placedConn{qid: -1}) // Connect tells that it is an admin queue
		for i, g := range groups {
			g.load = before[i]
		}
		ws.Place(placedConn{qid: -1})
	}
	if a, b := groups[0].load, groups[1].load; a != b {
		t.Errorf("I/O queues: %d and %d", a, b)
	}
	got := []int{groups[0].got, groups[1].got}
	ws.Place(placedConn{qid: 0})
	if got[0]++; !slices.Equal(got, []int{groups[0].got, groups[1].got}) {
		t.Errorf("an admin queue that is known as one went elsewhere than to the first reactor")
	}
}

// TestPlaceNear: of reactors with the same load a connection gets the one where its packets arrive;
// the load counts more.
func TestPlaceNear(t *testing.T) {
	ws := &Workers{}
	var groups []*placedGroup
	for i := range 4 {
		g := &placedGroup{}
		groups = append(groups, g)
		ws.list = append(ws.list,
			&worker{cpu: 2 * i, groups: map[nvme.TransportType]fabric.Group{nvme.TransportTCP: g}})
	}
	put := func(cpu int, want ...int) {
		t.Helper()
		ws.Place(nearConn{placedConn{qid: -1}, cpu})
		for i, g := range groups {
			testutil.MustTrue(t, g.got == want[i], "CPU %d: reactor %d has %d connections, want %d",
				cpu, i, g.got, want[i])
		}
	}
	put(4, 0, 0, 1, 0)
	put(0, 1, 0, 1, 0)
	put(6, 1, 0, 1, 1)
	put(4, 1, 1, 1, 1) // the only one without any
	put(2, 1, 2, 1, 1)
	ws.Place(nearConn{placedConn{qid: -1}, 3}) // no reactor is there, so the least load decides
	testutil.Equal(t, groups[1].got, 2, "a connection went where there are more than elsewhere")
}

type nodeConn struct {
	placedConn
	node int
}

func (c nodeConn) Node() int { return c.node }

// TestPlaceOnNode: of reactors with the same load a connection gets one on the NUMA node of its
// device; the load counts more.
func TestPlaceOnNode(t *testing.T) {
	ws := &Workers{}
	var groups []*placedGroup
	for i := range 4 {
		g := &placedGroup{}
		groups = append(groups, g)
		ws.list = append(ws.list,
			&worker{
				cpu: i, node: i / 2,
				groups: map[nvme.TransportType]fabric.Group{nvme.TransportTCP: g},
			})
	}
	// how many are on node 1, until its reactors have more load than the others
	for i, want := range []int{1, 2, 3, 4} {
		ws.Place(nodeConn{placedConn{qid: 1}, 1})
		near := groups[2].got + groups[3].got
		if want = min(want, 2); near != want {
			t.Errorf("%d of %d connections are on node 1, want %d", near, i+1, want)
		}
	}
	ws.Place(nodeConn{placedConn{qid: 1}, sys.NoNode})
	testutil.Equal(t, groups[0].got+groups[1].got+groups[2].got+groups[3].got, 5,
		"connections were placed")
}
