package tcp

import (
	"syscall"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// bulkWindow is how much is received beyond the data that goes straight to its place while large data is expected: the next
// header and a little. A larger window would catch data in the shared buffer, from where it has to be copied.
const bulkWindow = 4 << 10

// receive takes input once and handles it. It returns the number of steps made, 0 if there was nothing.
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
	have := copy(buf, q.carry)
	window := buf[have:]
	if q.granted > 0 && len(window) > bulkWindow {
		window = window[:bulkWindow]
	}
	direct := q.left > 0
	n, want, e := 0, len(window), syscall.Errno(0)
	if direct {
		iov := g.iov[:0]
		iov, want = q.appendTargets(iov)
		iov = append(iov, sys.Iovec{})
		sys.SetIovec(&iov[len(iov)-1], window)
		n, e = sys.Recvmsg(q.fd, iov, 0)
		clear(iov)
		want += len(window)
	} else {
		n, e = sys.Recv(q.fd, window, 0)
	}
	switch {
	case e == syscall.EAGAIN:
		q.drained = true
		return 0
	case e != 0:
		q.broken("receive", e)
		return 1
	case n == 0:
		q.endOfStream()
		return 1
	}
	q.drained = n < want
	if direct {
		placed := min(n, want-len(window))
		q.landed(placed)
		n -= placed
	}
	return q.process(buf[:have+n])
}

// appendTargets appends where the rest of the current data goes and returns its length.
func (q *queue) appendTargets(iov []sys.Iovec) ([]sys.Iovec, int) {
	dst := q.cur.target()
	off, left, total := int(q.cur.recvd), q.left, 0
	for i := range dst {
		b := dst[i].B
		if off >= len(b) {
			off -= len(b)
			continue
		}
		b = b[off:]
		off = 0
		if len(b) > left {
			b = b[:left]
		}
		if len(b) == 0 || len(iov) == iovMax-1 {
			break
		}
		iov = append(iov, sys.Iovec{})
		sys.SetIovec(&iov[len(iov)-1], b)
		left -= len(b)
		total += len(b)
	}
	return iov, total
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

// store copies the front of b into the current request's memory and returns the rest of b.
func (q *queue) store(b []byte) []byte {
	n := min(len(b), q.left)
	data := b[:n]
	if q.params.DataDigest {
		q.crc = pdu.CRC(q.crc, data)
	}
	r := q.cur
	dst := r.target()
	off := int(r.recvd)
	for i := range dst {
		s := dst[i].B
		if off >= len(s) {
			off -= len(s)
			continue
		}
		m := copy(s[off:], data)
		data = data[m:]
		off = 0
		if len(data) == 0 {
			break
		}
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
		if len(q.g.batch) == cap(q.g.batch) || !q.connected {
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
	if known := t <= pdu.TypeH2CData && t%2 == 0; known && (t == pdu.TypeICReq) != (q.state == queueConnecting) {
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
		if !q.capsule((*pdu.CapsuleCmd)(b[:pdu.CapsuleCmdSize])) {
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

// digestComplete compares the data digest of a PDU. A mismatch costs the command, not the connection (TCP section 3.5,
// Base section 4.2.3.1).
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

// endOfStream ends the queue after the peer has closed. Half-open use is not allowed: a host that closes is gone.
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
		q.granted--
		q.waitProgress()
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
