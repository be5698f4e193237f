package verbstest

import (
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

// qpState is the state of a queue pair. rdma_create_qp leaves it in init; the communication manager
// changes it.
type qpState uint8

const (
	stateInit qpState = iota // receives may be posted
	stateRTS                 // connected, in both directions
	stateErr                 // everything is flushed
)

// sendState is the state of a posted work request.
type sendState uint8

const (
	sendPosted   sendState = iota // waits for its turn
	sendInFlight                  // an RDMA READ with data still missing
	sendDone                      // has status; completes after earlier ones
)

type sendEntry struct {
	wr     verbs.SendWR // FirstSGE is relative to the slot's elements
	state  sendState
	status verbs.WCStatus
	hold   hold
	bytes  uint32
	inline []byte
}

// qp is a reliable-connected queue pair. Slots of the send queue form a ring:
//
//	head     oldest slot not given back by polling a completion
//	comp     oldest work request that has not completed
//	exec     next to be executed
//	tail     next to be posted
type qp struct {
	object
	dev      *device
	id       *cmID
	pd       *pd
	num      uint32
	scq, rcq *cq
	srq      *srq
	init     verbs.QPInit
	state    qpState
	peer     *qp

	sq                     []sendEntry
	sges                   []verbs.SGE
	head, comp, exec, tail uint64
	rq                     recvQueue

	rdAtomic int // RDMA READs issued at once: the initiator depth
	reads    int // in flight
	rnrRetry uint8

	failing   bool // a work request failed: nothing more is executed
	stuck     bool // Destroy has failed: the ID may be freed without it
	stall     stallReason
	stallSeq  uint64 // the waiting work request
	stallGen  uint64 // distinguishes timers of past stalls from the current one
	scheduled bool   // in Fabric.run

	// posts is written without a lock: the race detector reports overlapping calls.
	posts uint64
}

func (id *cmID) CreateQP(vpd verbs.PD, init verbs.QPInit) (verbs.QP, error) {
	f := id.cm.host.f
	f.lock()
	defer f.unlock()
	d := id.dev
	if d == nil || id.qp != nil || id.freed || id.state == idDone {
		return nil, fmt.Errorf(
			"%s: the ID has no device, has a queue pair, or its peer has ended: %w", CallCreateQP,
			unix.EINVAL)
	}
	if err := d.call(CallCreateQP); err != nil {
		return nil, err
	}
	p, scq, rcq := vpd.(*pd), init.SendCQ.(*cq), init.RecvCQ.(*cq)
	if p.freed || p.dev != d || scq.dev != d || rcq.dev != d || scq.freed || rcq.freed {
		return nil, fmt.Errorf("%s: objects of another device, or freed: %w", CallCreateQP,
			unix.EINVAL)
	}
	a := &d.opt.Attr
	if init.MaxSendWR < 0 || init.MaxSendWR > a.MaxQPWR || init.MaxRecvWR < 0 ||
		init.MaxRecvWR > a.MaxQPWR ||
		init.MaxSendSGE < 0 || init.MaxSendSGE > a.MaxSGE || init.MaxRecvSGE < 0 ||
		init.MaxRecvSGE > a.MaxSGE {
		return nil, fmt.Errorf("%s: %d/%d work requests, %d/%d elements: %w", CallCreateQP,
			init.MaxSendWR, init.MaxRecvWR, init.MaxSendSGE, init.MaxRecvSGE, unix.EINVAL)
	}
	if len(d.qps) >= a.MaxQP {
		return nil, fmt.Errorf("%s: %w", CallCreateQP, unix.ENOMEM)
	}
	if init.MaxInline > d.opt.MaxInline || d.opt.MaxInline < 0 {
		init.MaxInline = 0
	}
	q := &qp{dev: d, id: id, pd: p, scq: scq, rcq: rcq, init: init}
	if init.SRQ != nil {
		q.srq = init.SRQ.(*srq)
		if q.srq.pd.dev != d || q.srq.freed {
			return nil, fmt.Errorf("%s: shared receive queue of another device, or freed: %w",
				CallCreateQP, unix.EINVAL)
		}
		q.srq.uses++
	} else {
		q.rq.ring = make([]verbs.RecvWR, init.MaxRecvWR)
	}
	d.nextQP++
	q.num = d.nextQP + 16 // 0 and 1 are special
	q.sq = make([]sendEntry, init.MaxSendWR)
	q.sges = make([]verbs.SGE, init.MaxSendWR*init.MaxSendSGE)
	inline := make([]byte, init.MaxSendWR*init.MaxInline)
	for i := range q.sq {
		q.sq[i].inline = inline[i*init.MaxInline : (i+1)*init.MaxInline]
	}
	p.uses++
	scq.uses++
	rcq.uses++
	q.object = newObject(&d.host.live.QPs)
	d.qps = append(d.qps, q)
	id.qp = q
	return q, nil
}

func (q *qp) Num() uint32    { return q.num }
func (q *qp) MaxInline() int { return q.init.MaxInline }

// Errors of posting are made once, because posting does not allocate.
var (
	errSendFull  = fmt.Errorf("ibv_post_send: the send queue is full: %w", unix.ENOMEM)
	errSendState = fmt.Errorf("ibv_post_send: the queue pair is not connected: %w", unix.EINVAL)
	errSendWR    = fmt.Errorf("ibv_post_send: malformed work request: %w", unix.EINVAL)
	errRecvFull  = fmt.Errorf("ibv_post_recv: the receive queue is full: %w", unix.ENOMEM)
	errRecvWR    = fmt.Errorf("ibv_post_recv: malformed work request: %w", unix.EINVAL)
	errRecvSRQ   = fmt.Errorf("ibv_post_recv: the queue pair has a shared receive queue: %w",
		unix.EINVAL)
)

func (q *qp) PostSend(wrs []verbs.SendWR, sges []verbs.SGE) (int, error) {
	q.posts++
	f := q.dev.f
	f.lock()
	defer f.unlock()
	q.use("PostSend")
	for i := range wrs {
		if err := q.postSend(&wrs[i], sges); err != nil {
			return i, err
		}
	}
	return len(wrs), nil
}

func (q *qp) postSend(wr *verbs.SendWR, sges []verbs.SGE) error {
	if q.state == stateInit {
		return errSendState
	}
	if q.tail-q.head == uint64(len(q.sq)) {
		return errSendFull
	}
	n := int(wr.NumSGE)
	if n > q.init.MaxSendSGE {
		return errSendWR
	}
	slot := int(q.tail % uint64(len(q.sq)))
	e := &q.sq[slot]
	e.wr, e.state, e.status, e.hold, e.bytes = *wr, sendPosted, verbs.WCSuccess, holdUnknown, 0
	to := q.sges[slot*q.init.MaxSendSGE:][:n]
	copy(to, sges[wr.FirstSGE:][:n])
	e.wr.FirstSGE = uint32(slot * q.init.MaxSendSGE)
	switch wr.Opcode {
	case verbs.WRSend, verbs.WRSendWithInv, verbs.WRRDMAWrite:
		if wr.Flags&verbs.SendInline != 0 && !q.takeInline(e, to) {
			return errSendWR
		}
	case verbs.WRRDMARead:
		if wr.Flags&verbs.SendInline != 0 || n > q.dev.opt.Attr.MaxSGERD {
			return errSendWR
		}
	default:
		return errSendWR
	}
	q.tail++
	switch {
	case q.state != stateErr:
		q.dev.f.schedule(q)
	case !q.dev.opt.Attr.IWARP: // soft iWARP forgets it
		q.flushSend()
	}
	return nil
}

// takeInline copies inline data now: the caller may reuse its memory at once, and needs no key for
// it.
func (q *qp) takeInline(e *sendEntry, sges []verbs.SGE) bool {
	for _, s := range sges {
		if int(e.bytes+s.Length) > q.init.MaxInline || int(s.Length) > q.init.MaxInline {
			return false
		}
		// The fake can reach memory only through a registration.
		b, ok := q.dev.anyBytes(s.Addr, s.Length)
		if !ok {
			return false
		}
		copy(e.inline[e.bytes:], b)
		e.bytes += s.Length
	}
	return true
}

// anyBytes finds memory by address in any region.
func (d *device) anyBytes(addr uint64, n uint32) ([]byte, bool) {
	for _, m := range d.mrs {
		if m != nil && addr >= m.addr && addr-m.addr <= uint64(len(m.b)) &&
			uint64(n) <= uint64(len(m.b))-(addr-m.addr) {
			return m.b[addr-m.addr:][:n], true
		}
	}
	return nil, false
}

func (q *qp) PostRecv(wrs []verbs.RecvWR) (int, error) {
	q.posts++
	f := q.dev.f
	f.lock()
	defer f.unlock()
	q.use("PostRecv")
	if q.srq != nil {
		return 0, errRecvSRQ
	}
	n, err := q.rq.post(wrs, q.init.MaxRecvSGE) // forgotten in the error state, as by soft devices
	f.schedule(q.peer)
	return n, err
}

func (q *qp) ToError() error {
	f := q.dev.f
	f.lock()
	defer f.unlock()
	q.use("ToError")
	q.toError()
	return nil
}

// ShortenRNRTimer has no effect: the fake sends again when there is a receive.
func (q *qp) ShortenRNRTimer() error {
	f := q.dev.f
	f.lock()
	defer f.unlock()
	q.use("ShortenRNRTimer")
	if q.state != stateRTS || q.dev.opt.Attr.IWARP {
		return fmt.Errorf("ibv_modify_qp: the queue pair is not connected, or iWARP: %w",
			unix.EINVAL)
	}
	return nil
}

func (q *qp) Destroy() error {
	d := q.dev
	d.f.lock()
	defer d.f.unlock()
	if err := q.free(d.host, CallDestroyQP); err != nil {
		q.stuck = true
		return err
	}
	q.dropConnection()
	q.state = stateErr
	q.stallGen++
	if q.srq != nil {
		q.srq.uses--
	}
	q.pd.uses--
	q.scq.uses--
	q.rcq.uses--
	d.qps = slices.DeleteFunc(d.qps, func(x *qp) bool { return x == q })
	q.id.qp = nil
	d.f.schedule(q.peer)
	return nil
}

// retire frees the send slots up to seq, because a completion of seq was polled.
func (q *qp) retire(seq uint64) { q.head = max(q.head, seq+1) }

// toError moves the queue pair to the error state and flushes it.
func (q *qp) toError() {
	if q.state == stateErr {
		return
	}
	q.state = stateErr
	q.stallGen++
	q.stall = notStalled
	q.flushSend()
	if q.srq == nil {
		q.flushRecv()
	} else {
		q.dev.raise(verbs.AsyncEvent{Type: verbs.AsyncQPLastWQEReached, QPNum: q.num})
	}
	q.dropConnection()
	q.dev.f.schedule(q.peer)
}

// dropConnection ends the connection of an iWARP queue pair, which is a TCP stream: the peer
// notices at once.
func (q *qp) dropConnection() {
	if q.dev.opt.Attr.IWARP {
		q.id.streamLost()
	}
}

func (q *qp) flushSend() {
	q.reads = 0
	for ; q.comp < q.tail; q.comp++ {
		q.completeSend(&q.sq[q.comp%uint64(len(q.sq))], verbs.WCWRFlushErr)
	}
	q.exec = q.tail
}

func (q *qp) flushRecv() {
	for q.rq.take < q.rq.tail {
		wr := q.rq.next()
		q.completeRecv(&q.rq, wr, verbs.WC{Status: verbs.WCWRFlushErr})
	}
}

// badOpcode is the opcode of failed completions, where it has no meaning.
const badOpcode verbs.WCOpcode = 0xbad

func (q *qp) completeSend(e *sendEntry, status verbs.WCStatus) {
	wc := verbs.WC{
		WRID: e.wr.WRID, Status: status, QPNum: q.num, ByteLen: e.bytes,
		Opcode: badOpcode,
	}
	if status == verbs.WCSuccess {
		switch e.wr.Opcode {
		case verbs.WRRDMAWrite:
			wc.Opcode = verbs.WCRDMAWrite
		case verbs.WRRDMARead:
			wc.Opcode = verbs.WCRDMARead
		default:
			wc.Opcode = verbs.WCSend
		}
	}
	q.scq.push(cqEntry{wc: wc, send: q, seq: q.comp})
}

// completeRecv completes the receive last taken from rq.
func (q *qp) completeRecv(rq *recvQueue, wr *verbs.RecvWR, wc verbs.WC) {
	wc.WRID, wc.QPNum = wr.WRID, q.num
	wc.Opcode = verbs.WCRecv
	if wc.Status != verbs.WCSuccess {
		wc.Opcode = badOpcode
	}
	q.rcq.push(cqEntry{wc: wc, recv: rq, seq: rq.take - 1})
}

// stallReason is the reason why the work request at exec waits.
type stallReason uint8

const (
	notStalled stallReason = iota
	stallDead              // the peer does not answer: retries, then WCRetryExcErr
	// The peer has no receive: retries, then WCRNRRetryExcErr, or without end.
	stallRNR
	stallFault  // an Injection delays or holds it
	stallSilent // waits until something schedules the queue pair
)

// wait keeps the work request at exec waiting. After d, if d is not 0, it fails with status.
func (q *qp) wait(reason stallReason, d time.Duration, status verbs.WCStatus) {
	if q.stall == reason && q.stallSeq == q.exec {
		return // the timer runs
	}
	q.stall, q.stallSeq = reason, q.exec
	q.stallGen++
	if d == 0 {
		return
	}
	gen := q.stallGen
	q.dev.f.after(d, func() {
		if q.stallGen != gen || q.state != stateRTS {
			return
		}
		q.fail(&q.sq[q.exec%uint64(len(q.sq))], status)
		q.dev.f.schedule(q)
	})
}
