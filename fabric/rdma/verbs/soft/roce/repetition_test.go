package roce

import (
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/packet"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/wiretest"
)

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
