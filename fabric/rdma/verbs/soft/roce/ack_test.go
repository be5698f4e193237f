package roce

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/packet"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/wiretest"
)

// TestAckWithResponse: the ACK of a request leaves behind the response, if that is posted after the
// poll that has found the request. Without a response it leaves with the next poll, or in the same
// one if that finds nothing.
func TestAckWithResponse(t *testing.T) {
	p := newPair(t, options{})
	var kinds []packet.Kind
	p.mem.SetFaults(wiretest.Options{Filter: func(pk *wire.Packet) bool {
		var h packet.Header
		if testutil.MustTrue(t, h.Parse(pk.Data), "packet"); h.QPN == p.a.qp.Num() {
			kinds = append(kinds, h.Kind)
		}
		return true
	}})
	expect := func(when string, want ...packet.Kind) {
		t.Helper()
		testutil.Equal(t, len(kinds), len(want), "packets %s", when)
		for i := range want {
			testutil.Equal(t, kinds[i], want[i], "packet %d %s", i, when)
		}
		kinds = nil
	}
	var wcs [4]verbs.WC
	for _, response := range []bool{true, false} {
		p.a.recv(1, 0, 64)
		p.b.recv(2, 64, 64)
		p.a.send(3, 128, 16)
		testutil.Equal(t, testutil.Value(p.b.cq.Poll(wcs[:]))(t), 1, "requests")
		expect("with the request")
		if response {
			p.b.send(4, 128, 16)
			expect("with the response", packet.KindSend, packet.KindAck)
		} else {
			testutil.Equal(t, testutil.Value(p.b.cq.Poll(wcs[:]))(t), 0, "requests")
			expect("in the next poll", packet.KindAck)
		}
		p.settle()
		kinds = nil
	}
	p.a.rdma(5, verbs.WRRDMAWrite, 0, 64, p.b.at(0), p.b.mr.RKey())
	testutil.Equal(t, testutil.Value(p.b.cq.Poll(wcs[:]))(t), 0, "completions")
	expect("in a poll that finds nothing", packet.KindAck)
	testutil.Equal(t, p.a.st.Timeouts.Load(), 0, "timeouts")
}

// TestFewAcks: the data and the responses of many small requests leave in one turn. The ACK of the
// requests is behind them, and only the last of them asks for one.
func TestFewAcks(t *testing.T) {
	const n = 32
	p := newPair(t, options{send: 2 * n, recv: 2 * n})
	p.a.qp.requester.window, p.b.qp.requester.window = maxWindow, maxWindow
	var kinds []packet.Kind
	asked := 0
	p.mem.SetFaults(wiretest.Options{Filter: func(pk *wire.Packet) bool {
		var h packet.Header
		if testutil.MustTrue(t, h.Parse(pk.Data), "packet"); h.QPN == p.a.qp.Num() {
			kinds = append(kinds, h.Kind)
			if h.AckReq {
				asked++
			}
		}
		return true
	}})
	for i := range n {
		p.b.recv(uint64(i), 0, 64)
		p.a.recv(uint64(i), 0, 64)
		p.a.send(uint64(i), 128, 16)
	}
	var wcs [2 * n]verbs.WC
	testutil.Equal(t, testutil.Value(p.b.cq.Poll(wcs[:]))(t), n, "requests")
	var wrs [2 * n]verbs.SendWR
	for i := range n {
		wrs[i] = verbs.SendWR{
			Opcode: verbs.WRRDMAWrite, NumSGE: 1, RemoteAddr: p.a.at(0), RKey: p.a.mr.RKey(),
		}
		wrs[n+i] = verbs.SendWR{Opcode: verbs.WRSend, NumSGE: 1}
	}
	testutil.Value(p.b.qp.PostSend(wrs[:], []verbs.SGE{p.b.sge(0, 64)}))(t)
	testutil.Equal(t, len(kinds), 2*n+1, "packets")
	testutil.Equal(t, kinds[2*n], packet.KindAck, "last packet")
	testutil.Equal(t, asked, 1, "packets that ask for an ACK")
	p.settle()
	testutil.Equal(t, len(p.a.take()), 2*n, "completions")
}
