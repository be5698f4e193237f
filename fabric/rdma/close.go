package rdma

import (
	"errors"
	"fmt"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/cmwire"
	"github.com/nvmf-target/nvmf-target/internal/event"
)

// The end of a queue, for any reason:
//
//	beginTeardown (reactor)    the queue takes no more capsules
//	takeBack      (polls)      requests that are not executing are abandoned, then Handler.Close
//	                           is called; requests that the device has stay as they are
//	disconnect    (goroutine)  disconnect or reject, queue pair to the error state
//	checkDrained  (reactor)    every receive and signaled send has completed, or the time is over
//	destroy       (goroutine)  queue pair and identifier
//	takeBack      (polls)      the device's requests are free; the handler may still have some
//	finish        (reactor)    it has none; then memory (goroutine)
//	remove        (reactor)    the entry in the group
//
// Data memory is given back only when neither the handler nor the device can touch it: never if the
// queue pair cannot be destroyed (quarantine.go).

// beginTeardown begins the end of the queue; takeBack continues.
func (q *queue) beginTeardown() {
	q.logEnd()
	q.stopTimer()
	q.state, q.left = queueDraining, len(q.reqs)
	for _, c := range q.capsules {
		q.recv.free = append(q.recv.free, c.slot)
	}
	q.capsules = q.capsules[:0]
}

// takeBack takes back the next requests, and after the last one goes on with the end of the queue.
// It returns the number of requests.
func (q *queue) takeBack() (n int) {
	for ; n < takeMost && q.left > 0; n++ {
		q.takeBackOne(&q.reqs[len(q.reqs)-q.left])
		q.left--
	}
	switch {
	case n == 0: // it waits for something else
	case q.left > 0:
		q.schedule()
	case q.state == queueDraining:
		q.g.cfg.Handler.Close(q.session)
		q.setTimer(q.g.t.cfg.DrainTimeout)
		go q.disconnect()
	default:
		q.finish()
	}
	return n
}

// takeBackOne frees a request that neither handler nor device has, after telling the handler.
func (q *queue) takeBackOne(r *request) {
	h := q.g.cfg.Handler
	switch r.state {
	case requestNeedMemory:
		r.memory.Cancel()
		h.Abandon(&r.Request)
		q.freeRequest(r)
	case requestNeedRead:
		q.toRead.Remove(&r.node)
		h.Abandon(&r.Request)
		q.freeRequest(r)
	case requestReading:
		h.Abandon(&r.Request)
		r.state = requestFlushing
	case requestNeedSend:
		q.toSend.Remove(&r.node)
		q.freeRequest(r)
	case requestWriting, requestSending:
		r.state = requestFlushing
	case requestFlushing: // the queue pair was destroyed
		if q.quarantined {
			q.keepBuffers(r)
		} else {
			q.freeRequest(r)
		}
	}
}

// logEnd logs the reason for the end of the queue. Ordinary actions of hosts are not warnings.
func (q *queue) logEnd() {
	i := &q.conn.info
	log := q.g.t.log.Peer(i.Remote)
	args := []any{"local", i.Local, "qid", i.QID, "reason", q.reason}
	if q.Failure() == nil {
		log.Report(event.RDMAEnded, args...)
		return
	}
	if errors.Is(q.reason, errNotEstablished) {
		log.Report(event.RDMANotCompleted, "local", i.Local, "device", q.p.dev.attr.Name,
			"err", q.reason, "hint", notEstablishedHint(i))
		return
	}
	log.Report(event.RDMAFailed, args...)
}

// notEstablishedHint returns the hint for a peer that does not confirm its connection. The
// connection manager repeats the answer, and reports if the peer rejects it.
func notEstablishedHint(i *fabric.QueueInfo) string {
	return fmt.Sprintf("unless the peer has rejected it, packets are lost on the way back: here "+
		"ip route get %v from %v, and firewalls (RoCE: UDP port 4791)", i.Remote.Addr(),
		i.Local.Addr())
}

// disconnect ends the connection and the work of the queue pair. Not on a reactor.
func (q *queue) disconnect() {
	q.cm.Lock()
	q.ended = true
	var err error
	if q.accepted {
		err = q.conn.id.Disconnect()
	} else {
		err = q.conn.id.Reject(cmwire.Bytes(cmwire.Rej{Status: cmwire.NoResources}))
	}
	err = errors.Join(err, q.qp.ToError())
	q.cm.Unlock()
	if err != nil && !q.p.dev.removed.Load() {
		q.g.t.cfg.Log.Debug("RDMA queue cannot be disconnected", "remote", q.conn.info.Remote,
			"err", err)
	}
	q.g.cfg.Loop.Post(func() {
		q.flushed = true
		q.checkDrained()
	})
}

// lastWQEReached handles the event that the queue pair takes no more receives of the SRQ. Receives
// taken earlier are in the completion queue.
func (q *queue) lastWQEReached() {
	if q.srq == nil {
		return
	}
	left := q.cq.size
	q.g.inPieces(func() int {
		n := q.g.reap(q.cq, min(left, 1)) // a batch
		left -= n
		return n
	}, func() {
		q.recvsEnded = true
		q.fail(errFlushed)
		q.checkDrained()
	})
}

// checkDrained destroys the queue pair once all of its work requests have completed.
func (q *queue) checkDrained() {
	if q.state != queueDraining || !q.flushed {
		return
	}
	if !q.cq.failed.Load() &&
		(q.own.posted > 0 || q.signaled > 0 || q.srq != nil && !q.recvsEnded) {
		return
	}
	q.state = queueDestroying
	q.stopTimer()
	go q.destroy()
}

// destroy frees queue pair and identifier. Not on a reactor.
func (q *queue) destroy() {
	q.destroyQP()
	q.cm.Lock()
	err := q.conn.id.Destroy()
	q.cm.Unlock()
	if err != nil {
		q.g.t.cfg.Log.Error("RDMA connection cannot be freed", "remote", q.conn.info.Remote, "err",
			err)
	}
	q.g.cfg.Loop.Post(q.destroyed)
}

// destroyed lets takeBack free the requests that the device had.
func (q *queue) destroyed() {
	q.state, q.left = queueDestroyed, len(q.reqs)
	if q.srq != nil {
		q.srq.leave(q)
	}
	q.schedule()
}

// finish frees the rest when the handler no longer has a request of the queue.
func (q *queue) finish() {
	if q.state != queueDestroyed || q.left > 0 || q.executing > 0 {
		return
	}
	q.state = queueFreed
	go func() {
		if err := q.free(); err != nil && !q.p.dev.removed.Load() {
			q.g.t.cfg.Log.Error("RDMA queue cannot be freed", "remote", q.conn.info.Remote, "err",
				err)
		}
		q.conn.leave()
		q.g.cfg.Loop.Post(q.remove)
	}()
}

// remove removes the queue from the group. Without queues a poller is not polled, and that of a
// removed device is freed.
func (q *queue) remove() {
	g := q.g
	g.queues.remove(q.id)
	q.p.queues--
	q.p.detachUnused()
	if q.quarantined {
		g.quarantined = append(g.quarantined, q)
	}
	if q.p.dev.removed.Load() {
		g.freePoller(q.p.dev)
	}
	g.checkShutdown()
}

// freePoller frees the poller of a removed device when no queue uses it. Any goroutine may call it.
func (g *group) freePoller(d *device) {
	if !g.beginSetup() { // Close frees every poller
		return
	}
	go func() {
		defer g.endSetup()
		g.setupMu.Lock()
		p := g.byDevice[d]
		if p == nil || p.refs > 0 {
			g.setupMu.Unlock()
			return
		}
		delete(g.byDevice, d)
		g.setupMu.Unlock()
		g.callReactor(p.detach)
		if err := p.free(); err != nil {
			g.t.cfg.Log.Debug("RDMA device was removed", "device", d.attr.Name, "err", err)
		}
	}()
}
