package cm

import (
	"fmt"
	"net/netip"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/ids"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
)

// receiveREQ handles a connection request.
func (m *Manager) receiveREQ(p *wire.Packet, q *message) {
	from, to := ids.Plain(p.Remote.Addr()), ids.Plain(p.Local.Addr())
	if c := m.remotes[remoteKey{from, q.local}]; c != nil && !m.newer(c, q) {
		m.repeatedREQ(c, p, q)
		return
	}
	var ip ipPrivate
	switch {
	case q.service&^0xffff != serviceTCP:
		m.reject(p, q, ofREQ, rejInvalidServiceID)
		return
	case q.transport != transportRC:
		m.reject(p, q, ofREQ, rejInvalidTransport)
		return
	case q.from != from || q.to != to: // the answers would go elsewhere
		m.reject(p, q, ofREQ, rejInvalidGID)
		return
	case !ip.decode(q.private[:]) || q.qpn <= wire.CMQPN:
		m.reject(p, q, ofREQ, rejUnsupported)
		return
	}
	l := m.listener(netip.AddrPortFrom(to, uint16(q.service)))
	if l == nil {
		m.reject(p, q, ofREQ, rejInvalidServiceID)
		return
	}
	if m.queues[remoteKey{from, q.qpn}] != nil {
		// Section 12.9.8.3.1 lets the old connection end here. A forged request could end any
		// connection then; so it ends when its own timers find that the peer is gone.
		m.reject(p, q, ofREQ, rejStale)
		return
	}
	class, ok := m.admit(from)
	if !ok || l.Full() {
		m.stats.Dropped.Add(1) // the peer will try again
		return
	}
	local, mtu, err := m.net.Route(p.Local.Addr(), p.Remote.Addr())
	if err != nil || ids.Plain(local) != to {
		m.stats.Dropped.Add(1)
		return
	}
	if mtuOf(q.mtu) == 0 || mtuOf(q.mtu) > mtu {
		m.reject(p, q, ofREQ, rejInvalidMTU, mtuCode(mtu)<<4)
		return
	}
	m.request(l, class, p, q, ip.port)
}

// newer reports whether a request that has the communication ID of an old connection is another
// one, and forgets the old connection if that is over.
func (m *Manager) newer(c *conn, q *message) bool {
	if c.peer.QPN == q.qpn && c.peer.PSN == q.psn || c.state != timewait && c.state != rejected {
		return false
	}
	m.free(c)
	return true
}

// repeatedREQ answers a REQ that comes again.
func (m *Manager) repeatedREQ(c *conn, p *wire.Packet, q *message) {
	m.stats.Duplicates.Add(1)
	switch {
	case c.peer.QPN != q.qpn || c.peer.PSN != q.psn || c.state == timewait:
		m.reject(p, q, ofREQ, rejStale)
	case c.state == reqReceived:
		a := c.message(attrMRA)
		a.of, a.wait = ofREQ, m.opt.patience()
		m.answer(p, a)
		c.patient = true
	case c.state == rejected:
		c.again()
		m.start(c, c.refusal())
	}
	// Otherwise REP has been sent and repeats itself, within its own limit.
}

// request makes the connection of a request, and tells the listener.
func (m *Manager) request(l *ID, class class, p *wire.Packet, q *message, port uint16) {
	id := l.cm.newID()
	c := m.newConn(id, wire.Path{
		Local: p.Local.Addr(), Remote: p.Remote.Addr(), TOS: q.trafficClass &^ 3, MTU: mtuOf(q.mtu),
	})
	c.state, c.remote, c.tid = reqReceived, q.local, q.tid
	c.peer.QPN, c.peer.PSN, c.peer.InitiatorDepth = q.qpn, q.psn, q.responder
	c.peer.RetryCount, c.peer.RNRRetry = q.retries, q.rnrRetry
	if c.peer.AckTimeout = q.ackTimeout; q.ackTimeout == 0 || q.ackTimeout > maxAckTimeout {
		c.peer.AckTimeout = maxAckTimeout // 0 means no timeout
	}
	// The peer announces its time to answer a REP; longer times than our own are cut.
	c.interval = m.opt.interval(min(max(q.localWait, minWait), m.opt.ResponseTimeout))
	c.account(class)
	m.remotes[c.key(c.remote)] = c
	m.queues[c.key(q.qpn)] = c
	id.Request(&l.ID, netip.AddrPortFrom(p.Local.Addr(), uint16(q.service)),
		netip.AddrPortFrom(p.Remote.Addr(), port), verbs.ConnParam{
			PrivateData:        append([]byte(nil), q.data()[ipHeader:]...),
			ResponderResources: q.initiator, InitiatorDepth: q.responder,
			RetryCount: q.retries, RNRRetryCount: q.rnrRetry, FlowControl: q.flowControl,
		})
}

const (
	// minWait is the shortest time for an answer: 4 ms.
	minWait = 10
	// maxAckTimeout is the longest time after which a packet is sent again: 4.3 s. A peer that asks
	// for more could disappear unnoticed.
	maxAckTimeout = 20
	// ackDelay is the longest delay of our acknowledgments that a REP announces (Target ACK Delay,
	// section 12.6.8): 1.07 s. We may not run for that long on a busy machine, and rxe cannot send
	// again: it would register memory a second time, which ends the connection (rxe_do_local_ops in
	// drivers/infiniband/sw/rxe/rxe_req.c). Linux then waits for 2.1 s (cm_ack_timeout in cm.c).
	ackDelay = 18
)

// Accept sends a REP.
func (id *ID) Accept(p verbs.ConnParam) error {
	m := id.cm.m
	m.mu.Lock()
	defer m.mu.Unlock()
	c := id.conn
	if err := id.Check("accept", &p, repPrivate, c != nil && c.state == reqReceived &&
		id.QP != nil, "request, or no queue pair"); err != nil {
		return err
	}
	peer := c.peer
	peer.ResponderResources = p.ResponderResources
	peer.InitiatorDepth = min(p.InitiatorDepth, peer.InitiatorDepth)
	peer.First, peer.Fatal = func() { c.note(notePacket) }, func() { c.note(noteFatal) }
	if err := id.QP.Of.Connect(peer); err != nil {
		return fmt.Errorf("accept %v: %w", id.To, err)
	}
	q := c.message(attrREP)
	q.guid, q.ackDelay = m.guid, ackDelay
	q.qpn, q.psn, q.srq = id.QP.Num(), id.QP.Of.PSN(), id.QP.SRQ
	q.responder, q.initiator = p.ResponderResources, p.InitiatorDepth
	q.rnrRetry, q.flowControl = min(p.RNRRetryCount, 7), p.FlowControl
	copy(q.private[:], p.PrivateData)
	c.send(q)
	c.await(repSent, m.opt.Replies-1)
	m.flush()
	return nil
}

// Reject sends a REJ.
func (id *ID) Reject(private []byte) error {
	m := id.cm.m
	m.mu.Lock()
	defer m.mu.Unlock()
	c := id.conn
	if err := id.Check("reject", &verbs.ConnParam{PrivateData: private}, rejPrivate,
		c != nil && c.state == reqReceived, "request"); err != nil {
		return err
	}
	c.refuse(rejConsumer, private)
	m.flush()
	return nil
}

// receiveRTU handles the confirmation of a REP.
func (m *Manager) receiveRTU(p *wire.Packet, q *message) {
	c := m.find(p, q)
	switch {
	case c == nil || c.active:
		m.stray()
	case c.state == repSent:
		c.connected(verbs.ConnParam{})
	case c.state == rejected:
		// The program withdrew its acceptance, but the peer has not seen the REJ.
		c.disconnect()
	default:
		m.stats.Duplicates.Add(1)
	}
}
