package tcp

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/tls"
	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// queue is one connection. Everything runs on the reactor of its group.
type queue struct {
	g     *Group
	fd    int
	conn  *conn
	place list.Place // in Group.queues, until it is removed

	state     queueState
	active    list.Node[queue] // on Group.active
	scheduled list.Node[queue] // on Group.scheduled
	drained   bool             // the socket was read empty, so the next input is an event
	hungUp    bool             // the peer has closed its side; read the stream to its end
	blocked   bool             // the socket takes no more for now

	session   fabric.Session
	open      bool // Handler.Open succeeded, Handler.Close has not been called
	params    pdu.Params
	flow      *mem.Flow // of the last command that was prepared
	admin     bool      // QID 0 in the Connect command
	connected bool      // a Connect command succeeded
	claim     fabric.Claim

	// Requests. free is a stack.
	reqs  []*request
	free  []*request
	depth int // commands the host may have outstanding

	// Receiving.
	rx      receiveState
	cur     *request   // the request receiving data
	dst     mem.Cursor // the destination of the data
	left    int        // missing data bytes of the current PDU
	crc     uint32     // digest of the data of the current PDU so far
	partial []byte     // received and not consumed: less than a header, or more while stalled
	large   bool       // the last command had large in-capsule data; the next may, too
	grants  list.List[request]
	// acknowledged is set by acknowledge, until the next send.
	acknowledged bool

	output
	security

	executing int // requests the handler has
	ending

	deadlines
}

// ending is the end of a queue.
type ending struct {
	dropped list.List[request] // completed requests of a dead queue
	tidied  int                // requests that tidy has looked at
	reason  error
}

// output is the data that one queue has to send.
type output struct {
	sendq   list.List[request]
	sent    int  // bytes of the first entry that have left
	copying bool // copySome has more to do
}

// queueState is the life of a connection.
//
//	connecting --ICReq--> live -+-Disconnect-> disconnecting --> closing -+--all sent--> lingering
//	                            +--fault--------------------> terminating -+
//
// A lingering connection is dead at the end of its stream or at a deadline. A connection with a
// failed socket is dead at once.
type queueState uint8

const (
	// queueConnecting waits for an ICReq. The handler does not know the queue.
	queueConnecting queueState = iota
	// queueLive takes capsules.
	queueLive
	// queueDisconnecting takes no more input. The next poll closes it.
	queueDisconnecting
	// queueClosing sends responses, also of executing commands. It discards input.
	queueClosing
	// queueTerminating sends the queue, with a C2HTermReq or an alert at the end, which nothing may
	// follow.
	queueTerminating
	// queueLingering has sent everything, has shut down its side of the connection, and discards
	// input until the peer closes or a deadline: closing with unread input would send a reset and
	// could destroy data that the peer has not read yet. The session is closed.
	queueLingering
	// queueDead does not use its socket and stays in its group until the handler has no request of
	// it.
	queueDead
)

// partialSize is the maximum size of an incomplete header with its padding: PDO is a byte.
const partialSize = 256

func newQueue(g *Group, c *conn) *queue {
	q := &queue{g: g, fd: c.fd, conn: c, partial: make([]byte, 0, partialSize)}
	q.params.InCapsule = uint32(max(pdu.AdminInCapsule, c.info.InCapsuleSize))
	q.params.MaxH2CData = uint32(g.t.cfg.MaxH2CData)
	q.handshakeBy = q.now() + (g.t.cfg.ICReqTimeout - time.Since(c.accepted)).Nanoseconds()
	return q
}

func (q *queue) now() int64 { return q.g.loop.Now() }

// setAdmin records whether it is an admin queue, which does not count in the load of its group. An
// I/O queue may have any depth that its controller has announced, even before an Update; the
// handler checks that.
func (q *queue) setAdmin(admin bool) {
	if !admin {
		q.conn.info.MaxDepth = int(q.g.t.deepest.Load())
	}
	switch {
	case admin && !q.admin:
		q.g.load.Add(-1)
	case !admin && q.admin:
		q.g.load.Add(1)
	}
	q.admin = admin
}

// event is called when the socket changes.
func (q *queue) event(events uint32) {
	const ended = unix.EPOLLRDHUP | unix.EPOLLHUP | unix.EPOLLERR
	switch {
	case q.state == queueDead:
		return
	case q.stalled() && events&ended != 0: // otherwise reading detects it
		q.Disconnect(errPeerClosed)
		return
	}
	if events&(unix.EPOLLIN|ended) != 0 {
		q.hungUp = q.hungUp || events&ended != 0
		q.g.activate(q)
	}
	if events&unix.EPOLLOUT != 0 && q.blocked {
		q.blocked = false
		q.schedule()
	}
}

// schedule makes the queue run in the next poll, or at the end of its turn in this one.
func (q *queue) schedule() {
	if !q.scheduled.Listed() {
		q.g.scheduled.Push(q, &q.scheduled)
	}
}

// Info describes the connection.
func (q *queue) Info() *fabric.QueueInfo { return &q.conn.info }

func (q *queue) Digests() (header, data bool) { return q.params.HeaderDigest, q.params.DataDigest }

func (q *queue) Link() (fabric.Link, bool) { return q.conn.link() }

// SetDepth counts the memory of depth commands, which is allocated when they come.
func (q *queue) SetDepth(depth int, p fabric.Peer, c fabric.Claim) error {
	if limit := q.conn.info.MaxDepth; depth < 1 || depth > limit {
		return fmt.Errorf("tcp: queue depth %d: must be 1 to %d", depth, limit)
	}
	memory := int64(depth)*commandBytes + p.HandlerMemory()
	if err := q.conn.counted.Associate(p, c, memory); err != nil {
		return fmt.Errorf("tcp: queue depth %d: %w", depth, err)
	}
	q.depth, q.claim = depth, c
	q.connected = true
	q.handshakeBy = 0
	q.logTLS()
	return nil
}

func (q *queue) Allow() error {
	q.claim.Proven = true
	return q.conn.counted.Associate(fabric.Allowed, q.claim, fabric.HandlerMemory)
}

func (q *queue) Hold(on bool) { q.conn.counted.Hold(on) }

func (q *queue) Failure() error {
	if errors.Is(q.reason, errPeerClosed) || errors.Is(q.reason, errShutdown) {
		return nil
	}
	return q.reason
}

// allocateMost is the number of requests that are allocated at once, about 16 KiB.
const allocateMost = 32

// allocate makes more requests.
func (q *queue) allocate(n int) {
	block := make([]request, n)
	for i := range block {
		r := &block[i]
		r.Session, r.Queue, r.Owner, r.tag = q.session, q, r, uint16(len(q.reqs))
		r.memory.Owner = r
		q.reqs = append(q.reqs, r)
	}
	for i := len(block) - 1; i >= 0; i-- { // low tags first
		q.free = append(q.free, &block[i])
	}
}

// get takes a free request, or returns nil if the host exceeds the depth of the queue.
func (q *queue) get() *request {
	if len(q.free) == 0 && len(q.reqs) < q.depth {
		q.allocate(min(q.depth-len(q.reqs), allocateMost))
	}
	n := len(q.free)
	if n == 0 || len(q.reqs)-n >= q.depth {
		return nil
	}
	r := q.free[n-1]
	q.free = q.free[:n-1]
	return r
}

// put takes a request back after its response, or at the end of the queue, and frees its memory.
func (q *queue) put(r *request) {
	r.memory.Free()
	if r.ZeroCopy {
		q.g.cfg.Handler.EndZeroCopy(&r.Request)
	}
	r.Request.Reset()
	r.state, r.damaged, r.unsent, r.crc, r.digested = requestFree, false, 0, 0, 0
	q.free = append(q.free, r)
}

// abandon frees a prepared request that will not be executed.
func (q *queue) abandon(r *request) {
	q.g.cfg.Handler.Abandon(&r.Request)
	q.put(r)
}

// Disconnect starts the orderly end of the queue. The next poll continues with it, so the handler,
// which may be the caller, is not called from here.
func (q *queue) Disconnect(reason error) {
	if q.state >= queueDisconnecting {
		return
	}
	q.state, q.reason = queueDisconnecting, reason
	q.schedule()
}

// fault ends the connection because of a PDU of the peer: the last thing it gets is a C2HTermReq
// with the offending header (TCP section 3.5).
func (q *queue) fault(f pdu.Fault, offending []byte) {
	q.g.prepareBatch() // earlier commands are good
	if q.state >= queueClosing {
		return
	}
	q.g.inTurn += endCost // mostly the line in the log
	q.sendRaw(pdu.AppendTermReq(nil, pdu.TypeC2HTermReq, f, offending))
	expected, received := q.mismatch(f, offending)
	args := []any{
		"local", q.conn.info.Local, "err", f, "expected", expected, "received", received,
	}
	if f.FES == pdu.FESHeaderDigest {
		args = append(args, "hint", damagedHint)
	}
	if q.state == queueConnecting && tls.IsTLS(offending) {
		args = append(args, "hint", tlsOffHint)
	}
	q.peerLog().Report(event.ProtocolError, args...)
	q.close(queueTerminating, f, q.g.t.cfg.LingerTimeout.Nanoseconds())
}

// run is called when the queue was scheduled: it copies and sends, and continues the end of the
// queue. It returns the number of steps made.
func (q *queue) run() int {
	work := 0
	if q.state == queueDisconnecting {
		q.close(queueClosing, q.reason, min(orderlyLinger, q.g.t.cfg.LingerTimeout).Nanoseconds())
		work++
	}
	if q.state >= queueClosing && !q.tidy() {
		q.schedule()
		return work + 1
	}
	if q.copying {
		q.copySome()
		work++
	}
	if q.state != queueDead && !q.blocked && (!q.sendq.Empty() || q.pending()) {
		work += q.flush()
	}
	switch q.state {
	case queueClosing, queueTerminating:
		if q.finished() {
			q.linger()
			work++
		}
	case queueDead:
		if !q.tidy() {
			q.schedule()
			break
		}
		q.closeSession()
		_ = q.conn.Close() // not earlier: the host may repeat writes, which then wait for late ones
		if q.executing == 0 && q.place.Listed() {
			q.g.remove(q)
		}
	}
	return work
}

// finished reports whether an ending queue has nothing left to send. Commands on an admin queue may
// never complete (Asynchronous Event Requests), so it does not wait for them.
func (q *queue) finished() bool {
	return q.sendq.Empty() && !q.pending() &&
		(q.executing == 0 || q.admin || q.state == queueTerminating)
}

// close stops taking input, abandons commands that have not been executed, and gives queued data
// some time to be sent. The new state is closing or terminating.
func (q *queue) close(state queueState, reason error, linger int64) {
	q.state, q.reason = state, reason
	q.closeBy = q.now() + linger
	q.handshakeBy, q.partialBy = 0, 0
	q.g.startTick()
	if q.stalled() {
		q.g.stalled--
	}
	q.cur, q.dst, q.left, q.partial = nil, mem.Cursor{}, 0, q.partial[:0]
	q.grants, q.requested = list.List[request]{}, 0
	q.g.activate(q)
	q.schedule()
}

// tidy takes back the requests of a queue that ends, except the ones that it still sends or that
// execute, as many as the poll may. It reports whether none is left.
func (q *queue) tidy() bool {
	for ; !q.dropped.Empty() || q.tidied < len(q.reqs); q.g.inTurn += requestCost {
		if q.g.inTurn >= pollBytes {
			return false
		}
		if r := q.dropped.Pop(); r != nil {
			q.put(r)
			continue
		}
		q.tidied++
		switch r := q.reqs[q.tidied-1]; {
		case r.state == requestWaiting:
			q.g.cancelWait(r)
			q.abandon(r)
		case r.state == requestReceiving, r.state == requestGranting && q.state == queueDead:
			q.abandon(r)
		case r.state == requestSending && q.state == queueDead:
			q.put(r)
		}
	}
	return true
}

// linger closes the session, and this side of the connection.
func (q *queue) linger() {
	q.state = queueLingering
	q.closeSession()
	if q.tls != nil {
		q.tls.SendAlert(q.fd, q.g.tls)
	}
	if err := unix.Shutdown(q.fd, unix.SHUT_WR); err != nil {
		q.kill(q.reason)
		return
	}
	q.g.activate(q) // the peer may already have closed its side
}

// closeSession tells the handler, once, that the queue has ended.
func (q *queue) closeSession() {
	if q.open {
		q.open = false
		q.g.inTurn += endCost
		q.g.cfg.Handler.Close(q.session)
	}
}

// kill ends the queue without another use of its socket. The next polls free everything except
// requests that the handler still executes. It must not be called from within a call of the
// handler.
func (q *queue) kill(reason error) {
	if q.state == queueDead {
		return
	}
	if q.state < queueClosing {
		q.close(queueClosing, reason, 0)
	}
	q.state = queueDead
	q.g.t.cfg.Log.Debug("connection closed", "remote", q.conn.info.Remote, "local",
		q.conn.info.Local, "reason", reason)
	q.g.unregister(q)
	if q.active.Listed() {
		q.g.active.Remove(&q.active)
	}
	if !q.admin {
		q.g.load.Add(-1)
	}
	q.g.inTurn += endCost
	q.closeTLS()
	q.closeBy, q.sendBy = 0, 0
	q.sendq, q.tidied = list.List[request]{}, 0
	q.schedule()
}

// broken ends the queue because the socket failed.
func (q *queue) broken(what string, e syscall.Errno) {
	q.kill(fmt.Errorf("%s: %w", what, e))
}

var (
	errPeerClosed = errors.New("the peer closed the connection")

	_ fabric.Queue  = (*queue)(nil)
	_ fabric.Linked = (*queue)(nil)
)
