package verbstest

import (
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

// The engine executes work requests. Everything here runs with the fabric locked.
//
//	issue   in order: SEND and WRITE have their whole effect, READ is in flight; faults and waits
//	        stop it
//	finish  in order: READ data is fetched, completions are written

// step does all work that is possible for the queue pair now.
func (q *qp) step() {
	if q.freed {
		return
	}
	for {
		issued := q.issue()
		if !q.finish() && !issued {
			return
		}
	}
}

// issue executes work requests until one must wait. It reports whether any was executed.
func (q *qp) issue() bool {
	from := q.exec
	for q.state == stateRTS && !q.failing && q.exec < q.tail {
		e := &q.sq[q.exec%uint64(len(q.sq))]
		if !q.checkFaults(e) || !q.execute(e) {
			break
		}
		q.stall = notStalled
		q.stallGen++
		q.exec++
	}
	return q.exec != from
}

// fail ends a work request with an error and stops the queue after it.
func (q *qp) fail(e *sendEntry, status verbs.WCStatus) {
	e.state, e.status = sendDone, status
	q.failing = true
	q.exec++
}

// execute executes one work request. It returns false if it waits or fails.
func (q *qp) execute(e *sendEntry) bool {
	f := q.dev.f
	p := q.peer
	switch {
	case p == nil || p.freed || p.state == stateErr || f.isCut(q.dev.host, p.dev.host):
		q.wait(stallDead, f.opt.RetryTimeout, verbs.WCRetryExcErr)
		return false
	// The peer has accepted but not seen the reply yet; it retries until then.
	case p.state == stateInit:
		q.wait(stallSilent, 0, 0)
		return false
	}
	sges := q.sges[e.wr.FirstSGE:][:e.wr.NumSGE]
	if e.wr.Flags&verbs.SendInline == 0 {
		need := verbs.Access(0)
		if e.wr.Opcode == verbs.WRRDMARead {
			need = verbs.AccessLocalWrite
		}
		n, ok := q.check(sges, need)
		if !ok {
			q.fail(e, verbs.WCLocProtErr)
			return false
		}
		e.bytes = n
	}
	switch e.wr.Opcode {
	case verbs.WRRDMARead:
		return q.read(e, sges)
	case verbs.WRRDMAWrite:
		return q.write(e, sges)
	default:
		return q.send(e, sges)
	}
}

// check adds up the elements and checks that all may be used.
func (q *qp) check(sges []verbs.SGE, need verbs.Access) (total uint32, ok bool) {
	for _, s := range sges {
		if s.Length == 0 {
			continue
		}
		if _, ok := q.dev.bytes(q.pd, s.LKey, false, s.Addr, s.Length, need); !ok {
			return 0, false
		}
		if total += s.Length; total > 1<<31 || total < s.Length {
			return 0, false // C9-88: a message is at most 2^31 bytes
		}
	}
	return total, true
}

func (q *qp) read(e *sendEntry, sges []verbs.SGE) bool {
	p := q.peer
	if q.rdAtomic == 0 {
		q.fail(e, verbs.WCLocQPOpErr)
		return false
	}
	if q.reads >= q.rdAtomic {
		q.wait(stallSilent, 0, 0)
		return false
	}
	if q.dev.opt.Attr.ReadNeedsRemoteWrite {
		// RFC 5040, 5.2: the response is placed by a tagged message, so the sink must allow remote
		// writes.
		if _, ok := q.check(sges, verbs.AccessLocalWrite|verbs.AccessRemoteWrite); !ok {
			q.fail(e, verbs.WCLocAccessErr)
			return false
		}
	}
	if _, ok := p.dev.bytes(p.pd, e.wr.RKey, true, e.wr.RemoteAddr, e.bytes,
		verbs.AccessRemoteRead); e.bytes > 0 && !ok {
		q.remoteError(e, verbs.WCRemAccessErr)
		return false
	}
	e.state = sendInFlight
	q.reads++
	return true
}

func (q *qp) write(e *sendEntry, sges []verbs.SGE) bool {
	p := q.peer
	if e.bytes > 0 {
		to, ok := p.dev.bytes(p.pd, e.wr.RKey, true, e.wr.RemoteAddr, e.bytes,
			verbs.AccessRemoteWrite)
		if !ok {
			q.remoteError(e, verbs.WCRemAccessErr)
			return false
		}
		q.gather(e, sges, to)
	}
	e.state = sendDone
	return true
}

// gather copies the checked bytes of a SEND or WRITE.
func (q *qp) gather(e *sendEntry, sges []verbs.SGE, to []byte) {
	if e.wr.Flags&verbs.SendInline != 0 {
		copy(to, e.inline[:e.bytes])
		return
	}
	for _, s := range sges {
		if s.Length > 0 {
			b, _ := q.dev.bytes(q.pd, s.LKey, false, s.Addr, s.Length, 0)
			to = to[copy(to, b):]
		}
	}
}

// send delivers a message into the peer's next receive.
func (q *qp) send(e *sendEntry, sges []verbs.SGE) bool {
	p := q.peer
	rq := &p.rq
	if p.srq != nil {
		rq = &p.srq.rq
	}
	if rq.take == rq.tail {
		return q.noReceive(e)
	}
	wr := rq.next()
	wc := verbs.WC{ByteLen: e.bytes}
	room, ok := p.check(wr.SGE[:wr.NumSGE], verbs.AccessLocalWrite)
	switch {
	case !ok:
		wc.Status = verbs.WCLocProtErr
	case room < e.bytes:
		wc.Status = verbs.WCLocLenErr
	case e.wr.Opcode == verbs.WRSendWithInv:
		m := p.dev.findMR(e.wr.InvalidateRKey, true)
		// InfiniBand memory has an R_Key only with remote rights; soft iWARP checks only the
		// protection domain.
		if m == nil || m.pd != p.pd || m.remote() == 0 && !p.dev.opt.Attr.IWARP {
			wc.Status = verbs.WCRemInvReqErr
			break
		}
		m.invalidated = true
		wc.Flags, wc.InvalidatedRKey = verbs.WCWithInv, e.wr.InvalidateRKey
	}
	if wc.Status != verbs.WCSuccess {
		wc.ByteLen = 0
		p.completeRecv(rq, wr, wc)
		status := verbs.WCRemInvReqErr
		if wc.Status == verbs.WCLocProtErr {
			status = verbs.WCRemOpErr
		}
		q.remoteError(e, status)
		return false
	}
	q.deliver(e, sges, wr)
	e.state = sendDone
	p.completeRecv(rq, wr, wc)
	return true
}

// deliver copies a message from the sender's elements to the receiver's.
func (q *qp) deliver(e *sendEntry, sges []verbs.SGE, wr *verbs.RecvWR) {
	to := scatter{q: q.peer, sges: wr.SGE[:wr.NumSGE]}
	if e.wr.Flags&verbs.SendInline != 0 {
		to.write(e.inline[:e.bytes])
		return
	}
	for _, s := range sges {
		if s.Length > 0 {
			b, _ := q.dev.bytes(q.pd, s.LKey, false, s.Addr, s.Length, 0)
			to.write(b)
		}
	}
}

// noReceive handles a SEND to a peer without receives. RoCE tries again. An iWARP peer ends the
// connection, because its stream cannot wait (RFC 5041, 7.1: "No buffer available"). The sender's
// work request has already completed.
func (q *qp) noReceive(e *sendEntry) bool {
	if q.dev.opt.Attr.IWARP {
		q.remoteError(e, verbs.WCRemOpErr)
		return false
	}
	if q.rnrRetry == 7 {
		q.wait(stallRNR, 0, 0)
	} else if q.rnrRetry == 0 {
		q.fail(e, verbs.WCRNRRetryExcErr)
	} else {
		q.wait(stallRNR, rnrTimer*time.Duration(q.rnrRetry), verbs.WCRNRRetryExcErr)
	}
	return false
}

// remoteError handles an error that the peer finds. Its queue pair goes to the error state. On RoCE
// the peer's NAK fails the work request. On iWARP only a READ waits for an answer; work requests
// sent before the peer's Terminate message have completed successfully.
func (q *qp) remoteError(e *sendEntry, status verbs.WCStatus) {
	if q.dev.opt.Attr.IWARP && e.wr.Opcode != verbs.WRRDMARead {
		e.state = sendDone
		q.exec++
		q.finish()
		q.peer.toError() // ends the connection and this queue pair as well
		return
	}
	q.fail(e, status)
	q.finish() // earlier READs have been answered
	q.peer.toError()
}

// finish completes work requests in order. It reports whether any completed.
func (q *qp) finish() bool {
	from := q.comp
	for q.state == stateRTS && q.comp < q.exec {
		e := &q.sq[q.comp%uint64(len(q.sq))]
		if e.state == sendInFlight {
			if e.hold == holdData {
				break
			}
			q.reads--
			e.state, e.status = sendDone, q.fetch(e)
		}
		if e.status != verbs.WCSuccess {
			q.completeSend(e, e.status)
			q.comp++
			q.toError()
			return true
		}
		if e.wr.Flags&verbs.SendSignaled != 0 {
			q.completeSend(e, verbs.WCSuccess)
		}
		q.comp++
	}
	return q.comp != from
}

// fetch copies the data of an RDMA READ.
func (q *qp) fetch(e *sendEntry) verbs.WCStatus {
	if e.bytes == 0 {
		return verbs.WCSuccess
	}
	p := q.peer
	if p.freed || p.state != stateRTS {
		return verbs.WCRetryExcErr
	}
	from, ok := p.dev.bytes(p.pd, e.wr.RKey, true, e.wr.RemoteAddr, e.bytes, verbs.AccessRemoteRead)
	if !ok {
		return verbs.WCRemAccessErr
	}
	sges := q.sges[e.wr.FirstSGE:][:e.wr.NumSGE]
	if _, ok := q.check(sges, verbs.AccessLocalWrite); !ok {
		return verbs.WCLocProtErr
	}
	to := scatter{q: q, sges: sges}
	to.write(from)
	return verbs.WCSuccess
}

// scatter writes bytes to elements that were checked and are large enough.
type scatter struct {
	q    *qp
	sges []verbs.SGE
	cur  []byte
}

func (s *scatter) write(b []byte) {
	for len(b) > 0 {
		for len(s.cur) == 0 {
			if e := &s.sges[0]; e.Length > 0 {
				s.cur, _ = s.q.dev.bytes(s.q.pd, e.LKey, false, e.Addr, e.Length, 0)
			}
			s.sges = s.sges[1:]
		}
		n := copy(s.cur, b)
		b, s.cur = b[n:], s.cur[n:]
	}
}
