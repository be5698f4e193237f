package rdma

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// Writes beyond the READ depth of the host wait, in order, for any number of work requests per
// write. None fails.
func TestReadDepth(t *testing.T) {
	for name, iwarp := range map[string]bool{"roce": false, "iwarp": true} {
		t.Run(name, func(t *testing.T) {
			p := ioParam(32)
			p.reads = 3
			m := newManual(t, verbstest.Options{IWARP: iwarp}, Config{}, p)
			reads := m.f.Inject(verbstest.Fault{
				Host: "target", Ops: verbstest.OpRead, Hold: true,
				Times: -1,
			})
			const n = 8
			for i := range n {
				s := m.host.keyed(command(opWrite, uint16(i), 0, 64<<10), i*64<<10, 64<<10)
				m.host.send(&s, nil)
			}
			most := 0
			look := func() {
				inFlight := m.q.maxReads - m.q.reads
				most = max(most, inFlight)
				testutil.MustTrue(t, m.q.maxReads == 3 && inFlight >= 0 && inFlight <= 3,
					"%d of %d READs in flight", inFlight, m.q.maxReads)
			}
			m.turn()
			look()
			testutil.True(t, !m.q.toRead.Empty(), "no write waits")
			reads.Release()
			m.until(t, func() bool { look(); return m.h.Completed.Load() == n })
			for range n {
				cqe, _, ok := m.host.response()
				testutil.MustTrue(t, ok && cqe.Status().OK(), "%v, %+v", cqe.Status(), m.host.bad)
			}
			testutil.True(t, most == 3, "at most %d READs were in flight", most)
		})
	}
}

// A queue of the largest depth takes that many commands at once.
func TestDeepest(t *testing.T) {
	b, q := joined(t, harnessOptions{cfg: Config{MaxDepth: DepthLimit}}, ioParam(DepthLimit))
	testutil.MustEqual(t, q.do(command(opConnect, 1, DepthLimit, 0), nil), nvme.Success, "")
	for i := range DepthLimit {
		s := command(opHold, uint16(i), 0, 0)
		q.send(&s, nil)
		if i%256 == 255 { // the SENDs free their entries
			free := 0
			soon(t, "the SENDs complete", func() bool {
				free += testutil.Value(q.cq.Poll(make([]verbs.WC, 512)))(t)
				return free >= 256
			})
		}
	}
	testutil.Until(t, "held", func() bool { return b.h.Holding.Load() == DepthLimit })
	b.letGo()
	seen := make(map[uint16]bool)
	for range DepthLimit {
		cqe, _, ok := q.response()
		testutil.MustTrue(t, ok, "%+v", q.bad)
		seen[cqe.CID()] = true
	}
	testutil.Equal(t, len(seen), DepthLimit, "different responses")
}

// TestTable: IDs are not reused when numbers are.
func TestTable(t *testing.T) {
	var tab table[int]
	vs := [3]int{}
	a, b := tab.add(&vs[0]), tab.add(&vs[1])
	for kind := range workData {
		testutil.True(t, tab.find(workID(kind, a, 0xFFFF)) == &vs[0] &&
			tab.find(workID(kind, b, 1)) == &vs[1], "not found")
	}
	tab.remove(a)
	testutil.True(t, tab.find(a) == nil && tab.len() == 1, "found although it was removed")
	c := tab.add(&vs[2])
	testutil.True(t, uint16(c>>16) == uint16(a>>16) && tab.find(a) == nil && tab.find(c) == &vs[2],
		"IDs %#x and %#x of one number", a, c)
	for v := range tab.all() { // elements may be removed in the loop
		tab.remove(b)
		testutil.True(t, v != &vs[1], "yielded although it was removed")
	}
	tab.remove(c)
	tab.entries[0].gen = genMask // the generation wraps
	d := tab.add(&vs[0])
	testutil.True(t, d>>56 == 0 && tab.find(d) == &vs[0], "ID %#x", d)
}
