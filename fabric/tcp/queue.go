package tcp

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// queue is one connection. Everything runs on the reactor of its group.
type queue struct {
	g     *Group
	fd    int
	conn  *conn
	index int // in Group.queues

	state   queueState
	hot     bool
	drained bool // the socket was read empty: the next input is an event
	dirty   bool // on Group.dirty, or about to be cleaned
	ending  bool // Disconnect was called
	faulted bool // a C2HTermReq is queued: nothing may follow it
	eof     bool // the peer closed its side
	empty   int  // polls without work since it became hot

	session fabric.Session
	open    bool // Handler.Open succeeded, Handler.Close has not been called
	params  pdu.Params
	admin   bool // QID 0, as the Connect command says
	light   bool // not counted in Group.load: an admin queue, or dead

	// Requests. free is a stack.
	reqs      []*request
	free      []*request
	depth     int // commands the host may have outstanding
	connected bool

	// Receiving.
	rx   receiveState
	cur  *request // whose data arrives
	left int      // data bytes of the current PDU still to come
	crc  uint32   // digest of the data of the current PDU so far
	// what was received and not consumed: less than a unit, or more while stalled
	carry      []byte
	stalled    bool        // the capsule at the start of carry waits for memory
	stallNeed  int         // how much, in bytes
	stallAhead bool        // it would be prepared ahead of its data
	large      bool        // the last command had much data in its capsule, and so may the next one
	grants     requestList // R2Ts whose data is outstanding, in their order

	// Sending.
	sendq   requestList
	sent    int  // bytes of the first entry that have left
	blocked bool // the socket takes no more for now

	executing int         // requests the handler has
	dropped   requestList // completed requests of a dead queue, still to be released
	why       error       // why it ends

	deadlines
}

// request is one command and what the transport keeps of it.
type request struct {
	fabric.Request
	tag      uint16 // index in queue.reqs
	state    requestState
	prepared bool          // Prepare has been called
	whole    bool          // in-capsule data has arrived completely
	ahead    bool          // Prepare comes before in-capsule data (ahead.go)
	damaged  bool          // a data digest was wrong
	old      bool          // on sendq since before the last tick
	send     sendKind      // what to send, while it is on sendq
	next     *request      // on sendq, grants, waiting or dropped
	own      []mem.Segment // memory of the arena to give back
	// in-capsule data in the group's receive buffer, from its arrival to Execute
	passing []byte
	recvd   uint32 // data bytes received
	wire    int    // bytes of what is to be sent
	crc     uint32 // data digest of the response
	crcDone bool
	ttag    uint16
	round   uint16 // counts uses, makes stale transfer tags recognisable
	since   int64  // when it began to wait for memory
	raw     []byte // sendRaw: the bytes
	ctl     bool   // not a command: carries an ICResp or a TermReq
}

func newQueue(g *Group, c *conn) *queue {
	q := &queue{g: g, fd: c.fd, conn: c, carry: make([]byte, 0, carryMax)}
	q.params.InCapsule = uint32(max(pdu.AdminInCapsule, c.info.InCapsuleSize))
	q.params.MaxH2CData = uint32(g.t.cfg.MaxH2CData)
	q.handshakeBy = q.now() + g.t.cfg.ICReqTimeout.Nanoseconds() - sinceNanos(c.accepted)
	return q
}

func (q *queue) now() int64 { return q.g.loop.Now() }

// lighten takes the queue out of the load of its group.
func (q *queue) lighten() {
	if !q.light {
		q.light = true
		q.g.load.Add(-1)
	}
}

// event is called when the socket changes.
func (q *queue) event(events uint32) {
	if q.state == queueDead {
		return
	}
	if q.stalled && events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		q.kill(errPeerClosed) // otherwise found by reading
		return
	}
	if events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		q.drained = false
		q.g.heat(q)
	}
	if events&unix.EPOLLOUT != 0 && q.blocked {
		q.blocked = false
		q.g.heat(q)
		q.touch()
	}
}

// touch puts the queue on the list of those to be cleaned.
func (q *queue) touch() {
	if !q.dirty {
		q.dirty = true
		q.g.dirty = append(q.g.dirty, q)
	}
}

// Info describes the connection.
func (q *queue) Info() *fabric.QueueInfo { return &q.conn.info }

// SetDepth makes room for depth commands.
func (q *queue) SetDepth(depth int) error {
	if limit := q.g.t.cfg.MaxDepth; depth < 1 || depth > limit {
		return fmt.Errorf("tcp: queue depth %d: must be 1 to %d", depth, limit)
	}
	if err := q.g.t.deepen(q.conn, depth); err != nil {
		return fmt.Errorf("tcp: queue depth %d: %w", depth, err)
	}
	q.depth = depth
	q.connected = true
	q.handshakeBy = 0
	q.allocate(depth)
	return nil
}

// allocate makes requests until there are n.
func (q *queue) allocate(n int) {
	if n <= len(q.reqs) {
		return
	}
	block := make([]request, n-len(q.reqs))
	for i := range block {
		r := &block[i]
		r.Session, r.Queue, r.Owner, r.tag = q.session, q, r, uint16(len(q.reqs))
		q.reqs = append(q.reqs, r)
	}
	for i := len(block) - 1; i >= 0; i-- { // low tags first
		q.free = append(q.free, &block[i])
	}
}

// get takes a free request, or returns nil if the host exceeds the depth of the queue.
func (q *queue) get() *request {
	n := len(q.free)
	if n == 0 || len(q.reqs)-n >= q.depth {
		return nil
	}
	r := q.free[n-1]
	q.free = q.free[:n-1]
	return r
}

// put takes a request back after its response, or at the end of the queue: memory is returned.
func (q *queue) put(r *request) {
	q.freeOwn(r)
	if r.ZeroCopy {
		q.g.cfg.Handler.EndZeroCopy(&r.Request)
	}
	r.Request.Reset()
	r.state, r.prepared, r.whole, r.ahead, r.damaged, r.crcDone, r.old = requestFree, false, false,
		false, false, false, false
	r.passing = nil
	q.free = append(q.free, r)
}

// freeOwn gives arena memory back.
func (q *queue) freeOwn(r *request) {
	if len(r.own) > 0 {
		q.g.leaveAhead(r)
		q.g.cfg.Memory.Free(r.own)
		clear(r.own)
		r.own = r.own[:0]
	}
}

// Complete takes requests back from the handler.
func (q *queue) Complete(reqs []*fabric.Request) {
	for _, fr := range reqs {
		r := fr.Owner.(*request)
		if r.state != requestExecuting {
			panic(fmt.Sprintf(
				"tcp: request %d was completed without having been executed, or twice", r.tag))
		}
		q.executing--
		r.state = requestSending
		if q.state >= queueLingering || q.faulted {
			q.dropped.push(r)
			continue
		}
		q.respond(r)
	}
	q.touch()
}

// Disconnect starts the orderly end of the queue. The next poll goes on with it, so that the
// handler, which may have called this, is not called from here.
func (q *queue) Disconnect(why error) {
	if q.state < queueClosing && !q.ending {
		q.ending, q.why = true, why
		if why != errShutdown {
			q.g.t.log.Info("disconnecting", "remote", q.conn.info.Remote, "local",
				q.conn.info.Local, "reason", why)
		}
		q.touch()
	}
}

// fault ends the connection because of what the peer sent: a C2HTermReq with the offending header
// is the last thing it gets (TCP section 3.5).
func (q *queue) fault(f pdu.Fault, offending []byte) {
	q.g.runBatch() // what came before it is good
	if q.state >= queueClosing {
		return
	}
	q.sendRaw(pdu.AppendTermReq(nil, pdu.TypeC2HTermReq, f, offending))
	q.faulted = true
	q.g.t.log.Warn("connection ended for a protocol error", "remote", q.conn.info.Remote, "local",
		q.conn.info.Local, "error", f)
	q.close(f, q.g.t.cfg.LingerTimeout.Nanoseconds())
}

// close stops taking input, gives up what has not been executed, and lets what is queued be sent
// for a while.
func (q *queue) close(why error, linger int64) {
	q.state, q.why = queueClosing, why
	q.closeBy = q.now() + linger
	q.handshakeBy, q.partialBy, q.stalledBy, q.grantBy = 0, 0, 0, 0
	q.g.startTick()
	q.cur, q.left, q.carry, q.stalled = nil, 0, q.carry[:0], false
	q.grants.take()
	q.unwait()
	for _, r := range q.reqs {
		switch r.state {
		case requestParsed, requestWaiting, requestGranted:
			q.abandon(r)
		}
	}
	q.g.heat(q)
	q.drained = false
	q.touch()
}

// abandon frees a request that will not be executed.
func (q *queue) abandon(r *request) {
	if r.prepared {
		q.g.cfg.Handler.Abandon(&r.Request)
	}
	q.put(r)
}

// unwait takes the queue's requests off the list of those that wait for memory, and the queue
// itself.
func (q *queue) unwait() {
	g := q.g
	for r := g.waiting.take(); r != nil; {
		next := r.next
		if r.Queue != fabric.Queue(q) {
			g.waiting.push(r)
		}
		r = next
	}
	for i, s := range g.stalled {
		if s == q {
			g.stalled = append(g.stalled[:i], g.stalled[i+1:]...)
			break
		}
	}
}

// clean is the part of a poll that every queue with something to do gets: it sends, and goes on
// with the end of the queue.
func (q *queue) clean() int {
	q.dirty = false
	work := 0
	for r := q.dropped.take(); r != nil; work++ {
		next := r.next
		q.put(r)
		r = next
	}
	if q.ending && q.state < queueClosing {
		q.close(q.why, min(orderlyLinger, q.g.t.cfg.LingerTimeout).Nanoseconds())
		work++
	}
	if q.state != queueDead && !q.blocked && q.sendq.head != nil {
		work += q.flush()
	}
	if q.state == queueClosing && q.sendq.head == nil {
		q.linger()
		work++
	}
	if q.state == queueDead && q.executing == 0 && q.dropped.head == nil && q.index >= 0 {
		q.g.gone(q)
	}
	return work
}

// linger tells the handler that the queue is dead, and the peer that no more comes.
func (q *queue) linger() {
	q.state = queueLingering
	q.farewell()
	if err := unix.Shutdown(q.fd, unix.SHUT_WR); err != nil || q.eof {
		q.kill(q.why)
	}
}

// farewell ends the session, once.
func (q *queue) farewell() {
	if q.open {
		q.open = false
		q.g.cfg.Handler.Close(q.session)
	}
}

// kill closes the socket at once and releases everything but what the handler still executes. It
// must not be called from within a call of the handler.
func (q *queue) kill(why error) {
	if q.state == queueDead {
		return
	}
	if q.state < queueClosing {
		q.close(why, 0)
	}
	q.state = queueDead
	q.g.t.cfg.Log.Debug("connection closed", "remote", q.conn.info.Remote, "local",
		q.conn.info.Local, "reason", why)
	q.g.part(q)
	q.lighten()
	_ = q.conn.Close()
	q.closeBy, q.sendBy = 0, 0
	for r := q.sendq.take(); r != nil; {
		next := r.next
		switch {
		case r.ctl:
		case r.state == requestGranting:
			q.abandon(r)
		default:
			q.put(r)
		}
		r = next
	}
	q.farewell()
	q.touch()
}

// broken ends the queue because the socket failed.
func (q *queue) broken(what string, e syscall.Errno) {
	q.kill(fmt.Errorf("%s: %w", what, e))
}

var (
	errPeerClosed = errors.New("the peer closed the connection")

	_ fabric.Queue = (*queue)(nil)
)
