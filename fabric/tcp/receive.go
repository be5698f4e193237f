package tcp

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/tls"
	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// Data from the host takes one of two paths. Small in-capsule data that was received as a whole
// after its command:
//
//	1 receive        takes it into the receive buffer, with headers and data of other PDUs
//	2 capsule        leaves it there, and puts the command on the batch for Prepare
//	3 fromCapsule    lets the device take it from there (borrowed data) or, if that may take
//	                 longer than Execute, copies it to memory of the pool
//	4 markReady      puts the command on the list for Execute
//
// All other data is direct data, in a capsule or requested with an R2T:
//
//	1 capsule        puts the command on the batch for Prepare, at once if its data follows
//	2 wantMemory     finds memory: that of the namespace, which Prepare attached (zero copy), or
//	                 of the pool, perhaps later
//	3 start          expects the data of the capsule, or sends an R2T;
//	  h2cData        finds the request of an H2CData
//	4 receiveDirect  receives the data straight into that memory;
//	  data           copies data there that was received together with the header before it
//	5 markReady      puts the command on the list for Execute
//
// While direct data is expected, no more than the next header is received after anything else. So
// there is nothing to copy.

// directMin is the minimum size of in-capsule data that is worth a separate receive.
const directMin = 32 << 10

// receiveState is the kind of the next input byte of a queue.
type receiveState uint8

const (
	// receiveHeader: a PDU header (with digest and padding).
	receiveHeader receiveState = iota
	// receiveData: direct data of the PDU, for the current request.
	receiveData
	// receiveDigest: the data digest of the PDU.
	receiveDigest
)

// receive takes input once, handles it, and returns the number of steps, 0 without input.
func (q *queue) receive() int {
	switch {
	case q.state > queueLive:
		return q.discard()
	case q.stalled():
		q.drained = true
		return 0
	case q.handshake != nil:
		return q.receiveHandshake()
	case q.rx == receiveData:
		return q.receiveDirect()
	}
	buf := q.window()
	have := copy(buf, q.partial)
	iov := append(q.g.iov[:0], sys.Iovec{})
	sys.SetIovec(&iov[0], buf[have:])
	n, e := q.recvmsg(iov, len(buf)-have)
	if n == 0 {
		return q.noData(e)
	}
	return q.process(buf[:have+n])
}

// receiveDirect receives the rest of the data of a PDU straight into the memory of its request, as
// far as it has some, and the bytes after it into the receive buffer.
func (q *queue) receiveDirect() int {
	iov, dst, size := q.g.iov[:0], q.dst, 0
	for most := min(q.left, q.g.input); size < most && len(iov) < iovMax-1; {
		b := dst.Next(most - size)
		if b == nil {
			break
		}
		iov = append(iov, sys.Iovec{})
		sys.SetIovec(&iov[len(iov)-1], b)
		size += len(b)
	}
	buf := q.window()
	if size < q.left && dst.Segment() != nil {
		buf = buf[:0] // more data of the request follows
	}
	iov = append(iov, sys.Iovec{})
	sys.SetIovec(&iov[len(iov)-1], buf)
	n, e := q.recvmsg(iov, size+len(buf))
	if n == 0 {
		return q.noData(e)
	}
	placed := min(n, size)
	q.advance(placed)
	return q.process(buf[:n-placed])
}

// recvmsg receives into iov, at most asked bytes, and clears it.
func (q *queue) recvmsg(iov []sys.Iovec, asked int) (n int, e syscall.Errno) {
	drained := false
	q.g.inTurn += receiveCost
	switch {
	case q.tls != nil:
		n, drained, e = q.tls.Recvmsg(q.fd, iov, q.g.tls)
	case len(iov) == 1: // cheaper
		n, e = sys.Recv(q.fd, sys.Bytes(iov[0]), 0)
		drained = n < asked
	default:
		n, e = sys.Recvmsg(q.fd, iov, 0)
		drained = n < asked
	}
	clear(iov)
	if n > 0 {
		q.received(n, drained)
	}
	return n, e
}

// window is the part of the receive buffer that the next receive may fill.
func (q *queue) window() []byte {
	buf, p := q.g.rx, &q.params
	switch {
	case q.g.stalled > 0, q.admin: // no other queue is read before all of these commands
		buf = buf[:stalledBuffer]
	case q.state == queueConnecting:
		buf = buf[:tls.MaxInput]
	}
	if !q.expectsDirect() {
		return buf
	}
	n := p.PDO(pdu.CapsuleCmdSize, p.CPDA)
	if data := p.PDO(pdu.DataSize, p.CPDA); !q.grants.Empty() && len(q.partial) < data {
		n = data // the next receive takes the rest of in-capsule data
	}
	switch {
	case q.rx != receiveHeader: // discarded data, and the digest
		n += max(q.left-q.dst.Rest(), 0) + p.DataDigestSize()
	case len(q.partial) >= n: // more padding than usual
		return buf
	}
	return buf[:min(n, len(buf))]
}

// expectsDirect reports whether the next PDU probably carries direct data.
func (q *queue) expectsDirect() bool { return q.large || !q.grants.Empty() }

// received records that n bytes were received. drained reports whether no more were there.
func (q *queue) received(n int, drained bool) {
	q.drained = drained && !q.hungUp // the end of the stream causes no further event
	q.g.moved, q.g.inTurn, q.g.input = q.g.moved+n, q.g.inTurn+q.cost(n), q.g.input-n
	q.receivedBytes += uint64(n)
	q.g.arrived = q.g.loop.Clock()
}

// noData handles a receive without data. It returns the number of steps made.
func (q *queue) noData(e syscall.Errno) int {
	q.drained = true
	switch e {
	case syscall.EAGAIN:
		return 0
	case syscall.EPROTO:
		q.tlsFailed()
	case 0: // a host that closes its side has ended: there is no use for half-open connections
		q.kill(errPeerClosed)
	default:
		q.broken("receive", e)
	}
	return 1
}

// unfinished reports whether a PDU, the data of an R2T, or a record of TLS has arrived in part.
func (q *queue) unfinished() bool {
	r := q.grants.Last() // the one that has got data last, unless an R2T has left since
	return q.state == queueLive && !q.stalled() &&
		(q.rx != receiveHeader || len(q.partial) > 0 || r != nil && r.placed > 0 ||
			q.tls != nil && q.tls.Partial())
}

// acknowledge makes the kernel acknowledge unfinished input, and all further input until the next
// response, at once. Otherwise the kernel delays the acknowledgement by 40 ms after a response, in
// order to combine it with another. Two kinds of host send nothing until then: one has a socket
// buffer smaller than its PDU (SPDK's holds 8 KiB under TLS), the other sends a PDU in pieces
// without TCP_NODELAY.
func (q *queue) acknowledge() {
	if !q.drained || q.acknowledged || !q.unfinished() {
		return
	}
	q.acknowledged = true
	// Errors belong to the socket, and the next receive reports them.
	_ = unix.SetsockoptInt(q.fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1)
}

// discard drops input until the peer closes.
func (q *queue) discard() int {
	if q.state == queueDead {
		return 0
	}
	q.g.inTurn += receiveCost
	n, e := sys.Recv(q.fd, q.g.rx, 0)
	if n > 0 {
		q.received(n, n < len(q.g.rx))
		return 1
	}
	q.drained = true
	if e != syscall.EAGAIN && (e != 0 || q.state == queueLingering) {
		q.kill(q.reason)
	}
	return 0
}

// process consumes b, which lies in the receive buffer, as far as the poll may go on. The rest is
// unread until the next poll, and an incomplete header is saved.
func (q *queue) process(b []byte) int {
	g, steps, more := q.g, 1, true
	for more && q.state <= queueLive && (g.inTurn < pollBytes || q.rx != receiveHeader) {
		switch q.rx {
		case receiveHeader:
			b, more = q.header(b)
		case receiveData:
			b, more = q.data(b)
		case receiveDigest:
			b, more = q.digest(b)
		}
		// Commands after a Connect may depend on it, wherever the stream is cut. Direct data needs
		// to know its place. Admin commands differ in their cost.
		if len(g.batch) == cap(g.batch) || !q.connected || q.admin ||
			q.cur != nil && q.cur.state == requestParsed {
			steps += g.prepareBatch()
		}
	}
	steps += g.prepareBatch()
	if more && q.state <= queueLive && len(b) > 0 {
		g.reader, g.unread, b = q, b, nil
	}
	q.savePartial(b)
	return steps
}

// readOn continues with unread input.
func (q *queue) readOn() int {
	b := q.g.unread
	q.g.reader, q.g.unread = nil, nil
	defer q.acknowledge()
	return q.process(b)
}

// savePartial saves unconsumed bytes for the next receive.
func (q *queue) savePartial(b []byte) {
	if q.state > queueLive {
		b = nil
	}
	if len(b) <= partialSize && cap(q.partial) > stalledBuffer {
		q.partial = make([]byte, 0, partialSize)
	}
	q.partial = append(q.partial[:0], b...)
	q.waitPartial()
}

// header handles the PDU header at the start of b. It returns the bytes after it, and whether to
// continue.
func (q *queue) header(b []byte) (rest []byte, more bool) {
	if len(b) < pdu.HeaderSize {
		return b, false
	}
	if q.state == queueConnecting && q.begin(b) {
		return nil, false
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
	rest = b[need:]
	switch t {
	case pdu.TypeCapsuleCmd:
		rest = q.capsule((*pdu.CapsuleCmd)(b[:pdu.CapsuleCmdSize]), rest)
	case pdu.TypeH2CData:
		q.g.inTurn += dataCost
		q.h2cData((*pdu.Data)(b[:pdu.DataSize]))
	case pdu.TypeICReq:
		q.icReq((*pdu.IC)(b[:pdu.ICSize]))
	case pdu.TypeH2CTermReq:
		q.termReq((*pdu.TermReq)(b[:pdu.TermReqSize]))
	}
	return rest, true
}

// expect begins the n data bytes of a PDU for r. Their place is known once r has been prepared.
func (q *queue) expect(r *request, n uint32) {
	q.cur, q.left, q.crc, q.rx = r, int(n), 0, receiveData
}

// data copies the direct data at the start of b to its place, or discards it if the command was
// refused. It returns the bytes after it, and whether to continue.
func (q *queue) data(b []byte) (rest []byte, more bool) {
	if q.stalled() {
		return b, false
	}
	n := min(len(b), q.left)
	if q.params.DataDigest {
		q.crc = pdu.CRC(q.crc, b[:n])
	}
	q.dst.CopyFrom(b[:n])
	q.cur.placed += uint32(n)
	if q.left -= n; q.left > 0 {
		return b[n:], false
	}
	if q.params.DataDigest {
		q.rx = receiveDigest
	} else {
		q.dataComplete()
	}
	return b[n:], true
}

// advance counts n bytes of direct data that the kernel has received into place.
func (q *queue) advance(n int) {
	q.cur.placed += uint32(n)
	q.left -= n
	if !q.params.DataDigest {
		q.dst.Skip(n)
		return
	}
	for n > 0 {
		b := q.dst.Next(n)
		q.crc = pdu.CRC(q.crc, b)
		n -= len(b)
	}
}

// digest compares the data digest of a PDU, at the start of b. A mismatch fails the command, not
// the connection (TCP section 3.5, Base section 4.2.3.1).
func (q *queue) digest(b []byte) (rest []byte, more bool) {
	if len(b) < pdu.DigestSize {
		return b, false
	}
	q.checkDigest(q.cur, q.crc, pdu.GetCRC(b))
	q.dataComplete()
	return b[pdu.DigestSize:], true
}

// checkDigest records whether the data of a PDU for r has the digest that the host has sent.
func (q *queue) checkDigest(r *request, expected, received uint32) {
	if expected == received {
		return
	}
	r.damaged = true
	q.peerLog().Report(event.DataDigestWrong, "cid", r.SQE.CID(), "expected",
		fmt.Sprintf("%08x", expected), "received", fmt.Sprintf("%08x", received), "hint",
		damagedHint)
}

// damagedHint is the hint for a wrong digest of a correct host.
const damagedHint = "a network adapter or a switch damages data"

// dataComplete is called when all data of a PDU has been received.
func (q *queue) dataComplete() {
	r := q.cur
	q.cur, q.dst, q.rx = nil, mem.Cursor{}, receiveHeader
	r.Spent(fabric.StageHostData, q.g.arrived)
	if r.node.Listed() { // on grants
		q.grants.Remove(&r.node)
		if r.placed < r.Length {
			q.waitData(r)
			return
		}
		q.requested -= int(r.Length)
	}
	q.g.markReady(r)
}
