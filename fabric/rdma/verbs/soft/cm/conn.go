package cm

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/ids"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/roce"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
	"github.com/nvmf-target/nvmf-target/internal/list"
)

// state is the state of a connection (section 12.9.5 and 12.9.6, without the states of alternate
// paths). A connection that needs nothing more is freed.
type state uint8

const (
	// Active side. REQ is repeated until the answer comes.
	reqSent state = iota
	// Passive side. The program has not answered the request yet.
	reqReceived
	// Passive side, accepted. REP is repeated until the peer shows that it has arrived.
	repSent
	established
	// DREQ is repeated until DREP comes.
	dreqSent
	// The peer has disconnected, the program has not.
	dreqReceived
	// The numbers of the connection are not used again until packets of it have left the network.
	timewait
	// Passive side, refused. A REQ that comes again gets the same REJ.
	rejected
)

// A conn is a connection. It may outlive its ID, so that a message that was lost is repeated.
type conn struct {
	m     *Manager
	id    *ID // nil if the program has destroyed it
	state state
	// active reports whether this side sent the REQ.
	active        bool
	local, remote uint32 // communication IDs
	tid           uint64
	peer          roce.Peer
	mad           [madSize]byte // the last message, to be repeated

	timer    list.Place    // in Manager.timers
	interval time.Duration // between repetitions
	tries    int           // repetitions left
	patient  bool          // an MRA has prolonged the interval, here or at the peer

	host  *host
	class class
	saved int // number of its entry in Manager.saved, plus one

	notes atomic.Uint32
}

// newConn makes a connection with a communication ID of its own.
func (m *Manager) newConn(id *ID, path wire.Path) *conn {
	c := &conn{m: m, id: id, peer: roce.Peer{Path: path}, tid: random64()}
	for c.local == 0 || m.conns[c.local] != nil {
		c.local = uint32(random64())
	}
	m.conns[c.local] = c
	id.conn = c
	return c
}

// free forgets a connection.
func (m *Manager) free(c *conn) {
	m.stop(c)
	c.account(classNone)
	delete(m.conns, c.local)
	for _, x := range []struct {
		of  map[remoteKey]*conn
		key remoteKey
	}{{m.remotes, c.key(c.remote)}, {m.queues, c.key(c.peer.QPN)}} {
		if x.of[x.key] == c {
			delete(x.of, x.key)
		}
	}
	if c.id != nil {
		c.id.conn, c.id.State = nil, ids.Done
		c.id = nil
	}
}

func (c *conn) key(n uint32) remoteKey { return remoteKey{ids.Plain(c.peer.Path.Remote), n} }

// post sends an event to the program.
func (c *conn) post(ev verbs.Event) {
	if c.id != nil {
		c.id.Post(ev)
	}
}

// message starts a message of the connection.
func (c *conn) message(a attr) *message {
	return &message{attr: a, tid: c.tid, local: c.local, remote: c.remote}
}

// send sends a message, which becomes the one to repeat.
func (c *conn) send(q *message) {
	q.encode(c.mad[:])
	c.again()
}

// again sends the last message again.
func (c *conn) again() { c.m.send(&c.peer.Path, c.mad[:]) }

// await repeats the last message until the state changes.
func (c *conn) await(s state, tries int) {
	c.state, c.tries, c.patient = s, tries, false
	c.m.start(c, c.interval)
}

// expired handles the deadline of the connection.
func (c *conn) expired() {
	m := c.m
	if c.tries > 0 && (c.state == reqSent || c.state == repSent || c.state == dreqSent) {
		c.tries--
		c.patient = false
		m.stats.Repeated.Add(1)
		c.again()
		m.start(c, c.interval)
		return
	}
	switch c.state {
	case reqSent:
		c.withdraw()
		c.unreachable()
	case repSent:
		// No message: a forged request must not cause more of them. If the peer repeats its
		// request, that is a new one.
		c.unreachable()
	case dreqSent:
		c.disconnected(-int(unix.ETIMEDOUT))
	case timewait:
		c.post(verbs.Event{Type: verbs.EventTimewaitExit})
		m.free(c)
	case rejected:
		m.free(c)
	}
}

// unreachable is the end of a connection that the peer does not answer.
func (c *conn) unreachable() {
	c.post(verbs.Event{Type: verbs.EventUnreachable, Status: -int(unix.ETIMEDOUT)})
	c.m.free(c)
}

// withdraw tells the passive side that the active one waits no longer (section 12.6.7.2, reason 4).
// The message lacks the communication ID of the peer, which has not answered: the GUID and our
// communication ID identify the request.
func (c *conn) withdraw() {
	q := c.message(attrREJ)
	q.reason, q.of = rejTimeout, ofREQ
	for i := range 8 {
		q.info[i] = byte(c.m.guid >> (56 - 8*i))
	}
	q.infoSize = 8
	c.send(q)
}

// linger keeps the connection after the program is done with it, unless there are too many.
func (c *conn) linger(s state, d time.Duration) {
	c.state = s
	c.account(classLinger)
	if c.crowded() {
		c.m.free(c)
		return
	}
	c.m.start(c, d)
}

// refuse sends a REJ and remembers it.
func (c *conn) refuse(reason uint16, private []byte) {
	q := c.message(attrREJ)
	q.reason, q.of = reason, ofREQ
	copy(q.private[:], private)
	c.send(q)
	c.linger(rejected, c.refusal())
	// The queue pair of the peer is not connected, and its next request may name it.
	if k := c.key(c.peer.QPN); c.m.queues[k] == c {
		delete(c.m.queues, k)
	}
}

// refusal is how long a REJ is remembered: REQs may be lost, or late after an MRA.
func (c *conn) refusal() time.Duration {
	d := 4 * c.interval
	if c.patient {
		d += ibTime(c.m.opt.patience())
	}
	return d
}

// connected is the end of the handshake.
func (c *conn) connected(p verbs.ConnParam) {
	c.m.stop(c)
	c.state = established
	c.account(classLive)
	c.post(verbs.Event{Type: verbs.EventEstablished, Param: p})
}

// disconnect sends a DREQ. The connection is established, or refused too late.
func (c *conn) disconnect() {
	q := c.message(attrDREQ)
	q.qpn = c.peer.QPN
	c.send(q)
	c.interval = c.m.opt.interval(c.m.opt.ResponseTimeout)
	c.await(dreqSent, c.m.opt.Retries)
}

// release sends the DREP to the DREQ of the peer.
func (c *conn) release() {
	c.send(c.message(attrDREP))
	c.timewait()
}

// disconnected is the end of the connection for the side that sent a DREQ.
func (c *conn) disconnected(status int) {
	c.post(verbs.Event{Type: verbs.EventDisconnected, Status: status})
	c.timewait()
}

// timewait keeps the connection while a packet of it may be on its way or be repeated (section
// 12.9.8.4).
func (c *conn) timewait() { c.linger(timewait, 2*ibTime(c.peer.AckTimeout)) }

// drop ends a connection after its ID was destroyed. The peer learns it.
func (c *conn) drop() {
	c.id.conn = nil
	c.id = nil
	switch c.state {
	case reqSent:
		c.withdraw()
		c.m.free(c)
	case reqReceived, repSent:
		c.refuse(rejConsumer, nil)
	case established:
		c.disconnect()
		fallthrough
	case dreqSent:
		if c.account(classLinger); c.crowded() {
			c.m.free(c)
		}
	case dreqReceived:
		c.release()
	}
}

// Notes of the engine.
const (
	notePacket = 1 << iota // the first packet has arrived
	noteFatal              // the queue pair has failed
)

// note is called by the engine of the queue pair. It leaves a note for the Manager's goroutine.
func (c *conn) note(n uint32) {
	if c.notes.Or(n) != 0 {
		return
	}
	c.m.noteMu.Lock()
	c.m.noted = append(c.m.noted, c)
	c.m.noteMu.Unlock()
	c.m.conn.Wake()
}

// takeNotes handles the notes. The connection may have changed since, or have been freed.
func (c *conn) takeNotes() {
	n := c.notes.Swap(0)
	if n&notePacket != 0 && c.state == repSent && c.m.conns[c.local] == c {
		c.connected(verbs.ConnParam{})
	}
	// Section 10.3.1: a queue pair in the error state sends nothing, so the peer would not notice.
	if n&noteFatal != 0 && c.state == established && c.m.conns[c.local] == c {
		c.disconnect()
	}
}

// receiveREJ handles a refusal, or a withdrawal.
func (m *Manager) receiveREJ(p *wire.Packet, q *message) {
	c := m.findLocal(p, q)
	switch {
	case c != nil && c.active && c.state == reqSent:
	case c != nil && !c.active && c.remote == q.local &&
		(c.state == repSent || c.state == reqReceived):
	case q.reason == rejTimeout: // the sender may not know our communication ID
		c = m.remotes[remoteKey{ids.Plain(p.Remote.Addr()), q.local}]
		if c != nil && (c.state == repSent || c.state == reqReceived) {
			break
		}
		fallthrough
	default:
		m.stray()
		return
	}
	id := c.id
	m.free(c)
	if id.Withdraw() {
		// Next has not returned the request. It leaves nothing behind: otherwise requests that are
		// withdrawn at once would fill the backlog beyond the limits of half-open connections.
		id.Drop()
		return
	}
	// As with librdmacm the queue pair fails.
	id.Fail()
	id.Post(verbs.Event{
		Type: verbs.EventRejected, Status: int(q.reason),
		Param: verbs.ConnParam{PrivateData: append([]byte(nil), q.data()...)},
	})
}

// receiveMRA gives the peer more time for its answer, once for each message it got.
func (m *Manager) receiveMRA(p *wire.Packet, q *message) {
	c := m.findLocal(p, q)
	if c == nil || !(q.of == ofREQ && c.state == reqSent ||
		q.of == ofREP && c.state == repSent && c.remote == q.local) {
		m.stray()
		return
	}
	if !c.patient {
		c.patient = true
		m.start(c, c.interval+ibTime(min(q.wait, m.opt.patience())))
	}
}

// receiveDREQ handles a disconnection. The queue pair does not change until the program
// disconnects as well.
func (m *Manager) receiveDREQ(p *wire.Packet, q *message) {
	c := m.find(p, q)
	if c != nil && c.id != nil && c.id.QP != nil && c.id.QP.Num() != q.qpn {
		m.stray()
		return
	}
	if c == nil || c.state == timewait {
		// No connection: the peer must not wait for ever (section 12.9.8.3.2).
		m.stray()
		m.answer(p, &message{attr: attrDREP, tid: q.tid, local: q.remote, remote: q.local})
		return
	}
	switch c.state {
	case repSent, established:
		m.stop(c)
		c.state = dreqReceived
		c.tid = q.tid
		c.account(classLive)
		c.post(verbs.Event{Type: verbs.EventDisconnected})
	case dreqSent: // both sides at once
		c.tid = q.tid
		c.send(c.message(attrDREP))
		c.disconnected(0)
	default:
		m.stats.Duplicates.Add(1)
	}
}

// receiveDREP handles the answer to a DREQ.
func (m *Manager) receiveDREP(p *wire.Packet, q *message) {
	c := m.find(p, q)
	if c == nil || c.state != dreqSent {
		m.stray()
		return
	}
	c.disconnected(0)
}
