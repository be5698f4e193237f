package roce

import (
	"fmt"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/packet"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/wiretest"
)

// FuzzModel lets two queue pairs work against each other over a network with any faults.
func FuzzModel(f *testing.F) {
	f.Add(uint64(1), byte(0), byte(0), byte(0), byte(0), byte(0), byte(0))
	f.Add(uint64(7), byte(40), byte(40), byte(40), byte(40), byte(40), byte(40))
	f.Add(uint64(9), byte(120), byte(0), byte(0), byte(0), byte(0), byte(200))
	f.Fuzz(func(t *testing.T, seed uint64, loss, double, reorder, corrupt, refuse, delay byte) {
		chance := func(b byte) float64 { return float64(b%128) / 256 }
		p := newPair(t, options{
			Options: wiretest.Options{
				Loss: min(chance(loss), 0.3), Duplicate: chance(double), Reorder: chance(reorder),
				Corrupt: min(chance(corrupt), 0.3), Refuse: chance(refuse),
				Delay: time.Duration(delay) * 10 * time.Microsecond, Seed: seed,
			},
			mtu: 256 << (seed % 5), reads: uint8(1 + seed%16),
		})
		testModel(t, p, seed)
		check(t, p.a.qp)
		check(t, p.b.qp)
	})
}

// FuzzPackets sends any packets to a queue pair with work outstanding. Nothing outside the memory
// that the peer may write changes, and a queue pair next to it works.
func FuzzPackets(f *testing.F) {
	f.Add([]byte{0x00, 0, 10, 0, 0x04, 1, 4, 0})
	f.Add([]byte{0x0a, 0, 3, 1, 0x06, 1, 255, 2, 0x07, 2, 255, 2, 0x08, 3, 1, 2})
	f.Add([]byte{0x0c, 0, 200, 1, 0x0c, 0, 200, 1, 0x0c, 7, 100, 1, 0x11, 0, 0, 0x60})
	f.Add([]byte{0x11, 0, 0, 31, 0x0d, 0, 255, 0, 0x0f, 1, 7, 0, 0x10, 2, 255, 0, 0x81, 0, 4, 0})
	f.Add([]byte{0x17, 0, 4, 1, 0x16, 0, 4, 5, 0x11, 0, 0, 0x20, 0x11, 1, 0, 0x61})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 400 {
			return
		}
		x := newAttacker(t, options{mtu: 256, reads: 2})
		const open, size = 128 << 10, 64 << 10 // what the peer may write
		m := testutil.Value(x.a.pd.RegMR(x.a.buf[open:open+size],
			verbs.AccessLocalWrite|verbs.AccessRemoteRead|verbs.AccessRemoteWrite))(t)
		defer func() { testutil.Check(t, m.Dereg()) }()
		for i := range 4 {
			x.a.recv(uint64(i), open+1000*i, 1000)
		}
		x.mem.SetFaults(wiretest.Options{Filter: func(p *wire.Packet) bool {
			var h packet.Header
			return !h.Parse(p.Data) || h.QPN != x.b.qp.Num() // b hears nothing
		}})
		psn := x.b.qp.PSN() // of the first packet of a
		x.a.send(10, 0, 700)
		x.a.rdma(11, verbs.WRRDMARead, open+10000, 1000, 4096, 1)
		x.a.rdma(12, verbs.WRRDMAWrite, 0, 100, 4096, 1)
		x.a.rdma(13, verbs.WRRDMARead, open+12000, 100, 4096, 1)
		for ; len(data) >= 4; data = data[4:] {
			h := x.header(packet.Opcode(data[0]))
			if h.Opcode.Response() {
				h.PSN = psn
			}
			h.PSN += uint32(int32(int8(data[1])))
			h.AckReq = data[3]&0x80 != 0
			h.Pad = data[3] >> 5 & 3
			r := packet.RETH{
				Addr: x.a.at(open) + 256*uint64(data[1]), RKey: m.RKey() ^ uint32(data[3]&4),
				Len: uint32(data[2]) * uint32(1+data[3]&3),
			}
			n := int(data[2])
			if data[2] == 255 {
				n = 256
			}
			switch h.Opcode.Kind() {
			case packet.KindRead:
				x.send(h, 0, r)
			case packet.KindWrite:
				if h.Opcode.First() {
					x.send(h, n, r)
				} else {
					x.send(h, n)
				}
			case packet.KindAck:
				x.send(h, 0, packet.AETH{Syndrome: packet.Syndrome(data[3])})
			case packet.KindReadResponse:
				if h.Opcode == packet.ReadResponseMiddle {
					x.send(h, n)
				} else {
					x.send(h, n, packet.AETH{Syndrome: packet.Syndrome(data[2])})
				}
			default:
				x.send(h, n)
			}
			check(t, x.a.qp)
		}
		for range 200 { // all timers, or some of a connection that has no end
			x.turn()
		}
		check(t, x.a.qp)
		for i, b := range x.a.buf {
			if b != 0 && (i < open || i >= open+size) {
				t.Fatalf("byte %d was written", i)
			}
		}
		seen := map[uint64]bool{}
		for _, wc := range x.a.take() {
			testutil.MustTrue(t, !seen[wc.WRID], "two completions of %d", wc.WRID)
			seen[wc.WRID] = true
		}
		exchange(t, x.near)
	})
}

// check checks the order of the positions in a queue pair.
func check(t *testing.T, q *QP) {
	t.Helper()
	r, e := &q.requester, &q.responder
	head, tail := r.Head.Load(), r.Tail.Load()
	pending := 0
	for i := range e.reads {
		if e.reads[i].next < e.reads[i].to {
			pending++
		}
	}
	ok := head <= r.cur && r.cur <= tail && head <= r.numbered && r.numbered <= tail &&
		r.una <= r.next && r.next <= r.max && r.max <= r.numberedTo && r.readNo >= 0 &&
		r.readNo <= len(r.reads) && r.window >= minWindow && r.window <= maxWindow &&
		e.pending == pending && e.recvDone <= e.recvRoom && e.writeDone <= e.write.Len
	if q.load() == stateReady {
		ok = ok && r.cur <= r.numbered
	}
	if !ok {
		t.Fatalf("head %d cur %d numbered %d tail %d; %s; responder: %+v", head, r.cur, r.numbered,
			tail, fmt.Sprint(r.una, r.next, r.max, r.numberedTo, r.readNo, r.window), *e)
	}
}
