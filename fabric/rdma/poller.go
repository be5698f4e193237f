package rdma

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// poller is one group on one device: completion queues with their channel, and the registered
// memory for data. It is made with the first queue of the group on the device and lives until the
// group is closed or the device removed.
type poller struct {
	g       *group
	dev     *device
	channel verbs.CompChannel

	// data is the reactor's data memory, registered for LOCAL_WRITE only, so a peer cannot use its
	// keys. staging exists if the device needs a sink of RDMA READs that allows remote writes, as
	// on iWARP (RFC 5040, section 5.2): it holds only incoming data of hosts.
	data, staging poolMR

	// The largest number of elements of an RDMA READ, and of other sends.
	readSGE, sendSGE int
	// signalWrites makes every RDMA WRITE signaled. On iWARP a completion means only that TCP has
	// the data, and soft iWARP gives TCP the memory itself unless the work request is signaled
	// (Linux, siw_qp_tx.c, siw_qp_prepare_tx): a retransmission would carry the content of the
	// memory at that time.
	signalWrites bool

	// Under g.setupMu.
	cqs         []*cq // all
	refs        int   // queues
	srq         *srq  // for new queues, nil if there is none
	quarantined bool  // one of the queues is quarantined

	// Reactor only. responses are SENDs after the WRITEs in g.wrs, if the device asks for that.
	responses       []verbs.SendWR
	invalidateWorks bool // a SEND_WITH_INV has completed, or the SEND in its place
	attached        bool
	queues          int   // of the group
	polled          []*cq // the cqs that are polled
	events          int   // events of the channel that have not been taken out
	drainFailed     bool  // and it was logged
}

// poolMR is the memory of a pool, registered with a device.
type poolMR struct {
	pool *mem.Pool // nil: none
	id   mem.RegionID
	mr   verbs.MR
	lkey uint32
}

func (d *device) registerPool(pool *mem.Pool, what string, access verbs.Access) (poolMR, error) {
	b := pool.Region().Bytes()
	mr, err := d.registerMR(b, access)
	if err != nil {
		return poolMR{pool: pool}, fmt.Errorf(
			"register %d bytes of %s with %s: %w (see the memlock limit)", len(b), what,
			d.attr.Name, err)
	}
	return poolMR{pool: pool, id: pool.Region().ID(), mr: mr, lkey: mr.LKey()}, nil
}

// cq is a completion queue, shared by queues as long as it has room for all of their work.
type cq struct {
	verbs.CQ
	p    *poller
	size int

	// Under g.setupMu: promised entries, and queues by their shared receive queue, which together
	// take as many entries as that has slots.
	used  int
	bySRQ map[*srq]int
	// failed keeps queues from being added.
	failed atomic.Bool

	// Reactor only.
	polled, armed bool
}

// newPoller makes all resources of a poller. g.setupMu is held; not on a reactor.
func (g *group) newPoller(d *device) (p *poller, err error) {
	p = &poller{g: g, dev: d, responses: make([]verbs.SendWR, 0, batchWRs)}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.free())
			p = nil
		}
	}()
	p.sendSGE = max(min(maxSendSGE, d.attr.MaxSGE), 1)
	p.readSGE = p.sendSGE
	if d.attr.MaxSGERD > 0 {
		p.readSGE = min(p.sendSGE, d.attr.MaxSGERD)
	}
	if p.channel, err = d.dev.CreateCompChannel(); err != nil {
		return p, fmt.Errorf("completion channel: %w", err)
	}
	p.data, err = d.registerPool(g.cfg.Memory, "data memory", verbs.AccessLocalWrite)
	p.signalWrites = d.attr.HoldsUnsignaledWrites
	if err != nil || !d.attr.ReadNeedsRemoteWrite {
		return p, err
	}
	arena, err := mem.NewArena("RDMA READ staging (iWARP)", g.t.cfg.StagingSize)
	if err != nil {
		return p, err
	}
	g.bindToNode(arena.Region())
	p.staging, err = d.registerPool(mem.NewStagingPool(arena), "staging memory",
		verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	return p, err
}

// free frees all resources. No queue uses the poller. It runs on no reactor, or after the reactor
// has stopped.
func (p *poller) free() error {
	if p.quarantined {
		return p.keep()
	}
	var errs []error
	note := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("free %s of %s: %w", what, p.dev.attr.Name, err))
		}
	}
	for _, c := range p.cqs {
		err := c.Destroy()
		if err == nil {
			p.dev.cqs.Add(-1)
		}
		note("completion queue", err)
	}
	if p.channel != nil {
		note("completion channel", p.channel.Close())
	}
	if p.data.mr != nil {
		note("data memory", p.data.mr.Dereg())
	}
	if p.staging.pool != nil {
		var err error
		if p.staging.mr != nil {
			err = p.staging.mr.Dereg()
		}
		if err == nil { // the device may still use registered memory
			err = p.staging.pool.Close()
		}
		note("staging memory", err)
	}
	return errors.Join(append(errs, p.g.t.releaseDevice(p.dev))...)
}

// acquireCQ finds or makes a completion queue with room for n completions and, if s is not nil, for
// the completions of a shared receive queue; cq.release undoes that. g.setupMu is held; not on a
// reactor.
func (p *poller) acquireCQ(n int, s *srq) (*cq, error) {
	for _, c := range p.cqs {
		if !c.failed.Load() && c.size-c.used >= n+c.srqEntries(s) {
			c.acquire(n, s)
			return c, nil
		}
	}
	c, err := p.newCQ(n, s)
	if err == nil {
		c.acquire(n, s)
	}
	return c, err
}

// srqEntries is the number of entries that a queue with an SRQ takes besides its own.
func (c *cq) srqEntries(s *srq) int {
	if s == nil || c.bySRQ[s] > 0 {
		return 0
	}
	return s.capacity
}

func (c *cq) acquire(n int, s *srq) {
	c.used += n + c.srqEntries(s)
	if s != nil {
		c.bySRQ[s]++
	}
}

func (c *cq) release(n int, s *srq) {
	if s != nil {
		if c.bySRQ[s]--; c.bySRQ[s] == 0 {
			delete(c.bySRQ, s)
		}
	}
	c.used -= n + c.srqEntries(s)
}

func (p *poller) newCQ(n int, s *srq) (*cq, error) {
	if s != nil {
		n += s.capacity
	}
	// Each is twice as large as the last: a thousand queues need few, and polls visit all.
	size := max(cqEntries<<min(len(p.cqs), cqDoublings), n)
	if most := p.dev.attr.MaxCQE; most > 0 {
		size = min(size, most)
	}
	if n > size {
		return nil, fmt.Errorf("completion queue: %d entries are needed, %s has at most %d", n,
			p.dev.attr.Name, size)
	}
	vcq, err := p.dev.dev.CreateCQ(size, p.channel, p.g.cfg.Index)
	if err != nil {
		return nil, fmt.Errorf("completion queue of %d entries: %w", size, err)
	}
	c := &cq{CQ: vcq, p: p, size: size, bySRQ: make(map[*srq]int)}
	p.cqs = append(p.cqs, c)
	p.dev.cqs.Add(1)
	return c, nil
}

const (
	cqEntries   = 8192 // of the first completion queue
	cqDoublings = 6
	maxEvents   = 64 // that may be in the channel before they are taken out together
)

// attach makes the reactor poll c. Reactor only.
func (p *poller) attach(c *cq) error {
	if !p.attached {
		// Edge-triggered: every event makes a new edge, so events need not be read each time.
		if err := p.g.cfg.Loop.Watch(p.channel.FD(), unix.EPOLLIN|unix.EPOLLET,
			p.notified); err != nil {
			return fmt.Errorf("watch the completion channel: %w", err)
		}
		p.attached = true
		p.g.pollers = append(p.g.pollers, p)
		if p.staging.pool != nil {
			p.g.pools = append(p.g.pools, p.staging.pool)
		}
	}
	if !c.polled {
		c.polled = true
		p.polled = append(p.polled, c)
	}
	return nil
}

// detachUnused stops the reactor from polling the poller if no queue uses it. Reactor only.
func (p *poller) detachUnused() {
	if p.queues == 0 {
		p.detach()
	}
}

// detach stops the reactor from polling the poller. Reactor only.
func (p *poller) detach() {
	if !p.attached {
		return
	}
	p.attached = false
	g := p.g
	if err := g.cfg.Loop.Unwatch(p.channel.FD()); err != nil {
		g.t.cfg.Log.Warn("RDMA completion channel cannot be unwatched", "err", err)
	}
	g.pollers = slices.DeleteFunc(g.pollers, func(x *poller) bool { return x == p })
	g.pools = slices.DeleteFunc(g.pools, func(x *mem.Pool) bool { return x == p.staging.pool })
}

// notified records that a completion queue is no longer armed. The next poll finds completions.
func (p *poller) notified(uint32) {
	for _, c := range p.polled {
		c.armed = false
	}
	if p.events++; p.events < maxEvents {
		return
	}
	p.events = 0
	if _, err := p.channel.Drain(); err != nil && !p.dev.removed.Load() && !p.drainFailed {
		p.drainFailed = true
		p.g.t.cfg.Log.Warn("RDMA completion channel fails", "device", p.dev.attr.Name, "err", err)
	}
}

// arm asks for an event at the next completion. Reactor only.
func (c *cq) arm() {
	if c.armed {
		return
	}
	if err := c.ReqNotify(); err != nil {
		c.fail(err)
		return
	}
	c.armed = true
}

// fail ends all queues of a completion queue that has failed. Reactor only.
func (c *cq) fail(err error) {
	if c.failed.Swap(true) {
		return
	}
	c.p.polled = slices.DeleteFunc(slices.Clone(c.p.polled), func(x *cq) bool { return x == c })
	g := c.p.g
	g.inPieces(g.queues.walk(func(q *queue) int {
		if q.cq == c {
			q.fail(fmt.Errorf("completion queue: %w", err))
		}
		return 1
	}), func() {})
}

// lkey returns the local key of a segment; ok: the device has it. Reactor only.
func (p *poller) lkey(s *mem.Segment) (key uint32, ok bool) {
	switch s.Region {
	case mem.NoRegion:
		return 0, false
	case p.data.id:
		return p.data.lkey, true
	case p.staging.id: // NoRegion, which is handled above, if there is none
		return p.staging.lkey, true
	}
	return p.dev.mrs.lookup(s)
}
