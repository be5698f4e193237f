package tcp

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// Group is the part of the transport on one reactor: its connections and what they share.
//
// A connection is hot from an event of its socket until the reactor is about to sleep or polls
// found nothing on it for long, which is the shorter the more of them are hot; hot ones are polled
// directly, cold ones wait for their next event (ready.go). An edge cannot be lost, because a
// connection only becomes cold after its socket was read empty.
type Group struct {
	t    *Transport
	cfg  fabric.GroupConfig
	loop fabric.Loop

	queues []*queue // all that are not gone
	hot    []*queue
	turn   int      // index in hot where the next Poll starts
	dirty  []*queue // have something to send or to tear down

	sockets readiness
	onReady func(uint32) // look, as the reactor calls it

	// Requests that wait for data memory, oldest first, and queues whose next capsule does.
	waiting  requestList
	stalled  []*queue
	promised int // of the arena to in-capsule data of the batch
	ahead    int // requests that have some of it for data that they were prepared ahead of

	// What one Poll uses for one queue at a time.
	input int // bytes that it may still receive in its turn, about
	rx    []byte
	iov   []sys.Iovec
	heads []byte
	batch []*fabric.Request // for Prepare
	ready []*fabric.Request // for Execute
	// passing says that some of ready have their data in rx.
	passing bool

	tick      int64 // nanoseconds between looks at the deadlines
	ticking   bool
	onTick    func()
	stopTick  func()
	stopping  bool
	refuse    atomic.Bool // Adopt fails
	load      atomic.Int64
	whenEmpty func()
}

const (
	// shared receive buffer: 128 KiB of data, a header before it, bulkWindow behind it
	rxSize   = 130 << 10
	carryMax = 256 // most bytes of an incomplete unit (header with padding: PDO is a byte)
	// of the receive buffer while some queue is stalled, so that no other comes to carry much
	tightSize = 8 << 10
	batchSize = 64       // commands per Prepare
	iovMax    = 256      // vectors per sendmsg
	iovFull   = 128      // no further PDU is started beyond
	headsSize = 32 << 10 // headers per sendmsg
	headsFull = headsSize - headMax
	// most header bytes of one response: aligned C2HData header, digests, response capsule
	headMax  = 256
	sendMost = 1 << 20 // bytes per sendmsg, and per turn
	// A hot queue that is not the only one sends about this much in its turn: 32 small reads, or
	// three of 128 KiB; and it receives no more than turnInput, the data of two such writes.
	turnVectors = 64
	turnBytes   = 384 << 10
	turnInput   = 2 * rxSize
	aloneInput  = 1 << 30
	// bulkReceives is how often a connection whose data goes straight to its place is received from
	// before anything is sent on it: the responses of several writes leave together.
	bulkReceives = 4
	emptyPolls   = 1 << 10 // polls without input until the only hot connection becomes cold
)

// NewGroup makes the group of one reactor.
func (t *Transport) NewGroup(cfg fabric.GroupConfig) (fabric.Group, error) {
	if cfg.Loop == nil || cfg.Handler == nil || cfg.Memory == nil {
		return nil, errors.New("tcp: a group needs a loop, a handler and memory")
	}
	g := &Group{
		t: t, cfg: cfg, loop: cfg.Loop,
		rx: make([]byte, rxSize), iov: make([]sys.Iovec, 0, iovMax),
		heads: make([]byte, 0, headsSize),
		batch: make([]*fabric.Request, 0, batchSize), ready: make([]*fabric.Request, 0, maxDepth),
	}
	g.tick = t.cfg.tickPeriod()
	g.onTick = g.checkDeadlines
	g.onReady = func(uint32) { g.look() }
	if err := g.sockets.init(); err != nil {
		return nil, err
	}
	return g, nil
}

// Adopt takes over a connection; any goroutine may call it. On error the connection has been
// closed.
func (g *Group) Adopt(c fabric.Conn) error {
	tc, ok := c.(*conn)
	switch {
	case !ok:
		return errors.Join(fmt.Errorf("tcp: cannot adopt a %T", c), c.Close())
	case g.refuse.Load():
		return errors.Join(errors.New("tcp: the group is shutting down"), c.Close())
	}
	g.load.Add(1)
	g.loop.Post(func() { g.adopt(tc) })
	return nil
}

// Load is how many connections the group has that are not known to be admin queues: until a host
// sends its Connect command, each may be an I/O queue. Any goroutine may call it.
func (g *Group) Load() int { return int(g.load.Load()) }

func (g *Group) adopt(c *conn) {
	if g.stopping {
		g.load.Add(-1)
		_ = c.Close()
		return
	}
	q := newQueue(g, c)
	if err := g.join(q); err != nil {
		g.t.log.Warn("connection refused", "from", c.info.Remote, "error", err)
		g.load.Add(-1)
		_ = c.Close()
		return
	}
	c.adopted = true
	q.index = len(g.queues)
	g.queues = append(g.queues, q)
	g.heat(q)
	g.startTick()
}

// Poll moves at most about budget commands along and returns how many steps it made.
func (g *Group) Poll(budget int) int {
	work := 0
	if len(g.dirty) > 0 {
		work += g.clean()
	}
	if g.waiting.head != nil || len(g.stalled) > 0 {
		work += g.retryMemory()
	}
	g.mayLook()
	// A poll in vain costs as much as an event; with many hot connections there would be many.
	patience := emptyPolls
	if n := len(g.hot); n > 1 {
		patience /= n * n
	}
	for n := len(g.hot); n > 0 && work < budget; n-- {
		if g.turn >= len(g.hot) {
			g.turn = 0
		}
		q := g.hot[g.turn]
		if g.input = aloneInput; g.crowded() {
			g.input = turnInput
		}
		steps := q.receive()
		for i := 1; i < bulkReceives && steps > 0 && g.input > 0 && !q.drained &&
			(q.grants.head != nil || q.large); i++ {
			steps += q.receive()
		}
		if q.blocked && steps == 0 { // nothing better to do than to try again
			q.blocked, q.dirty = false, true
		}
		if q.dirty {
			steps += q.clean()
		}
		work += steps
		if steps > 0 {
			q.empty = 0
		} else if q.empty++; q.empty > patience && q.drained && !q.dirty || q.state == queueDead {
			g.cool(g.turn)
			continue
		}
		g.turn++
	}
	return work
}

// clean sends what other queues' polls or the handler completed, and takes dead queues apart.
func (g *Group) clean() int {
	work := 0
	for i := 0; i < len(g.dirty); i++ {
		if q := g.dirty[i]; q.dirty {
			work += q.clean()
		}
	}
	clear(g.dirty)
	g.dirty = g.dirty[:0]
	return work
}

// Arm prepares to sleep. All that arrives from now on is an event, since every socket has been read
// empty.
func (g *Group) Arm() bool {
	for _, q := range g.dirty {
		if q.dirty {
			return false
		}
	}
	clear(g.dirty)
	g.dirty = g.dirty[:0]
	for _, q := range g.hot {
		if !q.drained || q.dirty {
			return false
		}
	}
	for len(g.hot) > 0 {
		g.cool(len(g.hot) - 1)
	}
	return true
}

// heat makes a connection hot.
func (g *Group) heat(q *queue) {
	if !q.hot && q.state != queueDead {
		q.hot, q.empty = true, 0
		g.hot = append(g.hot, q)
	}
}

// cool makes the connection at index i of hot cold.
func (g *Group) cool(i int) {
	last := len(g.hot) - 1
	g.hot[i].hot = false
	g.hot[i], g.hot[last] = g.hot[last], nil
	g.hot = g.hot[:last]
}

// gone removes a dead queue that nobody refers to any more.
func (g *Group) gone(q *queue) {
	last := len(g.queues) - 1
	g.queues[last].index = q.index
	g.queues[q.index] = g.queues[last]
	g.queues[last] = nil
	g.queues = g.queues[:last]
	q.index = -1
	g.t.giveBack(q.conn)
	g.checkEmpty()
}

// Shutdown disconnects every queue and calls done on the reactor when the last one is gone. Reactor
// only, once.
func (g *Group) Shutdown(done func()) {
	g.refuse.Store(true)
	g.stopping = true
	g.whenEmpty = done
	for _, q := range g.queues {
		q.Disconnect(errShutdown)
	}
	g.checkEmpty()
}

var errShutdown = errors.New("the target is shutting down")

func (g *Group) checkEmpty() {
	if g.stopping && len(g.queues) == 0 && g.whenEmpty != nil {
		// Not here: the caller is in the middle of a poll, and done may detach or close this group.
		g.loop.Post(g.whenEmpty)
		g.whenEmpty = nil
	}
}

// Close frees what the group owns. Every queue must be gone; see Shutdown. Reactor only, or after
// it has stopped.
func (g *Group) Close() error {
	g.refuse.Store(true)
	if n := len(g.queues); n > 0 {
		return fmt.Errorf("tcp: close group: %d connections are still open", n)
	}
	if g.ticking {
		g.stopTick()
		g.ticking = false
	}
	g.rx = nil
	return g.closeReadiness()
}

var _ fabric.Group = (*Group)(nil)
