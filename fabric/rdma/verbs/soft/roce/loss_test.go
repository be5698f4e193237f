package roce

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/packet"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/wiretest"
)

// TestLoss has 32 transfers of 128 KiB at once, and loses one packet in a hundred, or one send of
// up to 16 packets. Nearly all losses are noticed by a later packet and not by a timer, and
// few packets are sent twice.
func TestLoss(t *testing.T) {
	for _, c := range []struct {
		name   string
		op     verbs.SendOpcode
		shared int // packets of a send
		// Bounds, in percent of the losses noticed and of the packets needed.
		timeouts, packets int
	}{
		{"READ, packets", verbs.WRRDMARead, 1, 4, 115},
		{"READ, sends", verbs.WRRDMARead, 16, 6, 105},
		{"WRITE, packets", verbs.WRRDMAWrite, 1, 4, 115},
		{"WRITE, sends", verbs.WRRDMAWrite, 16, 6, 105},
	} {
		t.Run(c.name, func(t *testing.T) {
			const transfers, size, mtu = 1000, 128 << 10, 4096
			p := newPair(t, options{mtu: mtu, reads: 16, send: 32})
			p.mem.SetFaults(wiretest.Options{
				Delay: 30 * time.Microsecond, Filter: lossOfSends(p, c.shared),
			})
			posted, done := 0, 0
			for done < transfers {
				for ; posted < transfers && posted-done < 32; posted++ {
					p.a.rdma(1, c.op, 0, size, p.b.at(0), p.b.mr.RKey())
				}
				for range maxWaits + 1 { // without a pause, as long as an ACK may wait
					p.a.poll()
					p.b.poll()
				}
				n := len(p.a.take())
				if done += n; n == 0 {
					p.turn()
				}
			}
			noticed, timeouts := p.a.st.Retransmissions.Load(), p.a.st.Timeouts.Load()
			sent := p.a.qp.Eng.Conn().Stats().Sent.Load()
			if c.op == verbs.WRRDMARead {
				sent = p.b.qp.Eng.Conn().Stats().Sent.Load()
			}
			const needed = transfers * size / mtu
			t.Logf("%d losses noticed, %d by a timer; %d packets for %d in %v", noticed,
				timeouts, sent, needed, p.now())
			if noticed < 20 || int(timeouts)*100 > int(noticed)*c.timeouts ||
				int(sent)*100 > needed*c.packets {
				t.Errorf("of %d losses %d were noticed by a timer, and %d packets were sent for %d",
					noticed, timeouts, sent, needed)
			}
		})
	}
}

// lossOfSends loses one send in a hundred, with its packets.
func lossOfSends(p *pair, packets int) func(*wire.Packet) bool {
	rnd := rand.New(rand.NewPCG(1, 1))
	var sends [2]struct {
		at   time.Duration
		n    int
		lost bool
	}
	return func(pk *wire.Packet) bool {
		var h packet.Header
		s := &sends[0]
		if pk.Local.Addr() == p.b.addr {
			s = &sends[1]
		}
		now := p.a.qp.Eng.Now()
		if s.n++; now != s.at || s.n >= packets || h.Parse(pk.Data) && len(h.Payload) == 0 {
			s.at, s.n, s.lost = now, 0, rnd.IntN(100) == 0
		}
		return !s.lost
	}
}

// TestAckWithResponse: the ACK of a request is sent after the response, if that is posted after the
// poll that has found the request. Without a response it is sent by the next poll, or by the same
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

// TestFewAcks: the data and the responses of many small requests are sent in one turn. The ACK of
// the requests follows them, and only the last of them asks for one.
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

// TestWritePackets: the packets of WRITEs have one length, so that they can share sends, and each
// has the address of its payload.
func TestWritePackets(t *testing.T) {
	const mtu, size, writes = 1024, 4096, 4
	p := newPair(t, options{mtu: mtu})
	n := 0
	p.mem.SetFaults(wiretest.Options{Filter: func(pk *wire.Packet) bool {
		var h packet.Header
		if testutil.MustTrue(t, h.Parse(pk.Data), "packet"); h.Kind == packet.KindWrite {
			testutil.Equal(t, len(pk.Data), packet.BTHSize+packet.RETHSize+mtu, "bytes")
			testutil.Equal(t, h.RETH, packet.RETH{
				Addr: p.b.at(n * mtu), RKey: p.b.mr.RKey(), Len: mtu,
			}, "address of packet %d", n)
			n++
		}
		return true
	}})
	fill(p.a.buf[:writes*size], 1)
	for i := range writes {
		p.a.rdma(uint64(i), verbs.WRRDMAWrite, i*size, size, p.b.at(i*size), p.b.mr.RKey())
	}
	p.settle()
	testutil.Equal(t, n, writes*size/mtu, "packets")
	testutil.Equal(t, len(p.a.take()), writes, "completions")
	p.b.filled(0, writes*size, 1)
}

// TestAllocations counts allocations of all kinds of work, in both roles.
func TestAllocations(t *testing.T) {
	p := newPair(t, options{})
	wrs := []verbs.SendWR{
		{Opcode: verbs.WRRDMAWrite, NumSGE: 1, RemoteAddr: p.b.at(0), RKey: p.b.mr.RKey()},
		{Opcode: verbs.WRRDMARead, NumSGE: 1, RemoteAddr: p.b.at(0), RKey: p.b.mr.RKey()},
		{Opcode: verbs.WRSend, NumSGE: 1, Flags: signal},
	}
	sges := []verbs.SGE{p.a.sge(0, 5000)}
	recvs := []verbs.RecvWR{{NumSGE: 1, SGE: [2]verbs.SGE{p.b.sge(1<<16, 5000)}}}
	var wcs [8]verbs.WC
	if n := testutil.AllocsPerRun(100, func() {
		_, _ = p.b.qp.PostRecv(recvs)
		_, _ = p.a.qp.PostSend(wrs, sges)
		for n := 0; n < 2; {
			a, _ := p.a.cq.Poll(wcs[:])
			b, _ := p.b.cq.Poll(wcs[:])
			n += a + b
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	testutil.Equal(t, p.a.st.Timeouts.Load(), 0, "timeouts")
}
