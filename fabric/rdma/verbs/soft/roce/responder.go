package roce

import (
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/engine"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/packet"
)

// A message is the kind of a message that has begun and not ended.
type message uint8

const (
	messageNone message = iota
	messageSend
	messageWrite
)

// The responder executes requests in the order of PSNs.
type responder struct {
	expected seq
	// acked is the PSN of the last SEND or WRITE packet executed, which an ACK has. A READ is
	// acknowledged by its response only: rxe would take an ACK with its PSN for the response.
	acked   seq
	msn     uint32 // messages completed
	message message

	recvRoom uint32 // bytes its elements have
	recvDone uint32 // bytes of the message so far

	write     packet.RETH // of the WRITE that has begun
	writeDone uint32

	// reads is a ring of the READs executed last, one for each that the peer may have outstanding.
	// They stay, because the response may be lost.
	reads   []read
	readNo  uint64 // READs executed so far
	pending int    // reads with something to send

	ack    bool // an acknowledgment is due
	waited int  // the number of turns that it has waited
	// nak is the NAK that is due, 0 if none. It has the expected PSN.
	nak packet.Syndrome
	// silent: a NAK was sent for the expected PSN. Later packets get no other (section 9.7.5.2.8).
	silent bool
	// failed is the NAK that ended the connection, 0 if none.
	failed   packet.Syndrome
	rnrTimer uint8
}

// A read is a READ request that was executed. Of its PSNs [first, end), those in [next, to) are to
// be sent. The response to the request sent last begins at begin.
type read struct {
	packet.RETH
	first, end      seq
	next, to, begin seq
	again           bool // all was sent once
	repeats         int  // requests in a row that asked again for nearly all of it
}

func (r *responder) connect(p *Peer) {
	r.reads = make([]read, min(p.ResponderResources, maxReads))
	r.acked = r.expected - 1
	r.rnrTimer = p.MinRNRTimer & 31
}

// request handles a request packet (section 9.7.4.1).
func (q *QP) request(h *packet.Header) {
	r := &q.responder
	s := r.expected.near(h.PSN)
	switch {
	case s < r.expected:
		q.stats.Duplicates.Add(1)
		q.duplicate(h, s)
		return
	case r.failed != 0:
		r.nak = r.failed // it was lost
		return
	case s > r.expected:
		q.stats.OutOfOrder.Add(1)
		if !r.silent {
			r.silent, r.nak = true, packet.NAKSequence
		}
		return
	}
	r.silent = false
	if r.nak.Type() == packet.SyndromeRNR {
		r.nak = 0
	}
	if fn := q.onFirst; fn != nil {
		q.onFirst = nil
		fn()
	}
	nak := packet.Syndrome(0)
	switch h.Kind {
	case packet.KindSend:
		nak = q.send(h)
	case packet.KindWrite:
		nak = q.write(h)
	case packet.KindRead:
		nak = q.read(h)
	default:
		// Immediate data, atomics and reserved opcodes.
		nak = packet.NAKInvalid
	}
	switch {
	case nak == 0:
		r.ack = r.ack || h.AckReq
	case nak.Type() == packet.SyndromeRNR:
		q.stats.RNRSent.Add(1)
		r.silent, r.nak = true, nak
	default:
		r.nak, r.failed = nak, nak
		q.fatal()
	}
}

// sized reports whether the payload has the length that its place in the message demands (section
// 9.7.4.1.6): the path MTU unless it is the last, and not nothing unless it is the only one.
func (q *QP) sized(h *packet.Header) bool {
	n := uint32(len(h.Payload))
	if !h.Opcode.Last() {
		return n == q.mtu
	}
	return n > 0 || h.Opcode.First()
}

// send executes a packet of a SEND. It returns the NAK, or 0.
func (q *QP) send(h *packet.Header) packet.Syndrome {
	r := &q.responder
	first, n := h.Opcode.First(), uint32(len(h.Payload))
	if first != (r.message == messageNone) || !first && r.message != messageSend || !q.sized(h) {
		return packet.NAKInvalid
	}
	if first {
		if !q.RQ.Take(&q.Recv) {
			return packet.SyndromeRNR | packet.Syndrome(r.rnrTimer)
		}
		r.message, r.recvRoom, r.recvDone = messageSend, 0, 0
		for _, s := range q.Recv.SGE[:q.Recv.NumSGE] {
			r.recvRoom += min(s.Length, engine.MaxMessage)
		}
	}
	if n > r.recvRoom-r.recvDone {
		return q.failRecv(verbs.WCLocLenErr, packet.NAKInvalid)
	}
	if !q.Locate(q.Recv.SGE[:q.Recv.NumSGE], r.recvDone, n, verbs.AccessLocalWrite) {
		return q.failRecv(verbs.WCLocProtErr, packet.NAKOperational)
	}
	q.scatter(h.Payload)
	r.recvDone += n
	if h.Opcode.Last() {
		wc := verbs.WC{ByteLen: r.recvDone}
		if h.Opcode.Invalidates() {
			if !q.Dev.Invalidate(q.PD, uint32(h.IETH)) {
				return q.failRecv(verbs.WCRemInvReqErr, packet.NAKInvalid)
			}
			wc.Flags, wc.InvalidatedRKey = verbs.WCWithInv, uint32(h.IETH)
		}
		r.message = messageNone
		r.msn++
		q.CompleteRecv(wc)
	}
	r.acked = r.expected
	r.expected++
	return 0
}

// failRecv completes the receive of a SEND that cannot be executed and passes the NAK on.
func (q *QP) failRecv(status verbs.WCStatus, nak packet.Syndrome) packet.Syndrome {
	q.responder.message = messageNone
	q.CompleteRecv(verbs.WC{Status: status})
	return nak
}

// write executes a packet of a WRITE. It returns the NAK, or 0.
func (q *QP) write(h *packet.Header) packet.Syndrome {
	r := &q.responder
	first, n := h.Opcode.First(), uint32(len(h.Payload))
	if first != (r.message == messageNone) || !first && r.message != messageWrite || !q.sized(h) {
		return packet.NAKInvalid
	}
	if first {
		w := h.RETH
		if w.Len > engine.MaxMessage || h.Opcode.Last() && w.Len != n {
			return packet.NAKInvalid
		}
		// All of it, before any byte is written (section 9.7.4.1.5).
		if _, ok := q.Dev.Remote(q.PD, w.RKey, w.Addr, w.Len, verbs.AccessRemoteWrite); !ok {
			return packet.NAKAccess
		}
		r.message, r.write, r.writeDone = messageWrite, w, 0
	}
	w := &r.write
	if left := w.Len - r.writeDone; n > left || h.Opcode.Last() != (n == left) {
		return packet.NAKInvalid
	}
	// Again for each packet: the region may have been deregistered or invalidated.
	to, ok := q.Dev.Remote(q.PD, w.RKey, w.Addr+uint64(r.writeDone), n, verbs.AccessRemoteWrite)
	if !ok {
		return packet.NAKAccess
	}
	copy(to, h.Payload)
	r.writeDone += n
	if h.Opcode.Last() {
		r.message = messageNone
		r.msn++
	}
	r.acked = r.expected
	r.expected++
	return 0
}

// read executes a READ request: it notes it for respond. It returns the NAK, or 0.
func (q *QP) read(h *packet.Header) packet.Syndrome {
	r := &q.responder
	if r.message != messageNone || h.RETH.Len > engine.MaxMessage || len(r.reads) == 0 {
		return packet.NAKInvalid
	}
	e := &r.reads[r.readNo%uint64(len(r.reads))]
	if e.next < e.to {
		if !e.again {
			return packet.NAKInvalid // more READs outstanding than agreed
		}
		r.pending-- // the peer has the data, else it had one READ less outstanding
	}
	if _, ok := q.Dev.Remote(q.PD, h.RETH.RKey, h.RETH.Addr, h.RETH.Len,
		verbs.AccessRemoteRead); !ok {
		e.next = e.to
		return packet.NAKAccess
	}
	end := r.expected + packets(h.RETH.Len, q.mtu)
	*e = read{
		RETH: h.RETH, first: r.expected, end: end, next: r.expected, to: end, begin: r.expected,
	}
	r.readNo++
	r.pending++
	r.msn++
	r.expected = end
	return 0
}

// duplicate handles a request that was executed before (section 9.7.5.2.2 and 9.7.1.4). A SEND or
// WRITE is acknowledged again, a READ is answered again from where the request begins.
func (q *QP) duplicate(h *packet.Header, s seq) {
	r := &q.responder
	if h.Kind != packet.KindRead {
		if r.ack = true; r.failed != 0 {
			r.nak = r.failed
		}
		return
	}
	for i := range r.reads {
		e := &r.reads[i]
		if s < e.first || s >= e.end {
			continue
		}
		off := uint64(s-e.first) * uint64(q.mtu)
		to := s + packets(h.RETH.Len, q.mtu)
		if h.RETH.RKey != e.RKey || h.RETH.Addr != e.Addr+off || to > e.end ||
			uint64(h.RETH.Len) > uint64(e.Len)-off {
			break
		}
		if e.next >= e.to {
			r.pending++
		} else if s >= e.next {
			return // still on its way
		} else {
			to = max(to, e.to)
		}
		if e.repeats++; s > e.begin+maxSingles {
			e.repeats = 0
		}
		q.suspect(e.repeats, true)
		e.next, e.begin, e.to = s, s, to
		return
	}
	q.stats.Ignored.Add(1)
}

// respond sends READ responses, then the NAK, at most *left packets. It reports whether all are
// sent.
func (q *QP) respond(left *int) bool {
	r := &q.responder
	for r.pending > 0 {
		if e := r.oldest(); !q.readData(e, left) {
			return false
		}
	}
	if r.nak == 0 {
		return true
	}
	if *left == 0 || !q.acknowledge(r.nak, r.expected) {
		return false
	}
	*left--
	return true
}

// acknowledge sends an ACK or NAK. It reports false if there is no room.
func (q *QP) acknowledge(syndrome packet.Syndrome, s seq) bool {
	r := &q.responder
	b := q.alloc(packet.Acknowledge, s.psn(), false, 0)
	if b == nil {
		return false
	}
	packet.AETH{Syndrome: syndrome, MSN: r.msn}.Put(b[packet.BTHSize:])
	r.ack, r.nak, r.waited = false, 0, 0
	return true
}

// oldest returns the oldest READ with something to send.
func (r *responder) oldest() *read {
	n := uint64(len(r.reads))
	for i := range n {
		if e := &r.reads[(r.readNo+i)%n]; e.next < e.to {
			return e
		}
	}
	panic("roce: pending READs are not counted right")
}

// readData sends the response to a READ. It reports whether all is sent.
func (q *QP) readData(e *read, left *int) bool {
	r := &q.responder
	for e.next < e.to {
		if *left == 0 {
			return false
		}
		off := uint32(e.next-e.first) * q.mtu
		n := min(q.mtu, e.Len-off)
		from, ok := q.Dev.Remote(q.PD, e.RKey, e.Addr+uint64(off), n, verbs.AccessRemoteRead)
		if !ok {
			q.readGone(e)
			return true
		}
		op := opcodes[verbs.WRRDMARead][position(e.next == e.begin, e.next+1 == e.to)]
		b := q.alloc(op, e.next.psn(), false, int(n))
		if b == nil {
			return false
		}
		*left--
		if op != packet.ReadResponseMiddle {
			packet.AETH{Syndrome: packet.AckNoCredits, MSN: r.msn}.Put(b[packet.BTHSize:])
		}
		copy(b[op.HeaderSize():], from)
		e.next++
	}
	r.pending--
	e.again = true
	if e.end == r.expected {
		r.ack = false // the response acknowledges everything before it
	}
	return true
}

// readGone handles a READ whose memory has gone. A repetition may come late, when the peer has the
// data and has told its owner so; that is not an error.
func (q *QP) readGone(e *read) {
	r := &q.responder
	r.pending--
	gone := e.next
	e.to = e.next
	if e.again || r.failed != 0 {
		return
	}
	// Later requests were executed, but not acknowledged: they fail with this one.
	r.expected = gone
	r.nak, r.failed, r.pending = packet.NAKAccess, packet.NAKAccess, 0
	for i := range r.reads {
		if l := &r.reads[i]; l.first >= gone {
			l.to = l.next
		} else if l.next < l.to {
			r.pending++
		}
	}
	q.fatal()
}
