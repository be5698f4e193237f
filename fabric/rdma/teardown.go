package rdma

import (
	"errors"
	"fmt"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/cmwire"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

// The end of a queue, whatever began it:
//
//	die (reactor)        what is not executing is abandoned, Handler.Close is called; what the device has stays as it is
//	shut (goroutine)     disconnect or reject, queue pair to the error state
//	drained (reactor)    every receive and signalled send has completed, or the deadline has passed
//	destroy (goroutine)  queue pair and identifier
//	destroyed (reactor)  memory the device had is free; the handler may still have requests
//	finish (reactor)     it has none; then memory (goroutine)
//	removed (reactor)    the entry in the group
//
// Data memory is given back only when neither the handler nor the device can touch it.

var (
	errFlushed   = errors.New("the queue pair went to the error state")
	errDeparted  = errors.New("the host disconnected")
	errRemoved   = errors.New("the RDMA device was removed")
	errNoEstab   = errors.New("the connection was not established in time")
	errNoConnect = errors.New("no Connect command came in time")
	errStuck     = errors.New("the device made no progress with what it was given")
)

// event takes an event of the connection.
func (q *queue) event(t verbs.EventType, status int) {
	switch {
	case t == verbs.EventEstablished:
		if q.state == queueOpening {
			q.state = queueLive
			if !q.joined {
				q.within(q.g.t.cfg.ConnectTimeout)
			}
		}
	case t == verbs.EventDisconnected:
		q.fail(errDeparted)
	case t == verbs.EventDeviceRemoval:
		q.fail(errRemoved)
	case endOf(t):
		q.fail(fmt.Errorf("the connection failed: %v (status %d)", t, status))
	}
}

// step does what there is to do for a queue that was touched; it returns the number of work
// requests posted.
func (q *queue) step() (n int) {
	switch {
	case q.state >= queueDying:
		return 0
	case q.failed:
		q.die()
		return 0
	}
	n = q.flush()
	if q.state == queueClosing && q.quiet() {
		q.die()
	}
	return n
}

// quiet says that a queue that is being disconnected has nothing left to say. Commands on an admin
// queue may take for ever (Asynchronous Event Requests), so nobody waits for them.
func (q *queue) quiet() bool {
	return q.out.head == nil && q.needRead.head == nil && q.signalled == 0 &&
		(q.executing == 0 || q.conn.info.QID == 0)
}

// within sets the time limit of the present state, instead of the one before.
func (q *queue) within(d time.Duration) {
	q.relax()
	q.stop = q.g.cfg.Loop.After(d.Nanoseconds(), q.late)
}

// relax lifts the time limit.
func (q *queue) relax() {
	if q.stop != nil {
		q.stop()
		q.stop = nil
	}
}

// late ends what has taken too long.
func (q *queue) late() {
	q.stop = nil
	switch q.state {
	case queueOpening:
		q.fail(errNoEstab)
	case queueLive:
		q.fail(errNoConnect)
	case queueClosing:
		q.fail(nil)
	case queueDying:
		q.posted, q.signalled, q.last = 0, 0, true // they will not come any more
		q.drained()
	}
}

// look ends a queue whose sends do not complete, for instance because the host posts no receives.
// It says whether some are in flight.
func (q *queue) look(now int64) bool {
	if q.state >= queueDying {
		return false
	}
	switch {
	case q.signalled == 0:
		q.stuckBy = 0
	case q.stuckBy == 0 || q.progress != q.seen:
		q.stuckBy = now + q.g.t.cfg.SendTimeout.Nanoseconds()
	case now >= q.stuckBy:
		q.suspectInvalidate()
		q.fail(errStuck)
	}
	q.seen = q.progress
	return q.signalled > 0
}

// die ends the queue towards the handler and starts to end it towards the device.
func (q *queue) die() {
	q.log()
	q.state = queueDying
	q.g.pool.waiting.remove(q)
	if q.p.staging != nil {
		q.p.staging.waiting.remove(q)
	}
	q.out, q.needRead = list{}, list{}
	q.forsake()
	h := q.g.cfg.Handler
	for i := range q.reqs {
		r := &q.reqs[i]
		r.waiting = 0
		switch r.state {
		case requestNeedMemory:
			r.pool = nil // it got nothing
			h.Abandon(&r.Request)
			q.drop(r)
		case requestNeedRead:
			h.Abandon(&r.Request)
			q.drop(r)
		case requestReading:
			h.Abandon(&r.Request)
			r.state = requestFlushing
		case requestNeedSend:
			q.drop(r)
		case requestWriting, requestSending:
			r.state = requestFlushing
		}
	}
	h.Close(q.session)
	q.within(q.g.t.cfg.DrainTimeout)
	go q.shut()
}

// log says why the queue ends. What hosts do by themselves is no warning; on iWARP the queue pair
// may tell of it first.
func (q *queue) log() {
	i := &q.conn.info
	args := []any{"remote", i.Remote, "local", i.Local, "qid", i.QID, "reason", q.why}
	if errors.Is(q.why, errDeparted) || errors.Is(q.why, errShutdown) ||
		errors.Is(q.why, errFlushed) && q.p.dev.attr.IWARP {
		q.g.t.cfg.Log.Debug("RDMA queue ends", args...)
		return
	}
	q.g.t.log.Warn("RDMA queue ends", args...)
}

// shut ends the connection and the work of the queue pair. Not on a reactor.
func (q *queue) shut() {
	q.cm.Lock()
	q.ended = true
	var err error
	if q.accepted {
		err = q.conn.id.Disconnect()
	} else {
		var rej cmwire.Rej
		rej.Set(cmwire.NoResources)
		err = q.conn.id.Reject(rej[:])
	}
	err = errors.Join(err, q.qp.ToError())
	q.cm.Unlock()
	if err != nil && !q.p.dev.removed.Load() {
		q.g.t.cfg.Log.Debug("RDMA queue does not end in order", "remote", q.conn.info.Remote,
			"error", err)
	}
	q.g.cfg.Loop.Post(func() {
		q.flushed = true
		q.drained()
	})
}

// drained goes on with a dead queue when its queue pair has given everything back.
func (q *queue) drained() {
	if q.state != queueDying || !q.flushed {
		return
	}
	if !q.cq.dead.Load() && (q.posted > 0 || q.signalled > 0 || q.shared != nil && !q.last) {
		return
	}
	q.state = queueDestroying
	q.relax()
	go q.destroy()
}

// destroy frees queue pair and identifier. Not on a reactor.
func (q *queue) destroy() {
	q.cm.Lock()
	err := errors.Join(q.qp.Destroy(), q.conn.id.Destroy())
	q.cm.Unlock()
	if err != nil {
		q.g.t.cfg.Log.Error("RDMA queue pair cannot be destroyed, its memory stays", "remote",
			q.conn.info.Remote, "error", err)
	}
	q.g.cfg.Loop.Post(q.destroyed)
}

// destroyed takes back the memory that the device had.
func (q *queue) destroyed() {
	q.state = queueGone
	if q.shared != nil {
		q.shared.leave(q)
	}
	for i := range q.reqs {
		if r := &q.reqs[i]; r.state == requestFlushing {
			q.drop(r)
		}
	}
	q.finish()
}

// finish frees the rest when the handler has no request of the queue any more.
func (q *queue) finish() {
	if q.state != queueGone || q.executing > 0 {
		return
	}
	q.state = queueFreed
	go func() {
		if err := q.free(); err != nil {
			q.g.t.cfg.Log.Error("RDMA queue cannot be freed", "remote", q.conn.info.Remote, "error",
				err)
		}
		if err := q.g.release(q); err != nil && !q.p.dev.removed.Load() {
			q.g.t.cfg.Log.Error("RDMA receives cannot be freed", "remote", q.conn.info.Remote,
				"error", err)
		}
		q.conn.t.leave(q.conn)
		q.g.cfg.Loop.Post(q.removed)
	}()
}

// removed takes the queue out of the group, and with the last one the port of a device that is
// gone.
func (q *queue) removed() {
	g := q.g
	g.slots[q.number] = nil
	g.queues--
	if q.p.dev.removed.Load() {
		g.retire(q.p.dev)
	}
	g.maybeDone()
}

// retire frees the port of a device that was removed, once no queue uses it. Any goroutine may call
// it.
func (g *group) retire(d *device) {
	g.mu.Lock()
	closing := g.closing
	if !closing {
		g.adopting++ // Shutdown and Close wait for us
	}
	g.mu.Unlock()
	if closing { // Close frees every port
		return
	}
	go func() {
		defer g.settle()
		g.making.Lock()
		p := g.byDevice[d]
		if p == nil || p.refs > 0 {
			g.making.Unlock()
			return
		}
		delete(g.byDevice, d)
		g.making.Unlock()
		detached := make(chan struct{})
		g.cfg.Loop.Post(func() {
			p.detach()
			close(detached)
		})
		<-detached
		if err := p.free(); err != nil {
			g.t.cfg.Log.Debug("RDMA device was removed", "device", d.attr.Name, "error", err)
		}
	}()
}
