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

// How a connection becomes a queue of a group:
//
//	newQueue (Adopt's goroutine)  memory, queue pair
//	open     (reactor)            Handler.Open, ID, receives posted
//	accept   (Adopt's goroutine)  the connection is accepted; capsules may come at once
//	event    (reactor)            established
//
// Until open has succeeded, the connection is rejected with "no resources" and everything is freed
// here; afterwards the queue ends as all do, in close.go.

// Adopt implements fabric.Group. It blocks while the device makes the queue pair; not on a reactor.
func (g *group) Adopt(fc fabric.Conn) error {
	c, ok := fc.(*conn)
	if !ok {
		return errors.Join(fmt.Errorf("rdma: a connection of another transport: %T", fc),
			fc.Close())
	}
	if err := c.claim(); err != nil {
		return err
	}
	if err := g.adopt(c); err != nil {
		return fmt.Errorf("queue %d of %v: %w", c.info.QID, c.info.Remote, err)
	}
	return nil
}

func (g *group) adopt(c *conn) error {
	err := errShutdown
	if g.beginSetup() {
		defer g.endSetup()
		var q *queue
		if q, err = g.newQueue(c); err == nil {
			if err = g.install(q); err == nil {
				return q.accept()
			}
			q.destroyQP()
			err = errors.Join(err, q.free())
		}
	}
	defer c.leave()
	return errors.Join(err, c.reject(cmwire.NoResources))
}

// beginSetup keeps the group from shutting down until endSetup. It returns false if the group is
// closing. Any goroutine may call both.
func (g *group) beginSetup() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closing {
		g.setups++
	}
	return !g.closing
}

func (g *group) endSetup() {
	g.mu.Lock()
	g.setups--
	last := g.closing && g.setups == 0
	g.mu.Unlock()
	if last {
		g.cfg.Loop.Post(g.checkShutdown)
	}
}

// newQueue makes all device resources of a queue.
func (g *group) newQueue(c *conn) (*queue, error) {
	if !c.counted.FromAllowed() {
		g.strangersMu.Lock()
		defer g.strangersMu.Unlock()
	}
	g.setupMu.Lock()
	defer g.setupMu.Unlock()
	if err := c.mustEnd(); err != nil {
		return nil, err
	}
	if c.id.Device() == nil {
		return nil, errRemoved
	}
	p, err := g.poller(c.id.Device())
	if err != nil {
		return nil, err
	}
	attr := &p.dev.attr
	if attr.MaxQPWR > 0 && c.depth > attr.MaxQPWR {
		return nil, fmt.Errorf("receive queue of %d: %s has at most %d", c.depth, attr.Name,
			attr.MaxQPWR)
	}
	sq := sendQueueSize(c, attr)
	q := &queue{
		g: g, p: p, conn: c, sqSize: sq, sqFree: sq, maxChain: min(max(sq/2, 1), maxChain),
	}
	if c.useSRQ {
		if q.srq, err = p.acquireSRQ(c.depth); err == nil && q.srq == nil {
			err = c.useOwnReceives()
		}
		if err != nil {
			return nil, err
		}
	}
	if q.cq, err = p.acquireCQ(q.cqEntries(), q.srq); err == nil {
		if err = q.build(); err == nil {
			p.refs++
			g.countLoad(c, 1)
			return q, nil
		}
		q.cq.release(q.cqEntries(), q.srq)
	}
	if q.srq != nil {
		err = errors.Join(err, p.releaseSRQ(q.srq, c.depth))
	}
	return nil, err
}

// free undoes newQueue, except for the queue pair, which must have been destroyed, unless the queue
// is quarantined. Not on a reactor.
func (q *queue) free() error {
	q.g.countLoad(q.conn, -1)
	if q.quarantined {
		q.conn.counted.Keep()
		q.g.setupMu.Lock()
		defer q.g.setupMu.Unlock()
		q.p.quarantined = true
		return nil
	}
	err := q.slab.free()
	q.g.setupMu.Lock()
	defer q.g.setupMu.Unlock()
	q.cq.release(q.cqEntries(), q.srq)
	q.p.refs--
	if q.srq != nil {
		err = errors.Join(err, q.p.releaseSRQ(q.srq, q.conn.depth))
	}
	return err
}

// cqEntries returns the maximum number of completions that the work of a queue can have at once.
func (q *queue) cqEntries() int {
	if q.srq != nil {
		return q.sqSize
	}
	return q.sqSize + q.conn.depth
}

// sendQueueSize has room for each response with a WRITE, and for the READs in flight.
func sendQueueSize(c *conn, attr *verbs.DeviceAttr) int {
	n := 2*c.credits + min(c.reads, c.depth)
	if attr.MaxQPWR > 0 {
		n = min(n, attr.MaxQPWR)
	}
	return max(n, 4)
}

// poller finds or makes the poller of a device. g.setupMu is held.
func (g *group) poller(dev verbs.Device) (*poller, error) {
	for d, p := range g.byDevice {
		if d.dev == dev && !d.removed.Load() {
			return p, nil
		}
	}
	d, err := g.t.acquireDevice(dev)
	if err != nil {
		return nil, err
	}
	p, err := g.newPoller(d)
	if err != nil {
		return nil, err
	}
	g.byDevice[d] = p
	return p, nil
}

// install opens the queue on the reactor and waits for the result.
func (g *group) install(q *queue) error {
	var decided atomic.Bool // by the reactor or the time limit, whichever is first
	result := make(chan error, 1)
	g.cfg.Loop.Post(func() {
		if decided.CompareAndSwap(false, true) {
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
	if decided.CompareAndSwap(false, true) {
		return fmt.Errorf("reactor %d did not answer within %v", g.cfg.Index, openTimeout)
	}
	return <-result
}

// open adds the queue to the group. After an error nothing of it is left here. Reactor only.
func (g *group) open(q *queue) error {
	defer q.p.detachUnused()
	if err := q.p.attach(q.cq); err != nil {
		return err
	}
	session, err := g.cfg.Handler.Open(q)
	if err != nil {
		return fmt.Errorf("refused: %w", err)
	}
	q.session = session
	// The queue now has a session and an ID: any later error ends it like any other queue.
	q.id = g.queues.add(q)
	q.p.queues++
	if q.srq != nil {
		q.srq.attach(q)
	}
	q.setTimer(g.t.cfg.ConnectTimeout)
	if err := q.conn.bind(q); err != nil {
		q.fail(err)
	} else if q.srq == nil {
		q.own.wrid = workID(workRecv, q.id, 0)
		q.postRecvs()
	}
	return nil
}

// accept accepts the connection of an open queue. RDMA section 3.1.4: no READ of the host is
// served, and it retries without end when no receive is posted, as we do.
func (q *queue) accept() error {
	q.cm.Lock()
	defer q.cm.Unlock()
	if q.ended {
		return errors.New("the queue ended before the connection was accepted")
	}
	if err := q.conn.id.Accept(verbs.ConnParam{
		PrivateData:    cmwire.Bytes(cmwire.Rep{CRQSize: uint16(q.conn.depth)}),
		InitiatorDepth: uint8(q.maxReads), RNRRetryCount: 7, RetryCount: 7, FlowControl: true,
	}); err != nil {
		err = fmt.Errorf("accept: %w", err)
		q.g.cfg.Loop.Post(func() { q.fail(err) })
		return err
	}
	q.accepted = true
	if q.srq != nil {
		// If this fails, hosts wait longer, or the queue has already failed.
		if err := q.qp.ShortenRNRTimer(); err != nil {
			q.g.t.cfg.Log.Debug("RDMA queue pair keeps its RNR timer", "remote", q.conn.info.Remote,
				"err", err)
		}
	}
	return nil
}
