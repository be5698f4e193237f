package roce

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/engine"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/packet"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/wiretest"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// TestToError flushes everything posted, in order, and what is posted later. Packets of the peer
// find nobody.
func TestToError(t *testing.T) {
	p := newPair(t, options{})
	p.a.recv(1, 0, 64)
	p.a.recv(2, 0, 64)
	p.mem.SetFaults(wiretest.Options{Filter: func(*wire.Packet) bool { return false }})
	p.a.send(3, 0, 64)
	p.a.post(verbs.SendWR{WRID: 4, Opcode: verbs.WRSend}, p.a.sge(0, 64)) // unsignaled
	p.a.take()
	testutil.Must(t, p.a.qp.ToError())
	p.a.poll()
	p.a.statuses(3, verbs.WCWRFlushErr, 4, verbs.WCWRFlushErr, 1, verbs.WCWRFlushErr, 2,
		verbs.WCWRFlushErr)
	p.a.send(5, 0, 64)
	p.a.recv(6, 0, 64)
	p.a.poll()
	p.a.statuses(5, verbs.WCWRFlushErr, 6, verbs.WCWRFlushErr)
	testutil.Must(t, p.a.qp.ToError())
	testutil.Equal(t, p.a.dead, 0, "calls of Fatal: it did not fail by itself")
	testutil.Is(t, p.a.qp.ShortenRNRTimer(), unix.EINVAL, "ShortenRNRTimer in the error state")

	p.mem.SetFaults(wiretest.Options{})
	fill(p.b.buf[:64], 1)
	p.b.rdma(1, verbs.WRRDMAWrite, 0, 64, p.a.at(0), p.a.mr.RKey())
	p.settle()
	p.b.statuses(1, verbs.WCRetryExcErr)
	testutil.Equal(t, p.a.buf[0], 0, "memory of a queue pair in the error state")
}

// TestFlushMessage fails a queue pair in the middle of a message: the receive taken for it is
// flushed first.
func TestFlushMessage(t *testing.T) {
	x := newAttacker(t, options{})
	x.a.recv(1, 0, 4096)
	x.a.recv(2, 0, 4096)
	x.packet(packet.SendFirst, 1024)
	testutil.Must(t, x.a.qp.ToError())
	x.a.poll()
	x.a.statuses(1, verbs.WCWRFlushErr, 2, verbs.WCWRFlushErr)
}

// TestShared takes receives from a shared queue, and reports when no more are taken.
func TestShared(t *testing.T) {
	p := newPair(t, options{})
	srq := testutil.Value(p.b.pd.CreateSRQ(verbs.SRQInit{MaxWR: 4, MaxSGE: 1}))(t)
	events := make(chan verbs.AsyncEvent, 4)
	stop := testutil.Value(p.b.dev.Watch(func(ev verbs.AsyncEvent) { events <- ev }))(t)
	defer stop()
	init := verbs.QPInit{SendCQ: p.b.cq, RecvCQ: p.b.cq, SRQ: srq, MaxSendWR: 4, MaxSendSGE: 1}
	q := testutil.Value(New(p.b.pd, init, nil))(t)
	_, err := q.PostRecv([]verbs.RecvWR{{}})
	testutil.Is(t, err, unix.EINVAL, "PostRecv of a queue pair with a shared receive queue")
	testutil.Is(t, srq.Destroy(), unix.EBUSY, "Destroy of a shared receive queue in use")
	other := testutil.Value(New(p.a.pd, verbs.QPInit{
		SendCQ: p.a.cq, RecvCQ: p.a.cq, MaxSendWR: 4, MaxSendSGE: 1,
	}, nil))(t)
	first := 0
	for _, s := range []struct {
		q, to      *QP
		side, peer *side
		first      func()
	}{{q, other, p.b, p.a, func() { first++ }}, {other, q, p.a, p.b, nil}} {
		testutil.Must(t, s.q.Connect(Peer{
			Path: wire.Path{Local: s.side.addr, Remote: s.peer.addr, MTU: 1024},
			QPN:  s.to.Num(), PSN: s.to.PSN(), AckTimeout: 14, RetryCount: 1, RNRRetry: 7,
			First: s.first,
		}))
	}
	testutil.Must(t, q.ShortenRNRTimer())
	post := func() {
		_, err := other.PostSend([]verbs.SendWR{{Opcode: verbs.WRSend, Flags: signal, NumSGE: 1}},
			[]verbs.SGE{p.a.sge(0, 64)})
		testutil.Must(t, err)
	}
	testutil.Equal(t, first, 0, "calls of First before a packet")
	post()
	post()
	p.run(20)
	testutil.Equal(t, first, 1, "calls of First")
	for i := range 2 {
		_, err := srq.PostRecv([]verbs.RecvWR{{
			WRID: uint64(i), NumSGE: 1, SGE: [2]verbs.SGE{p.b.sge(i*64, 64)},
		}})
		testutil.Must(t, err)
	}
	p.settle()
	for i, wc := range p.b.take() {
		testutil.MustTrue(t, wc.WRID == uint64(i) && wc.Status == verbs.WCSuccess &&
			wc.QPNum == q.Num(), "completion %+v", wc)
	}
	testutil.Must(t, q.ToError())
	ev := testutil.Receive(t, "the last receive was taken", events)
	testutil.MustTrue(t, ev.Type == verbs.AsyncQPLastWQEReached && ev.QPNum == q.Num(),
		"event %+v", ev)
	testutil.Must(t, other.Destroy())
	testutil.Must(t, q.Destroy())
	testutil.Must(t, srq.Destroy())
}

// TestRefused refuses operations that a queue pair cannot do.
func TestRefused(t *testing.T) {
	p := newPair(t, options{send: 2, recv: 2})
	init := verbs.QPInit{SendCQ: p.a.cq, RecvCQ: p.a.cq, MaxSendWR: 1, MaxSendSGE: 1}
	for _, change := range []func(*verbs.QPInit){
		func(i *verbs.QPInit) { i.RecvCQ = p.b.cq },
		func(i *verbs.QPInit) { i.RecvCQ = nil },
		func(i *verbs.QPInit) { i.MaxSendWR = p.a.dev.Attr().MaxQPWR + 1 },
		func(i *verbs.QPInit) { i.MaxRecvSGE = -1 },
		func(i *verbs.QPInit) { i.MaxSendWR = -1 },
	} {
		i := init
		change(&i)
		_, err := New(p.a.pd, i, nil)
		testutil.Is(t, err, unix.EINVAL, "New with %+v", i)
	}
	q := testutil.Value(New(p.a.pd, init, nil))(t)
	_, err := q.PostSend([]verbs.SendWR{{Opcode: verbs.WRSend}}, nil)
	testutil.Is(t, err, unix.EINVAL, "PostSend before Connect")
	testutil.Is(t, q.Connect(Peer{Path: wire.Path{MTU: 1500}}), unix.EINVAL, "an MTU of 1,500")
	testutil.Is(t, p.a.cq.Destroy(), unix.EBUSY, "Destroy of a completion queue in use")
	testutil.Must(t, q.Destroy())
	again := Peer{Path: wire.Path{MTU: 1024}}
	testutil.Is(t, p.a.qp.Connect(again), unix.EINVAL, "second Connect")
	testutil.Equal(t, p.a.qp.MaxInline(), 0, "inline bytes")

	wr := verbs.SendWR{Opcode: verbs.WRSend, NumSGE: 1}
	for _, bad := range []verbs.SendWR{
		{Opcode: 1, NumSGE: 1},
		{Opcode: verbs.WRSend, NumSGE: 4},
		{Opcode: verbs.WRSend, NumSGE: 1, FirstSGE: 2},
		{Opcode: verbs.WRSend, NumSGE: 1, Flags: verbs.SendInline},
	} {
		n, err := p.a.qp.PostSend([]verbs.SendWR{wr, bad}, []verbs.SGE{p.a.sge(0, 1)})
		testutil.Equal(t, n, 1, "work requests posted before %+v", bad)
		testutil.Is(t, err, unix.EINVAL, "PostSend of %+v", bad)
		p.b.recv(1, 0, 8)
		p.settle()
	}
	n, err := p.a.qp.PostSend([]verbs.SendWR{wr, wr, wr}, []verbs.SGE{p.a.sge(0, 1)})
	testutil.Equal(t, n, 2, "work requests posted to a queue of 2")
	testutil.Is(t, err, unix.ENOMEM, "PostSend to a full queue")
	huge := []verbs.SGE{{Length: engine.MaxMessage}, {Length: 1}}
	p.b.recv(1, 0, 8)
	p.b.recv(1, 0, 8)
	p.settle()
	_, err = p.a.qp.PostSend([]verbs.SendWR{{Opcode: verbs.WRSend, NumSGE: 2}}, huge)
	testutil.Is(t, err, unix.EINVAL, "PostSend of more than MaxMessage")
}

// TestOverrun has a completion queue that is too small: the queue pair does not go on.
func TestOverrun(t *testing.T) {
	p := newPair(t, options{cqe: 2})
	small := testutil.Value(p.b.dev.CreateCQ(1, nil, 0))(t).(*engine.CQ)
	defer func() { testutil.Check(t, small.Destroy()) }()
	real := p.b.qp.RecvCQ
	p.b.qp.RecvCQ = small
	for i := range 4 {
		p.b.recv(uint64(i), 0, 64)
	}
	for i := range 4 {
		p.a.post(verbs.SendWR{WRID: uint64(i), Opcode: verbs.WRSend}, p.a.sge(0, 64))
	}
	p.until("the queue pair fails", func() bool { return p.b.dead > 0 })
	p.b.qp.RecvCQ = real
}

// TestWindow sends to a peer that does not answer: as many packets as the window has.
func TestWindow(t *testing.T) {
	x := newAttacker(t, options{})
	sent := x.count(packet.KindWrite)
	testutil.Must(t, x.b.qp.ToError())
	x.a.rdma(1, verbs.WRRDMAWrite, 0, 100000, x.b.at(0), x.b.mr.RKey())
	x.b.poll()
	testutil.Equal(t, *sent, firstWindow, "packets")
	r := &x.a.qp.requester
	for range 10 {
		r.recover = r.una
		r.slowDown()
	}
	testutil.Equal(t, r.window, minWindow, "window after many losses")
}

// TestReadWindow issues as many READ requests as agreed and as the window has room for.
func TestReadWindow(t *testing.T) {
	for _, c := range []struct{ window, reads, want int }{
		{firstWindow, 4, 1},
		{2 * firstWindow, 4, 2},
		{maxWindow, 4, 4},
		{maxWindow, 1, 1},
		{minWindow, 4, 1},
	} {
		x := newAttacker(t, options{reads: uint8(c.reads)})
		sent := x.count(packet.KindRead)
		x.a.qp.requester.window = c.window
		testutil.Must(t, x.b.qp.ToError())
		x.a.rdma(1, verbs.WRRDMARead, 0, 10*readChunk, x.b.at(0), x.b.mr.RKey())
		testutil.Equal(t, *sent, c.want, "requests with window %d, %d READs", c.window, c.reads)
	}
}

// TestReadBatches answers READs one after the other. The next READs are sent when a quarter of the
// outstanding ones is answered, so that they share sends.
func TestReadBatches(t *testing.T) {
	const reads, answers = 8, 16
	x := newAttacker(t, options{reads: reads, send: 2 * answers})
	sent := x.count(packet.KindRead)
	testutil.Must(t, x.b.qp.ToError())
	for i := range reads + answers {
		x.a.rdma(uint64(i), verbs.WRRDMARead, 0, 64, x.b.at(0), x.b.mr.RKey())
	}
	batches := 0
	for i := range answers {
		h, before := x.header(packet.ReadResponseOnly), *sent
		h.PSN = x.b.qp.PSN() + uint32(i)
		x.put(h, 64, packet.AETH{Syndrome: packet.AckNoCredits})
		x.a.poll()
		if *sent > before {
			batches++
		}
	}
	testutil.Equal(t, len(x.a.wcs), answers, "completions")
	testutil.Equal(t, batches, answers/3, "batches of READs")
	testutil.Equal(t, *sent, reads+answers/3*3, "READs")
}

// TestReadRequests has as many READ requests as chunks, which are larger with large packets.
func TestReadRequests(t *testing.T) {
	for mtu, want := range map[int]int{256: 4, 1024: 4, 2048: 4, 4096: 2} {
		x := newAttacker(t, options{mtu: mtu, reads: 16})
		sent := x.count(packet.KindRead)
		x.a.qp.requester.window = 1000
		testutil.Must(t, x.b.qp.ToError())
		x.a.rdma(1, verbs.WRRDMARead, 0, 4*readChunk, x.b.at(0), x.b.mr.RKey())
		testutil.Equal(t, *sent, want, "requests with MTU %d", mtu)
	}
}

// TestAckRequests never waits for a timeout, because the last packet before a pause asks for an
// acknowledgment: at the end of a small window and before a READ that the window does not allow.
func TestAckRequests(t *testing.T) {
	p := newPair(t, options{})
	r := &p.a.qp.requester
	r.window, r.threshold = 2, 2
	p.a.rdma(1, verbs.WRRDMAWrite, 0, 100000, p.b.at(0), p.b.mr.RKey())
	p.settle()
	p.b.recv(9, 0, 64)
	for _, op := range []verbs.SendOpcode{verbs.WRSend, verbs.WRRDMAWrite} {
		n, err := p.a.qp.PostSend([]verbs.SendWR{
			{WRID: 2, Opcode: op, NumSGE: 1, RemoteAddr: p.b.at(0), RKey: p.b.mr.RKey()},
			{
				WRID: 3, Opcode: verbs.WRRDMARead, NumSGE: 1, RemoteAddr: p.b.at(0),
				RKey: p.b.mr.RKey(), Flags: signal,
			},
		}, []verbs.SGE{p.a.sge(0, 64)})
		testutil.MustTrue(t, n == 2 && err == nil, "PostSend: %d, %v", n, err)
		p.settle()
	}
	p.a.statuses(1, verbs.WCSuccess, 3, verbs.WCSuccess, 3, verbs.WCSuccess)
	testutil.Equal(t, p.a.st.Timeouts.Load(), 0, "timeouts")
}

// TestLatePeer has a peer that is now and then away for longer than firstRetry. The requester
// sends the last packet again each time and the first one a few times, until it has learned that,
// and the window stays large.
func TestLatePeer(t *testing.T) {
	p := newPair(t, options{})
	sent := 0
	p.mem.SetFaults(wiretest.Options{Filter: func(pk *wire.Packet) bool {
		var h packet.Header
		if h.Parse(pk.Data) && h.Kind == packet.KindWrite {
			sent++
		}
		return true
	}})
	const rounds, packets = 200, 20
	for i := range rounds {
		p.a.rdma(1, verbs.WRRDMAWrite, 0, packets*1024, p.b.at(0), p.b.mr.RKey())
		if i%10 == 5 {
			for range 30 {
				p.a.poll()
				p.mem.Advance(time.Millisecond)
			}
		}
		for len(p.a.take()) == 0 {
			p.b.poll()
			p.a.poll()
		}
	}
	timeouts := p.a.st.Timeouts.Load()
	testutil.True(t, timeouts > 0 && timeouts < 10, "%d timeouts", timeouts)
	testutil.Equal(t, sent, rounds*packets+rounds/10+int(timeouts), "packets")
	testutil.True(t, p.a.qp.requester.window >= firstWindow, "window of %d packets",
		p.a.qp.requester.window)
	testutil.Equal(t, p.b.st.OutOfOrder.Load(), 0, "packets out of order")
}

// TestStalledProcess has a machine that does not run its process for longer than all retries take.
// The acknowledgment has arrived meanwhile, after more packets than a turn receives.
func TestStalledProcess(t *testing.T) {
	o := options{peer: Peer{AckTimeout: 14, RetryCount: 3, RNRRetry: 7}}
	p := newPair(t, o)
	pairs := []*pair{p}
	for range 2 * wire.MaxBatch / firstWindow {
		pairs = append(pairs, p.neighbour(o))
	}
	p.a.rdma(1, verbs.WRRDMAWrite, 0, 64, p.b.at(0), p.b.mr.RKey())
	for _, n := range pairs[1:] {
		n.b.rdma(1, verbs.WRRDMAWrite, 0, firstWindow*1024, n.a.at(0), n.a.mr.RKey())
	}
	p.b.poll()
	p.mem.Advance(time.Minute)
	for _, n := range pairs {
		s := n.b
		if n == p {
			s = n.a
		}
		p.until("the WRITE completes", func() bool { s.poll(); return len(s.wcs) > 0 })
		s.statuses(1, verbs.WCSuccess)
	}
}

// TestLostAck loses the first acknowledgment of a window, or of all packets. One further packet
// causes another acknowledgment, and no timer repeats packets that have arrived.
func TestLostAck(t *testing.T) {
	for _, packets := range []int{1, firstWindow, 2 * firstWindow} {
		p := newPair(t, options{})
		sent, acks := 0, 0
		p.mem.SetFaults(wiretest.Options{Filter: func(pk *wire.Packet) bool {
			if pk.Local.Addr() == p.a.addr {
				sent++
				return true
			}
			acks++
			return acks > 1
		}})
		p.a.rdma(1, verbs.WRRDMAWrite, 0, packets*1024, p.b.at(0), p.b.mr.RKey())
		p.settle()
		p.a.statuses(1, verbs.WCSuccess)
		testutil.Equal(t, p.a.st.Timeouts.Load(), 0, "timeouts with %d packets", packets)
		testutil.True(t, sent <= packets+1, "%d packets for %d", sent, packets)
	}
}

// TestIdleTimer: an acknowledgment stops the timer, so that an engine with little to do is not
// woken again.
func TestIdleTimer(t *testing.T) {
	p := newPair(t, options{})
	p.mem.Advance(time.Second)
	for range 10 {
		begin := p.now()
		p.a.rdma(1, verbs.WRRDMAWrite, 0, 64, p.b.at(0), p.b.mr.RKey())
		p.settle()
		p.a.statuses(1, verbs.WCSuccess)
		testutil.Equal(t, p.now(), begin, "time of the last timer")
		p.mem.Advance(time.Millisecond)
	}
}

// TestIdleWakeups has 64 connections with a request each millisecond. Each request and its response
// wake the responder twice, for the request and for the acknowledgment of the response, and the
// requester once. Timers wake nobody.
func TestIdleWakeups(t *testing.T) {
	o := options{Options: wiretest.Options{Delay: 30 * time.Microsecond}}
	p := newPair(t, o)
	pairs := []*pair{p}
	for range 63 {
		pairs = append(pairs, p.neighbour(o))
	}
	p.mem.Advance(time.Second)
	for round := range 3 {
		wakeups := 0
		for _, c := range pairs {
			c.b.recv(1, 0, 64)
			c.a.recv(2, 64, 16)
			c.a.send(3, 128, 64)
			for answered := false; ; wakeups++ {
				c.a.poll()
				c.b.poll()
				if len(c.b.take()) > 0 && !answered {
					c.b.send(4, 128, 16)
					answered = true
				}
				d, more := c.mem.Next()
				if !more {
					break
				}
				c.mem.Advance(d)
			}
			c.mem.Advance(time.Millisecond)
		}
		testutil.Equal(t, wakeups, 3*len(pairs), "wake-ups of round %d", round)
	}
}

// TestImpliedNAK loses one packet in the middle of a READ response: all the packets after it are
// one reason to go back.
func TestImpliedNAK(t *testing.T) {
	p := newPair(t, options{})
	n := 0
	p.mem.SetFaults(wiretest.Options{Filter: func(pk *wire.Packet) bool {
		var h packet.Header
		if h.Parse(pk.Data) && h.Kind == packet.KindReadResponse {
			n++
		}
		return n != 5
	}})
	fill(p.b.buf[:readChunk], 1)
	p.a.rdma(1, verbs.WRRDMARead, 0, readChunk, p.b.at(0), p.b.mr.RKey())
	p.settle()
	p.a.statuses(1, verbs.WCSuccess)
	p.a.filled(0, readChunk, 1)
	testutil.Equal(t, p.a.st.Retransmissions.Load(), 1, "retransmissions")
	testutil.Equal(t, p.a.st.Timeouts.Load(), 0, "timeouts")
	testutil.Equal(t, n, 32+28, "packets of the response")
}

// TestRepeatedNAK gets one NAK several times, also after the repetition was sent: a requester goes
// back once.
func TestRepeatedNAK(t *testing.T) {
	x := newAttacker(t, options{})
	psn := x.b.qp.PSN()
	sent := x.count(packet.KindWrite)
	testutil.Must(t, x.b.qp.ToError())
	x.a.rdma(1, verbs.WRRDMAWrite, 0, 20*1024, x.b.at(0), x.b.mr.RKey())
	testutil.Equal(t, *sent, 20, "packets")
	h := packet.BTH{
		Opcode: packet.Acknowledge, PKey: packet.PKeyDefault, QPN: x.a.qp.Num(), PSN: psn + 5,
	}
	for range 3 {
		b := x.conn.Alloc(&x.path, packet.BTHSize+packet.AETHSize)
		h.Put(b)
		packet.AETH{Syndrome: packet.NAKSequence}.Put(b[packet.BTHSize:])
		x.conn.Flush()
		x.a.poll()
		testutil.Equal(t, *sent, 20+15, "packets after a NAK of the sixth")
	}
}

// TestPacketRoom: the room of a packet is the one that Linux counts (6.18, loopback).
func TestPacketRoom(t *testing.T) {
	for mtu, want := range map[uint32]int{256: 1280, 1024: 2304, 2048: 4352, 4096: 8448} {
		testutil.Equal(t, packetRoom(mtu), want, "path MTU %d", mtu)
	}
}

// TestReceiveBuffer has many connections that read at once, and a receive buffer for half of that:
// nothing overflows. A peer that does not answer holds its share for a while only.
func TestReceiveBuffer(t *testing.T) {
	const queue = 80 // packets, of at most 4 KiB
	o := options{Options: wiretest.Options{Queue: queue}, mtu: 4096}
	x := newAttacker(t, o)
	pairs := []*pair{x.near}
	for range 20 {
		pairs = append(pairs, x.neighbour(o))
	}
	deaf := x.b.qp.Num()
	x.mem.SetFaults(wiretest.Options{Queue: queue, Filter: func(p *wire.Packet) bool {
		h, _ := packet.ParseBTH(p.Data)
		return h.QPN != deaf
	}})
	fill(x.b.buf[:200000], 1)
	x.a.qp.requester.retry = time.Second
	for range 4 {
		x.a.rdma(1, verbs.WRRDMARead, 0, 200000, x.b.at(0), x.b.mr.RKey())
	}
	for i, p := range pairs {
		p.a.rdma(uint64(i), verbs.WRRDMARead, 300000, 200000, p.b.at(0), p.b.mr.RKey())
	}
	for i, p := range pairs {
		x.until("a READ completes", func() bool {
			p.a.poll()
			return len(p.a.wcs) > 0
		})
		p.a.statuses(i, verbs.WCSuccess)
	}
	x.a.filled(300000, 200000, 1)
	testutil.Equal(t, x.a.qp.Eng.Conn().Stats().Overflows.Load(), 0, "packets lost")
	testutil.Equal(t, x.near.a.st.Timeouts.Load(), 0, "timeouts of another connection")
	testutil.Equal(t, x.a.st.Timeouts.Load(), 0, "timeouts of the silent connection so far")
}
