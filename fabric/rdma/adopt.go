package rdma

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/cmwire"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

// The way of a connection into a group:
//
//	Adopt (its own goroutine)   memory, queue pair
//	open (reactor)              number, Handler.Open, receives posted
//	accept (Adopt's goroutine)  the connection is accepted; capsules may come at once
//	event (reactor)             established
//
// Up to open the connection is refused with "no resources" and everything freed here; afterwards
// the queue ends as all do, in teardown.go.

// Adopt takes over an accepted connection. It blocks while the device makes the queue pair; not on
// a reactor. On error the connection has been closed.
func (g *group) Adopt(fc fabric.Conn) error {
	c, ok := fc.(*conn)
	if !ok {
		return errors.Join(fmt.Errorf("rdma: a connection of another transport: %T", fc),
			fc.Close())
	}
	if err := c.take(); err != nil {
		return err
	}
	if err := g.adopt(c); err != nil {
		return fmt.Errorf("queue %d of %v: %w", c.info.QID, c.info.Remote, err)
	}
	return nil
}

func (g *group) adopt(c *conn) error {
	q, err := g.setup(c)
	if err == nil {
		if err = g.install(q); err == nil {
			g.settle()
			return q.accept()
		}
		err = errors.Join(err, q.discard())
	}
	defer c.t.leave(c)
	err = errors.Join(err, c.refuse(cmwire.NoResources))
	g.settle()
	return err
}

// settle ends an adoption that setup began.
func (g *group) settle() {
	g.mu.Lock()
	g.adopting--
	last := g.closing && g.adopting == 0
	g.mu.Unlock()
	if last {
		g.cfg.Loop.Post(g.maybeDone)
	}
}

// setup makes everything a queue has of the device.
func (g *group) setup(c *conn) (*queue, error) {
	g.mu.Lock()
	g.adopting++
	closing := g.closing
	g.mu.Unlock()
	if closing {
		return nil, errShutdown
	}
	g.making.Lock()
	defer g.making.Unlock()
	if c.id.Device() == nil {
		return nil, errRemoved
	}
	p, err := g.port(c.id.Device())
	if err != nil {
		return nil, err
	}
	attr := &p.dev.attr
	sq := sendQueueSize(c, attr)
	if attr.MaxQPWR > 0 && c.depth > attr.MaxQPWR {
		return nil, fmt.Errorf("receive queue of %d: %s has at most %d", c.depth, attr.Name,
			attr.MaxQPWR)
	}
	q := &queue{g: g, p: p, conn: c, sqSize: sq, slots: sq}
	if c.shared {
		if q.shared, err = p.share(c.depth); err != nil {
			return nil, err
		}
		if q.shared == nil {
			if err := c.ownReceives(); err != nil {
				return nil, err
			}
		}
	}
	if q.cq, err = p.reserve(q.entries(), q.shared); err == nil {
		if err = q.build(); err == nil {
			p.refs++
			g.count(c, 1)
			return q, nil
		}
		q.cq.vacate(q.entries(), q.shared)
	}
	if q.shared != nil {
		err = errors.Join(err, p.unshare(q.shared, c.depth))
	}
	return nil, err
}

// entries is how many completions of its own work a queue can have at once.
func (q *queue) entries() int {
	if q.shared != nil {
		return q.sqSize
	}
	return q.sqSize + q.conn.depth
}

// sendQueueSize has room for every response with one RDMA WRITE, and for as many RDMA READs as may
// be in flight.
func sendQueueSize(c *conn, attr *verbs.DeviceAttr) int {
	n := 2*c.credits + min(c.reads, c.depth)
	if attr.MaxQPWR > 0 {
		n = min(n, attr.MaxQPWR)
	}
	return max(n, 4)
}

// port finds or makes the port of a device. g.making is held.
func (g *group) port(dev verbs.Device) (*port, error) {
	for d, p := range g.byDevice {
		if d.dev == dev && !d.removed.Load() {
			return p, nil
		}
	}
	d, err := g.t.device(dev)
	if err != nil {
		return nil, err
	}
	p, err := g.newPort(d)
	if err != nil {
		return nil, err
	}
	g.byDevice[d] = p
	return p, nil
}

// install brings the queue to the reactor and waits for the handler's word.
func (g *group) install(q *queue) error {
	var given atomic.Bool // by whoever is first: the reactor or the deadline
	result := make(chan error, 1)
	g.cfg.Loop.Post(func() {
		if given.CompareAndSwap(false, true) {
			result <- g.open(q)
		}
	})
	timer := time.NewTimer(openTimeout)
	defer timer.Stop()
	select {
	case err := <-result:
		return err
	case <-timer.C:
	}
	if given.CompareAndSwap(false, true) {
		return fmt.Errorf("reactor %d did not answer within %v", g.cfg.Index, openTimeout)
	}
	return <-result
}

// open makes the queue one of the group's. Reactor only. After an error nothing is left of it here.
func (g *group) open(q *queue) error {
	if err := q.p.attach(q.cq); err != nil {
		return err
	}
	q.number = g.free()
	g.gen = (g.gen + 1) & genMask
	q.gen = g.gen
	session, err := g.cfg.Handler.Open(q)
	if err != nil {
		return fmt.Errorf("refused: %w", err)
	}
	q.session, q.opened = session, true
	for i := range q.reqs {
		q.reqs[i].Session = session
	}
	// The queue has a handler and an entry from here on: whatever goes wrong ends it like any
	// other.
	g.slots[q.number] = q
	g.queues++
	if q.shared != nil {
		q.shared.attach(q)
	}
	q.within(g.t.cfg.ConnectTimeout)
	if err := q.conn.own(q); err != nil {
		q.fail(err)
		return nil
	}
	if q.shared != nil {
		return nil
	}
	for i := range q.reqs {
		g.recvs = append(g.recvs, q.recvWR(uint16(i)))
		if len(g.recvs) == cap(g.recvs) || i == len(q.reqs)-1 {
			q.post()
		}
	}
	return nil
}

// free finds a number for a queue. Reactor only.
func (g *group) free() uint16 {
	for i, q := range g.slots {
		if q == nil {
			return uint16(i)
		}
	}
	g.slots = append(g.slots, nil)
	return uint16(len(g.slots) - 1)
}

// accept accepts the connection of an open queue.
func (q *queue) accept() error {
	q.cm.Lock()
	defer q.cm.Unlock()
	if q.ended {
		return errors.New("the queue ended before the connection was accepted")
	}
	err := q.conn.t.acceptID(q)
	if err != nil {
		err = fmt.Errorf("accept: %w", err)
		q.g.cfg.Loop.Post(func() { q.fail(err) })
		return err
	}
	q.accepted = true
	if q.shared != nil {
		// then hosts wait longer, or the queue has failed already
		if err := q.qp.RetrySoon(); err != nil {
			q.g.t.cfg.Log.Debug("RDMA queue pair keeps its RNR timer", "remote", q.conn.info.Remote,
				"error", err)
		}
	}
	return nil
}

func (t *Transport) acceptID(q *queue) error {
	c := q.conn
	var rep cmwire.Rep
	rep.Set(uint16(c.depth))
	// RDMA section 3.1.4: no READ of the host is served, and it retries for ever when no receive is
	// posted, as we do.
	return c.id.Accept(verbs.ConnParam{
		PrivateData: rep[:], InitiatorDepth: uint8(q.maxReads), RNRRetryCount: 7, RetryCount: 7,
		FlowControl: true,
	})
}

// discard frees a queue that was never opened. Not on a reactor.
func (q *queue) discard() error {
	err := q.qp.Destroy()
	if err == nil {
		err = q.free()
	}
	return errors.Join(err, q.g.release(q))
}

// release gives the queue's share of its port back. Not on a reactor.
func (g *group) release(q *queue) error {
	g.making.Lock()
	defer g.making.Unlock()
	q.cq.vacate(q.entries(), q.shared)
	q.p.refs--
	g.count(q.conn, -1)
	if q.shared == nil {
		return nil
	}
	return q.p.unshare(q.shared, q.conn.depth)
}
