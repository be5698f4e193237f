package roce

import (
	"net/netip"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/engine"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/wiretest"
)

const (
	bufSize = 1 << 20
	signal  = verbs.SendSignaled
)

// A side is a machine with a connected queue pair and registered memory that the peer may use.
type side struct {
	t    testing.TB
	dev  *engine.Device
	net  wire.Network
	addr netip.Addr
	pd   *engine.PD
	cq   *engine.CQ
	buf  []byte
	mr   verbs.MR
	qp   *QP
	wcs  []verbs.WC
	st   Stats
	dead int // calls of Peer.Fatal
}

// A pair is two sides on a memory network with a manual clock.
type pair struct {
	t    testing.TB
	mem  *wiretest.Network
	a, b *side
}

type options struct {
	wiretest.Options
	send, recv, cqe int
	mtu             int
	reads           uint8 // in both directions
	peer            Peer  // everything but addresses, numbers and depths
}

func (o *options) defaults() {
	o.Manual = true
	if o.send == 0 {
		o.send = 16
	}
	if o.recv == 0 {
		o.recv = 16
	}
	if o.cqe == 0 {
		o.cqe = 256
	}
	if o.mtu == 0 {
		o.mtu = 1024
	}
	if o.reads == 0 {
		o.reads = 4
	}
	if o.peer.AckTimeout == 0 {
		o.peer.AckTimeout, o.peer.RetryCount, o.peer.RNRRetry = 16, 7, 7
	}
	if o.peer.MinRNRTimer == 0 {
		o.peer.MinRNRTimer = shortRNR
	}
}

func newSide(t testing.TB, m *wiretest.Network, name, addr string, o *options) *side {
	s := &side{t: t, addr: netip.MustParseAddr(addr)}
	s.net = m.Host(name, s.addr)
	s.dev = testutil.Value(engine.New(s.net, engine.Options{Name: name}))(t)
	s.pd = testutil.Value(s.dev.AllocPD())(t).(*engine.PD)
	s.buf = make([]byte, bufSize)
	s.mr = testutil.Value(s.pd.RegMR(s.buf,
		verbs.AccessLocalWrite|verbs.AccessRemoteRead|verbs.AccessRemoteWrite))(t)
	t.Cleanup(func() {
		testutil.Check(t, s.mr.Dereg())
		testutil.Check(t, s.pd.Dealloc())
		testutil.Check(t, s.dev.Close())
	})
	s.create(o)
	return s
}

// create makes the queue pair and its completion queue.
func (s *side) create(o *options) {
	t := s.t
	s.cq = testutil.Value(s.dev.CreateCQ(o.cqe, nil, 0))(t).(*engine.CQ)
	s.qp = testutil.Value(New(s.pd, verbs.QPInit{
		SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: o.send, MaxRecvWR: o.recv, MaxSendSGE: 3,
		MaxRecvSGE: 2,
	}, &s.st))(t)
	t.Cleanup(func() {
		testutil.Check(t, s.qp.Destroy())
		testutil.Check(t, s.cq.Destroy())
	})
}

// newPair makes two connected queue pairs.
func newPair(t testing.TB, o options) *pair {
	o.defaults()
	m := wiretest.New(o.Options)
	p := &pair{t: t, mem: m}
	p.a = newSide(t, m, "a", "192.0.2.1", &o)
	p.b = newSide(t, m, "b", "192.0.2.2", &o)
	p.connect(&o)
	return p
}

// neighbour makes another connection between the machines, which use the same memory.
func (p *pair) neighbour(o options) *pair {
	o.defaults()
	n := &pair{t: p.t, mem: p.mem}
	for _, s := range []struct{ to, from **side }{{&n.a, &p.a}, {&n.b, &p.b}} {
		f := *s.from
		*s.to = &side{t: f.t, dev: f.dev, net: f.net, addr: f.addr, pd: f.pd, buf: f.buf, mr: f.mr}
		(*s.to).create(&o)
	}
	n.connect(&o)
	return n
}

func (p *pair) connect(o *options) {
	for _, s := range [][2]*side{{p.a, p.b}, {p.b, p.a}} {
		peer := o.peer
		peer.Path = wire.Path{Local: s[0].addr, Remote: s[1].addr, TOS: wire.ECT0, MTU: o.mtu}
		peer.QPN, peer.PSN = s[1].qp.Num(), s[1].qp.PSN()
		peer.ResponderResources, peer.InitiatorDepth = o.reads, o.reads
		peer.Fatal = func() { s[0].dead++ }
		testutil.Must(p.t, s[0].qp.Connect(peer))
	}
}

// turn polls both sides, several times because a batch may be refused or not be all, and moves the
// clock to the next event.
func (p *pair) turn() (idle bool) {
	for range 3 {
		p.a.poll()
		p.b.poll()
	}
	d, ok := p.mem.Next()
	if !ok {
		return true
	}
	p.mem.Advance(d)
	return false
}

// until makes turns until cond holds.
func (p *pair) until(what string, cond func() bool) {
	p.t.Helper()
	for range 1 << 20 {
		if cond() {
			return
		}
		p.turn()
	}
	p.t.Fatalf("it never happens: %s", what)
}

// settle makes turns until nothing is on its way and no timer runs.
func (p *pair) settle() {
	p.t.Helper()
	for range 1 << 20 {
		if p.turn() {
			p.a.poll()
			p.b.poll()
			return
		}
	}
	p.t.Fatal("the connection never becomes quiet")
}

// run makes turns for a number of milliseconds.
func (p *pair) run(milliseconds int) {
	for range milliseconds {
		p.a.poll()
		p.b.poll()
		p.mem.Advance(time.Millisecond)
	}
}

func (s *side) poll() {
	var wcs [64]verbs.WC
	for n := 1; n > 0; {
		var err error
		if n, err = s.cq.Poll(wcs[:]); err != nil {
			s.t.Fatal(err)
		}
		s.wcs = append(s.wcs, wcs[:n]...)
	}
}

// take returns the completions so far.
func (s *side) take() []verbs.WC {
	wcs := s.wcs
	s.wcs = nil
	return wcs
}

func (s *side) at(off int) uint64 { return mem.Addr(s.buf) + uint64(off) }

func (s *side) sge(off, n int) verbs.SGE {
	return verbs.SGE{Addr: s.at(off), Length: uint32(n), LKey: s.mr.LKey()}
}

func (s *side) recv(id uint64, off, n int) {
	s.t.Helper()
	if n, err := s.qp.PostRecv([]verbs.RecvWR{{
		WRID: id, NumSGE: 1, SGE: [2]verbs.SGE{s.sge(off, n)},
	}}); n != 1 || err != nil {
		s.t.Fatalf("PostRecv: %d, %v", n, err)
	}
}

func (s *side) post(wr verbs.SendWR, sges ...verbs.SGE) {
	s.t.Helper()
	wr.NumSGE = uint32(len(sges))
	if n, err := s.qp.PostSend([]verbs.SendWR{wr}, sges); n != 1 || err != nil {
		s.t.Fatalf("PostSend: %d, %v", n, err)
	}
}

// send, write and read post signaled work requests for memory at an offset.
func (s *side) send(id uint64, off, n int) {
	s.t.Helper()
	s.post(verbs.SendWR{WRID: id, Opcode: verbs.WRSend, Flags: signal}, s.sge(off, n))
}

func (s *side) rdma(id uint64, op verbs.SendOpcode, off, n int, addr uint64, key uint32) {
	s.t.Helper()
	s.post(verbs.SendWR{WRID: id, Opcode: op, Flags: signal, RemoteAddr: addr, RKey: key},
		s.sge(off, n))
}

// statuses checks the completions so far: pairs of work request and status.
func (s *side) statuses(want ...any) {
	s.t.Helper()
	got := s.take()
	for i := 0; i < len(want); i += 2 {
		testutil.MustTrue(s.t, i/2 < len(got), "%d completions: %+v, want %v", len(got), got, want)
		if wc := got[i/2]; wc.WRID != uint64(want[i].(int)) || wc.Status != want[i+1] ||
			wc.QPNum != s.qp.Num() {
			s.t.Fatalf("completion %+v, want %v of work request %v", wc, want[i+1], want[i])
		}
	}
	testutil.MustTrue(s.t, len(got) == len(want)/2, "%d completions: %+v, want %v", len(got), got,
		want)
}

// fill writes a pattern.
func fill(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i)*7 + byte(i>>8) + seed
	}
}

func (s *side) filled(off, n int, seed byte) {
	s.t.Helper()
	for i := range n {
		if want := byte(i)*7 + byte(i>>8) + seed; s.buf[off+i] != want {
			s.t.Fatalf("byte %d is %#x, want %#x", i, s.buf[off+i], want)
		}
	}
}
