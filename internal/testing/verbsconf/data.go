package verbsconf

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

const signaled = verbs.SendSignaled

func testSendRecv(t *testing.T, s *Setup) {
	p := connect(t, s, sizes{}, sizes{})
	for _, dir := range [][2]*endpoint{{p.a, p.p}, {p.p, p.a}} {
		from, to := dir[0], dir[1]
		// A message of two elements into two elements cut at other positions, an empty one, and a
		// large one, with one call.
		wr := to.recvWR(1, 1000, 10)
		wr.SGE[1], wr.NumSGE = to.sge(5000, 4000), 2
		to.postRecv(wr, to.recvWR(2, 0, 1), to.recvWR(3, 1<<20, 1<<20))
		fill(from.buf[:1<<20], 9)
		n, err := from.qp.PostSend([]verbs.SendWR{
			{WRID: 11, Opcode: verbs.WRSend, Flags: signaled, FirstSGE: 1, NumSGE: 2},
			{WRID: 12, Opcode: verbs.WRSend, Flags: signaled},
			{WRID: 13, Opcode: verbs.WRSend, Flags: signaled, FirstSGE: 0, NumSGE: 1},
		}, []verbs.SGE{from.sge(0, 1<<20), from.sge(0, 100), from.sge(100, 200)})
		if n != 3 || err != nil {
			t.Fatalf("PostSend: %d, %v", n, err)
		}
		for i, want := range []uint32{300, 0, 1 << 20} {
			from.success(uint64(11+i), verbs.WCSend)
			if wc := to.success(uint64(1+i), verbs.WCRecv); wc.ByteLen != want ||
				wc.Flags&verbs.WCWithInv != 0 {
				t.Fatalf("completion %+v, want %d bytes", wc, want)
			}
		}
		to.checkFill(1<<20, 1<<20, 9, "large message")
		copy(to.buf[1010:], to.buf[5000:5290])
		to.checkFill(1000, 300, 9, "message")
	}
}

func testInline(t *testing.T, s *Setup) {
	p := connect(t, s, sizes{}, sizes{inline: 64})
	n := p.a.qp.MaxInline()
	if n == 0 {
		return // a device may have none
	}
	p.p.postRecv(p.p.recvWR(1, 0, n))
	fill(p.a.buf[:n], 3)
	g := p.a.sge(0, n)
	g.LKey = 0 // ignored
	p.a.postSend(verbs.SendWR{
		WRID: 1, Opcode: verbs.WRSend, Flags: signaled | verbs.SendInline,
		NumSGE: 1,
	}, g)
	clear(p.a.buf[:n]) // may be reused as soon as the call returns
	p.a.success(1, verbs.WCSend)
	p.p.success(1, verbs.WCRecv)
	p.p.checkFill(0, n, 3, "inline message")
}

func testWrite(t *testing.T, s *Setup) {
	p := connect(t, s, sizes{}, sizes{})
	p.a.postRecv(p.a.recvWR(7, 0, 16))
	fill(p.p.buf[:1<<20], 5)
	// WRITE, then SEND, in one call: when the message has arrived, so has the data.
	n, err := p.p.qp.PostSend([]verbs.SendWR{
		{
			WRID: 1, Opcode: verbs.WRRDMAWrite, NumSGE: 2, RemoteAddr: p.a.addr(1<<20 + 3),
			RKey: p.a.mr.RKey(),
		},
		{WRID: 2, Opcode: verbs.WRSend, Flags: signaled, FirstSGE: 2, NumSGE: 1},
	}, []verbs.SGE{p.p.sge(0, 4096), p.p.sge(4096, 1<<20-4096), p.p.sge(0, 16)})
	if n != 2 || err != nil {
		t.Fatalf("PostSend: %d, %v", n, err)
	}
	p.a.success(7, verbs.WCRecv)
	p.a.checkFill(1<<20+3, 1<<20, 5, "written data")
	testutil.MustTrue(t, p.a.buf[1<<20+2] == 0 && p.a.buf[2<<20+3] == 0,
		"WRITE touched memory beside its range")
	p.p.success(2, verbs.WCSend)
	p.p.rdma(3, verbs.WRRDMAWrite, 0, 1, p.a.addr(0), p.a.mr.RKey())
	p.p.success(3, verbs.WCRDMAWrite)
}

func testRead(t *testing.T, s *Setup) {
	p := connect(t, s, sizes{}, sizes{})
	fill(p.a.buf[5:5+1<<20], 6)
	sges := []verbs.SGE{p.p.sge(1<<20, 1<<20)}
	if p.p.dev.Attr().MaxSGERD > 1 {
		sges = []verbs.SGE{p.p.sge(1<<20, 12345), p.p.sge(1<<20+12345, 1<<20-12345)}
	}
	p.p.postSend(verbs.SendWR{
		WRID: 1, Opcode: verbs.WRRDMARead, Flags: signaled, NumSGE: uint32(len(sges)),
		RemoteAddr: p.a.addr(5), RKey: p.a.mr.RKey(),
	}, sges...)
	p.p.success(1, verbs.WCRDMARead)
	p.p.checkFill(1<<20, 1<<20, 6, "read data")
}

// testReadDepth posts more READs than may be in flight: they wait in the send queue.
func testReadDepth(t *testing.T, s *Setup) {
	const reads = 32
	p := connect(t, s, sizes{send: reads}, sizes{})
	fill(p.a.buf[:reads*4096], 1)
	var wrs []verbs.SendWR
	var sges []verbs.SGE
	for i := range reads {
		wrs = append(wrs, verbs.SendWR{
			WRID: uint64(i), Opcode: verbs.WRRDMARead, Flags: signaled, FirstSGE: uint32(i),
			NumSGE:     1,
			RemoteAddr: p.a.addr(i * 4096), RKey: p.a.mr.RKey(),
		})
		sges = append(sges, p.p.sge(i*4096, 4096))
	}
	if n, err := p.p.qp.PostSend(wrs, sges); n != reads || err != nil {
		t.Fatalf("PostSend: %d, %v", n, err)
	}
	for i := range reads {
		p.p.success(uint64(i), verbs.WCRDMARead)
	}
	p.p.checkFill(0, reads*4096, 1, "read data")
}

// testUnsignaled goes round the send queue several times with one signaled work request in eight.
func testUnsignaled(t *testing.T, s *Setup) {
	p := connect(t, s, sizes{send: 8, recv: 16}, sizes{send: 16, recv: 16})
	for round := range 10 {
		for i := range 8 {
			p.a.postRecv(p.a.recvWR(uint64(i), i*64, 64))
		}
		wrs := make([]verbs.SendWR, 8)
		for i := range wrs {
			wrs[i] = verbs.SendWR{WRID: uint64(100 + i), Opcode: verbs.WRSend, NumSGE: 1}
		}
		wrs[7].Flags = signaled
		if n, err := p.p.qp.PostSend(wrs, []verbs.SGE{p.p.sge(0, 32)}); n != 8 || err != nil {
			t.Fatalf("round %d: PostSend: %d, %v", round, n, err)
		}
		p.p.success(107, verbs.WCSend)
		for i := range 8 {
			p.a.success(uint64(i), verbs.WCRecv)
		}
	}
	p.p.idle("unsignaled work requests")
}

// testLateReceive sends to a peer that has no receive yet. On iWARP that ends the connection, so it
// is not tested there.
func testLateReceive(t *testing.T, s *Setup) {
	p := connect(t, s, sizes{}, sizes{})
	if p.p.iwarp() {
		return
	}
	p.p.must(p.p.qp.ShortenRNRTimer(), "ShortenRNRTimer")
	p.a.send(1, 0, 8)
	p.a.idle("SEND without a receive")
	p.p.postRecv(p.p.recvWR(2, 0, 8))
	p.a.success(1, verbs.WCSend)
	p.p.success(2, verbs.WCRecv)

	// A finite count, which each side sets for its peer.
	for _, z := range [][2]sizes{{{rnrOnce: true}, {}}, {{}, {rnrOnce: true}}} {
		p := connect(t, s, z[0], z[1])
		from, to := p.a, p.p
		if z[1].rnrOnce {
			from, to = p.p, p.a
		}
		to.must(to.qp.ShortenRNRTimer(), "ShortenRNRTimer")
		from.postSend(verbs.SendWR{WRID: 3, Opcode: verbs.WRSend, NumSGE: 1}, from.sge(0, 8))
		from.failure(3, verbs.WCRNRRetryExcErr)
		to.idle("a SEND that failed")
	}
}

func testSRQ(t *testing.T, s *Setup) {
	sp, sa, l := sides(t, s)
	dev := l.Device()
	if dev.Attr().MaxSRQ == 0 {
		return
	}
	pd, err := dev.AllocPD()
	sp.must(err, "AllocPD")
	t.Cleanup(func() { sp.must(pd.Dealloc(), "free PD") })
	srq, err := pd.CreateSRQ(verbs.SRQInit{MaxWR: 32, MaxSGE: 1})
	sp.must(err, "CreateSRQ")
	t.Cleanup(func() { sp.must(srq.Destroy(), "destroy SRQ") })
	z := sizes{srq: srq, pd: pd}
	p, q := connectTo(t, sp, sa, l, z, sizes{}), connectTo(t, sp, sa, l, z, sizes{})
	wrs := []verbs.RecvWR{p.p.recvWR(1, 0, 64), p.p.recvWR(2, 64, 64), p.p.recvWR(3, 128, 64)}
	if n, err := srq.PostRecv(wrs); n != 3 || err != nil {
		t.Fatalf("SRQ.PostRecv: %d, %v", n, err)
	}
	for i, from := range []*pair{q, p, q} {
		fill(from.a.buf[:64], byte(i))
		from.a.send(9, 0, 64)
		from.a.success(9, verbs.WCSend)
		from.p.success(uint64(1+i), verbs.WCRecv) // in the order of posting
		p.p.checkFill(64*i, 64, byte(i), "message through a shared receive queue")
	}
	lastWQE(t, sp, srq, p, q)
}

// lastWQE fails one queue pair of a shared receive queue: the device reports that it takes no more
// receives, and receives it has not taken remain for others.
func lastWQE(t *testing.T, sp *side, srq verbs.SRQ, p, q *pair) {
	if p.p.dev.Attr().IWARP {
		// iWARP devices need not have it (RFC 5040 knows no such event), and soft iWARP does not.
		return
	}
	p.p.must(p.p.qp.ShortenRNRTimer(), "ShortenRNRTimer")
	num := p.p.qp.Num()
	reached := make(chan struct{}, 8)
	stop, err := p.p.dev.Watch(func(ev verbs.AsyncEvent) {
		if ev.Type == verbs.AsyncQPLastWQEReached && ev.QPNum == num {
			reached <- struct{}{}
		}
	})
	sp.must(err, "Watch")
	defer stop()
	if n, err := srq.PostRecv([]verbs.RecvWR{q.p.recvWR(4, 192, 64)}); n != 1 || err != nil {
		t.Fatalf("SRQ.PostRecv: %d, %v", n, err)
	}
	p.p.must(p.p.qp.ToError(), "ToError")
	select {
	case <-reached:
	case <-time.After(sp.s.Timeout):
		t.Fatal("no QP_LAST_WQE_REACHED of a queue pair in the error state")
	}
	p.p.idle("a queue pair that took no receive")
	testutil.True(t, p.p.qp.ShortenRNRTimer() != nil,
		"a queue pair in the error state is taken for a connected one")
	q.a.send(9, 0, 64)
	q.p.success(4, verbs.WCRecv)
}

// readable reports whether the completion channel's descriptor becomes readable in time.
func readable(t *testing.T, ch verbs.CompChannel, ms int) bool {
	t.Helper()
	fds := []unix.PollFd{{Fd: int32(ch.FD()), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, ms)
		if err == unix.EINTR {
			continue
		}
		testutil.Must(t, err)
		return n == 1
	}
}

func testNotify(t *testing.T, s *Setup) {
	sp, sa, l := sides(t, s)
	ch, err := l.Device().CreateCompChannel()
	sp.must(err, "CreateCompChannel")
	t.Cleanup(func() { sp.must(ch.Close(), "close completion channel") })
	p := connectTo(t, sp, sa, l, sizes{ch: ch}, sizes{})
	send := func(id uint64) {
		p.a.send(id, 0, 8)
		p.a.success(id, verbs.WCSend)
	}
	drain := func(want int) {
		t.Helper()
		if n, err := ch.Drain(); n != want || err != nil {
			t.Fatalf("Drain: %d, %v, want %d", n, err, want)
		}
	}
	for i := range 8 {
		p.p.postRecv(p.p.recvWR(uint64(i), 0, 8))
	}
	send(1)
	p.p.success(0, verbs.WCRecv)
	testutil.MustTrue(t, !readable(t, ch, 0),
		"completion channel is readable though the queue was not armed")
	drain(0)
	p.p.must(p.p.cq.ReqNotify(), "ReqNotify")
	_, ok := p.p.poll(0)
	testutil.MustTrue(t, !ok && !readable(t, ch, 5), "an event without a completion")
	send(2)
	testutil.MustTrue(t, readable(t, ch, int(s.Timeout.Milliseconds())),
		"no event for a completion after arming")
	send(3) // arming once gives one event
	p.p.success(1, verbs.WCRecv)
	p.p.success(2, verbs.WCRecv)
	drain(1)
	testutil.MustTrue(t, !readable(t, ch, 5), "readable after Drain")
	p.p.must(p.p.cq.ReqNotify(), "ReqNotify")
	send(4)
	testutil.MustTrue(t, readable(t, ch, int(s.Timeout.Milliseconds())),
		"no event for a completion after arming again")
	// A pending event must not keep the queue from being destroyed.
	p.p.success(3, verbs.WCRecv)
}
