package tcp

import (
	"syscall"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// The data to be sent is a list of requests, not of bytes: headers are made when they are sent,
// side by side in a buffer of the group, and data is sent from where it lies. After a partial send
// the headers are made again (they are a function of the request) and the bytes that have left are
// skipped. So a slow host costs no memory beyond its requests and their data.
//
// A zero-copy read ends before the host has taken its data if the host is slow: a writer may wait
// for the memory. Then the data is copied to memory of the pool.

const (
	iovFull   = 128 // beyond it no further PDU is started
	headsFull = headsSize - headMax
	// headMax is the most header bytes of a response: aligned C2HData, digests, response capsule.
	headMax = 256
	// sendMost limits the bytes of a sendmsg and of a turn, also in the middle of the data of a
	// read. So the time of a step does not depend on the size of transfers (ADR 0049).
	sendMost = 384 << 10
	// wholeShare is the part of these bytes by which a send may exceed them in order to end with a
	// whole response: three reads of 128 KiB leave together, after the commands of a queue of 16.
	wholeShare = 8
	// turnVectors limits the turn of a queue beside others: 32 small reads.
	turnVectors = 64
)

// sendKind is the kind of PDUs that a request on sendq sends.
type sendKind uint8

const (
	sendRaw      sendKind = iota // raw bytes: ICResp, C2HTermReq
	sendR2T                      // R2T
	sendResponse                 // CapsuleResp
	sendData                     // C2HData, then CapsuleResp
	sendDataOnly                 // C2HData with the success flag instead of the CapsuleResp
)

// enqueue appends r to sendq; wire is the number of its bytes.
func (q *queue) enqueue(r *request, kind sendKind, wire int) {
	r.send, r.wire = kind, wire
	q.queuedBytes += uint64(wire)
	q.sendq.Push(r, &r.node)
}

// sendRaw queues bytes that belong to no command.
func (q *queue) sendRaw(b []byte) {
	r := &request{data: append([]byte(nil), b...)}
	q.enqueue(r, sendRaw, len(r.data))
	q.schedule()
}

// respond queues the response to a completed command, with its data if it is a successful read.
func (q *queue) respond(r *request) {
	p := &q.params
	resp := pdu.CapsuleRespSize + p.HeaderDigestSize()
	if r.Dir != fabric.ControllerToHost || r.Length == 0 || !r.CQE.Status().OK() {
		r.memory.Free()
		q.enqueue(r, sendResponse, resp)
		return
	}
	data := p.PDO(pdu.DataSize, p.HPDA) + int(r.Length) + p.DataDigestSize()
	// The success flag means status 0, result 0, and no SQ head pointer, which must therefore be
	// disabled (TCP section 3.6.2.9; the handler then reports FFFFh).
	if r.CQE.SQHD() == noFlowControl && r.CQE.Status() == nvme.Success && r.CQE.Result() == 0 {
		q.enqueue(r, sendDataOnly, data)
		return
	}
	q.enqueue(r, sendData, data+resp)
}

// noFlowControl is SQHD when submission queue flow control is disabled (Base section 3.3.2.6).
const noFlowControl = 0xFFFF

// flush sends as much as a turn allows, and returns the number of steps made: a part of a large
// read is work, too, after which the reactor must not sleep or yield.
func (q *queue) flush() int {
	g, done := q.g, 0
	inTurns := g.takesTurns()
	for sent := 0; !q.sendq.Empty() || q.pending(); {
		if g.inTurn >= pollBytes || inTurns && sent > 0 {
			q.schedule()
			break
		}
		want := q.gather(inTurns, q.room())
		n, e := q.transmit()
		clear(g.iov)
		if e != 0 && e != syscall.EAGAIN {
			q.broken("send", e)
			return done + 1
		}
		sent += n
		g.moved, g.inTurn = g.moved+n, g.inTurn+sendCost+q.cost(n)
		if n > 0 {
			q.acknowledged = false
			done += max(q.advanceSend(n, g.loop.Clock()), 1)
		}
		q.blocked = n < want || q.pending()
		if q.blocked {
			break
		}
	}
	q.waitSend()
	return done
}

// halves is how long it takes to move bytes of the queue, in halves of the time of plain ones:
// encryption takes as long again, and a digest about half of it.
func (q *queue) halves() int {
	n := 2
	if q.tls != nil {
		n += 2
	}
	if q.params.DataDigest {
		n++
	}
	return n
}

// cost is the number of bytes that n bytes count as in Group.inTurn, and room the number of bytes
// that the poll may still move.
func (q *queue) cost(n int) int { return n * q.halves() / 2 }
func (q *queue) room() int      { return max((pollBytes-q.g.inTurn)*2/q.halves(), 1) }

// advanceSend counts n sent bytes, and returns the number of requests that they complete.
func (q *queue) advanceSend(n int, now int64) int {
	done := 0
	q.sentBytes += uint64(n)
	q.sent += n
	for r := q.sendq.First(); r != nil && q.sent >= r.wire; r = q.sendq.First() {
		q.sent -= r.wire
		q.sendq.Remove(&r.node)
		q.finishSend(r, now)
		done++
	}
	return done
}

// finishSend continues with a request when the kernel has copied all of its bytes.
func (q *queue) finishSend(r *request, now int64) {
	switch {
	case r.send == sendRaw:
	case r.send != sendR2T:
		r.Spent(fabric.StageResponse, now)
		q.g.cfg.Handler.Sent(&r.Request)
		q.put(r)
	case q.state >= queueClosing:
		q.abandon(r)
	default:
		r.state = requestReceiving
		q.requested += int(r.Length)
		q.waitData(r)
		if q.stalled() { // the data of r follows that of the stalled command
			q.g.cfg.Memory.Promote(&q.cur.memory)
		}
	}
}

// gather fills Group.iov from the front of sendq, without the bytes already sent, and returns their
// number, about at most most: more if the last response is then complete. Adjacent headers share a
// vector. It gathers less if the queue takes turns with others.
func (q *queue) gather(inTurns bool, most int) int {
	s := sender{iov: q.g.iov[:0], heads: q.g.heads[:0], skip: q.sent, most: most}
	vectors := iovFull
	if inTurns {
		vectors = turnVectors
	}
	for r := range q.sendq.All() {
		if len(s.iov) >= vectors || len(s.heads) >= headsFull || s.total >= most {
			break
		}
		s.most = most
		if end := s.total + len(s.heads) - s.run + r.wire - s.skip; end <= most+most/wholeShare {
			s.most = max(most, end)
		}
		switch r.send {
		case sendRaw:
			copy(s.head(len(r.data), false), r.data)
		case sendR2T:
			b := s.head(pdu.DataSize, q.params.HeaderDigest)
			(*pdu.Data)(b).SetR2T(&q.params, r.SQE.CID(), r.ttag, 0, r.Length)
			s.digest(b)
		case sendResponse:
			s.response(q, r)
		case sendData:
			if s.read(q, r, pdu.LastPDU) {
				s.response(q, r)
			}
		case sendDataOnly:
			s.read(q, r, pdu.LastPDU|pdu.Success)
		}
		if s.full {
			break
		}
	}
	s.close()
	q.g.iov = s.iov
	return s.total
}

// sender collects vectors. heads[run:] are headers not yet in a vector.
type sender struct {
	iov   []sys.Iovec
	heads []byte
	run   int
	skip  int // bytes to leave out
	total int
	most  int  // the limit of total after the current request
	full  bool // out of vectors or bytes in the middle of a PDU
	hd    bool // the last head has room for a digest
}

// head returns room for a header of n bytes, and its digest if it has one.
func (s *sender) head(n int, digest bool) []byte {
	at := len(s.heads)
	s.hd = digest
	if digest {
		s.heads = s.heads[:at+n+pdu.DigestSize]
	} else {
		s.heads = s.heads[:at+n]
	}
	return s.heads[at : at+n]
}

// digest writes the digest of the header returned by head.
func (s *sender) digest(b []byte) {
	if s.hd {
		pdu.PutHeaderDigest(b[:len(b)+pdu.DigestSize], len(b))
	}
}

func (s *sender) response(q *queue, r *request) {
	b := s.head(pdu.CapsuleRespSize, q.params.HeaderDigest)
	(*pdu.CapsuleResp)(b).Set(&q.params, &r.CQE)
	s.digest(b)
}

// read adds a C2HData with all the data of a command. It returns false if there are not enough
// vectors.
func (s *sender) read(q *queue, r *request, flags pdu.Flags) bool {
	b := s.head(pdu.DataSize, q.params.HeaderDigest)
	pdo := (*pdu.Data)(b).SetC2H(&q.params, flags, r.SQE.CID(), 0, r.Length)
	s.digest(b)
	if pad := pdo - len(b) - q.params.HeaderDigestSize(); pad > 0 {
		at := len(s.heads)
		s.heads = s.heads[:at+pad]
		clear(s.heads[at:])
	}
	s.close()
	at := 0 // in the data
	for i := range r.Segs {
		b := r.Segs[i].B
		n := s.vector(b)
		if from := int(r.digested) - at; q.params.DataDigest && n > from {
			r.crc = pdu.CRC(r.crc, b[from:n])
			r.digested = uint32(at + n)
		}
		if at += n; s.full {
			return false
		}
	}
	if q.params.DataDigest {
		at := len(s.heads)
		s.heads = s.heads[:at+pdu.DigestSize]
		pdu.PutCRC(s.heads[at:], r.crc)
	}
	return true
}

// close puts the headers so far into a vector.
func (s *sender) close() {
	if s.run < len(s.heads) {
		b := s.heads[s.run:]
		s.run = len(s.heads)
		s.vector(b)
	}
}

// vector adds b without the bytes to skip, as far as there is room; the rest is sent next time. It
// returns the number of bytes added or skipped.
func (s *sender) vector(b []byte) int {
	skip := min(s.skip, len(b))
	s.skip -= skip
	b = b[skip:]
	if len(b) == 0 {
		return skip
	}
	if len(s.iov) == cap(s.iov) {
		s.full = true
		return skip
	}
	if most := s.most - s.total; len(b) > most {
		s.full = true
		if b = b[:most]; most == 0 {
			return skip
		}
	}
	s.iov = s.iov[:len(s.iov)+1]
	sys.SetIovec(&s.iov[len(s.iov)-1], b)
	s.total += len(b)
	return skip + len(b)
}

// CanSendFrom implements fabric.Queue: the kernel reads from any memory.
func (q *queue) CanSendFrom([]mem.Segment) bool { return true }

func (q *queue) transmit() (int, syscall.Errno) {
	if q.tls != nil {
		return q.tls.Sendmsg(q.fd, q.g.iov, q.g.tls)
	}
	return sys.Sendmsg(q.fd, q.g.iov, 0)
}

// writerWait is about the time, in nanoseconds, that a writer waits for a zero-copy read if the
// host does not take its data and there is no memory for a copy.
const writerWait = int64(2e9)

// copyUnsent begins to copy the data of zero-copy reads that the socket has not taken since the
// last tick: a writer may wait for the memory, and this host may never read. Without memory for the
// copy a read stays as it is. If a writer then waits too long, copyUnsent returns false, and the
// connection must end.
func (q *queue) copyUnsent() bool {
	for r := range q.sendq.All() {
		if !r.ZeroCopy || r.Dir == fabric.HostToController {
			continue
		}
		r.unsent++
		if int64(r.unsent)*q.g.tick >= writerWait && q.g.cfg.Handler.WriterWaits(&r.Request) {
			return false
		}
	}
	q.copying = true
	q.schedule()
	return true
}

// copySome copies data of these reads, as much as the poll may still move.
func (q *queue) copySome() {
	g := q.g
	q.copying = false
	for r := range q.sendq.All() {
		if r.ZeroCopy && r.Dir != fabric.HostToController && r.unsent >= 2 &&
			g.inTurn < pollBytes {
			g.inTurn += q.copyData(r, pollBytes-g.inTurn)
		}
		if g.inTurn >= pollBytes {
			q.copying = true
			q.schedule()
			return
		}
	}
}

// copyData copies the next data of a zero-copy read to the pool, at most most bytes, and returns
// their number, 0 without memory.
func (q *queue) copyData(r *request, most int) int {
	g, pool := q.g, q.g.cfg.Memory
	if n := int(r.Length); r.placed == 0 &&
		(pool.Available() < n || !pool.AllocReserve(&r.memory, r.Flow, n)) {
		return 0
	}
	own, n := r.memory.Segs, min(int(r.Length-r.placed), most)
	from, to := mem.NewCursor(r.Segs, int(r.placed)), mem.NewCursor(own, int(r.placed))
	for left := n; left > 0; {
		left -= to.CopyFrom(from.Next(left))
	}
	if r.placed += uint32(n); r.placed < r.Length {
		return n
	}
	g.cfg.Handler.EndZeroCopy(&r.Request)
	clear(r.Segs)
	r.ZeroCopy, r.Segs = false, append(r.Segs[:0], own...)
	return n
}
