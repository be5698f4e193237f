package iwarp

import (
	"hash/crc32"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/engine"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/mpa"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

const (
	// sendTurn is the number of bytes, with fpduCost, after which others get their turn, and about
	// the largest number of bytes of one send.
	sendTurn = 256 << 10
	// minFPDU is the smallest limit for the length of FPDUs, also for a peer that asks for tiny
	// TCP segments, which would make each byte expensive.
	minFPDU = 512
)

// sent is the state of a work request of the send queue. It is done when the socket has all of it,
// and a READ when it is answered.
type sent struct{ done bool }

// PostSend implements verbs.QP. It sends as much as the socket takes; if another goroutine holds
// the engine, that one sends.
func (q *QP) PostSend(wrs []verbs.SendWR, sges []verbs.SGE) (int, error) {
	if q.load() == stateInit {
		return 0, engine.ErrSendState
	}
	n, err := q.Post(wrs, sges)
	if n > 0 {
		q.Kick()
	}
	return n, err
}

// PostRecv implements verbs.QP.
func (q *QP) PostRecv(wrs []verbs.RecvWR) (int, error) {
	n, err := q.Own.Post(wrs)
	if q.load() == stateError {
		q.Kick() // to flush them
	}
	return n, err
}

// completeSends completes the oldest work requests, as far as they are done.
func (q *QP) completeSends() {
	head := q.Head.Load()
	for ; head < q.Tail.Load(); head++ {
		e, _ := q.Slot(head)
		if !e.State.done {
			break
		}
		if e.Flags&verbs.SendSignaled != 0 {
			q.CompleteSend(e.WRID, e.Opcode, e.Bytes, verbs.WCSuccess)
		}
	}
	q.Head.Store(head)
}

// flushSends completes all work requests: the ones that are not done fail.
func (q *QP) flushSends() {
	q.completeSends()
	head := q.Head.Load()
	for ; head < q.Tail.Load(); head++ {
		e, _ := q.Slot(head)
		if e.Status == verbs.WCSuccess {
			e.Status = verbs.WCWRFlushErr
		}
		q.CompleteSend(e.WRID, e.Opcode, e.Bytes, e.Status)
	}
	q.Head.Store(head)
}

// The transmitter has the place in the stream of FPDUs that the socket takes next.
type transmitter struct {
	pos position
	// partial is the number of bytes that the socket has taken of the FPDU at pos.
	partial int
	// started is set when the peer is ready to receive.
	started bool
	limit   int // the largest length of an FPDU

	// reads are the READ requests sent, by position.read, and readDone is the number of answered
	// ones. Each has a key of its own, stag plus its number, which is good for its response only.
	reads    []read
	readDone uint64
	stag     uint32

	// responses are the READ requests of the peer, by position.response. responseEnd have come,
	// and responseDone of them have been answered.
	responses                 []response
	responseDone, responseEnd uint64
}

// A position is a place in the stream, at the beginning of an FPDU.
type position struct {
	wr, response, read uint64 // the next ones to begin; wr is an index of the send queue
	off                uint32 // in the current message
	msn                uint32 // of the next SEND
	in                 source // of the current message
	turn               source // of the message before
}

// A source is where messages come from.
type source uint8

const (
	nothing source = iota
	fromWR
	fromResponse
)

// A read is a READ request that was sent.
type read struct {
	wr  uint64
	rtr bool // it belongs to no work request
}

// A response is the answer to a READ request of the peer.
type response struct {
	stag, source uint32
	to, sourceTo uint64
	size         uint32
}

// An fpdu is an entry in the plan of a send.
type fpdu struct {
	size  int
	from  source
	last  bool
	after position
}

func (t *transmitter) connect(fd int, p *mpa.Peer) {
	t.pos = position{msn: 1}
	t.started = p.Active
	t.limit = maxFPDU
	if !p.Large {
		mss, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG)
		if err != nil {
			mss = minFPDU
		}
		t.limit = min(max(mss, minFPDU), maxFPDU) &^ 3
	}
	t.reads = make([]read, p.InitiatorDepth)
	if p.Active && p.RTR == mpa.RTRRead {
		t.reads = make([]read, max(p.InitiatorDepth, 1))
	}
	t.responses = make([]response, p.ResponderResources)
	t.stag = random32()
}

// sendRTR sends the first message of a peer-to-peer connection. The socket is new and has room.
func (q *QP) sendRTR(k mpa.RTR) {
	h := header{op: opWrite, last: true}
	switch k {
	case mpa.NoRTR:
		return
	case mpa.RTRRead:
		h = header{op: opReadRequest, last: true, queue: queueRead, msn: 1, stag: q.stag}
		q.reads[0] = read{rtr: true}
		q.pos.read = 1
	}
	var b [maxHeader + maxTrailer]byte
	n := h.put(b[:])
	n += putTrailer(b[n:], n, crc(q.peer.CRC, 0, b[:n]), q.peer.CRC)
	_, _ = sys.Send(q.fd, b[:n], 0)
	q.stats.SentFPDUs.Add(1)
}

// transmit sends FPDUs, at most a turn of them. It reports whether it could send more now.
func (q *QP) transmit() (again bool) {
	for most := q.moved + sendTurn; q.started && q.writable; {
		if q.moved >= most {
			return true
		}
		iov, plan, want := q.gather()
		if want == 0 || q.load() != stateReady {
			return false
		}
		n, e := sys.Sendmsg(q.fd, iov, 0)
		clear(iov)
		if e != 0 && e != syscall.EAGAIN {
			q.toError(false)
			return false
		}
		q.advance(plan, n)
		q.moved += n + len(plan)*fpduCost
		if n < want {
			q.writable = false
			q.stats.Blocked.Add(1)
		}
	}
	return false
}

// gather plans the FPDUs of one send, and returns their bytes without the part that the socket
// has taken. If the first one cannot be made, the queue pair fails.
func (q *QP) gather() (iov []sys.Iovec, plan []fpdu, want int) {
	l := q.lane
	iov, plan = l.iov[:0], l.plan[:0]
	p, used := q.pos, 0
	for want < sendTurn && len(plan) < maxPlan {
		from := q.choose(&p)
		if from == nothing {
			break
		}
		p.in = from
		var h header
		if status := q.segment(&p, &h); status != verbs.WCSuccess {
			if len(plan) == 0 {
				q.cannotSend(from, status)
				return nil, nil, 0
			}
			break // the FPDUs before it are sent first
		}
		if len(iov)+len(q.Pieces)+2 > maxVectors && len(plan) > 0 {
			break
		}
		// Header and payload; the header goes with the trailer before it.
		begin := used
		used += h.put(l.heads[used:])
		sum := crc(q.peer.CRC, 0, l.heads[begin:used])
		iov = q.appendHead(iov, begin, used)
		for _, b := range q.Pieces {
			if len(b) > 0 {
				iov = iov[:len(iov)+1]
				sys.SetIovec(&iov[len(iov)-1], b)
				sum = crc(q.peer.CRC, sum, b)
			}
		}
		size := used - begin + int(h.n)
		end := used + putTrailer(l.heads[used:], size, sum, q.peer.CRC)
		iov = q.appendHead(iov, used, end)
		size += end - used
		used = end
		q.step(&p, &h)
		plan = append(plan, fpdu{size, from, h.last, p})
		want += size
	}
	return sys.Advance(iov, q.partial), plan, want - q.partial
}

// appendHead adds bytes of the lane's heads, to the last vector if they follow it.
func (q *QP) appendHead(iov []sys.Iovec, from, to int) []sys.Iovec {
	b := q.lane.heads[from:to]
	if n := len(iov); n > 0 && from > 0 {
		before := sys.Bytes(iov[n-1])
		if &before[len(before)-1] == &q.lane.heads[from-1] {
			sys.SetIovec(&iov[n-1], q.lane.heads[from-len(before):to])
			return iov
		}
	}
	iov = iov[:len(iov)+1]
	sys.SetIovec(&iov[len(iov)-1], b)
	return iov
}

// choose returns the source of the FPDU at a position. The sources take turns, message by message.
func (q *QP) choose(p *position) source {
	if p.in != nothing {
		return p.in
	}
	response := p.response < q.responseEnd
	wr := false
	if p.wr < q.Tail.Load() {
		e, _ := q.Slot(p.wr)
		wr = e.Opcode != verbs.WRRDMARead || len(q.reads) == 0 ||
			p.read-q.readDone < uint64(len(q.reads))
	}
	switch {
	case response && (!wr || p.turn != fromResponse):
		return fromResponse
	case wr:
		return fromWR
	}
	return nothing
}

// segment makes the header of the FPDU at a position and locates its payload.
func (q *QP) segment(p *position, h *header) verbs.WCStatus {
	room := uint32(q.limit - taggedSize - crcSize)
	if p.in == fromResponse {
		r := &q.responses[p.response%uint64(len(q.responses))]
		n := min(r.size-p.off, room)
		*h = header{
			op: opReadResponse, last: p.off+n == r.size, n: n, stag: r.stag,
			to: r.to + uint64(p.off),
		}
		if !q.locateRemote(r.source, r.sourceTo+uint64(p.off), n, verbs.AccessRemoteRead) {
			return verbs.WCRemAccessErr
		}
		return verbs.WCSuccess
	}
	e, sges := q.Slot(p.wr)
	switch e.Opcode {
	case verbs.WRRDMARead:
		if len(q.reads) == 0 {
			return verbs.WCLocQPOpErr
		}
		if !q.Locate(sges, 0, e.Bytes, verbs.AccessLocalWrite) {
			return verbs.WCLocProtErr
		}
		q.Pieces = q.Pieces[:0]
		*h = header{
			op: opReadRequest, last: true, queue: queueRead, msn: uint32(p.read) + 1,
			stag: q.stag + uint32(p.read), size: e.Bytes, source: e.RKey, sourceTo: e.RemoteAddr,
		}
		return verbs.WCSuccess
	case verbs.WRRDMAWrite:
		n := min(e.Bytes-p.off, room)
		*h = header{op: opWrite, n: n, stag: e.RKey, to: e.RemoteAddr + uint64(p.off)}
	default:
		n := min(e.Bytes-p.off, room-(untaggedSize-taggedSize))
		*h = header{op: opSend, n: n, queue: queueSend, msn: p.msn, mo: p.off}
		if e.Opcode == verbs.WRSendWithInv {
			h.op, h.stag = opSendInvalidate, e.InvalidateRKey
		}
	}
	h.last = p.off+h.n == e.Bytes
	if !q.Locate(sges, p.off, h.n, 0) {
		return verbs.WCLocProtErr
	}
	return verbs.WCSuccess
}

// step moves a position past an FPDU.
func (q *QP) step(p *position, h *header) {
	p.off += h.n
	if !h.last {
		return
	}
	switch h.op {
	case opReadResponse:
		p.response++
	case opReadRequest:
		p.read++
		p.wr++
	case opWrite:
		p.wr++
	default:
		p.msn++
		p.wr++
	}
	p.off, p.turn, p.in = 0, p.in, nothing
}

// advance counts n bytes that the socket has taken, and completes their messages.
func (q *QP) advance(plan []fpdu, n int) {
	n += q.partial
	for i := range plan {
		f := &plan[i]
		if n < f.size {
			if n > 0 {
				q.pos.in = f.from // the rest comes next
			}
			break
		}
		n -= f.size
		before := q.pos
		q.pos = f.after
		q.stats.SentFPDUs.Add(1)
		switch {
		case !f.last:
		case f.from == fromResponse:
			q.responseDone++
		case f.after.read != before.read:
			q.reads[before.read%uint64(len(q.reads))] = read{wr: before.wr}
		default:
			e, _ := q.Slot(before.wr)
			e.State.done = true
		}
	}
	q.partial = n
	q.completeSends()
}

// cannotSend fails the queue pair because of the next FPDU.
func (q *QP) cannotSend(from source, status verbs.WCStatus) {
	if from == fromResponse { // the memory has been deregistered since the request
		q.terminate(badSourceSTag)
		return
	}
	e, _ := q.Slot(q.pos.wr)
	e.Status = status
	q.toError(true)
}

// crc continues a CRC, which is 0 if the sides do not use it.
func crc(use bool, sum uint32, b []byte) uint32 {
	if !use {
		return 0
	}
	return crc32.Update(sum, castagnoli, b)
}
