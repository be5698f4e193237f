package rdma

import (
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// port is one group on one device: completion queues with their channel, and the registered memory
// that data moves through. It is made with the first queue of the group on the device and lives
// until the group is closed or the device removed.
type port struct {
	g       *group
	dev     *device
	channel verbs.CompChannel

	// arena is registered for LOCAL_WRITE only, so no key of it is worth anything to a peer.
	// staging exists on iWARP, where the sink of an RDMA READ must allow remote writes (RFC 5040,
	// section 5.2): nothing but hosts' data on its way in lies there.
	arenaMR, stagingMR verbs.MR
	staging            *pool
	arenaID, stagingID mem.RegionID
	arenaKey           uint32
	stagingKey         uint32

	// How work requests are cut: elements of an RDMA READ, and of anything else.
	readSGE, sendSGE int
	// signalWrites: every RDMA WRITE is signalled. On iWARP a completion says only that TCP has the
	// data, and soft iWARP gives TCP the memory itself unless the work request is signalled (Linux,
	// siw_qp_tx.c, siw_qp_prepare_tx): what is sent again later would be whatever the memory holds
	// by then.
	signalWrites bool

	// Under g.making.
	all    []*cq   // those that exist
	refs   int     // queues
	shared *shared // for queues to come, nil if none

	// Reactor only.
	invalidates bool // a SEND_WITH_INV has completed here, or its like where the device takes none
	watched     bool
	cqs         []*cq // those that are polled
	events      int   // events of the channel that nobody has taken
}

// cq is a completion queue, shared by queues until their work could fill it.
type cq struct {
	verbs.CQ
	p    *port
	size int

	// Under g.making.
	used int
	// queues of it here; together they take as many entries as there are slots
	sharers map[*shared]int
	// dead: it failed; no queue is added.
	dead atomic.Bool

	// Reactor only.
	polled bool
	armed  bool
}

// newPort makes everything a port has. g.making is held; not on a reactor.
func (g *group) newPort(d *device) (p *port, err error) {
	p = &port{g: g, dev: d, arenaID: g.cfg.Memory.Region().ID(), stagingID: -1}
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
	if p.arenaMR,
		err = d.pd.RegMR(g.cfg.Memory.Region().Bytes(), verbs.AccessLocalWrite); err != nil {
		return p, fmt.Errorf("register %d bytes of data memory with %s: %w (see the memlock limit)",
			len(g.cfg.Memory.Region().Bytes()), d.attr.Name, err)
	}
	p.arenaKey = p.arenaMR.LKey()
	if !d.attr.IWARP {
		return p, nil
	}
	p.signalWrites = true
	arena, err := mem.NewArena("RDMA READ staging (iWARP)", g.t.cfg.StagingSize)
	if err != nil {
		return p, err
	}
	g.near(arena.Region())
	p.staging, p.stagingID = newPool(mem.NewPool(arena, 0)), arena.Region().ID()
	p.stagingMR,
		err = d.pd.RegMR(arena.Region().Bytes(), verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	if err != nil {
		return p, fmt.Errorf(
			"register %d bytes of staging memory with %s: %w (see the memlock limit)",
			g.t.cfg.StagingSize, d.attr.Name, err)
	}
	p.stagingKey = p.stagingMR.LKey()
	return p, nil
}

// free gives everything back, as far as it was made. No queue uses the port; not on a reactor, or
// after it stopped.
func (p *port) free() error {
	var errs []error
	note := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("free %s of %s: %w", what, p.dev.attr.Name, err))
		}
	}
	for _, c := range p.all {
		note("completion queue", c.Destroy())
	}
	if p.channel != nil {
		note("completion channel", p.channel.Close())
	}
	if p.arenaMR != nil {
		note("data memory", p.arenaMR.Dereg())
	}
	var err error
	if p.stagingMR != nil {
		err = p.stagingMR.Dereg()
		note("staging memory", err)
	}
	if p.staging != nil && err == nil { // memory that a device may still know stays mapped
		note("staging memory", p.staging.memory.Close())
	}
	return errors.Join(append(errs, p.g.t.putDevice(p.dev))...)
}

// reserve finds or makes a completion queue with room for n completions and, if s is not nil, for
// those of shared receives; vacate undoes that. g.making is held; not on a reactor.
func (p *port) reserve(n int, s *shared) (*cq, error) {
	for _, c := range p.all {
		if !c.dead.Load() && c.size-c.used >= n+c.share(s) {
			c.take(n, s)
			return c, nil
		}
	}
	c, err := p.newCQ(n, s)
	if err == nil {
		c.take(n, s)
	}
	return c, err
}

// share is how many entries a queue with shared receives takes besides those of its own.
func (c *cq) share(s *shared) int {
	if s == nil || c.sharers[s] > 0 {
		return 0
	}
	return s.capacity
}

func (c *cq) take(n int, s *shared) {
	c.used += n + c.share(s)
	if s != nil {
		c.sharers[s]++
	}
}

func (c *cq) vacate(n int, s *shared) {
	c.used -= n
	if s == nil {
		return
	}
	if c.sharers[s]--; c.sharers[s] == 0 {
		delete(c.sharers, s)
		c.used -= s.capacity
	}
}

func (p *port) newCQ(n int, s *shared) (*cq, error) {
	if s != nil {
		n += s.capacity
	}
	// Each is twice as large as the one before: a thousand queues need few, and every poll goes
	// through all of them.
	size := max(cqEntries<<min(len(p.all), cqDoublings), n)
	if most := p.dev.attr.MaxCQE; most > 0 {
		size = min(size, most)
	}
	if n > size {
		return nil, fmt.Errorf("completion queue: %d entries are needed, %s has at most %d", n,
			p.dev.attr.Name, size)
	}
	dcq, err := p.dev.dev.CreateCQ(size, p.channel, p.g.cfg.Index)
	if err != nil {
		return nil, fmt.Errorf("completion queue of %d entries: %w", size, err)
	}
	c := &cq{CQ: dcq, p: p, size: size, sharers: make(map[*shared]int)}
	p.all = append(p.all, c)
	return c, nil
}

// attach makes the reactor poll c. Reactor only.
func (p *port) attach(c *cq) error {
	if !p.watched {
		// Edge-triggered: every event makes a new edge, so events need not be read each time.
		if err := p.g.cfg.Loop.Watch(p.channel.FD(), unix.EPOLLIN|unix.EPOLLET,
			p.notified); err != nil {
			return fmt.Errorf("watch the completion channel: %w", err)
		}
		p.watched = true
		p.g.ports = append(p.g.ports, p)
	}
	if !c.polled {
		c.polled = true
		p.cqs = append(p.cqs, c)
	}
	return nil
}

// maxEvents is how many events may lie in the channel before they are taken out together.
const maxEvents = 64

// notified is called when the channel has a new event: some completion queue is not armed any more.
// The next poll finds what completed.
func (p *port) notified(uint32) {
	for _, c := range p.cqs {
		c.armed = false
	}
	if p.events++; p.events >= maxEvents {
		p.drain()
	}
}

func (p *port) drain() {
	p.events = 0
	if _, err := p.channel.Drain(); err != nil && !p.dev.removed.Load() {
		p.g.t.log.Warn("RDMA completion channel fails", "device", p.dev.attr.Name, "error", err)
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

// fail ends all queues of a completion queue that does not work any more. Reactor only.
func (c *cq) fail(err error) {
	g := c.p.g
	if c.dead.Swap(true) {
		return
	}
	for i, other := range c.p.cqs {
		if other == c {
			c.p.cqs = append(c.p.cqs[:i:i], c.p.cqs[i+1:]...)
			break
		}
	}
	for _, q := range g.slots {
		if q != nil && q.cq == c {
			q.fail(fmt.Errorf("completion queue: %w", err))
		}
	}
}

// detach stops the reactor from polling the port. Reactor only.
func (p *port) detach() {
	if !p.watched {
		return
	}
	p.watched = false
	if err := p.g.cfg.Loop.Unwatch(p.channel.FD()); err != nil {
		p.g.t.log.Warn("RDMA completion channel is not watched any more", "error", err)
	}
	for i, other := range p.g.ports {
		if other == p {
			p.g.ports = append(p.g.ports[:i:i], p.g.ports[i+1:]...)
			return
		}
	}
}

// key is the local key of the region a segment lies in, false if the device does not know it.
// Reactor only.
func (p *port) key(s *mem.Segment) (uint32, bool) {
	switch s.Region {
	case mem.NoRegion:
		return 0, false
	case p.arenaID:
		return p.arenaKey, true
	case p.stagingID:
		return p.stagingKey, true
	}
	return p.dev.lent.key(s)
}

// pool is memory and the requests that wait for memory of it. Reactor only.
type pool struct {
	memory  *mem.Pool
	waiting list
}

func newPool(m *mem.Pool) *pool { return &pool{memory: m} }
