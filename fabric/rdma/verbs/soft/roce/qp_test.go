package roce

import (
	"testing"

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
	testutil.Equal(t, p.a.dead, 0, "calls of OnFatal: it did not fail by itself")
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
	q.OnFirstPacket(func() { first++ })
	for _, s := range []struct {
		q, to      *QP
		side, peer *side
	}{{q, other, p.b, p.a}, {other, q, p.a, p.b}} {
		testutil.Must(t, s.q.Connect(Peer{
			Path: wire.Path{Local: s.side.addr, Remote: s.peer.addr, MTU: 1024},
			QPN:  s.to.Num(), PSN: s.to.PSN(), AckTimeout: 14, RetryCount: 1, RNRRetry: 7,
		}))
	}
	testutil.Must(t, q.ShortenRNRTimer())
	post := func() {
		_, err := other.PostSend([]verbs.SendWR{{Opcode: verbs.WRSend, Flags: signal, NumSGE: 1}},
			[]verbs.SGE{p.a.sge(0, 64)})
		testutil.Must(t, err)
	}
	testutil.Equal(t, first, 0, "calls of OnFirstPacket before a packet")
	post()
	post()
	p.run(20)
	testutil.Equal(t, first, 1, "calls of OnFirstPacket")
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
	testutil.Is(t, p.a.qp.Connect(Peer{Path: wire.Path{MTU: 1024}}), unix.EINVAL, "second Connect")
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
