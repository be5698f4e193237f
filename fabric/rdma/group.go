package rdma

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// group is the part of the transport on one reactor.
type group struct {
	t   *Transport
	cfg fabric.GroupConfig

	// Reactor only.
	pollers   []*poller
	pools     []*mem.Pool // the reactor's data memory, and staging memory of pollers
	queues    table[queue]
	srqs      table[srq]
	steps     list.Steps
	scheduled list.List[queue]
	waiting   list.List[queue] // with capsules that wait for their turn
	polls     uint64
	mayBegin  int    // commands that may still begin in this poll
	reaped    int64  // when something last completed, by Loop.Clock
	stopTicks func() // stops the timer of tick; nil if it does not run
	ended     bool   // it has shut down
	// quarantined are the quarantined queues that are no longer in queues.
	quarantined []*queue

	// The batches of a poll, reused.
	wcs   []verbs.WC
	prep  []*fabric.Request
	exec  []*fabric.Request
	ready []*fabric.Request // the batch that the handler has now
	wrs   []verbs.SendWR
	sges  []verbs.SGE
	recvs []verbs.RecvWR

	load atomic.Int64 // see Load

	// setupMu is held to make pollers, completion queues and queue pairs; never by the reactor.
	setupMu  sync.Mutex
	byDevice map[*device]*poller
	// strangersMu is held before setupMu to make a queue for an address from which no allowed host
	// has connected. So other queues wait for at most one such queue.
	strangersMu sync.Mutex

	// mu guards the fields below and is held only briefly.
	mu      sync.Mutex
	setups  int // connections being adopted, and pollers being freed
	closing bool
	done    func()
}

const (
	pollBatch = 64
	// reapMost is about the number of completions that a poll handles. Most completions belong to
	// commands that were sent, or that wait for their turns.
	reapMost = 4 * pollBatch
	// sendMost is about the number of work requests that a poll posts.
	sendMost = 4 * pollBatch
)

func newGroup(t *Transport, cfg fabric.GroupConfig) *group {
	return &group{
		t: t, cfg: cfg, steps: list.StepsOf(cfg.Loop), pools: []*mem.Pool{cfg.Memory},
		byDevice: make(map[*device]*poller),
		wcs:      make([]verbs.WC, 2*pollBatch), prep: make([]*fabric.Request, 0, 4*pollBatch),
		exec:  make([]*fabric.Request, 0, 4*pollBatch),
		ready: make([]*fabric.Request, 0, 4*pollBatch), wrs: make([]verbs.SendWR, 0, batchWRs),
		sges: make([]verbs.SGE, 0, batchWRs*maxSendSGE), recvs: make([]verbs.RecvWR, 0, batchWRs),
	}
}

func (g *group) Poll(budget int) int {
	g.polls++
	g.mayBegin = budget
	work := g.beginWaiting(budget)
	left := reapMost
	for i := range g.pollers { // each of them is first in its turn
		p := g.pollers[(g.polls+uint64(i))%uint64(len(g.pollers))]
		for _, c := range p.polled {
			n := g.reap(c, left)
			work, left = work+n, max(left-n, 0)
		}
	}
	for _, p := range g.pools {
		work += p.Serve()
	}
	g.dispatch()
	for s := range g.srqs.all() {
		s.refill()
	}
	return work + g.runScheduled(sendMost)
}

// reap handles completions, about most at a time.
func (g *group) reap(c *cq, most int) (work int) {
	for work < most {
		n, err := c.Poll(g.wcs)
		if n > 0 {
			g.reaped = g.cfg.Loop.Clock()
		}
		for i := range g.wcs[:n] {
			g.completed(&g.wcs[i])
		}
		work += n
		if err != nil {
			c.fail(err)
			return work + 1
		}
		if n < len(g.wcs) {
			break
		}
	}
	return work
}

// completed handles the completion of a work request.
func (g *group) completed(wc *verbs.WC) {
	kind := workKind(wc.WRID >> 56)
	q := g.queues.find(wc.WRID)
	if kind == workSRQRecv {
		q = g.srqReceived(wc)
	}
	if q == nil {
		return // it was removed
	}
	switch kind {
	case workRecv:
		q.own.posted--
	case workRead, workWrite, workSend, workData:
		q.signaled--
		q.progress++
	}
	switch tag := uint16(wc.WRID); {
	case wc.Status != verbs.WCSuccess:
		q.workFailed(kind, wc)
	case kind == workRecv, kind == workSRQRecv:
		q.received(tag, wc.ByteLen)
	case kind == workRead:
		q.readDone(&q.reqs[tag])
	case kind == workWrite:
		q.writeDone(&q.reqs[tag])
	case kind == workSend:
		q.sent(&q.reqs[tag])
	}
	if q.state >= queueDraining {
		q.checkDrained()
	}
}

// srqReceived finds the queue of a receive of an SRQ, nil if removed. An empty slot is free.
func (g *group) srqReceived(wc *verbs.WC) *queue {
	s := g.srqs.find(wc.WRID)
	if s == nil {
		return nil
	}
	s.recv.posted--
	q := s.queues[wc.QPNum]
	if q == nil || wc.Status != verbs.WCSuccess {
		s.recv.free = append(s.recv.free, uint16(wc.WRID))
	}
	return q
}

// workFailed ends a queue with a failed work request. A flushed work request is not the cause: that
// may be the peer, or a later completion of this batch.
func (q *queue) workFailed(kind workKind, wc *verbs.WC) {
	if wc.Status == verbs.WCWRFlushErr {
		q.fail(errFlushed)
		return
	}
	if wc.Status == verbs.WCLocQPOpErr {
		q.suspectInvalidate()
	}
	q.fail(fmt.Errorf("%v failed: %v (vendor error %#x)", kind, wc.Status, wc.VendorErr))
}

// dispatch passes the batches to the handler until they are empty.
func (g *group) dispatch() {
	for len(g.prep) > 0 || len(g.exec) > 0 {
		if len(g.prep) > 0 {
			g.prep, g.ready = g.ready[:0], g.prep
			g.cfg.Handler.Prepare(g.ready)
			for _, fr := range g.ready {
				r := fr.Owner.(*request)
				fr.Queue.(*queue).prepared(r)
			}
		}
		if len(g.exec) > 0 {
			g.exec, g.ready = g.ready[:0], g.exec
			g.cfg.Handler.Execute(g.ready)
		}
	}
}

// runScheduled runs scheduled queues until they have posted most work requests. The others, and
// queues scheduled in the meantime, run in the next poll.
func (g *group) runScheduled(most int) (work int) {
	last := g.scheduled.Last()
	for q := g.scheduled.First(); q != nil && work < most; q = g.scheduled.First() {
		g.scheduled.Remove(&q.scheduled)
		work += 1 + q.run()
		if q == last {
			break
		}
	}
	return work
}

// Arm implements fabric.Group: the next completion wakes the reactor.
func (g *group) Arm() bool {
	if g.busy() {
		return false
	}
	for _, p := range g.pollers {
		for _, c := range p.polled {
			c.arm()
			if g.reap(c, 1) > 0 { // it came before the completion queue was armed
				return false
			}
		}
	}
	return !g.busy()
}

// busy reports whether a poll would do something without a new completion. Another group on the
// reactor may have granted memory to requests of this one.
func (g *group) busy() bool {
	if !g.scheduled.Empty() || !g.waiting.Empty() || len(g.prep) > 0 || len(g.exec) > 0 {
		return true
	}
	for _, p := range g.pools {
		if p.CanServe() {
			return true
		}
	}
	for s := range g.srqs.all() {
		if len(s.recv.free) > 0 && !s.failed.Load() {
			return true
		}
	}
	return false
}

// startTicks runs tick while something is in flight or waits. An idle group has no timer.
func (g *group) startTicks() {
	if g.stopTicks == nil && !g.ended {
		g.stopTicks = g.cfg.Loop.After(g.t.cfg.tickInterval(), g.tick)
	}
}

func (g *group) now() int64 { return g.cfg.Loop.Now() }

// Load implements fabric.Group: the number of I/O queues, including queues being made.
func (g *group) Load() int { return int(g.load.Load()) }

// countLoad counts n queues for Load.
func (g *group) countLoad(c *conn, n int64) {
	if c.info.QID != 0 {
		g.load.Add(n)
	}
}

// bindToNode takes the pages of a new region from the NUMA node of the reactor's data memory. After
// an error they come from any node; the creator of the data memory has logged the reason.
func (g *group) bindToNode(r *mem.Region) { _ = r.Follow(g.cfg.Memory.Region()) }

// callReactor runs fn on the reactor and waits for it. Not on a reactor.
func (g *group) callReactor(fn func()) {
	done := make(chan struct{})
	g.cfg.Loop.Post(func() {
		fn()
		close(done)
	})
	<-done
}

// Shutdown implements fabric.Group. Connections that are being adopted are rejected.
func (g *group) Shutdown(done func()) {
	g.mu.Lock()
	g.closing, g.done = true, done
	g.mu.Unlock()
	g.inPieces(g.queues.walk(func(q *queue) int {
		q.Disconnect(errShutdown)
		return 1
	}), g.checkShutdown)
}

// inPieces runs list.Pieces on the reactor.
func (g *group) inPieces(next func() int, done func()) {
	list.Pieces(g.cfg.Loop.Post, g.steps, next, done)
}

// checkShutdown ends a shutdown once nothing is left. Reactor only.
func (g *group) checkShutdown() {
	g.mu.Lock()
	done := g.done
	if g.setups > 0 || g.queues.len() > 0 {
		done = nil
	}
	if done != nil {
		g.done = nil
	}
	g.mu.Unlock()
	if done == nil {
		return
	}
	if g.ended = true; g.stopTicks != nil {
		g.stopTicks()
		g.stopTicks = nil
	}
	g.endQuarantines()
	for len(g.pollers) > 0 {
		g.pollers[0].detach()
	}
	done()
}

func (g *group) Close() error {
	g.mu.Lock()
	g.closing = true
	busy := g.setups > 0 || g.queues.len() > 0
	g.mu.Unlock()
	if busy {
		return errors.New("rdma: close a group that still has queues")
	}
	g.t.mu.Lock()
	delete(g.t.groups, g)
	g.t.mu.Unlock()
	g.setupMu.Lock()
	defer g.setupMu.Unlock()
	var errs []error
	for d, p := range g.byDevice {
		errs = append(errs, p.free())
		delete(g.byDevice, d)
	}
	return errors.Join(errs...)
}

var _ fabric.Group = (*group)(nil)
