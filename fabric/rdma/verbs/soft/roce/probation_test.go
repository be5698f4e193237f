package roce

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/engine"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/packet"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/wiretest"
)

// TestProbation has an interface that spoils all packets of a send but the first, or all if there
// are several. The queue pair that sends notices, the transfer ends well, and the next connection
// to the same address sends single packets from the beginning. After an hour they try again.
func TestProbation(t *testing.T) {
	for _, c := range []struct {
		name   string
		op     verbs.SendOpcode
		passes int // packets of a shared send that arrive
	}{
		{"write, the first arrives", verbs.WRRDMAWrite, 1},
		{"write, none arrives", verbs.WRRDMAWrite, 0},
		{"read, the first arrives", verbs.WRRDMARead, 1},
		{"read, none arrives", verbs.WRRDMARead, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t, options{})
			sender := p.a
			if c.op == verbs.WRRDMARead {
				sender = p.b
			}
			other := func(pk *wire.Packet) bool {
				var h packet.Header
				return !h.Parse(pk.Data) || !sender.qp.path.Segment ||
					h.Kind != packet.KindWrite && h.Kind != packet.KindReadResponse
			}
			n := 0 // packets of the sender in this poll
			p.mem.SetFaults(wiretest.Options{Filter: func(pk *wire.Packet) bool {
				if other(pk) {
					return true
				}
				n++
				return n <= c.passes || sender.qp.requester.probe
			}})
			const size = 100000
			fill(p.a.buf[:size], 1)
			fill(p.b.buf[size:2*size], 2)
			p.a.rdma(1, c.op, 0, size, p.b.at(size), p.b.mr.RKey())
			p.until("completion", func() bool { n = 0; return len(p.a.wcs) > 0 })
			p.a.statuses(1, verbs.WCSuccess)
			testutil.Equal(t, sender.st.Unsegmented.Load(), 1, "connections without shared sends")
			testutil.True(t, !sender.qp.path.Segment, "packets still share sends")
			if c.op == verbs.WRRDMAWrite {
				p.b.filled(size, size, 1)
			} else {
				p.a.filled(0, size, 2)
			}
			near := p.neighbour(options{})
			testutil.Equal(t, near.a.qp.path.Segment, sender != p.a, "a shares sends")
			testutil.Equal(t, near.b.qp.path.Segment, sender != p.b, "b shares sends")

			p.mem.SetFaults(wiretest.Options{})
			p.mem.Advance(engine.SingleTime)
			for _, p := range []*pair{p, near, p.neighbour(options{})} {
				p.a.rdma(1, verbs.WRRDMAWrite, 0, 1, p.b.at(size), p.b.mr.RKey())
				p.b.rdma(1, verbs.WRRDMAWrite, 0, 1, p.a.at(size), p.a.mr.RKey())
				p.settle()
				testutil.True(t, p.a.qp.path.Segment && p.b.qp.path.Segment, "no second try")
			}
		})
	}
}

// TestProbationPassed loses packets now and then, and the peer is away for a while: packets go on
// to share sends.
func TestProbationPassed(t *testing.T) {
	p := newPair(t, options{})
	n := 0
	p.mem.SetFaults(wiretest.Options{Filter: func(*wire.Packet) bool {
		n++
		return n%40 != 0 && n%2000 < 1990
	}})
	const size = 100000
	for range 100 {
		p.a.rdma(1, verbs.WRRDMAWrite, 0, size, p.b.at(0), p.b.mr.RKey())
		p.a.rdma(1, verbs.WRRDMARead, 0, size, p.b.at(0), p.b.mr.RKey())
		p.settle()
	}
	testutil.Equal(t, len(p.a.take()), 200, "completions")
	testutil.True(t, p.a.st.Retransmissions.Load() > 100, "few losses")
	testutil.Equal(t, p.a.st.Unsegmented.Load()+p.b.st.Unsegmented.Load(), 0,
		"connections without shared sends")
}

// TestCannotSegment: where a send with several packets fails at once, it is tried once an hour and
// not again and again.
func TestCannotSegment(t *testing.T) {
	p := newPair(t, options{})
	for range 2 {
		p.mem.Advance(engine.SingleTime)
		for _, want := range []bool{true, false, false} {
			p.a.qp.path.Segment = false // as by Flush of the socket
			p.a.rdma(1, verbs.WRRDMAWrite, 0, 64, p.b.at(0), p.b.mr.RKey())
			p.settle()
			p.a.statuses(1, verbs.WCSuccess)
			testutil.Equal(t, p.a.qp.path.Segment, want, "packets share sends")
		}
	}
}
