package rdma

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// queue is one queue pair. It belongs to the reactor of its group, unless noted.
type queue struct {
	g    *group
	p    *poller
	cq   *cq
	conn *conn
	qp   verbs.QP

	id        uint64 // in g.queues
	state     queueState
	session   fabric.Session
	connected bool // Connect succeeded
	claim     fabric.Claim

	// Receiving. capsules have arrived and wait for a request; taken is the number of commands
	// without a response. With an SRQ, recv is that of the SRQ. recvsEnded reports whether the
	// queue pair takes no more receives of it (the event "last WQE reached").
	slab       *slab
	srq        *srq // nil: the queue has its own receives
	recv       *recvQueue
	own        recvQueue
	icd        int // bytes of in-capsule data per capsule, 0 on the admin queue
	capsules   []capsule
	taken      int
	slots      int // receive slots held by capsules and requests
	recvsEnded bool
	turn       int              // bytes that may still begin in turnPoll; see turn.go
	turnPoll   uint64           // a value of g.polls
	waits      list.Node[queue] // on g.waiting

	reqs []request
	idle []*request // a stack: the last one used is in the CPU cache

	// Sending. sqSize is the size of the send queue, sqFree its free part; a chain takes at most
	// maxChain. reads and sends are the RDMA READs and responses that may be posted now, of
	// maxReads and conn.credits.
	sqSize, sqFree, maxChain int
	reads, sends, maxReads   int
	signaled                 int // signaled sends that have not completed
	inline                   bool
	executing                int // requests that the handler has

	toSend    list.List[request] // completed requests
	toRead    list.List[request] // requests with data to be read
	scheduled list.Node[queue]   // on g.scheduled

	ending
	stop         func() // stops the timer of the current state, nil if there is none
	progress     uint64 // signaled sends that have completed
	progressMark uint64 // progress that must be reached
	stuckAt      int64  // before this, 0 if nothing is in flight

	quarantined bool // the queue pair could not be destroyed: set before queueDestroyed

	// cm is held by ordinary goroutines while they call the connection's identifier and queue pair.
	cm       sync.Mutex
	accepted bool
	ended    bool
}

// ending is the end of a queue.
type ending struct {
	reason    error
	byHandler bool // the handler ended it, and logs the reason
	failed    bool // it must end now
	left      int  // requests to take back before the next step, see takeBack
	flushed   bool // the queue pair is in the error state
}

// capsule is a capsule that waits for a request.
type capsule struct {
	slot uint16
	size uint32
}

// build makes the memory and the queue pair of a connection; after an error neither exists. The
// completion queue and the SRQ have been acquired. Not on a reactor.
func (q *queue) build() (err error) {
	c := q.conn
	q.maxReads = min(c.reads, max(q.p.dev.attr.MaxQPInitRdAtom, 1))
	q.reads, q.sends = q.maxReads, c.credits
	q.icd = c.inCapsule()
	slots := c.depth
	if q.srq != nil {
		slots = 0
	}
	if q.slab, err = q.p.newSlab(slots, q.icd, c.depth*responseSize); err != nil {
		return err
	}
	init := verbs.QPInit{
		SendCQ: q.cq.CQ, RecvCQ: q.cq.CQ, MaxSendWR: q.sqSize, MaxSendSGE: q.p.sendSGE,
		MaxRecvWR: slots, MaxRecvSGE: 1, MaxInline: responseSize,
	}
	if q.icd > 0 {
		init.MaxRecvSGE = 2
	}
	if q.srq != nil {
		init.SRQ = q.srq.SRQ
	}
	if q.qp, err = c.id.CreateQP(q.p.dev.pd, init); err != nil {
		return errors.Join(fmt.Errorf("queue pair of %d sends and %d receives: %w", q.sqSize,
			slots, err), q.slab.free())
	}
	q.p.dev.qps.Add(1)
	q.inline = q.qp.MaxInline() >= responseSize
	if q.recv = &q.own; q.srq != nil {
		q.recv = &q.srq.recv
	} else {
		q.own.post, q.own.shift = q.qp, 16
		q.own.addSlots(q.slab, slots)
	}
	q.capsules = make([]capsule, 0, c.depth)
	q.reqs, q.idle = make([]request, c.depth), make([]*request, 0, c.depth)
	segs := make([]mem.Segment, c.depth*2) // most commands need one, some two
	for i := range q.reqs {
		r := &q.reqs[i]
		r.Queue, r.Owner, r.tag = q, r, uint16(i)
		r.Segs = segs[2*i : 2*i : 2*i+2]
		r.memory.Owner = r
		q.idle = append(q.idle, r)
	}
	return nil
}

// Complete implements fabric.Queue: executing -> needSend. The next poll sends responses.
func (q *queue) Complete(reqs []*fabric.Request) {
	for _, fr := range reqs {
		r := fr.Owner.(*request)
		q.executing--
		if q.state >= queueDraining {
			q.freeRequest(r)
			continue
		}
		r.state, r.since = requestNeedSend, q.g.now()
		r.rewind()
		q.toSend.Push(r, &r.node)
	}
	if q.state < queueDraining {
		q.schedule()
		return
	}
	q.finish()
}

// schedule puts the queue on the list of queues that run in this or the next poll.
func (q *queue) schedule() {
	if !q.scheduled.Listed() {
		q.g.scheduled.Push(q, &q.scheduled)
	}
}

// run posts as many work requests as the queue's credits and its turn allow, or ends the queue.
// Responses with their data come first, because they free resources that other requests wait for,
// then RDMA READs. It returns the number of work requests, or of requests taken back at the end.
func (q *queue) run() (n int) {
	if q.failed && q.state < queueDraining {
		q.beginTeardown()
	}
	if q.state >= queueDraining {
		return q.takeBack()
	}
	left := turnBytes
	for r := q.toSend.First(); r != nil && left > 0 && q.sendResponse(r); r = q.toSend.First() {
		cost := leastSend
		if r.sendsData() {
			cost = max(cost, int(r.Length))
		}
		left -= cost
		n += q.postIfFull()
	}
	q.addResponses()
	for r := q.toRead.First(); r != nil && left > 0 && q.postRead(r); r = q.toRead.First() {
		left -= max(int(r.Length), leastSend)
		n += q.postIfFull()
	}
	n += q.post()
	if left <= 0 {
		q.scheduleIfWaiting()
	}
	if q.state == queueClosing && q.finished() {
		q.beginTeardown()
		n += q.takeBack()
	}
	return n
}

// finished reports whether a disconnecting queue has nothing left to send. Commands on an admin
// queue may never complete (Asynchronous Event Requests), so it does not wait for them.
func (q *queue) finished() bool {
	return q.toSend.Empty() && q.toRead.Empty() && q.signaled == 0 &&
		(q.executing == 0 || q.conn.info.QID == 0)
}

// SetDepth implements fabric.Queue. The depth is the one that the host announced in its connection
// request.
func (q *queue) SetDepth(depth int, p fabric.Peer, c fabric.Claim) error {
	if depth < 1 || depth > q.conn.depth {
		return fmt.Errorf(
			"rdma: queue of %d commands: the connection was made for at most %d (HSQSIZE+1)", depth,
			q.conn.depth)
	}
	if err := q.conn.counted.Associate(p, c, p.HandlerMemory()); err != nil {
		return fmt.Errorf("rdma: queue of %d commands: %w", depth, err)
	}
	q.connected, q.claim = true, c
	if q.state < queueClosing {
		q.stopTimer()
	}
	return nil
}

func (q *queue) Allow() error {
	q.claim.Proven = true
	return q.conn.counted.Associate(fabric.Allowed, q.claim, fabric.HandlerMemory)
}

func (q *queue) Hold(on bool) { q.conn.counted.Hold(on) }

// Failure implements fabric.FailureReporter. On iWARP the queue pair may fail before the event of
// the connection.
func (q *queue) Failure() error {
	if q.byHandler || errors.Is(q.reason, errHostLeft) || errors.Is(q.reason, errShutdown) ||
		errors.Is(q.reason, errFlushed) && q.p.dev.attr.IWARP {
		return nil
	}
	return q.reason
}

// Disconnect implements fabric.Queue. The next poll continues, without a call of the handler here.
func (q *queue) Disconnect(reason error) {
	if q.state >= queueClosing {
		return
	}
	q.state, q.reason, q.byHandler = queueClosing, reason, true
	q.setTimer(q.g.t.cfg.LingerTimeout)
	q.schedule()
}

func (q *queue) Info() *fabric.QueueInfo { return &q.conn.info }

// fail ends the queue in the next poll, without waiting for responses. The first reason is kept.
func (q *queue) fail(reason error) {
	if q.state >= queueDraining || q.failed {
		return
	}
	q.failed = true
	q.reason = cmp.Or(q.reason, reason)
	q.schedule()
}

// Reasons for the end of queues.
var (
	errFlushed        = errors.New("the queue pair went to the error state")
	errHostLeft       = errors.New("the host disconnected")
	errShutdown       = errors.New("the target shuts down")
	errRemoved        = errors.New("the RDMA device was removed")
	errNotEstablished = errors.New("the host has not confirmed that it is connected")
	errNoConnect      = errors.New("no Connect command came in time")
	errShare          = errors.New("the host does not accept responses, and receives are scarce")
	errStuck          = errors.New("the device did not finish its work requests in time")
	errHolds          = errors.New("memory is scarce, and the host does not move its data")
)

func (q *queue) event(t verbs.EventType, status int) {
	switch {
	case t == verbs.EventEstablished:
		if q.state == queueOpening {
			q.state = queueLive
			if !q.connected {
				q.setTimer(q.g.t.cfg.ConnectTimeout)
			}
		}
	case t == verbs.EventDisconnected:
		q.fail(errHostLeft)
	case t == verbs.EventDeviceRemoval:
		q.fail(errRemoved)
	case endsConnection(t) && q.state == queueOpening:
		q.fail(fmt.Errorf("%w: %v (status %d)", errNotEstablished, t, status))
	case endsConnection(t):
		q.fail(fmt.Errorf("the connection failed: %v (status %d)", t, status))
	}
}

// setTimer sets the time limit of the current state, and replaces the previous one.
func (q *queue) setTimer(d time.Duration) {
	q.stopTimer()
	q.stop = q.g.cfg.Loop.After(d.Nanoseconds(), q.timerExpired)
}

func (q *queue) stopTimer() {
	if q.stop != nil {
		q.stop()
		q.stop = nil
	}
}

func (q *queue) timerExpired() {
	q.stop = nil
	switch q.state {
	case queueOpening:
		q.fail(errNotEstablished)
	case queueLive:
		q.fail(errNoConnect)
	case queueClosing:
		q.fail(nil)
	case queueDraining:
		q.signaled, q.own.posted, q.recvsEnded = 0, 0, true // they will not complete
		q.checkDrained()
	}
}

var _ fabric.Queue = (*queue)(nil)
