package roce

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/engine"
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
			testutil.True(t, noticed >= 20 && int(timeouts)*100 <= int(noticed)*c.timeouts &&
				int(sent)*100 <= needed*c.packets,
				"of %d losses %d were noticed by a timer, and %d packets were sent for %d", noticed,
				timeouts, sent, needed)
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

// kindsToA records the kinds of the packets for a.
func (p *pair) kindsToA(t *testing.T) *[]packet.Kind {
	var kinds []packet.Kind
	p.mem.SetFaults(wiretest.Options{Filter: func(pk *wire.Packet) bool {
		var h packet.Header
		if testutil.MustTrue(t, h.Parse(pk.Data), "packet"); h.QPN == p.a.qp.Num() {
			kinds = append(kinds, h.Kind)
		}
		return true
	}})
	return &kinds
}

// TestAckWithResponse: the ACK of a request is sent after the response, if that is posted after the
// poll that has found the request. Without a response it is sent by the next poll, or by the same
// one if that finds nothing. It is also sent if the queue pair ends.
func TestAckWithResponse(t *testing.T) {
	p := newPair(t, options{})
	kinds := p.kindsToA(t)
	expect := func(when string, want ...packet.Kind) {
		t.Helper()
		testutil.Equal(t, len(*kinds), len(want), "packets %s", when)
		for i := range want {
			testutil.Equal(t, (*kinds)[i], want[i], "packet %d %s", i, when)
		}
		*kinds = nil
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
		*kinds = nil
	}
	p.a.rdma(5, verbs.WRRDMAWrite, 0, 64, p.b.at(0), p.b.mr.RKey())
	testutil.Equal(t, testutil.Value(p.b.cq.Poll(wcs[:]))(t), 0, "completions")
	expect("in a poll that finds nothing", packet.KindAck)
	testutil.Equal(t, p.a.st.Timeouts.Load(), 0, "timeouts")

	p.settle()
	*kinds = nil
	p.b.recv(6, 64, 64)
	p.a.send(7, 128, 16)
	testutil.Equal(t, testutil.Value(p.b.cq.Poll(wcs[:]))(t), 1, "requests")
	testutil.Must(t, p.b.qp.ToError())
	expect("at the end of the queue pair", packet.KindAck)
}

// TestAckFirst: the ACK of a request is sent before several long responses, whose sends it cannot
// share.
func TestAckFirst(t *testing.T) {
	p := newPair(t, options{})
	kinds := p.kindsToA(t)
	for n := 1; n < 3; n++ {
		wrs, sges := make([]verbs.SendWR, n), make([]verbs.SGE, n)
		for i := range wrs {
			wrs[i], sges[i] = verbs.SendWR{Opcode: verbs.WRSend, NumSGE: 1}, p.b.sge(0, 2048)
			p.a.recv(1, 0, 2048)
		}
		p.b.recv(2, 64, 64)
		p.a.send(3, 128, 16)
		var wcs [4]verbs.WC
		testutil.Equal(t, testutil.Value(p.b.cq.Poll(wcs[:]))(t), 1, "requests")
		testutil.Value(p.b.qp.PostSend(wrs, sges))(t)
		testutil.Equal(t, (*kinds)[0] == packet.KindAck, n > 1, "ACK before %d long responses", n)
		p.settle()
		testutil.Equal(t, len(p.a.take()), n+1, "completions")
		*kinds = nil
	}
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

// TestRepeatedReadOpcodes loses one packet of a READ response, so that the rest is asked for again.
// A responder may begin the repetition with FIRST, as we do, or go on with MIDDLE, as rxe does
// (read_reply in drivers/infiniband/sw/rxe/rxe_resp.c). Our requester takes both. The requester of
// rxe takes ours (check_ack in rxe_comp.c): within a response it accepts FIRST only at the first
// PSN of the request sent last, and ONLY if that has one packet.
func TestRepeatedReadOpcodes(t *testing.T) {
	const all = readChunk / 1024
	for _, lost := range []int{1, 2, all / 2, all - 1, all} {
		for _, replays := range []bool{false, true} {
			p := newPair(t, options{})
			var begin, first, last uint32 // PSNs of the first and of the last request
			expected, started, n := uint32(0), false, 0
			p.mem.SetFaults(wiretest.Options{Filter: func(pk *wire.Packet) bool {
				var h packet.Header
				switch {
				case !h.Parse(pk.Data):
				case h.Kind == packet.KindRead:
					first, last = h.PSN, h.PSN+(h.RETH.Len+1023)/1024-1
					if n == 0 {
						begin, expected = first, first
					}
				case h.Kind == packet.KindReadResponse:
					if n++; n == lost {
						return false
					}
					if replays {
						if n > all && first != begin {
							replay(pk, &h)
						}
						break
					}
					if h.PSN != expected {
						break // rxe ignores it
					}
					restarts := h.Opcode == packet.ReadResponseFirst && h.PSN == first ||
						h.Opcode == packet.ReadResponseOnly && first == last
					testutil.True(t, h.Opcode.First() && !started || started &&
						(!h.Opcode.First() || restarts),
						"packet %d lost: opcode %#x at %d of %d to %d", lost, h.Opcode, h.PSN,
						first, last)
					started = !h.Opcode.Last()
					expected++
				}
				return true
			}})
			fill(p.b.buf[:readChunk], 1)
			p.a.rdma(1, verbs.WRRDMARead, 0, readChunk, p.b.at(0), p.b.mr.RKey())
			p.settle()
			p.a.statuses(1, verbs.WCSuccess)
			p.a.filled(0, readChunk, 1)
			testutil.Equal(t, n, all+all-lost+1, "packet %d lost: packets of the response", lost)
			testutil.Equal(t, p.a.st.Ignored.Load(), 0, "packet %d lost: packets ignored", lost)
		}
	}
}

// replay makes a packet of a repeated response what rxe would send: the middle or the end of the
// response to the first request.
func replay(pk *wire.Packet, h *packet.Header) {
	switch h.Opcode {
	case packet.ReadResponseOnly:
		pk.Data[0] = byte(packet.ReadResponseLast)
	case packet.ReadResponseFirst:
		pk.Data[0] = byte(packet.ReadResponseMiddle)
		n := copy(pk.Data[packet.BTHSize:], pk.Data[packet.BTHSize+packet.AETHSize:])
		pk.Data = pk.Data[:packet.BTHSize+n]
	}
}

// TestLateRead loses all packets at first. A READ is repeated after minReadRetry each time, because
// rxe ends the connection if the memory is no longer valid when a late repetition arrives. A WRITE
// has no such reason to wait, and is first sent again to learn whether the peer has received it.
func TestLateRead(t *testing.T) {
	for op, want := range map[verbs.SendOpcode][]time.Duration{
		verbs.WRRDMARead:  {0, minReadRetry, 2 * minReadRetry},
		verbs.WRRDMAWrite: {0, minNudge, firstRetry, 2 * firstRetry},
	} {
		p := newPair(t, options{})
		begin, sent := p.now(), []time.Duration(nil)
		p.mem.SetFaults(wiretest.Options{Filter: func(pk *wire.Packet) bool {
			if pk.Local.Addr() != p.a.addr {
				return true
			}
			sent = append(sent, p.now()-begin)
			return len(sent) == len(want)
		}})
		p.a.rdma(1, op, 0, 64, p.b.at(0), p.b.mr.RKey())
		p.settle()
		p.a.statuses(1, verbs.WCSuccess)
		testutil.EqualSlices(t, sent, want, "times of opcode %d", op)
	}
}

// TestLostRead: the wait for the answer to a READ ends in time, with and without repetitions.
func TestLostRead(t *testing.T) {
	for retries := range uint8(8) {
		p := newPair(t, options{peer: Peer{AckTimeout: 16, RetryCount: retries, RNRRetry: 7}})
		p.mem.SetFaults(wiretest.Options{Loss: 1})
		begin := p.now()
		p.a.rdma(1, verbs.WRRDMARead, 0, 64, p.b.at(0), p.b.mr.RKey())
		p.until("the connection ends", func() bool { return p.a.dead > 0 })
		p.a.statuses(1, verbs.WCRetryExcErr)
		want := 4096 * time.Nanosecond << 16 * time.Duration(retries+1)
		testutil.Equal(t, p.now()-begin, want, "time, retry count %d", retries)
	}
}

// TestSlowRead has a peer that answers some READs late, or very late. They are not sent again, or a
// few times until the requester has learned that.
func TestSlowRead(t *testing.T) {
	for _, c := range []struct {
		late        time.Duration
		most, least uint64 // READs sent again
	}{{80 * time.Millisecond, 0, 0}, {150 * time.Millisecond, 4, 1}} {
		p := newPair(t, options{})
		for i := range 60 {
			late := time.Duration(0)
			if i%3 == 2 {
				late = c.late
			}
			p.mem.SetFaults(wiretest.Options{Delay: late / 2})
			p.a.rdma(1, verbs.WRRDMARead, 0, 64, p.b.at(0), p.b.mr.RKey())
			p.settle()
			p.a.statuses(1, verbs.WCSuccess)
		}
		n := p.a.st.Timeouts.Load()
		testutil.True(t, n >= c.least && n <= c.most, "%d READs were sent again", n)
	}
}

// TestAckOfRead repeats a SEND before a READ whose response was lost. The ACK has the PSN of the
// SEND: with that of the READ the requester of rxe would take it for the response.
func TestAckOfRead(t *testing.T) {
	x := newAttacker(t, options{})
	x.a.recv(1, 0, 64)
	send := x.header(packet.SendOnly)
	x.send(send, 64)
	x.send(x.header(packet.ReadRequest), 0, x.reth(0, 64))
	var acks []uint32
	x.mem.SetFaults(wiretest.Options{Filter: func(p *wire.Packet) bool {
		var h packet.Header
		if p.Local.Addr() == x.a.addr && h.Parse(p.Data) && h.Kind == packet.KindAck {
			acks = append(acks, h.PSN)
		}
		return true
	}})
	x.send(send, 64)
	x.a.poll()
	x.settle()
	testutil.True(t, len(acks) == 1 && acks[0] == send.PSN, "ACKs of %v, want of %d", acks,
		send.PSN)
}
