package iwarp

import (
	"encoding/binary"
	"syscall"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/mpa"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

const (
	// receiveTurn is the number of bytes, including fpduCost, after which others get their turn.
	receiveTurn = 256 << 10
	// directMin is the least payload that is received directly to its memory.
	directMin = 8 << 10
)

// phase is the part of an FPDU that comes next.
type phase uint8

const (
	inHeader phase = iota
	inPayload
	inTrailer
)

// The receiver has the part of an FPDU and of a message that has arrived.
type receiver struct {
	phase  phase
	header [maxHeader]byte
	have   int // bytes that have arrived of the header, or trailer
	need   int
	seg    header
	left   uint32 // bytes of payload to come
	trail  [maxTrailer]byte
	sum    uint32 // CRC so far

	// The SEND being received.
	inSend  bool
	sendOp  opcode
	got     uint32 // bytes of it, or of the response to the oldest READ
	readGot uint32
	// The next message numbers (RFC 5041, section 4.3: they begin with 1).
	sendMSN, readMSN uint32
	// first is set until the first FPDU has arrived.
	first bool
	term  [4 + maxHeader]byte // of a Terminate message
}

func (r *receiver) connect(p *mpa.Peer) {
	r.need, r.sendMSN, r.readMSN = prefixSize, 1, 1
	r.first = !p.Active
}

// receive handles the bytes that have arrived, at most a turn of them. It reports whether there may
// be more.
func (q *QP) receive() (again bool) {
	l := q.lane
	for q.readable {
		if q.moved >= receiveTurn {
			return true
		}
		iov, direct := l.iov[:0], 0
		if q.phase == inPayload && q.left >= directMin {
			if why := q.target(q.left); why != noReason {
				q.terminate(why)
				return false
			}
			direct = int(q.left)
			for _, b := range q.Pieces {
				iov = iov[:len(iov)+1]
				sys.SetIovec(&iov[len(iov)-1], b)
			}
		}
		iov = iov[:len(iov)+1]
		sys.SetIovec(&iov[len(iov)-1], l.bytes[:])
		n, e := sys.Recvmsg(q.fd, iov, 0)
		clear(iov)
		switch {
		case e == syscall.EAGAIN:
			q.readable = false
			return false
		case e != 0 || n == 0:
			q.toError(false)
			return false
		}
		q.moved += n
		if k := min(n, direct); k > 0 {
			q.placed(k)
		}
		if why := q.consume(l.bytes[:max(n-direct, 0)]); why != noReason {
			if why != ended {
				q.terminate(why)
			}
			return false
		}
		if n < direct+len(l.bytes) && !q.hungUp {
			q.readable = false
		}
	}
	return false
}

// ended is returned instead of a reason if the queue pair has failed.
const ended reason = 0xfffe

// placed counts n bytes of payload received into pieces.
func (q *QP) placed(n int) {
	left := n
	for _, b := range q.Pieces {
		k := min(left, len(b))
		q.sum = crc(q.peer.CRC, q.sum, b[:k])
		left -= k
	}
	q.left -= uint32(n)
	if q.left == 0 {
		q.trailer()
	}
}

// trailer begins the trailer of the FPDU.
func (q *QP) trailer() {
	q.phase, q.have = inTrailer, 0
	q.need = pad(q.seg.op.headerSize()+int(q.seg.n)) + crcSize
}

// consume handles bytes of the stream.
func (q *QP) consume(b []byte) reason {
	for len(b) > 0 {
		switch q.phase {
		case inHeader:
			n := copy(q.header[q.have:q.need], b)
			q.have, b = q.have+n, b[n:]
			if q.have < q.need {
				return noReason
			}
			if why := q.headerPart(); why != noReason {
				return why
			}
		case inPayload:
			n := min(len(b), int(q.left))
			if why := q.target(uint32(n)); why != noReason {
				return why
			}
			from := b[:n]
			for _, to := range q.Pieces {
				from = from[copy(to, from):]
			}
			q.sum = crc(q.peer.CRC, q.sum, b[:n])
			b = b[n:]
			if q.left -= uint32(n); q.left == 0 {
				q.trailer()
			}
		case inTrailer:
			n := copy(q.trail[q.have:q.need], b)
			q.have, b = q.have+n, b[n:]
			if q.have < q.need {
				return noReason
			}
			if why := q.end(); why != noReason {
				return why
			}
		}
	}
	return noReason
}

// headerPart handles the prefix of an FPDU, and then its header.
func (q *QP) headerPart() reason {
	if q.have == prefixSize {
		op, _, why := parsePrefix(q.header[:])
		if why != noReason {
			return why
		}
		q.need = op.headerSize()
		return noReason
	}
	q.seg.parse(q.header[:])
	q.sum = crc(q.peer.CRC, 0, q.header[:q.have])
	q.left = q.seg.n
	if why := q.begin(); why != noReason {
		return why
	}
	if q.left > 0 {
		q.phase = inPayload
		return noReason
	}
	q.trailer()
	return noReason
}

// begin checks the header of a segment, before its payload.
func (q *QP) begin() reason {
	h := &q.seg
	switch {
	case h.op.send():
		return q.beginSend(h)
	case h.op == opReadRequest:
		switch {
		case h.queue != queueRead:
			return badQueue
		case h.msn != q.readMSN:
			return badMSN
		case h.mo != 0:
			return badOffset
		case q.responseEnd-q.responseDone == uint64(len(q.responses)):
			return noBuffer
		}
	case h.op == opReadResponse:
		// Responses come in the order of the requests (RFC 5040, section 5.5).
		if q.readDone == q.pos.read {
			return badSTag
		}
		size := q.readBytes()
		switch {
		case h.stag != q.stag+uint32(q.readDone):
			return badSTag
		case h.to != uint64(q.readGot) || h.n > size-q.readGot ||
			h.last != (h.n == size-q.readGot):
			return badBounds
		}
	case h.op == opTerminate:
		switch {
		case h.queue != queueTerminate:
			return badQueue
		case h.n < 4 || int(h.n) > len(q.term):
			return badLength
		}
	case h.op == opWrite && h.n > 0:
		// The whole segment must fit before a byte of it is placed.
		if !q.locateRemote(h.stag, h.to, h.n, verbs.AccessRemoteWrite) {
			return badSTag
		}
	}
	return noReason
}

func (q *QP) beginSend(h *header) reason {
	switch {
	case h.queue != queueSend:
		return badQueue
	case h.msn != q.sendMSN:
		return badMSN
	case !q.inSend:
		if h.mo != 0 {
			return badOffset
		}
		if !q.RQ.Take(&q.Recv) {
			return noBuffer
		}
		q.inSend, q.sendOp, q.got = true, h.op, 0
	case h.op != q.sendOp:
		return badOpcode
	case h.mo != q.got:
		return badOffset
	}
	room := uint64(0)
	for _, s := range q.Recv.SGE[:q.Recv.NumSGE] {
		room += uint64(s.Length)
	}
	if uint64(q.got)+uint64(h.n) > room {
		q.inSend = false
		q.CompleteRecv(verbs.WC{Status: verbs.WCLocLenErr})
		return tooLong
	}
	return noReason
}

// readBytes returns the length of the oldest READ.
func (q *QP) readBytes() uint32 {
	r := q.reads[q.readDone%uint64(len(q.reads))]
	if r.rtr {
		return 0
	}
	e, _ := q.Slot(r.wr)
	return e.Bytes
}

// target locates the memory of the next n bytes of payload.
func (q *QP) target(n uint32) reason {
	h := &q.seg
	off := h.n - q.left
	switch {
	case h.op.send():
		if !q.Locate(q.Recv.SGE[:q.Recv.NumSGE], q.got+off, n, verbs.AccessLocalWrite) {
			q.inSend = false
			q.CompleteRecv(verbs.WC{Status: verbs.WCLocProtErr})
			return localError
		}
	case h.op == opReadResponse:
		e, sges := q.Slot(q.reads[q.readDone%uint64(len(q.reads))].wr)
		if !q.Locate(sges, q.readGot+off, n, verbs.AccessLocalWrite) {
			e.Status = verbs.WCLocProtErr
			return localError
		}
	case h.op == opTerminate:
		q.Pieces = append(q.Pieces[:0], q.term[off:])
	default:
		if !q.locateRemote(h.stag, h.to+uint64(off), n, verbs.AccessRemoteWrite) {
			return badSTag
		}
	}
	return noReason
}

// end checks the CRC of an FPDU, and completes its message if it is the last one.
func (q *QP) end() reason {
	if p := q.need - crcSize; q.peer.CRC {
		q.sum = crc(true, q.sum, q.trail[:p])
		if binary.LittleEndian.Uint32(q.trail[p:]) != q.sum {
			q.stats.BadCRC.Add(1)
			return badCRC
		}
	}
	q.stats.ReceivedFPDUs.Add(1)
	q.moved += fpduCost
	if q.first {
		q.first, q.started = false, true
		q.peer.First()
	}
	q.phase, q.have, q.need = inHeader, 0, prefixSize
	h := &q.seg
	switch {
	case h.op.send():
		q.got += h.n
		if h.last {
			return q.endSend(h)
		}
	case h.op == opReadRequest:
		if !q.locateRemote(h.source, h.sourceTo, h.size, verbs.AccessRemoteRead) {
			q.have = readSize // for Terminate
			return badSourceSTag
		}
		q.responses[q.responseEnd%uint64(len(q.responses))] = response{
			stag: h.stag, to: h.to, source: h.source, sourceTo: h.sourceTo, size: h.size,
		}
		q.responseEnd++
		q.readMSN++
	case h.op == opReadResponse:
		if q.readGot += h.n; h.last {
			q.endRead()
		}
	case h.op == opTerminate:
		return q.endTerminate()
	}
	return noReason
}

func (q *QP) endSend(h *header) reason {
	q.inSend = false
	q.sendMSN++
	wc := verbs.WC{ByteLen: q.got}
	if h.op.invalidates() {
		if !q.Dev.Invalidate(q.PD, h.stag) {
			q.CompleteRecv(verbs.WC{Status: verbs.WCRemInvReqErr})
			return badInvalidate
		}
		wc.Flags, wc.InvalidatedRKey = verbs.WCWithInv, h.stag
	}
	q.CompleteRecv(wc)
	return noReason
}

func (q *QP) endRead() {
	r := q.reads[q.readDone%uint64(len(q.reads))]
	q.readDone++
	q.readGot = 0
	if !r.rtr {
		e, _ := q.Slot(r.wr)
		e.State.done = true
		q.completeSends()
	}
}

// endTerminate ends the connection with the error of the peer. A protection error belongs to the
// oldest READ, since only READs wait for the peer.
func (q *QP) endTerminate() reason {
	q.stats.ReceivedTerminates.Add(1)
	why := reason(binary.BigEndian.Uint16(q.term[:]))
	if why.protection() && q.readDone < q.pos.read {
		if r := q.reads[q.readDone%uint64(len(q.reads))]; !r.rtr {
			e, _ := q.Slot(r.wr)
			e.Status = verbs.WCRemAccessErr
		}
	}
	q.toError(false)
	return ended
}
