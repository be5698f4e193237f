package cm

import (
	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/ids"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/packet"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
)

// Connect sends a REQ.
func (id *ID) Connect(p verbs.ConnParam) error {
	m := id.cm.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := id.Check("connect to", &p, reqPrivate, id.State == ids.Routed && id.QP != nil,
		"route, or no queue pair"); err != nil {
		return err
	}
	id.State = ids.Done
	c := m.newConn(id, wire.Path{
		Local: id.From.Addr(), Remote: id.To.Addr(), MTU: id.MTU,
	})
	c.active = true
	c.peer.ResponderResources, c.peer.InitiatorDepth = p.ResponderResources, p.InitiatorDepth
	c.peer.RetryCount = min(p.RetryCount, 7)
	c.peer.AckTimeout = m.opt.AckTimeout

	q := c.message(attrREQ)
	q.service, q.guid, q.transport = serviceTCP|uint64(id.To.Port()), m.guid, transportRC
	q.qpn, q.psn, q.srq = id.QP.Num(), id.QP.Of.PSN(), id.QP.SRQ
	q.responder, q.initiator = p.ResponderResources, p.InitiatorDepth
	q.retries, q.rnrRetry, q.flowControl = c.peer.RetryCount, min(p.RNRRetryCount, 7), p.FlowControl
	q.remoteWait, q.localWait = m.opt.ResponseTimeout, m.opt.ResponseTimeout
	q.maxCMRetries, q.ackTimeout = uint8(min(m.opt.Retries, 15)), m.opt.AckTimeout
	q.pkey, q.mtu, q.hopLimit = packet.PKeyDefault, mtuCode(id.MTU), 64
	q.from, q.to = ids.Plain(id.From.Addr()), ids.Plain(id.To.Addr())
	ip := ipPrivate{port: id.From.Port(), from: q.from, to: q.to}
	ip.encode(q.private[:])
	copy(q.private[ipHeader:], p.PrivateData)
	c.send(q)
	c.interval = m.opt.interval(m.opt.ResponseTimeout)
	c.await(reqSent, m.opt.Retries)
	m.flush()
	return nil
}

// receiveREP handles the acceptance of a REQ.
func (m *Manager) receiveREP(p *wire.Packet, q *message) {
	c := m.findLocal(p, q)
	switch {
	case c != nil && c.active && c.state == reqSent:
		m.accepted(c, q)
	case c != nil && c.active && c.state == established && c.remote == q.local &&
		c.peer.QPN == q.qpn:
		m.stats.Duplicates.Add(1)
		c.again() // the RTU
	case c != nil && c.active && c.remote == q.local:
		m.stats.Duplicates.Add(1) // the DREQ tells the peer
	default:
		m.stray()
		m.reject(p, q, ofREP, rejInvalidCommID)
	}
}

// accepted makes the queue pair ready and confirms that.
func (m *Manager) accepted(c *conn, q *message) {
	id := c.id
	c.remote = q.local
	c.peer.QPN, c.peer.PSN, c.peer.RNRRetry = q.qpn, q.psn, q.rnrRetry
	// The passive side decides the READ depths, within the request's.
	c.peer.ResponderResources = min(c.peer.ResponderResources, q.initiator)
	c.peer.InitiatorDepth = min(c.peer.InitiatorDepth, q.responder)
	err := error(unix.EINVAL)
	if id.QP != nil && q.qpn > wire.CMQPN {
		c.peer.Fatal = func() { c.note(noteFatal) }
		err = id.QP.Of.Connect(c.peer)
	}
	if err != nil {
		r := c.message(attrREJ)
		r.of, r.reason = ofREP, rejConsumer
		c.send(r)
		c.post(verbs.Event{Type: verbs.EventConnectError, Status: -int(unix.EINVAL)})
		m.free(c)
		return
	}
	m.queues[c.key(q.qpn)] = c
	c.send(c.message(attrRTU))
	c.connected(verbs.ConnParam{
		PrivateData:        append([]byte(nil), q.data()...),
		ResponderResources: q.initiator, InitiatorDepth: q.responder,
		RNRRetryCount: q.rnrRetry, FlowControl: q.flowControl,
	})
}
