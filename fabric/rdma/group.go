package rdma

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// group is the part of the transport on one reactor.
type group struct {
	t    *Transport
	cfg  fabric.GroupConfig
	pool *pool // of the reactor's arena

	// Reactor only.
	ports   []*port
	slots   []*queue // by queue.number; nil: free
	gen     uint32
	queues  int
	shareds []*shared // by shared.number; nil: free
	dirty   []*queue
	ticks   func() // stops the timer of tick; nil if it does not run

	// The batches of a poll, reused.
	wcs   []verbs.WC
	prep  []*fabric.Request
	exec  []*fabric.Request
	ready []*fabric.Request // the batch the handler has now
	wrs   []verbs.SendWR
	sges  []verbs.SGE
	recvs []verbs.RecvWR

	load atomic.Int64 // see Load

	// making is held while ports, completion queues and queue pairs are made; never by the reactor.
	making   sync.Mutex
	byDevice map[*device]*port

	// mu guards what follows, for moments only.
	mu       sync.Mutex
	adopting int // connections on their way in, and ports on their way out
	closing  bool
	done     func()
}

const pollBatch = 64

func newGroup(t *Transport, cfg fabric.GroupConfig) *group {
	return &group{
		t: t, cfg: cfg, pool: newPool(cfg.Memory), byDevice: make(map[*device]*port),
		wcs: make([]verbs.WC, pollBatch), prep: make([]*fabric.Request, 0, 4*pollBatch),
		exec:  make([]*fabric.Request, 0, 4*pollBatch),
		ready: make([]*fabric.Request, 0, 4*pollBatch), wrs: make([]verbs.SendWR, 0, batchWRs),
		sges: make([]verbs.SGE, 0, batchWRs*maxSendSGE), recvs: make([]verbs.RecvWR, 0, batchWRs),
	}
}

// Load is the number of I/O queues, those on their way in included. Any goroutine may call it.
func (g *group) Load() int { return int(g.load.Load()) }

// count counts a queue for Load.
func (g *group) count(c *conn, n int64) {
	if c.info.QID != 0 {
		g.load.Add(n)
	}
}

// near has the pages of a new region come from where those of the reactor's arena do. If that
// cannot be they come from anywhere: whoever made the arena has told.
func (g *group) near(r *mem.Region) { _ = r.Follow(g.cfg.Memory.Region()) }

func (g *group) now() int64 { return g.cfg.Loop.Now() }

// Poll moves at most about budget commands along.
func (g *group) Poll(budget int) int {
	work := 0
	for _, p := range g.ports {
		for _, c := range p.cqs {
			work += g.reap(c, budget)
		}
	}
	if g.pool.waiting.head != nil {
		work += g.pool.serve()
	}
	for _, p := range g.ports {
		if p.staging != nil && p.staging.waiting.head != nil {
			work += p.staging.serve()
		}
	}
	g.dispatch()
	for _, s := range g.shareds {
		if s != nil {
			s.refill()
		}
	}
	if len(g.dirty) > 0 {
		work += g.clean()
	}
	return work
}

// reap takes completions, at most about budget.
func (g *group) reap(c *cq, budget int) (work int) {
	for work < budget {
		n, err := c.Poll(g.wcs)
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

// dispatch gives the batches to the handler until they are empty.
func (g *group) dispatch() {
	for len(g.prep) > 0 || len(g.exec) > 0 {
		if len(g.prep) > 0 {
			g.prep, g.ready = g.ready[:0], g.prep
			g.cfg.Handler.Prepare(g.ready)
			for _, r := range g.ready {
				q := r.Queue.(*queue)
				q.route(r.Owner.(*request))
			}
		}
		if len(g.exec) > 0 {
			g.exec, g.ready = g.ready[:0], g.exec
			g.cfg.Handler.Execute(g.ready)
		}
	}
}

// clean looks at every queue that was touched: it ends or posts. What is touched meanwhile has its
// turn in the next poll.
func (g *group) clean() (work int) {
	n := len(g.dirty)
	for i := 0; i < n; i++ {
		q := g.dirty[i]
		q.dirty = false
		work += 1 + q.step()
	}
	rest := copy(g.dirty, g.dirty[n:])
	clear(g.dirty[rest:])
	g.dirty = g.dirty[:rest]
	return work
}

// Arm prepares to sleep: the next completion makes the reactor poll. False: there is something to
// do already.
func (g *group) Arm() bool {
	if g.busy() {
		return false
	}
	for _, p := range g.ports {
		for _, c := range p.cqs {
			c.arm()
			if g.reap(c, 1) > 0 { // it came before the queue was armed
				return false
			}
		}
	}
	return !g.busy()
}

// busy says that a poll would do something without a new completion.
func (g *group) busy() bool {
	if len(g.dirty) > 0 || len(g.prep) > 0 || len(g.exec) > 0 || g.pool.pendingMemory() {
		return true
	}
	for _, p := range g.ports {
		if p.staging != nil && p.staging.pendingMemory() {
			return true
		}
	}
	for _, s := range g.shareds {
		if s != nil && len(s.free) > 0 && !s.dead.Load() {
			return true
		}
	}
	return false
}

// watch makes tick run as long as something is in flight or waits. An idle group has no timer.
func (g *group) watch() {
	if g.ticks == nil {
		g.ticks = g.cfg.Loop.After(g.t.cfg.tick(), g.tick)
	}
}

// tick looks for what is stuck.
func (g *group) tick() {
	g.ticks = nil
	now := g.now()
	limit := g.t.cfg.MemoryTimeout.Nanoseconds()
	g.pool.expire(now - limit)
	for _, p := range g.ports {
		if p.staging != nil {
			p.staging.expire(now - limit)
		}
	}
	waiting := g.pool.waiting.head != nil
	for _, p := range g.ports {
		waiting = waiting || p.staging != nil && p.staging.waiting.head != nil
	}
	for _, q := range g.slots {
		if q != nil && q.look(now) {
			waiting = true
		}
	}
	if waiting {
		g.watch()
	}
}

// Shutdown disconnects every queue and calls done when the last one is gone. Connections on their
// way in are refused.
func (g *group) Shutdown(done func()) {
	g.mu.Lock()
	g.closing, g.done = true, done
	g.mu.Unlock()
	for _, q := range g.slots {
		if q != nil {
			q.Disconnect(errShutdown)
		}
	}
	g.maybeDone()
}

var errShutdown = errors.New("the target shuts down")

// maybeDone calls done if nothing is left. Reactor only.
func (g *group) maybeDone() {
	g.mu.Lock()
	done := g.done
	if g.queues > 0 || g.adopting > 0 {
		done = nil
	}
	if done != nil {
		g.done = nil
	}
	g.mu.Unlock()
	if done == nil {
		return
	}
	if g.ticks != nil {
		g.ticks()
		g.ticks = nil
	}
	for len(g.ports) > 0 {
		g.ports[0].detach()
	}
	done()
}

// Close frees what the group owns; every queue must be gone.
func (g *group) Close() error {
	g.mu.Lock()
	g.closing = true
	busy := g.queues > 0 || g.adopting > 0
	g.mu.Unlock()
	if busy {
		return errors.New("rdma: close a group that still has queues")
	}
	g.t.mu.Lock()
	delete(g.t.groups, g)
	g.t.mu.Unlock()
	g.making.Lock()
	defer g.making.Unlock()
	var errs []error
	for d, p := range g.byDevice {
		errs = append(errs, p.free())
		delete(g.byDevice, d)
	}
	return errors.Join(errs...)
}

var _ fabric.Group = (*group)(nil)
