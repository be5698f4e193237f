package roce

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/packet"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/wiretest"
)

// An attacker sends packets to side a that seem to come from side b. It knows everything, so these
// tests also stand for a peer that is hostile itself.
type attacker struct {
	*pair
	conn wire.Conn
	path wire.Path
	near *pair // another connection of the same machines
}

func newAttacker(t testing.TB, o options) *attacker {
	x := &attacker{pair: newPair(t, o)}
	x.near = x.pair.neighbour(o)
	conns := testutil.Value(x.mem.Host("attacker", netip.MustParseAddr("192.0.2.66")).Open(1))(t)
	t.Cleanup(func() {
		for _, c := range conns {
			testutil.Check(t, c.Close())
		}
	})
	x.conn = conns[0]
	x.path = wire.Path{Local: x.b.addr, Remote: x.a.addr, TOS: wire.ECT0}
	return x
}

// expected is the next PSN a expects.
func (x *attacker) expected() uint32 { return x.a.qp.responder.expected.psn() }

// header returns a header of the connection with the PSN that a expects.
func (x *attacker) header(op packet.Opcode) packet.BTH {
	return packet.BTH{
		Opcode: op, PKey: packet.PKeyDefault, QPN: x.a.qp.Num(), PSN: x.expected(), AckReq: true,
	}
}

// send sends a packet and makes a turn: ext are extended headers, n is the length of the payload.
func (x *attacker) send(h packet.BTH, n int, ext ...interface{ Put([]byte) }) {
	x.put(h, n, ext...)
	x.turn()
}

func (x *attacker) put(h packet.BTH, n int, ext ...interface{ Put([]byte) }) {
	size := h.Opcode.HeaderSize()
	if size == 0 {
		size = packet.BTHSize
	}
	h.Pad |= uint8(packet.Pad(n))
	b := x.conn.Alloc(&x.path, size+n+packet.Pad(n))
	h.Put(b)
	clear(b[packet.BTHSize:])
	for _, e := range ext {
		e.Put(b[packet.BTHSize:])
	}
	for i := range n {
		b[size+i] = 0xee
	}
	x.conn.Flush()
}

// packet sends a packet with an opcode at the PSN that a expects.
func (x *attacker) packet(op packet.Opcode, n int, ext ...interface{ Put([]byte) }) {
	x.send(x.header(op), n, ext...)
}

// reth describes memory of a at an offset.
func (x *attacker) reth(off, n int) packet.RETH {
	return packet.RETH{Addr: x.a.at(off), RKey: x.a.mr.RKey(), Len: uint32(n)}
}

// exchange checks that a connection works in both directions.
func exchange(t *testing.T, p *pair) {
	t.Helper()
	p.a.take()
	p.b.take()
	for i, s := range [][2]*side{{p.a, p.b}, {p.b, p.a}} {
		off := 900<<10 + i*8192
		fill(s[0].buf[off:off+5000], byte(i))
		s[1].recv(70, off+4096*4, 5000)
		s[0].send(71, off, 5000)
		s[0].rdma(72, verbs.WRRDMARead, off+4096*8, 3000, s[1].at(off+4096*4), s[1].mr.RKey())
		p.until("the exchange completes", func() bool {
			return len(s[0].wcs) == 2 && len(s[1].wcs) == 1
		})
		s[0].statuses(71, verbs.WCSuccess, 72, verbs.WCSuccess)
		s[1].statuses(70, verbs.WCSuccess)
		s[1].filled(off+4096*4, 5000, byte(i))
		s[0].filled(off+4096*8, 3000, byte(i))
	}
}

const guard = 5

// sendText sends the packets of a row of testdata/hostile.txt, which describes them, or of
// testdata/forged.txt. psn returns the PSN of a packet without a change.
func (x *attacker) sendText(text string, psn func() uint32) {
	x.t.Helper()
	for one := range strings.SplitSeq(text, "; ") {
		words := strings.Fields(one)
		h := x.header(opcode(x.t, words[0]))
		n, r := 1024, x.reth(0, 2*1024+16)
		if h.Opcode.Last() {
			n, r.Len = 16, 16
		}
		var ext []interface{ Put([]byte) }
		h.PSN, h.AckReq = psn(), !h.Opcode.Response()
		for _, word := range words[1:] {
			name, value, _ := strings.Cut(word, "=")
			v, err := strconv.ParseInt(value, 0, 64)
			testutil.MustEqual(x.t, err, nil, "%s", one)
			switch name {
			case "n":
				n, r.Len = int(v), uint32(v)
			case "len":
				r.Len = uint32(v)
			case "at":
				r.Addr = x.a.at(int(v))
			case "address":
				r.Addr = uint64(v)
			case "key":
				r.RKey ^= uint32(v)
			case "invalidate":
				ext = append(ext, packet.IETH(x.a.mr.RKey()^uint32(v)))
			case "syndrome":
				ext = append(ext, packet.AETH{Syndrome: packet.Syndrome(v), MSN: 1})
			case "qpn":
				h.QPN ^= uint32(v)
			case "partition":
				h.PKey = uint16(v)
			case "psn":
				h.PSN = (h.PSN + uint32(v)) & 0xffffff
			case "pad":
				h.Pad = uint8(v)
			case "as":
				ext, h.Opcode = append(ext, r), packet.Opcode(v)
			default:
				x.t.Fatalf("unknown change %s", word)
			}
		}
		switch h.Opcode {
		case packet.WriteFirst, packet.WriteOnly, packet.ReadRequest:
			ext = append(ext, r)
		}
		if h.Opcode == packet.ReadRequest {
			n = 0
		}
		x.send(h, n, ext...)
	}
}

// opcode returns the opcode with a name, in which "-" stands for a space, or a number.
func opcode(t testing.TB, name string) packet.Opcode {
	t.Helper()
	for op := range packet.Opcode(255) {
		if op.String() == strings.ReplaceAll(name, "-", " ") {
			return op
		}
	}
	return packet.Opcode(testutil.Value(strconv.ParseUint(name, 0, 8))(t))
}

// The answers of testdata/hostile.txt, and the statuses of the receive.
var (
	hostileNAKs = map[string]packet.Syndrome{
		"-": 0, "access": packet.NAKAccess, "invalid": packet.NAKInvalid,
	}
	hostileStatuses = map[string]verbs.WCStatus{
		"-": verbs.WCSuccess, "flushed": verbs.WCWRFlushErr, "length": verbs.WCLocLenErr,
		"request": verbs.WCRemInvReqErr,
	}
)

// TestHostileRequests sends requests that must be ignored, or end the connection. Bytes of the
// victim change only where the peer may write, and the other connection goes on.
func TestHostileRequests(t *testing.T) {
	for _, row := range testutil.Rows(t, "hostile") {
		var name, packets string
		var want packet.Syndrome
		var recv verbs.WCStatus
		var wrote int // bytes from 0 on
		row.Scan(&name, &packets, testutil.Named(&want, hostileNAKs),
			testutil.Named(&recv, hostileStatuses), &wrote)
		t.Run(name, func(t *testing.T) {
			x := newAttacker(t, options{mtu: 1024})
			x.a.recv(guard, 100<<10, 4096)
			var naks []packet.Syndrome
			x.mem.SetFaults(wiretest.Options{Filter: func(p *wire.Packet) bool {
				var h packet.Header
				if h.Parse(p.Data) && h.Kind == packet.KindAck &&
					h.AETH.Syndrome != packet.AckNoCredits &&
					h.AETH.Syndrome != packet.NAKSequence {
					naks = append(naks, h.AETH.Syndrome)
				}
				return true
			}})
			if name == "source" {
				x.path.Local = netip.MustParseAddr("192.0.2.66")
			}
			x.sendText(packets, x.expected)
			x.settle()
			for i, b := range x.a.buf {
				if b != 0 && i >= wrote && (i < 100<<10 || i >= 100<<10+4096) {
					t.Fatalf("byte %d was written", i)
				}
			}
			if want == 0 {
				testutil.EqualSlices(t, naks, nil, "NAKs")
				x.a.send(1, 0, 64) // the guard is still posted
				x.b.recv(2, 0, 64)
				x.b.send(3, 0, 64)
				x.settle()
				x.a.statuses(guard, recv, 1, verbs.WCSuccess)
				exchange(t, x.pair)
			} else {
				testutil.EqualSlices(t, naks, []packet.Syndrome{want}, "NAKs")
				x.a.statuses(guard, recv)
				testutil.Equal(t, x.a.dead, 1, "calls of Fatal")
				testutil.Equal(t, x.b.dead, 0, "calls of Fatal of the peer, which sent nothing")
			}
			exchange(t, x.near)
		})
	}
}

// TestForgedResponses sends responses to requests that a has not sent, or that do not fit.
func TestForgedResponses(t *testing.T) {
	for _, row := range testutil.Rows(t, "forged") {
		var name, response string
		var ends bool
		row.Scan(&name, &response, &ends)
		t.Run(name, func(t *testing.T) {
			x := newAttacker(t, options{})
			fill(x.b.buf[:100], 1)
			deaf := func(on bool) {
				x.mem.SetFaults(wiretest.Options{Filter: func(p *wire.Packet) bool {
					return !on || p.Remote.Addr() != x.b.addr
				}})
			}
			// The peer does not hear a SEND and a READ, so that only the attacker answers.
			deaf(true)
			x.b.recv(3, 1<<16, 64)
			psn := x.b.qp.PSN() // of the first packet of a
			x.a.send(1, 4096, 64)
			x.a.rdma(2, verbs.WRRDMARead, 1<<17, 100, x.b.at(0), x.b.mr.RKey())
			x.sendText(response, func() uint32 { return psn })
			testutil.Equal(t, x.a.dead, 0, "calls of Fatal")
			for i, b := range x.a.buf[1<<17:] {
				testutil.MustTrue(t, b == 0, "byte %d of the READ's memory was written", i)
			}
			deaf(false)
			x.settle()
			// An answer with the PSN of the READ also acknowledges the SEND, as any ACK would: who
			// can read and forge packets of a connection can end it.
			if !ends {
				x.a.statuses(1, verbs.WCSuccess, 2, verbs.WCSuccess)
				x.a.filled(1<<17, 100, 1)
				x.b.statuses(3, verbs.WCSuccess)
				exchange(t, x.pair)
			}
			exchange(t, x.near)
		})
	}
}

// TestReplayedReads repeats one READ request many times. Each gets no more than its own response,
// and nothing is stored.
func TestReplayedReads(t *testing.T) {
	x := newAttacker(t, options{reads: 2})
	const n = 8192 // eight packets
	h := x.header(packet.ReadRequest)
	sent := 0
	x.mem.SetFaults(wiretest.Options{Filter: func(p *wire.Packet) bool {
		if p.Local.Addr() == x.a.addr {
			sent++
		}
		return true
	}})
	flood := func(times int) {
		for range times {
			b := x.conn.Alloc(&x.path, packet.BTHSize+packet.RETHSize)
			h.Put(b)
			x.reth(0, n).Put(b[packet.BTHSize:])
		}
		x.conn.Flush()
		x.settle()
	}
	flood(1)
	testutil.Equal(t, sent, 8, "packets of the first response")
	sent = 0
	flood(64) // in one batch: they are one request
	testutil.MustTrue(t, sent <= 8, "%d packets for repetitions in a batch, want 8", sent)

	// A part that was not asked for before, other memory, another key, and one that spans two.
	sent = 0
	for _, r := range []packet.RETH{
		x.reth(0, n+1024), x.reth(1024, n), {Addr: x.a.at(0), RKey: 1, Len: n},
	} {
		x.send(h, 0, r)
	}
	testutil.Equal(t, sent, 0, "packets for READs that only seem to be repetitions")

	// Two others take the place of the first, which is then forgotten.
	x.packet(packet.ReadRequest, 0, x.reth(0, 64))
	x.packet(packet.ReadRequest, 0, x.reth(64, 64))
	x.settle()
	sent = 0
	flood(1)
	testutil.Equal(t, sent, 0, "packets for a READ that is forgotten")
	testutil.Equal(t, x.a.dead, 0, "calls of Fatal")
	exchange(t, x.near)
}

// TestTooManyReads sends more READs than agreed.
func TestTooManyReads(t *testing.T) {
	x := newAttacker(t, options{reads: 2})
	x.a.recv(guard, 0, 64)
	h := x.header(packet.ReadRequest)
	for i := range 3 {
		b := x.conn.Alloc(&x.path, packet.BTHSize+packet.RETHSize)
		h.PSN = x.expected() + 100*uint32(i)
		h.Put(b)
		x.reth(0, 100*1024).Put(b[packet.BTHSize:])
	}
	x.conn.Flush()
	x.settle()
	x.a.statuses(guard, verbs.WCWRFlushErr)
	exchange(t, x.near)
}

// TestRepeatedReadOfOldMemory repeats a READ after its memory has been deregistered, like a packet
// that comes late: it is ignored.
func TestRepeatedReadOfOldMemory(t *testing.T) {
	x := newAttacker(t, options{})
	m := testutil.Value(x.a.pd.RegMR(x.a.buf[:4096], verbs.AccessRemoteRead))(t)
	h, r := x.header(packet.ReadRequest), x.reth(0, 64)
	r.RKey = m.RKey()
	x.send(h, 0, r)
	testutil.Must(t, m.Dereg())
	x.send(h, 0, r)
	x.settle()
	testutil.Equal(t, x.a.dead, 0, "calls of Fatal")
	exchange(t, x.near)
}

// TestReadMemoryGone deregisters memory while a READ of it is answered: the peer gets an error.
// Requests after it fail as well, though they were executed.
func TestReadMemoryGone(t *testing.T) {
	p := newPair(t, options{mtu: 256})
	near := p.neighbour(options{})
	m := testutil.Value(p.b.pd.RegMR(p.b.buf[:1<<16], verbs.AccessRemoteRead))(t)
	p.b.recv(guard, 1<<17, 64)
	p.a.rdma(1, verbs.WRRDMARead, 0, readChunk, p.b.at(0), m.RKey())
	p.a.qp.requester.window = maxWindow
	p.a.send(2, 0, 64)
	// The first half of the packets fills the batch, which the socket does not take.
	p.mem.SetFaults(wiretest.Options{Refuse: 1})
	p.b.dev.Engine(0).Step()
	testutil.Must(t, m.Dereg())
	p.mem.SetFaults(wiretest.Options{})
	p.settle()
	p.a.statuses(1, verbs.WCRemAccessErr, 2, verbs.WCWRFlushErr)
	p.b.statuses(guard, verbs.WCSuccess)
	testutil.Equal(t, p.b.dead, 1, "calls of Fatal")
	exchange(t, near)
}

// TestLostNAK loses the NAK of an error several times, and the response to a READ before it: the
// peer learns the reason nevertheless.
func TestLostNAK(t *testing.T) {
	for _, c := range []struct {
		wr   verbs.SendWR
		want verbs.WCStatus
	}{
		{verbs.SendWR{Opcode: verbs.WRRDMAWrite}, verbs.WCRemAccessErr}, // without a key
		{verbs.SendWR{Opcode: verbs.WRSend}, verbs.WCRemInvReqErr},      // longer than the receive
	} {
		p := newPair(t, options{})
		naks, data := 0, 0
		p.mem.SetFaults(wiretest.Options{Filter: func(pk *wire.Packet) bool {
			var h packet.Header
			switch {
			case !h.Parse(pk.Data):
			case h.Kind == packet.KindReadResponse && data < 3:
				data++
				return false
			case h.Kind == packet.KindAck && h.AETH.Syndrome.Type() == packet.SyndromeNAK:
				naks++
				return naks == 1 || naks > 4 // the first arrives without the data before it
			}
			return true
		}})
		p.b.recv(guard, 0, 63)
		p.a.rdma(1, verbs.WRRDMARead, 0, 64, p.b.at(0), p.b.mr.RKey())
		c.wr.WRID = 2
		p.a.post(c.wr, p.a.sge(0, 64))
		p.a.send(3, 0, 8)
		p.until("the error arrives", func() bool { return p.a.dead > 0 })
		p.a.statuses(1, verbs.WCSuccess, 2, c.want, 3, verbs.WCWRFlushErr)
		testutil.Equal(t, naks, 5, "NAKs")
		testutil.Equal(t, p.b.dead, 1, "calls of Fatal of the responder")
	}
}

// TestSilentAfterToError ends a queue pair that repeats a NAK: it is silent then.
func TestSilentAfterToError(t *testing.T) {
	x := newAttacker(t, options{})
	sent := x.count(packet.KindAck)
	h := x.header(packet.SendMiddle)
	x.send(h, 1024)
	x.send(h, 1024)
	testutil.Equal(t, *sent, 2, "NAKs")
	testutil.Must(t, x.a.qp.ToError())
	x.send(h, 1024)
	testutil.Equal(t, *sent, 2, "NAKs after ToError")
}

// count counts the packets of a kind that a sends from now on.
func (x *attacker) count(kind packet.Kind) *int {
	n := new(int)
	x.mem.SetFaults(wiretest.Options{Filter: func(p *wire.Packet) bool {
		var h packet.Header
		if p.Local.Addr() == x.a.addr && h.Parse(p.Data) && h.Kind == kind &&
			h.QPN == x.b.qp.Num() {
			*n++
		}
		return true
	}})
	return n
}

// TestOneNAK has gaps before many packets: each gap gets one NAK, and a SEND that found no receive
// only its RNR NAK.
func TestOneNAK(t *testing.T) {
	x := newAttacker(t, options{})
	sent := x.count(packet.KindAck)
	late := func(h packet.BTH) {
		for range 10 {
			h.PSN++
			x.send(h, 1024)
		}
	}
	late(x.header(packet.SendMiddle))
	testutil.Equal(t, *sent, 1, "NAKs of ten packets")
	h := x.header(packet.WriteOnly)
	h.AckReq = false
	x.send(h, 64, x.reth(0, 64))
	late(x.header(packet.SendMiddle))
	testutil.Equal(t, *sent, 2, "NAKs of ten packets after another gap")
	x.packet(packet.SendFirst, 1024)
	late(x.header(packet.SendMiddle))
	testutil.Equal(t, *sent, 3, "NAKs after a SEND without a receive")
}

// TestReadsInOneBatch receives READs before the responses to earlier ones are sent.
func TestReadsInOneBatch(t *testing.T) {
	x := newAttacker(t, options{reads: 1})
	sent := x.count(packet.KindReadResponse)
	batch := func(reads ...packet.BTH) {
		for _, h := range reads {
			b := x.conn.Alloc(&x.path, packet.BTHSize+packet.RETHSize)
			off := int(h.PSN-reads[0].PSN) % 8 * 1024
			h.Put(b)
			x.reth(off, 8192-off).Put(b[packet.BTHSize:])
		}
		x.conn.Flush()
		x.settle()
	}
	h := x.header(packet.ReadRequest)
	part := h
	part.PSN += 4
	batch(h, part)
	testutil.Equal(t, *sent, 8, "packets for a READ and the repetition of its second half")
	*sent = 0
	batch(h, x.header(packet.ReadRequest))
	testutil.Equal(t, *sent, 8, "packets for a repetition and a READ that takes its place")
	testutil.Equal(t, x.a.dead, 0, "calls of Fatal")
	check(t, x.a.qp)
}

// TestNoReceive has a peer without receives. With an endless count the SEND is repeated once a
// millisecond, even if the peer asks for more, and the neighbour does not notice.
func TestNoReceive(t *testing.T) {
	x := newAttacker(t, options{
		peer: Peer{AckTimeout: 16, RetryCount: 7, RNRRetry: 7, MinRNRTimer: 1},
	})
	sent := x.count(packet.KindSend)
	begin := x.now()
	x.a.send(1, 0, 5000)
	x.until("many NAKs", func() bool { return x.a.st.RNRReceived.Load() == 1001 })
	testutil.Equal(t, x.now()-begin, 1001*minRNR,
		"time of 1,000 repetitions and the wait for the next")
	testutil.Equal(t, *sent, 5+1000, "packets: all at first, then one at a time")
	exchange(t, x.near)
	x.b.recv(2, 1<<16, 5000)
	x.settle()
	x.a.statuses(1, verbs.WCSuccess)
	x.b.statuses(2, verbs.WCSuccess)
}

// TestRNRRetries counts the repetitions of a finite count.
func TestRNRRetries(t *testing.T) {
	for _, n := range []uint8{0, 1, 3} {
		p := newPair(t, options{peer: Peer{AckTimeout: 16, RetryCount: 7, RNRRetry: n}})
		sent := 0 // a NAK that comes twice counts once
		p.mem.SetFaults(wiretest.Options{Duplicate: 1, Filter: func(pk *wire.Packet) bool {
			if pk.Local.Addr() == p.a.addr {
				sent++
			}
			return true
		}})
		p.a.send(1, 0, 64)
		p.a.send(2, 0, 64)
		p.settle()
		testutil.Equal(t, sent, 2+int(n), "packets with count %d", n)
		p.a.statuses(1, verbs.WCRNRRetryExcErr, 2, verbs.WCWRFlushErr)
		testutil.Equal(t, p.a.st.RNRReceived.Load(), uint64(n)+1, "RNR NAKs with count %d", n)
		testutil.Equal(t, p.b.dead, 0, "calls of Fatal of the peer")
	}
	// The count is for each message.
	p := newPair(t, options{peer: Peer{AckTimeout: 16, RetryCount: 7, RNRRetry: 1}})
	for i := range 3 {
		p.a.send(uint64(i), 0, 64)
		p.until("an RNR NAK", func() bool { return p.a.st.RNRReceived.Load() == uint64(i)+1 })
		p.b.recv(uint64(i), 0, 64)
		p.settle()
		p.a.statuses(i, verbs.WCSuccess)
	}
}

// TestSilentPeer has a peer that stops acknowledging: the connection ends after its timeouts,
// and work requests complete in order.
func TestSilentPeer(t *testing.T) {
	for _, lost := range []string{"requests", "answers"} {
		t.Run(lost, func(t *testing.T) {
			o := options{peer: Peer{AckTimeout: 14, RetryCount: 3, RNRRetry: 7}}
			x := newAttacker(t, o)
			victim := x.a.qp.Num()
			sent := 0
			x.mem.SetFaults(wiretest.Options{Filter: func(p *wire.Packet) bool {
				var h packet.Header
				ok := h.Parse(p.Data)
				if ok && h.QPN == x.b.qp.Num() {
					sent++
				}
				return !ok || h.QPN != x.b.qp.Num() && lost == "requests" ||
					h.QPN != victim && lost == "answers"
			}})
			begin := x.now()
			for i := range 6 {
				x.a.send(uint64(i), 0, 3000)
			}
			x.until("the connection ends", func() bool { return x.a.dead > 0 })
			end := x.now()
			x.a.statuses(0, verbs.WCRetryExcErr, 1, verbs.WCWRFlushErr, 2, verbs.WCWRFlushErr,
				3, verbs.WCWRFlushErr, 4, verbs.WCWRFlushErr, 5, verbs.WCWRFlushErr)
			testutil.Equal(t, end-begin, 4*(4096*time.Nanosecond<<14), "time until it ends")
			testutil.MustTrue(t, sent <= 18+10, "%d packets to a silent peer", sent)
			exchange(t, x.near)
		})
	}
}

func (p *pair) now() time.Duration { return p.a.qp.Eng.Conn().Now() }

// TestFarPeer has a peer that is farther away than the first repetition: the requester learns that.
func TestFarPeer(t *testing.T) {
	p := newPair(t, options{Options: wiretest.Options{Delay: 40 * time.Millisecond}})
	for i := range 100 {
		p.a.rdma(uint64(i), verbs.WRRDMAWrite, 0, 20000, p.b.at(0), p.b.mr.RKey())
		if i == 20 {
			p.a.st.Timeouts.Store(0)
		}
		p.until("the WRITE completes", func() bool { return len(p.a.wcs) == i+1 })
	}
	testutil.Equal(t, p.a.st.Timeouts.Load(), 0, "timeouts of later WRITEs")
}

// TestCNPFlood floods a with congestion notifications: it becomes slower, not silent.
func TestCNPFlood(t *testing.T) {
	x := newAttacker(t, options{})
	cnp := packet.BTH{Opcode: packet.CNP, PKey: packet.PKeyDefault, QPN: x.a.qp.Num(), BECN: true}
	for range 200 {
		x.send(cnp, 16)
	}
	testutil.Equal(t, x.a.qp.requester.window, firstWindow/2, "window after many CNPs at once")
	fill(x.a.buf[:100000], 3)
	x.a.rdma(1, verbs.WRRDMAWrite, 0, 100000, x.b.at(0), x.b.mr.RKey())
	for len(x.a.wcs) == 0 {
		x.send(cnp, 16)
		testutil.MustTrue(t, x.a.qp.requester.window >= minWindow, "the window is closed")
	}
	x.a.statuses(1, verbs.WCSuccess)
	x.b.filled(0, 100000, 3)
	exchange(t, x.near)
}

// TestCNPInterval marks all packets of the peer: it gets one CNP in 50 µs.
func TestCNPInterval(t *testing.T) {
	p := newPair(t, options{Options: wiretest.Options{Mark: 1, Delay: 10 * time.Microsecond}})
	p.a.rdma(1, verbs.WRRDMAWrite, 0, 200000, p.b.at(0), p.b.mr.RKey())
	begin := p.now()
	p.settle()
	end := p.now()
	p.a.statuses(1, verbs.WCSuccess)
	n, most := p.b.st.CNPSent.Load(), uint64((end-begin)/cnpInterval+1)
	testutil.MustTrue(t, n >= 2 && n <= most, "%d CNPs, at most %d are allowed", n, most)
	testutil.Equal(t, p.a.st.CNPReceived.Load(), n, "CNPs received")
}

// TestLocalErrors fails work requests by their own memory: earlier ones complete first.
func TestLocalErrors(t *testing.T) {
	for i, bad := range []func(p *pair) (verbs.SendWR, verbs.SGE){
		func(p *pair) (verbs.SendWR, verbs.SGE) {
			g := p.a.sge(0, 64)
			g.LKey ^= 0x770000
			return verbs.SendWR{Opcode: verbs.WRSend}, g
		},
		func(p *pair) (verbs.SendWR, verbs.SGE) {
			return verbs.SendWR{
				Opcode: verbs.WRRDMARead, RemoteAddr: p.b.at(0), RKey: p.b.mr.RKey(),
			}, p.a.sge(bufSize-63, 64)
		},
		func(p *pair) (verbs.SendWR, verbs.SGE) {
			return verbs.SendWR{
				Opcode: verbs.WRRDMAWrite, RemoteAddr: p.b.at(0), RKey: p.b.mr.RKey(),
			}, p.a.sge(bufSize-70000, 70001)
		},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			p := newPair(t, options{Options: wiretest.Options{Delay: time.Millisecond}})
			p.a.rdma(1, verbs.WRRDMAWrite, 0, 9000, p.b.at(0), p.b.mr.RKey())
			p.a.rdma(2, verbs.WRRDMARead, 0, 9000, p.b.at(0), p.b.mr.RKey())
			wr, g := bad(p)
			wr.WRID = 3
			p.a.post(wr, g)
			p.a.send(4, 0, 8)
			p.settle()
			p.a.statuses(1, verbs.WCSuccess, 2, verbs.WCSuccess, 3, verbs.WCLocProtErr, 4,
				verbs.WCWRFlushErr)
			testutil.Equal(t, p.a.dead, 1, "calls of Fatal")
		})
	}
	// A READ without READs agreed on.
	p := newPair(t, options{})
	p.a.qp.requester.reads = nil
	p.a.rdma(1, verbs.WRRDMAWrite, 0, 64, p.b.at(0), p.b.mr.RKey())
	p.a.rdma(2, verbs.WRRDMARead, 0, 64, p.b.at(0), p.b.mr.RKey())
	p.settle()
	p.a.statuses(1, verbs.WCSuccess, 2, verbs.WCLocQPOpErr)
}
