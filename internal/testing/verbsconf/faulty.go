package verbsconf

import (
	"runtime"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func testToError(t *testing.T, s *Setup) {
	p := connect(t, s, sizes{}, sizes{})
	e := p.p
	for i := range 5 {
		e.postRecv(e.recvWR(uint64(i), 0, 64))
	}
	e.must(e.qp.ToError(), "ToError")
	for i := range 5 {
		e.failure(uint64(i), verbs.WCWRFlushErr)
	}
	// Soft devices forget receives posted later; iWARP devices forget or refuse all.
	if !e.iwarp() {
		// Unsignaled work requests.
		for i, op := range []verbs.SendOpcode{verbs.WRSend, verbs.WRRDMAWrite, verbs.WRRDMARead} {
			e.postSend(verbs.SendWR{
				WRID: uint64(7 + i), Opcode: op, NumSGE: 1,
				RemoteAddr: p.a.addr(0), RKey: p.a.mr.RKey(),
			}, e.sge(0, 8))
			e.failure(uint64(7+i), verbs.WCWRFlushErr)
		}
	}
	e.must(e.qp.ToError(), "second ToError")
	e.idle("after flushing")
}

const guardID = 404

// postGuard posts a receive. Its flush shows that the queue pair is in the error state.
func (e *endpoint) postGuard() {
	e.t.Helper()
	e.postRecv(e.recvWR(guardID, 2<<20, 64))
}

// waitError waits for that flush. On iWARP the connection certainly ends, but siw goes to the error
// state only with ToError.
func (e *endpoint) waitError() {
	e.t.Helper()
	if e.iwarp() {
		e.event(verbs.EventDisconnected)
		e.must(e.qp.ToError(), "ToError")
	}
	if wc := e.find(guardID); wc.Status != verbs.WCWRFlushErr {
		e.t.Fatalf("completion %+v, want it flushed", wc)
	}
}

// testRemoteAccess tries accesses that memory rights forbid. On iWARP a WRITE has no answer and may
// succeed, but the connection ends.
func testRemoteAccess(t *testing.T, s *Setup) {
	for _, c := range []struct {
		name   string
		op     verbs.SendOpcode
		access verbs.Access
		off    int
		key    uint32
		// siw does not check this.
		unchecked bool
	}{
		{"write to local", verbs.WRRDMAWrite, verbs.AccessLocalWrite, 0, 0, false},
		{
			"write to read-only", verbs.WRRDMAWrite,
			verbs.AccessLocalWrite | verbs.AccessRemoteRead,
			0, 0, false,
		},
		{
			"write beyond", verbs.WRRDMAWrite, verbs.AccessLocalWrite | verbs.AccessRemoteWrite,
			4096 - 63, 0, false,
		},
		{
			"write far before", verbs.WRRDMAWrite, verbs.AccessLocalWrite | verbs.AccessRemoteWrite,
			-1, 0, false,
		},
		{
			"write with a wrong key", verbs.WRRDMAWrite,
			verbs.AccessLocalWrite | verbs.AccessRemoteWrite, 0, 0x55, false,
		},
		{"read of local", verbs.WRRDMARead, verbs.AccessLocalWrite, 0, 0, true},
		{
			"read of write-only", verbs.WRRDMARead,
			verbs.AccessLocalWrite | verbs.AccessRemoteWrite,
			0, 0, true,
		},
		{"read beyond", verbs.WRRDMARead, verbs.AccessRemoteRead, 4096 - 63, 0, false},
		{"read with a wrong key", verbs.WRRDMARead, verbs.AccessRemoteRead, 0, 0x55, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := connect(t, s, sizes{}, sizes{})
			m, err := p.a.pd.RegMR(p.a.buf[1<<20:1<<20+4096], c.access)
			p.a.must(err, "RegMR")
			t.Cleanup(func() { p.a.must(m.Dereg(), "deregister") })
			fill(p.p.buf[:64], 1)
			p.p.postGuard()
			p.p.rdma(1, c.op, 0, 64, p.a.addr(1<<20+c.off), m.RKey()^c.key)
			wc := p.p.find(1)
			switch attr := p.p.dev.Attr(); {
			case !attr.IWARP && wc.Status != verbs.WCRemAccessErr,
				c.op == verbs.WRRDMARead && wc.Status == verbs.WCSuccess &&
					!(c.unchecked && attr.VendorID == verbs.VendorSIW):
				t.Fatalf("completion %+v", wc)
			case c.op == verbs.WRRDMARead && wc.Status == verbs.WCSuccess:
				return
			}
			p.p.waitError()
			for i, b := range p.a.buf[1<<20-64 : 1<<20+4096+64] {
				if b != 0 {
					t.Fatalf("byte %d of the peer's memory was written", i-64)
				}
			}
		})
	}
}

// testLocalAccess uses memory with keys that are invalid on this side.
func testLocalAccess(t *testing.T, s *Setup) {
	for _, c := range []struct {
		name string
		op   verbs.SendOpcode
		bad  func(e *endpoint) verbs.SGE
	}{
		{
			"no key", verbs.WRSend,
			func(e *endpoint) verbs.SGE { g := e.sge(0, 64); g.LKey ^= 0x7700; return g },
		},
		{"beyond", verbs.WRSend, func(e *endpoint) verbs.SGE { return e.sge(bufSize-63, 64) }},
		{"key of the other domain", verbs.WRRDMAWrite, func(e *endpoint) verbs.SGE {
			pd, err := e.dev.AllocPD()
			e.must(err, "AllocPD")
			m, err := pd.RegMR(e.buf, verbs.AccessLocalWrite)
			e.must(err, "RegMR")
			e.t.Cleanup(func() { e.must(m.Dereg(), "deregister"); e.must(pd.Dealloc(), "free PD") })
			return verbs.SGE{Addr: e.addr(0), Length: 64, LKey: m.LKey()}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := connect(t, s, sizes{}, sizes{})
			p.p.postRecv(p.p.recvWR(3, 0, 64))
			p.a.postGuard()
			n, err := p.a.qp.PostSend([]verbs.SendWR{{
				WRID: 1, Opcode: c.op, Flags: signaled, NumSGE: 1,
				RemoteAddr: p.p.addr(1 << 20), RKey: p.p.mr.RKey(),
			}}, []verbs.SGE{c.bad(p.a)})
			if err != nil || n != 1 {
				return // a device may notice at once
			}
			if wc := p.a.find(1); wc.Status == verbs.WCSuccess {
				t.Fatalf("completion %+v", wc)
			}
			p.a.waitError()
		})
	}
}

// testShortReceive sends a message that is larger than its receive.
func testShortReceive(t *testing.T, s *Setup) {
	p := connect(t, s, sizes{}, sizes{})
	p.p.postRecv(p.p.recvWR(1, 1<<20, 63))
	p.each((*endpoint).postGuard)
	p.a.send(9, 0, 64)
	p.p.failure(1)
	p.p.waitError()
	if wc := p.a.find(9); !p.a.iwarp() && wc.Status != verbs.WCRemInvReqErr &&
		wc.Status != verbs.WCRemOpErr {
		t.Fatalf("completion %+v", wc)
	}
	p.a.waitError()
	testutil.MustTrue(t, p.p.buf[1<<20+63] == 0, "memory after the receive was written")
}

// testInvalidate sends with invalidate. A device may refuse to invalidate the key of an ordinary
// region (ibv_reg_mr); then the connection ends. A wrong key always ends it.
func testInvalidate(t *testing.T, s *Setup) {
	for _, wrong := range []bool{false, true} {
		p := connect(t, s, sizes{}, sizes{})
		m, err := p.a.pd.RegMR(p.a.buf[1<<20:2<<20], verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
		p.a.must(err, "RegMR")
		t.Cleanup(func() { p.a.must(m.Dereg(), "deregister") })
		key := m.RKey()
		if wrong {
			key ^= 0x7700
		}
		p.a.postRecv(p.a.recvWR(1, 0, 64))
		p.a.postGuard()
		p.p.postSend(verbs.SendWR{
			WRID: 3, Opcode: verbs.WRSendWithInv, Flags: signaled, NumSGE: 1,
			InvalidateRKey: key,
		}, p.p.sge(0, 64))
		wc := p.a.find(1)
		switch {
		case wc.Status != verbs.WCSuccess && p.a.dev.Attr().VendorID == verbs.VendorSIW:
			continue // the receive fails, the connection stays
		case wc.Status != verbs.WCSuccess:
		case wrong || wc.Flags&verbs.WCWithInv == 0 || wc.InvalidatedRKey != key ||
			wc.ByteLen != 64:
			t.Fatalf("completion %+v, invalidated %#x, wrong key: %v", wc, key, wrong)
		default:
			p.p.success(3, verbs.WCSend)
			p.p.rdma(4, verbs.WRRDMAWrite, 0, 64, p.a.addr(1<<20), key)
		}
		p.a.waitError()
		testutil.MustTrue(t, p.a.buf[1<<20] == 0, "memory of an invalidated key was written")
	}
}

// testAllocations measures the data path.
func testAllocations(t *testing.T, s *Setup) {
	p := connect(t, s, sizes{send: 64, recv: 64}, sizes{send: 64, recv: 64})
	const batch = 16
	var (
		wrs   [batch]verbs.SendWR
		recvs [batch]verbs.RecvWR
		sges  [batch]verbs.SGE
		wcs   [batch]verbs.WC
	)
	for i := range batch {
		wrs[i] = verbs.SendWR{WRID: uint64(i), Opcode: verbs.WRSend, FirstSGE: uint32(i), NumSGE: 1}
		sges[i] = p.a.sge(i*64, 64)
		recvs[i] = p.p.recvWR(uint64(i), i*64, 64)
	}
	wrs[batch-1].Flags = signaled
	collect := func(cq verbs.CQ, want int) {
		for want > 0 {
			n := testutil.Value(cq.Poll(wcs[:]))(t)
			for _, wc := range wcs[:n] {
				if wc.Status != verbs.WCSuccess {
					t.Fatalf("completion %+v", wc)
				}
			}
			want -= n
			if n == 0 {
				runtime.Gosched() // AllocsPerRun leaves one processor
			}
		}
	}
	if n := testutil.AllocsPerRun(s.Rounds, func() {
		if n, err := p.p.qp.PostRecv(recvs[:]); n != batch || err != nil {
			t.Fatal(n, err)
		}
		if n, err := p.a.qp.PostSend(wrs[:], sges[:]); n != batch || err != nil {
			t.Fatal(n, err)
		}
		if err := p.p.cq.ReqNotify(); err != nil {
			t.Fatal(err)
		}
		collect(p.p.cq, batch)
		collect(p.a.cq, 1)
	}); n != 0 {
		t.Errorf("%v allocations per round of posting and polling %d work requests", n, batch)
	}
}
