package roce

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/packet"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/wiretest"
)

// The memory of a side in the model test: sources do not change, the peer writes to targets, and
// READs and receives have slots of their own.
const (
	sources = 0
	targets = 256 << 10
	sinks   = 512 << 10
	recvs   = 768 << 10
	maxLen  = 40000
	slots   = 6 // READs and receives at once
)

// A model is one direction of the connection: requests of one side to the other.
type model struct {
	from, to *side
	rnd      *rand.Rand

	sent      [][]byte // SENDs that have no completion at the receiver yet
	wrs       []posted // not completed
	recvNo    uint64
	recvFree  int
	nextWR    uint64
	received  int
	completed int
	written   []byte // the targets of the receiver
	sinkBusy  [slots]bool
}

type posted struct {
	id       uint64
	op       verbs.SendOpcode
	n        int
	signaled bool
	sink     int // READ
	remote   int
}

func newModel(from, to *side, seed uint64) *model {
	m := &model{
		from: from, to: to, rnd: rand.New(rand.NewPCG(seed, seed)), recvFree: slots,
		written: make([]byte, sinks-targets),
	}
	for i := range from.buf[sources:targets] {
		from.buf[i] = byte(m.rnd.Uint32())
	}
	return m
}

func (m *model) length() int {
	switch m.rnd.IntN(4) {
	case 0:
		return m.rnd.IntN(4)
	case 1:
		return 1024 * m.rnd.IntN(5)
	case 2:
		return m.rnd.IntN(2000)
	}
	return m.rnd.IntN(maxLen)
}

// elements cuts memory at an offset into up to three elements.
func (m *model) elements(off, n int) []verbs.SGE {
	var list []verbs.SGE
	for range m.rnd.IntN(3) {
		k := m.rnd.IntN(n + 1)
		list = append(list, m.from.sge(off, k))
		off, n = off+k, n-k
	}
	return append(list, m.from.sge(off, n))
}

// post posts a random work request, or a receive at the other side.
func (m *model) post(t *testing.T) {
	if m.recvFree > 0 && m.rnd.IntN(2) == 0 {
		i := int(m.recvNo % slots)
		m.to.recv(1<<32|m.recvNo, recvs+i*maxLen, maxLen)
		m.recvNo++
		m.recvFree--
		return
	}
	if len(m.wrs) == 16 {
		return
	}
	p := posted{id: m.nextWR, n: m.length(), signaled: m.rnd.IntN(3) > 0 || len(m.wrs) > 8}
	wr := verbs.SendWR{WRID: p.id, RKey: m.to.mr.RKey()}
	if p.signaled {
		wr.Flags = signal
	}
	off := sources + m.rnd.IntN(targets-sources-maxLen)
	switch m.rnd.IntN(3) {
	case 0:
		p.op = verbs.WRSend
		m.sent = append(m.sent, m.from.buf[off:off+p.n])
	case 1:
		p.op = verbs.WRRDMAWrite
		to := m.rnd.IntN(sinks - targets - maxLen)
		wr.RemoteAddr = m.to.at(targets + to)
		copy(m.written[to:], m.from.buf[off:off+p.n])
	case 2:
		p.op, p.sink, p.signaled, wr.Flags = verbs.WRRDMARead, m.rnd.IntN(slots), true, signal
		if m.sinkBusy[p.sink] {
			return
		}
		m.sinkBusy[p.sink] = true
		p.remote = off
		wr.RemoteAddr = m.to.at(off)
		off = sinks + p.sink*maxLen
	}
	wr.Opcode = p.op
	m.nextWR++
	m.wrs = append(m.wrs, p)
	m.from.post(wr, m.elements(off, p.n)...)
}

// sendDone checks a completion of a work request.
func (m *model) sendDone(wc verbs.WC) error {
	for len(m.wrs) > 0 && m.wrs[0].id != wc.WRID && !m.wrs[0].signaled {
		m.wrs = m.wrs[1:]
	}
	if len(m.wrs) == 0 || m.wrs[0].id != wc.WRID || !m.wrs[0].signaled {
		return fmt.Errorf("completion %+v, %d work requests posted", wc, len(m.wrs))
	}
	p := m.wrs[0]
	m.wrs = m.wrs[1:]
	m.completed++
	if wc.Status != verbs.WCSuccess {
		return fmt.Errorf("completion %+v of %+v", wc, p)
	}
	if p.op == verbs.WRRDMARead {
		m.sinkBusy[p.sink] = false
		if !bytes.Equal(m.from.buf[sinks+p.sink*maxLen:][:p.n], m.to.buf[p.remote:][:p.n]) {
			return fmt.Errorf("READ %+v has other data", p)
		}
	}
	return nil
}

// recvDone checks a completion of a receive.
func (m *model) recvDone(wc verbs.WC) error {
	no := wc.WRID &^ (1 << 32)
	if wc.Status != verbs.WCSuccess || wc.Opcode != verbs.WCRecv || len(m.sent) == 0 ||
		no != uint64(m.received) {
		return fmt.Errorf("completion %+v after %d, %d messages on their way", wc, m.received,
			len(m.sent))
	}
	want := m.sent[0]
	m.sent = m.sent[1:]
	m.received++
	m.recvFree++
	if int(wc.ByteLen) != len(want) ||
		!bytes.Equal(m.to.buf[recvs+int(no%slots)*maxLen:][:len(want)], want) {
		return fmt.Errorf("message %d: %d bytes, want %d, or other bytes", no, wc.ByteLen,
			len(want))
	}
	return nil
}

// collect checks the completions of one side. requests are its own, responses the peer's.
func collect(t *testing.T, s *side, requests, responses *model) {
	t.Helper()
	for _, wc := range s.take() {
		err := error(nil)
		if wc.WRID>>32 != 0 {
			err = responses.recvDone(wc)
		} else {
			err = requests.sendDone(wc)
		}
		testutil.Must(t, err)
	}
}

// TestModel lets two queue pairs send each other random work over a network with faults, and
// compares memory and completions with a model.
func TestModel(t *testing.T) {
	faults := map[string]wiretest.Options{
		"perfect": {},
		"delay":   {Delay: 300 * time.Microsecond},
		"refuse":  {Refuse: 0.2},
		"loss 1%": {Loss: 0.01, Mark: 0.01},
		"loss":    {Loss: 0.15},
		"all": {
			Loss: 0.05, Duplicate: 0.1, Reorder: 0.1, Corrupt: 0.05, Mark: 0.1, Refuse: 0.1,
			Delay: 100 * time.Microsecond,
		},
	}
	for name, f := range faults {
		for seed := range uint64(4) {
			t.Run(fmt.Sprintf("%s/%d", name, seed), func(t *testing.T) {
				f.Seed = seed
				f.Filter = zeroPadding(t)
				p := newPair(t, options{Options: f, reads: uint8(1 + seed), mtu: 256 << seed})
				testModel(t, p, seed)
				if f.Loss+f.Corrupt+f.Reorder+f.Refuse == 0 {
					n := p.a.st.Retransmissions.Load() + p.b.st.Retransmissions.Load()
					testutil.Equal(t, n, 0, "retransmissions though nothing was lost")
				}
			})
		}
	}
}

// zeroPadding checks that nothing but zeros is sent as padding.
func zeroPadding(t *testing.T) func(*wire.Packet) bool {
	return func(p *wire.Packet) bool {
		h, ok := packet.ParseBTH(p.Data)
		pad := p.Data[len(p.Data)-int(h.Pad):]
		testutil.True(t, ok && len(bytes.Trim(pad, "\x00")) == 0, "padding %x", pad)
		return true
	}
}

func testModel(t *testing.T, p *pair, seed uint64) {
	ab, ba := newModel(p.a, p.b, 2*seed), newModel(p.b, p.a, 2*seed+1)
	check := func() {
		collect(t, p.a, ab, ba)
		collect(t, p.b, ba, ab)
	}
	// No connection fails by chance.
	p.a.qp.requester.retryTime, p.b.qp.requester.retryTime = time.Hour, time.Hour
	const work = 150
	for ab.nextWR < work || ba.nextWR < work {
		for _, m := range []*model{ab, ba} {
			for range m.rnd.IntN(4) {
				if m.nextWR < work {
					m.post(t)
				}
			}
		}
		for range ab.rnd.IntN(8) {
			p.turn()
		}
		check()
	}
	p.until("all work completes", func() bool {
		check()
		for _, m := range []*model{ab, ba} {
			for m.recvFree > 0 {
				i := int(m.recvNo % slots)
				m.to.recv(1<<32|m.recvNo, recvs+i*maxLen, maxLen)
				m.recvNo++
				m.recvFree--
			}
			for len(m.wrs) > 0 && !m.wrs[0].signaled && len(m.sent) == 0 {
				m.wrs = m.wrs[1:]
			}
		}
		return len(ab.wrs)+len(ba.wrs)+len(ab.sent)+len(ba.sent) == 0
	})
	p.settle()
	for _, m := range []*model{ab, ba} {
		testutil.MustTrue(t, bytes.Equal(m.written, m.to.buf[targets:sinks]),
			"WRITEs left other bytes")
	}
}

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
	testutil.MustTrue(t, ok, "head %d cur %d numbered %d tail %d; %s; responder: %+v", head, r.cur,
		r.numbered, tail, fmt.Sprint(r.una, r.next, r.max, r.numberedTo, r.readNo, r.window), *e)
}
