package tcp

import (
	"syscall"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// bulkWindow is how much is received beyond the data that goes straight to its place while large
// data is expected: the next headers. A larger window would catch data in the shared buffer, from
// where it has to be copied.
const bulkWindow = 1 << 10

// receive takes input once and handles it. It returns the number of steps made, 0 if there was
// nothing.
func (q *queue) receive() int {
	switch {
	case q.state >= queueClosing:
		return q.discard()
	case q.stalled || q.eof:
		q.drained = true
		return 0
	}
	g := q.g
	buf := g.rx
	if len(g.stalled) > 0 {
		buf = buf[:tightSize]
	}
	have := copy(buf, q.carry)
	head, r, size := 0, q.cur, q.left
	if size == 0 {
		head, r, size = q.foretell(have)
	}
	if r != nil {
		return q.receiveData(r, have, head, size)
	}
	if q.large && have < q.untilData() {
		buf = buf[:q.untilData()]
	}
	n, e := sys.Recv(q.fd, buf[have:], 0)
	if q.received(n, len(buf)-have, e) {
		return q.process(buf[:have+n])
	}
	return q.nothing(e)
}

// receiveData receives with up to three parts: a header into the group's buffer, which has the
// first have bytes of it, up to size bytes of data straight to their place with r, and what follows
// into the buffer again. head is 0 if the header has been there before; otherwise the next PDU is
// taken for the H2CData that continues r, and what comes in its place is copied out again.
func (q *queue) receiveData(r *request, have, head, size int) int {
	g := q.g
	buf := g.rx
	iov := g.iov[:0]
	if head > 0 {
		iov = append(iov, sys.Iovec{})
		sys.SetIovec(&iov[0], buf[have:head])
	}
	wanted := size
	iov, size = appendTargets(iov, r, min(size, g.input))
	window := buf
	if head > 0 {
		window = buf[head+size:] // room for the data before it, should the guess be wrong
	}
	switch {
	case head > 0 && size < min(int(r.Length-r.recvd), int(q.params.MaxH2CData)), head == 0 &&
		size < wanted:
		window = window[:0] // more of the same follows
	case q.large && head == 0:
		window = window[:q.untilData()]
	case q.grants.head != nil:
		window = window[:bulkWindow]
	case len(g.stalled) > 0:
		window = window[:tightSize]
	}
	iov = append(iov, sys.Iovec{})
	sys.SetIovec(&iov[len(iov)-1], window)
	n, e := sys.Recvmsg(q.fd, iov, 0)
	clear(iov)
	if !q.received(n, head-have+size+len(window), e) {
		return q.nothing(e)
	}
	n += have
	if n <= head {
		return q.process(buf[:n])
	}
	n -= head
	placed := min(n, size)
	if head == 0 {
		q.landed(placed)
		return q.process(window[:n-placed])
	}
	return q.judge(r, buf[:head+n], head, placed)
}

// judge goes on with b, of which the first placed bytes behind a header of head bytes lie with r,
// if they are its data; b has room for them.
func (q *queue) judge(r *request, b []byte, head, placed int) int {
	ours := min(q.asForetold(r, b[:head]), placed)
	copyOut(b[head+ours:head+placed], r, int(r.recvd)+ours)
	if ours == 0 {
		return q.process(b)
	}
	if q.header(b[:head]); q.cur != r {
		return q.process(nil) // the connection ends
	}
	q.landed(ours)
	return q.process(b[head+ours:])
}

// received notes the outcome of a receive that asked for want bytes and reports whether there is
// something to process.
func (q *queue) received(n, want int, e syscall.Errno) bool {
	q.drained = n < want
	q.g.sockets.moved += n
	q.g.input -= n
	return n > 0 && e == 0
}

// nothing goes on after a receive without data and returns the number of steps made.
func (q *queue) nothing(e syscall.Errno) int {
	switch e {
	case syscall.EAGAIN:
		return 0
	case 0:
		q.endOfStream()
	default:
		q.broken("receive", e)
	}
	return 1
}

// foretell guesses whose data comes next, and how much of it in one PDU, if R2Ts are outstanding
// and of a header no more than a part, the have bytes at the start of the group's buffer, has been
// received. head is what such a header measures, with digest and padding.
func (q *queue) foretell(have int) (head int, r *request, size int) {
	head = q.params.PDO(pdu.DataSize, q.params.CPDA)
	r = q.grants.head
	if r == nil || q.rx != receiveHeader || have >= head || have > 0 &&
		pdu.Type(q.g.rx[0]) != pdu.TypeH2CData {
		return 0, nil, 0
	}
	most := min(len(q.g.rx)-head-bulkWindow, int(q.params.MaxH2CData))
	return head, r, min(int(r.Length-r.recvd), most)
}

// asForetold returns how much data a header announces that continues what r has got so far, and 0
// if it is of anything else. It only compares; what is wrong with such a header is found by those
// who handle it.
func (q *queue) asForetold(r *request, head []byte) int {
	d := (*pdu.Data)(head)
	h := d.Header()
	if h.Type() != pdu.TypeH2CData || h.PDO() != len(head) || d.TTAG() != r.ttag ||
		d.DATAO() != r.recvd {
		return 0
	}
	return int(d.DATAL())
}

// landed counts n bytes that the kernel put into the current request's memory.
func (q *queue) landed(n int) {
	r := q.cur
	if q.params.DataDigest {
		dst := r.target()
		off, left := int(r.recvd), n
		for i := range dst {
			b := dst[i].B
			if off >= len(b) {
				off -= len(b)
				continue
			}
			b = b[off:min(len(b), off+left)]
			off = 0
			q.crc = pdu.CRC(q.crc, b)
			if left -= len(b); left == 0 {
				break
			}
		}
	}
	r.recvd += uint32(n)
	q.left -= n
}

// store takes the front of b for the current request and returns the rest of b. It is copied into
// the request's memory, but for in-capsule data that lies in b as a whole: what becomes of that is
// decided after Prepare.
func (q *queue) store(b []byte) []byte {
	n := min(len(b), q.left)
	data := b[:n]
	if q.params.DataDigest {
		q.crc = pdu.CRC(q.crc, data)
	}
	r := q.cur
	if r.InCapsule && len(r.own) == 0 {
		r.passing = data
	} else {
		copyIn(r, data)
	}
	r.recvd += uint32(n)
	q.left -= n
	return b[n:]
}

// process consumes b, which lies in the group's buffer; what is left over is carried.
func (q *queue) process(b []byte) int {
	steps := 1
	for q.state < queueClosing && !q.ending {
		rest, more := b, false
		switch q.rx {
		case receiveHeader:
			rest, more = q.header(b)
		case receiveData:
			rest = q.store(b)
			more = q.left == 0
			if more {
				q.dataComplete()
			}
		case receiveDigest:
			if more = len(b) >= pdu.DigestSize; more {
				rest = b[pdu.DigestSize:]
				q.digestComplete(pdu.GetCRC(b))
			}
		}
		b = rest
		// What follows a Connect may depend on it, however the stream is cut.
		if len(q.g.batch) == cap(q.g.batch) || !q.connected || q.cur != nil && q.cur.ahead &&
			!q.cur.prepared {
			steps += q.g.runBatch()
		}
		if !more {
			break
		}
	}
	steps += q.g.runBatch()
	q.keep(b)
	return steps
}

// keep carries what was not consumed to the next call.
func (q *queue) keep(b []byte) {
	if q.state >= queueClosing {
		b = nil
	}
	if len(b) <= carryMax && cap(q.carry) > tightSize {
		q.carry = make([]byte, 0, carryMax)
	}
	q.carry = append(q.carry[:0], b...)
	q.waitPartial()
}

// header handles the PDU header at the start of b. It returns what follows and whether to go on.
func (q *queue) header(b []byte) (rest []byte, more bool) {
	if len(b) < pdu.HeaderSize {
		return b, false
	}
	h := (*pdu.Header)(b[:pdu.HeaderSize])
	t := h.Type()
	f := q.params.CheckFromHost(h)
	if known := t <= pdu.TypeH2CData && t%2 == 0; known &&
		(t == pdu.TypeICReq) != (q.state == queueConnecting) {
		f = pdu.Fault{FES: pdu.FESSequence} // ICReq first, and only then (TCP section 3.1)
	}
	if !f.OK() {
		q.fault(f, h[:])
		return nil, false
	}
	hlen := h.HLEN()
	digest, need := 0, hlen
	if t == pdu.TypeCapsuleCmd || t == pdu.TypeH2CData {
		digest = q.params.HeaderDigestSize()
		need = max(hlen+digest, h.PDO()) // with padding, if there is data
	}
	if len(b) < need {
		return b, false
	}
	if digest != 0 && !pdu.HeaderDigestOK(b, hlen) {
		q.fault(pdu.Fault{FES: pdu.FESHeaderDigest, FEI: pdu.GetCRC(b[hlen:])}, b[:hlen])
		return nil, false
	}
	q.pdus++
	switch t {
	case pdu.TypeCapsuleCmd:
		if !q.capsule((*pdu.CapsuleCmd)(b[:pdu.CapsuleCmdSize]), b[need:]) {
			return b, false
		}
	case pdu.TypeH2CData:
		q.h2cData((*pdu.Data)(b[:pdu.DataSize]))
	case pdu.TypeICReq:
		q.icReq((*pdu.ICReq)(b[:pdu.ICReqSize]))
	case pdu.TypeH2CTermReq:
		q.termReq((*pdu.TermReq)(b[:pdu.TermReqSize]))
	}
	return b[need:], q.state < queueClosing
}

// expect makes the n data bytes of a PDU go to r.
func (q *queue) expect(r *request, n uint32) {
	q.cur, q.left, q.crc = r, int(n), 0
	q.rx = receiveData
}

// dataComplete is called when the last data byte of a PDU has arrived.
func (q *queue) dataComplete() {
	if q.params.DataDigest {
		q.rx = receiveDigest
		return
	}
	q.pduComplete()
}

// digestComplete compares the data digest of a PDU. A mismatch costs the command, not the
// connection (TCP section 3.5, Base section 4.2.3.1).
func (q *queue) digestComplete(got uint32) {
	if got != q.crc {
		q.cur.damaged = true
	}
	q.pduComplete()
}

// discard throws input away until the peer closes.
func (q *queue) discard() int {
	if q.state == queueDead {
		return 0
	}
	n, e := sys.Recv(q.fd, q.g.rx, 0)
	switch {
	case e == syscall.EAGAIN:
		q.drained = true
	case e != 0:
		q.kill(q.why)
	case n == 0:
		q.drained, q.eof = true, true
		if q.state == queueLingering {
			q.kill(q.why)
		}
	default:
		q.drained = n < len(q.g.rx)
		return 1
	}
	return 0
}

// endOfStream ends the queue after the peer has closed. Half-open use is not allowed: a host that
// closes is gone.
func (q *queue) endOfStream() {
	q.eof, q.drained = true, true
	q.kill(errPeerClosed)
}

// pduComplete goes on with the command whose data PDU has been received.
func (q *queue) pduComplete() {
	r := q.cur
	q.cur, q.rx = nil, receiveHeader
	if r.InCapsule {
		r.whole = true
		if r.prepared {
			q.placeInCapsule(r)
		}
		return
	}
	if r.recvd == r.Length {
		if !r.ahead {
			q.grants.remove(r)
			q.waitProgress()
		}
		q.dataInPlace(r)
	}
}

// dataInPlace lets a prepared command be executed, or fail if its data was damaged on the way.
func (q *queue) dataInPlace(r *request) {
	if r.damaged && r.Status.OK() {
		r.Status = nvme.TransientTransportError
	}
	q.g.toReady(r)
}
