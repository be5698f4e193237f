package roce

import (
	"fmt"
	"math/bits"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/engine"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/packet"
)

// Constants of the requester.
const (
	// The window is in packets; a READ counts the packets of its response.
	firstWindow = 32
	minWindow   = 2
	maxWindow   = 256
	// A READ longer than a chunk is sent as several requests, so that the window also holds for
	// READs. A chunk is readChunk bytes or readPackets packets, whichever is more. Chunks begin at
	// multiples of their size, so that a repeated request never spans two earlier ones.
	readChunk   = 32 << 10
	readPackets = 16
	// firstRetry, and the usual time until an acknowledgment up to maxUsual, is the time until the
	// first repetition. After sameRetries it doubles with each up to the timeout of the connection,
	// which therefore only decides when to give up. Most losses are noticed by a NAK. On a busy
	// machine acknowledgments may be late now and then: each time this is noticed, firstRetry
	// doubles for the connection, up to maxPatience, until the next NAK.
	firstRetry  = 5 * time.Millisecond
	sameRetries = 3
	maxPatience = 80 * time.Millisecond
	maxUsual    = 250 * time.Millisecond
	// Before the first repetition the requester sends one packet beyond the window, or the last
	// packet again if there is none. It waits for twice the usual time, at least minNudge. The
	// answer shows what was lost, usually an acknowledgment (compare tail loss probes, RFC 8985).
	minNudge = time.Millisecond
	// A READ is repeated after four times the time of others, and not before minReadRetry. On a
	// network that reorders packets, its memory at the peer may be invalid by the time that the
	// repetition arrives, and rxe then ends the connection (rxe_recheck_mr in
	// drivers/infiniband/sw/rxe/rxe_resp.c). A busy machine reorders, as each CPU has packets of
	// its own waiting. A second response shows that a repetition was needless: the next one waits
	// for longer.
	minReadRetry = 100 * time.Millisecond
	// minRNR is the shortest time to wait after an RNR NAK, also if the peer asks for less.
	minRNR = time.Millisecond
	// Packets no longer share sends after so many losses (suspicions) with at most maxSingles
	// packets acknowledged between two of them: the first of a send, and the one sent alone after
	// a timeout.
	maxSingles = 2
	suspicions = 4
	// The timeout of the peer's AckTimeout is between 4.2 ms and 4.3 s; 0 would mean no end.
	minAckTimeout = 10
	maxAckTimeout = 20
)

// A sendWR is a work request with its PSNs, assigned when its first packet is due.
type (
	sendWR = engine.SendSlot[psns]
	psns   struct{ first, end seq }
)

// The requester has a ring of work requests:
//
//	Head      oldest work request not completed
//	cur       the one with the next packet to send
//	numbered  first one without PSNs
//	Tail      end of the work requests posted
type requester struct {
	engine.SendRing[psns]
	cur        uint64
	numbered   uint64
	numberedTo seq // first PSN of the next work request

	una, next, max seq
	mtu            uint32
	sinceAck       int // packets sent since an acknowledgment was requested

	// reads are the READ requests outstanding, a ring of the initiator depth.
	reads            []chunk
	readHead, readNo int
	// holdReads is the number of outstanding READs with which others wait; 0: none waits.
	holdReads int

	congestion

	probation
	rewound seq // una when the requester last went back because of a NAK
	// repeated: a READ was sent again after a timeout.
	repeated bool
	// probe: nothing was acknowledged since a timeout or an RNR NAK. Only one packet is sent until
	// something is.
	probe bool
	// before is the state at the timeout, if all was still outstanding by then: late goes back
	// to it. READs are not outstanding in it, as their responses may have been lost.
	before struct {
		congestion
		from, next seq // una and next; next is 0 if there is no such state
	}

	timer
	rnrRetry, rnrLeft uint8 // as in Peer, and of them left
	rnrWait           bool  // the timer ends an RNR wait
}

// A chunk is a READ request that was sent.
type chunk struct {
	end  seq
	room engine.Reservation // for the response
}

// probation has the evidence whether packets may share sends on this path.
type probation struct {
	lostAt  seq // una when packets were last lost
	singles int // losses in a row between which only single packets were acknowledged
}

// congestion is the window of a requester, in packets.
type congestion struct {
	window, threshold int
	gained            int // packets acknowledged since the window grew
	recover           seq // the window shrinks at most once until this is acknowledged
}

// timer is the state of a requester's timer.
type timer struct {
	armed      bool          // it runs, for a repetition or an RNR wait
	giveUp     time.Duration // time when the connection fails
	retry      time.Duration // time until the next repetition
	retries    int           // since the last acknowledgment
	since      time.Duration // when the timer began to run, or the last repetition
	patience   time.Duration // firstRetry, or more after late acknowledgments
	nudge      bool          // a packet beyond the window may be sent
	smoothed   time.Duration // usual time until an acknowledgment, 0 if not known
	timed      seq           // the acknowledgment whose time is taken, 0 if none
	timedAt    time.Duration
	ackTimeout time.Duration
	// Without progress we give up after retryTime and retryCount repetitions. If this process did
	// not run for a while, answers wait unread after other packets when that time is over.
	retryTime  time.Duration
	retryCount int
}

func (r *requester) connect(p *Peer, mtu uint32) {
	s := firstSeq(p.PSN)
	r.una, r.next, r.max, r.numberedTo, r.recover, r.lostAt = s, s, s, s, s, s
	r.mtu = mtu
	r.reads = make([]chunk, min(p.InitiatorDepth, maxReads))
	r.window, r.threshold = firstWindow, maxWindow
	timeout := min(max(p.AckTimeout, minAckTimeout), maxAckTimeout)
	if p.AckTimeout == 0 {
		timeout = maxAckTimeout
	}
	r.ackTimeout = 4096 * time.Nanosecond << timeout
	r.retryCount = int(p.RetryCount & 7)
	r.retryTime = r.ackTimeout * time.Duration(r.retryCount+1)
	r.rnrRetry, r.rnrLeft = p.RNRRetry&7, p.RNRRetry&7
	r.patience = firstRetry
	r.retry = min(r.patience, r.ackTimeout)
}

var errRecvSRQ = fmt.Errorf("post receive: the queue pair has a shared receive queue: %w",
	unix.EINVAL)

// PostSend implements verbs.QP. It sends as much as the window allows, unless another goroutine
// holds the engine, which then does it.
func (q *QP) PostSend(wrs []verbs.SendWR, sges []verbs.SGE) (int, error) {
	if q.load() == stateInit {
		return 0, engine.ErrSendState
	}
	n, err := q.requester.Post(wrs, sges)
	if n > 0 {
		q.Kick()
	}
	return n, err
}

// PostRecv implements verbs.QP.
func (q *QP) PostRecv(wrs []verbs.RecvWR) (int, error) {
	if q.Own == nil {
		return 0, errRecvSRQ
	}
	n, err := q.Own.Post(wrs)
	if q.load() == stateError {
		q.Kick() // to flush them
	}
	return n, err
}

// current returns the work request with the next packet to send, nil if there is none.
func (r *requester) current() (*sendWR, []verbs.SGE) {
	for r.cur < r.Tail.Load() {
		e, sges := r.Slot(r.cur)
		if r.cur == r.numbered {
			e.State.first, e.State.end = r.numberedTo, r.numberedTo+packets(e.Bytes, r.mtu)
			r.numberedTo = e.State.end
			r.numbered++
		}
		if r.next < e.State.end {
			return e, sges
		}
		r.cur++
	}
	return nil, nil
}

// transmit sends at most n packets of requests. It reports whether there are more to send now.
func (q *QP) transmit(n int) (again bool) {
	r := &q.requester
	waiting := false // for room in the receive buffer
	for !r.rnrWait && !again && !waiting {
		e, sges := r.current()
		if e == nil || e.Status != verbs.WCSuccess || !r.open(e) {
			break
		}
		off := uint32(r.next-e.State.first) * r.mtu
		size, need := min(r.mtu, e.Bytes-off), verbs.Access(0)
		if e.Opcode == verbs.WRRDMARead {
			if len(r.reads) == 0 {
				q.localError(e, verbs.WCLocQPOpErr)
				break
			}
			size, need = r.chunkSize(e, off), verbs.AccessLocalWrite
		}
		if !q.Locate(sges, off, size, need) {
			q.localError(e, verbs.WCLocProtErr)
			break
		}
		switch {
		case n == 0:
			again = true
		case e.Opcode != verbs.WRRDMARead:
			again = !q.sendData(e, off, size)
		default:
			room := int(packets(size, r.mtu)) * packetRoom(r.mtu)
			c := &r.reads[(r.readHead+r.readNo)%len(r.reads)]
			if waiting = !q.Eng.ReserveReads(&q.Handle, &c.room, room); !waiting {
				again = !q.sendRead(e, c, off, size)
			}
		}
		n--
	}
	if !waiting {
		q.Eng.ForgetReads(&q.Handle)
	}
	if q.load() == stateReady {
		q.arm()
	}
	return again
}

// open reports whether the window, and for a READ the initiator depth, allow the next packet. A
// READ that has to wait does so until a quarter of the outstanding READs is answered: then several
// requests share a send.
func (r *requester) open(e *sendWR) bool {
	if r.next == r.una {
		r.holdReads = 0
		return true
	}
	if e.Opcode != verbs.WRRDMARead {
		return !r.probe && (int(r.next-r.una) < r.window || r.nudge)
	}
	n := packets(r.chunkSize(e, uint32(r.next-e.State.first)*r.mtu), r.mtu)
	switch {
	case r.probe:
		return false
	case r.readNo == len(r.reads) || int(r.next-r.una+n) > r.window && !r.nudge:
		if r.holdReads == 0 {
			r.holdReads = r.readNo - r.readNo/4
		}
		return false
	case r.readNo < r.holdReads:
		r.holdReads = 0
	}
	return r.holdReads == 0 || r.nudge
}

// longSends reports whether the next packet is one of a SEND of several packets, and another
// request follows. The last packet of a SEND is usually shorter, so it is the last of its send.
func (r *requester) longSends() bool {
	e, _ := r.current()
	return e != nil && r.cur+1 < r.Tail.Load() && e.Bytes > r.mtu &&
		e.Opcode != verbs.WRRDMARead && e.Opcode != verbs.WRRDMAWrite
}

// chunkSize returns the number of bytes that the READ request at an offset asks for.
func (r *requester) chunkSize(e *sendWR, off uint32) uint32 {
	chunk := max(readChunk, readPackets*r.mtu)
	return min(chunk-off%chunk, e.Bytes-off)
}

// packetRoom is the room that a packet takes in a receive buffer: the system counts all memory of a
// packet (truesize), which is a power of two with room for headers, and a description.
func packetRoom(mtu uint32) int { return 1<<bits.Len32(mtu+447) + 256 }

// sendRead sends a READ request, for the response to which room is reserved.
func (q *QP) sendRead(e *sendWR, c *chunk, off, size uint32) bool {
	r := &q.requester
	b := q.alloc(packet.ReadRequest, r.next.psn(), true, 0)
	if b == nil {
		q.Eng.ReleaseReads(&c.room)
		return false
	}
	packet.RETH{Addr: e.RemoteAddr + uint64(off), RKey: e.RKey, Len: size}.Put(b[packet.BTHSize:])
	c.end = r.next + packets(size, r.mtu)
	r.readNo++
	r.sinceAck = 0
	q.sent(c.end)
	return true
}

// sendData sends a packet of a SEND or WRITE. Each packet of a WRITE is a message of its own, with
// its own RETH: packets of one length share a send, and a FIRST is longer than a MIDDLE. The memory
// of the peer gets the same bytes, and only the whole work request completes.
func (q *QP) sendData(e *sendWR, off, size uint32) bool {
	r := &q.requester
	last := r.next+1 == e.State.end
	op := packet.WriteOnly
	if e.Opcode != verbs.WRRDMAWrite {
		op = opcodes[e.Opcode&15][position(r.next == e.State.first, last)]
	}
	ack := r.wantAck(e, last)
	b := q.alloc(op, r.next.psn(), ack, int(size))
	if b == nil {
		return false
	}
	switch {
	case op == packet.WriteOnly:
		packet.RETH{
			Addr: e.RemoteAddr + uint64(off), RKey: e.RKey, Len: size,
		}.Put(b[packet.BTHSize:])
	case e.Opcode == verbs.WRSendWithInv && last:
		packet.IETH(e.InvalidateRKey).Put(b[packet.BTHSize:])
	}
	q.gather(b[op.HeaderSize():][:size])
	if r.sinceAck++; ack {
		r.sinceAck = 0
	}
	q.sent(r.next + 1)
	return true
}

// wantAck reports whether the next packet asks for an acknowledgment: two in a window do, since
// each wakes both ends. The last packet before a pause does in any case: at the end of the queue,
// of the window, and before a READ, which may wait for the window.
func (r *requester) wantAck(e *sendWR, last bool) bool {
	if r.probe || r.sinceAck+1 >= r.window/2 || int(r.next-r.una)+1 >= r.window {
		return true
	}
	if !last {
		return false
	}
	if r.cur+1 >= r.Tail.Load() {
		return true
	}
	following, _ := r.Slot(r.cur + 1)
	return following.Opcode == verbs.WRRDMARead || following.Status != verbs.WCSuccess
}

// sent notes that packets were sent.
func (q *QP) sent(to seq) {
	r := &q.requester
	r.next, r.nudge = to, false
	if to > r.max {
		if r.max = to; r.timed == 0 {
			r.timed, r.timedAt = to, q.Eng.Now()
		}
	}
}

const (
	posFirst = iota
	posMiddle
	posLast
	posOnly
)

func position(first, last bool) int {
	switch {
	case first && last:
		return posOnly
	case first:
		return posFirst
	case last:
		return posLast
	}
	return posMiddle
}

var opcodes = [16][4]packet.Opcode{
	verbs.WRSend: {packet.SendFirst, packet.SendMiddle, packet.SendLast, packet.SendOnly},
	verbs.WRSendWithInv: {
		packet.SendFirst, packet.SendMiddle, packet.SendLastInvalidate, packet.SendOnlyInvalidate,
	},
	verbs.WRRDMARead: {
		packet.ReadResponseFirst, packet.ReadResponseMiddle, packet.ReadResponseLast,
		packet.ReadResponseOnly,
	},
}

// acknowledgment handles an ACK or NAK. Its PSN acknowledges everything before it, an ACK also the
// request that has it (section 9.7.5.1).
func (q *QP) acknowledgment(h *packet.Header) {
	r := &q.requester
	s := r.una.near(h.PSN)
	if s >= r.max || h.AETH.Syndrome&0x80 != 0 {
		q.stats.Ignored.Add(1)
		return
	}
	if s < r.una {
		return
	}
	switch t := h.AETH.Syndrome; t.Type() {
	case packet.SyndromeACK:
		q.advance(s + 1)
	case packet.SyndromeRNR:
		if q.advance(s) {
			q.receiverNotReady(t.Value())
		}
	case packet.SyndromeNAK:
		if !q.advance(s) {
			return
		}
		switch t {
		case packet.NAKSequence:
			q.lost()
		case packet.NAKInvalid:
			q.fail(verbs.WCRemInvReqErr)
		case packet.NAKAccess:
			q.fail(verbs.WCRemAccessErr)
		case packet.NAKOperational:
			q.fail(verbs.WCRemOpErr)
		}
	}
}

// advance acknowledges all requests before to. It stops at a READ with data missing: the response
// is lost (section 9.7.5.1.3, implied NAK). It reports whether it came to the end.
func (q *QP) advance(to seq) bool {
	r := &q.requester
	from := r.una
	for r.una < to && q.load() == stateReady {
		e, _ := r.Slot(r.Head.Load())
		if e.Opcode == verbs.WRRDMARead {
			break
		}
		r.una = min(to, e.State.end)
		if r.una == e.State.end {
			q.completeSend(verbs.WCSuccess)
		}
	}
	if r.una != from {
		q.progress(int(r.una - from))
	}
	if q.load() != stateReady {
		return false
	}
	if r.una < to {
		q.lost()
		return false
	}
	return true
}

// readResponse handles data of a READ. Whether it is first, middle, last or only does not matter:
// the PSN says where the data belongs and how much it is.
func (q *QP) readResponse(h *packet.Header) {
	r := &q.requester
	s := r.una.near(h.PSN)
	if s >= r.max || h.Opcode != packet.ReadResponseMiddle &&
		(h.AETH.Syndrome.Type() != packet.SyndromeACK || h.AETH.Syndrome&0x80 != 0) {
		q.stats.Ignored.Add(1)
		return
	}
	if s < r.una { // a duplicate
		if r.repeated {
			r.repeated, r.patience = false, min(2*r.patience, maxPatience)
		}
		return
	}
	if r.readNo == 0 {
		// Nobody asked for it, or it came after a gap and the request will be repeated.
		if e, _ := r.Slot(r.Head.Load()); e.Opcode != verbs.WRRDMARead {
			q.stats.Ignored.Add(1)
		}
		return
	}
	if !q.advance(s) {
		return
	}
	e, sges := r.Slot(r.Head.Load())
	if e.Opcode != verbs.WRRDMARead {
		q.stats.Ignored.Add(1)
		return
	}
	off := uint32(s-e.State.first) * r.mtu
	n := min(r.mtu, e.Bytes-off)
	if uint32(len(h.Payload)) != n {
		q.stats.Ignored.Add(1)
		return
	}
	if !q.Locate(sges, off, n, verbs.AccessLocalWrite) {
		q.fail(verbs.WCLocProtErr)
		return
	}
	q.scatter(h.Payload)
	r.una++
	if r.una == e.State.end {
		q.completeSend(verbs.WCSuccess)
	}
	q.progress(1)
}

// progress handles the acknowledgment of n PSNs.
func (q *QP) progress(n int) {
	r := &q.requester
	for r.readNo > 0 && r.reads[r.readHead].end <= r.una {
		q.readDone()
	}
	r.late()
	if r.next < r.una {
		q.rewind() // acknowledged before the repetition came so far
	}
	r.probe, r.rnrWait = false, false
	r.rnrLeft = r.rnrRetry
	if r.timed != 0 && r.una >= r.timed {
		// The time of a packet that was repeated counts from the first: too long rather than too
		// short. Losses must not slow us down, so the usual time falls faster than it rises.
		t := min(q.Eng.Now()-r.timedAt, maxUsual)
		switch {
		case r.smoothed == 0:
			r.smoothed = t
		case t < r.smoothed:
			r.smoothed -= (r.smoothed - t) / 2
		default:
			r.smoothed += (t - r.smoothed) / 8
		}
		r.timed = 0
	}
	r.retry, r.retries = min(r.patience+r.smoothed, r.ackTimeout), 0
	r.armed = false // arm starts it again
	if r.window >= r.threshold {
		// One packet for each window acknowledged, else one for each packet: RFC 5681, section 3.1.
		if r.gained += n; r.gained < r.window {
			return
		}
		r.gained, n = 0, 1
	}
	r.window = min(r.window+n, maxWindow)
}

// readDone forgets the oldest READ request.
func (q *QP) readDone() {
	r := &q.requester
	q.Eng.ReleaseReads(&r.reads[r.readHead].room)
	r.readHead = (r.readHead + 1) % len(r.reads)
	r.readNo--
}

// late looks at the first acknowledgment after a timeout. If it is for more than the packet
// repeated, the others had arrived and were not lost: none of them is repeated, the window is the
// old one, and the next timeout comes later (compare RFC 5682, F-RTO).
func (r *requester) late() {
	b := &r.before
	if b.next != 0 && r.una > b.from+1 {
		r.congestion = b.congestion
		r.next = max(b.next, r.una)
		r.singles = 0
		r.patience = min(2*r.patience, maxPatience)
	}
	b.next = 0
}

// repeatTime returns the time until the oldest packet is repeated.
func (r *requester) repeatTime() time.Duration {
	if r.readNo == 0 {
		return r.retry
	}
	return min(max(4*r.retry, minReadRetry), r.ackTimeout)
}

// nudge permits one packet beyond the window, which the peer answers. If there is none, the last
// packet is sent again, unless it is a READ.
func (q *QP) nudge() {
	r := &q.requester
	r.nudge = true
	if r.numbered < r.Tail.Load() || r.next != r.numberedTo {
		return
	}
	if e, _ := r.Slot(r.numbered - 1); e.Opcode != verbs.WRRDMARead {
		r.next, r.cur = r.next-1, r.numbered-1
	}
}

// rewind makes una the next packet to send.
func (q *QP) rewind() {
	r := &q.requester
	r.next, r.cur = r.una, r.Head.Load()
	for r.readNo > 0 {
		q.readDone()
	}
}

// lost goes back because the peer misses the packet at una. It happens once for each packet: if the
// repetition is lost as well, the timer notices.
func (q *QP) lost() {
	r := &q.requester
	if r.rewound == r.una || r.next == r.una {
		return
	}
	r.rewound, r.patience, r.before.next, r.repeated = r.una, firstRetry, 0, false
	q.goBack()
}

func (q *QP) goBack() {
	q.stats.Retransmissions.Add(1)
	q.reviewPath()
	q.requester.slowDown()
	q.rewind()
}

// reviewPath is called when packets were lost. Some interfaces segment a send (UDP_SEGMENT) with
// other identifications than Linux does. Then all ICRCs but the first are wrong. So packets no
// longer share sends after several losses between which only single packets were acknowledged.
func (q *QP) reviewPath() {
	r := &q.requester
	switch got := r.una - r.lostAt; {
	case got == 0: // the peer may be gone: that tells nothing
	case got > maxSingles:
		r.singles = 0
	default:
		r.singles++
		e, _ := r.Slot(r.Head.Load())
		q.suspect(r.singles, e.Opcode != verbs.WRRDMARead) // of a READ the response may be lost
	}
	r.lostAt = r.una
}

// suspect stops the sharing of sends after n losses that hint at it. If ours is set, the losses are
// surely of our packets, and later connections to the peer do not share sends either.
func (q *QP) suspect(n int, ours bool) {
	if n >= suspicions && q.path.Segment {
		q.path.Segment, q.shareAt = false, q.Eng.Now()+engine.SingleTime
		if ours {
			q.Dev.SendSingly(q.path.Remote)
		}
		q.stats.Unsegmented.Add(1)
	}
}

// slowDown halves the window, once for the packets in flight.
func (r *requester) slowDown() {
	if r.una < r.recover {
		return
	}
	r.recover = max(r.max, r.una+1)
	r.window = max(r.window/2, minWindow)
	r.threshold, r.gained = r.window, 0
}

// receiverNotReady waits before it repeats the SEND at una (section 9.7.5.2.8).
func (q *QP) receiverNotReady(code uint8) {
	r := &q.requester
	if r.rnrWait {
		return
	}
	q.stats.RNRReceived.Add(1)
	if r.rnrRetry != 7 {
		if r.rnrLeft == 0 {
			q.fail(verbs.WCRNRRetryExcErr)
			return
		}
		r.rnrLeft--
	}
	q.rewind()
	r.rnrWait, r.probe, r.timed, r.before.next = true, true, 0, 0
	r.armed = true
	q.Eng.SetDeadline(&q.Handle, q.Eng.Now()+max(minRNR, rnrTime(code)))
}

// arm starts the timer if something is outstanding, and stops it if nothing is.
func (q *QP) arm() {
	r := &q.requester
	switch {
	case r.armed || r.rnrWait:
		return
	case r.next == r.una:
		q.Eng.SetDeadline(&q.Handle, 0)
		return
	}
	now := q.Eng.Now()
	r.armed, r.since, r.giveUp = true, now, now+r.retryTime
	q.Eng.SetDeadline(&q.Handle, now+min(max(2*r.smoothed, minNudge), r.retry))
	if !q.path.Segment && now >= q.shareAt && !q.Dev.SendsSingly(q.path.Remote) {
		q.path.Segment, r.singles, q.shareAt = true, 0, now+engine.SingleTime
	}
}

func (q *QP) expire() {
	r := &q.requester
	now := q.Eng.Now()
	switch {
	case !r.armed:
	case r.rnrWait:
		r.rnrWait, r.armed = false, false
	case now >= r.giveUp && r.retries >= r.retryCount:
		q.fail(verbs.WCRetryExcErr)
	case now < r.since+r.repeatTime():
		q.nudge()
		q.waitUntil(r.since + r.repeatTime())
	default:
		r.since = now
		q.stats.Timeouts.Add(1)
		if !r.probe && r.readNo == 0 {
			r.before.congestion, r.before.from, r.before.next = r.congestion, r.una, r.next
		}
		r.repeated = r.readNo > 0
		q.goBack()
		r.probe = true
		if r.retries++; r.retries > sameRetries {
			r.retry = min(2*r.retry, r.ackTimeout)
		}
		q.waitUntil(now + r.retry)
	}
}

// waitUntil sets the timer, at most to the time when the connection fails.
func (q *QP) waitUntil(at time.Duration) {
	if r := &q.requester; q.Eng.Now() < r.giveUp {
		at = min(at, r.giveUp)
	}
	q.Eng.SetDeadline(&q.Handle, at)
}

// localError fails a work request that cannot be sent. Earlier ones complete first.
func (q *QP) localError(e *sendWR, status verbs.WCStatus) {
	e.Status = status
	if q.requester.cur == q.requester.Head.Load() {
		q.fail(status)
	}
}

// completeSend completes the oldest work request.
func (q *QP) completeSend(status verbs.WCStatus) {
	r := &q.requester
	head := r.Head.Load()
	e, _ := r.Slot(head)
	id, op, bytes := e.WRID, e.Opcode, e.Bytes
	signaled := e.Flags&verbs.SendSignaled != 0 || status != verbs.WCSuccess
	r.Head.Store(head + 1) // the slot is free when the completion can be seen
	r.cur = max(r.cur, head+1)
	if signaled {
		q.CompleteSend(id, op, bytes, status)
	}
	if status == verbs.WCSuccess && head+1 < r.numbered {
		if e, _ := r.Slot(head + 1); e.Status != verbs.WCSuccess {
			q.fail(e.Status)
		}
	}
}

// fail ends the connection with the error of the oldest work request.
func (q *QP) fail(status verbs.WCStatus) {
	q.completeSend(status)
	q.fatal()
}

func (q *QP) flushSends() {
	r := &q.requester
	for r.Head.Load() < r.Tail.Load() {
		q.completeSend(verbs.WCWRFlushErr)
	}
	r.cur, r.numbered = r.Head.Load(), r.Head.Load()
}
