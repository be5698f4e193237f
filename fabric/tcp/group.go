package tcp

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// Group is the part of the transport on one reactor: its connections and what they share.
//
// A connection with input that has not been received is active, and is served in turn with others.
// When its socket has been read empty it is parked: its next input is an event in an epoll set of
// the group's own, so that one call asks for all parked connections. An edge cannot be lost, since
// only a connection that was read empty is parked. The reactor watches the set as one descriptor,
// by which all of them end its sleep.
//
// A connection that is alone in having input stays active for a while, and is received from in each
// poll: that finds its next command with one call instead of two. The set is then asked now and
// then only.
type Group struct {
	t    *Transport
	cfg  fabric.GroupConfig
	loop fabric.Loop

	queues    []*queue // all that have not been removed
	active    list.List[queue]
	scheduled list.List[queue]   // those with something to send or to tear down
	resumed   list.List[request] // those whose wait for memory is over

	// The epoll set, and the queues in it by descriptor.
	epfd    int
	byFD    []*queue
	events  [maxEvents]unix.EpollEvent
	watched bool // by the reactor

	last         *queue // that had input last
	activeUntil  int64  // it stays active for so long if it is alone
	crowdedUntil int64  // several queues had input a moment ago
	polls        int    // since the set was last asked
	moved        int    // bytes sent and received since then

	promised int // bytes of memory for the in-capsule data of the batch, see promise
	stalled  int // queues whose in-capsule data waits for memory
	borrowed int // requests of ready with their data in rx

	// What one Poll uses for one queue at a time.
	input int // bytes that it may still receive in its turn, about
	rx    []byte
	iov   []sys.Iovec
	heads []byte
	batch []*fabric.Request // for Prepare
	ready []*fabric.Request // for Execute

	tick      int64 // nanoseconds between checks of deadlines
	ticking   bool
	onTick    func()
	stopTick  func()
	stopping  bool
	refuse    atomic.Bool // Adopt fails
	load      atomic.Int64
	whenEmpty func()
}

const (
	// rxSize is the size of the receive buffer: 128 KiB of data and the headers around them.
	rxSize = 130 << 10
	// stalledBuffer is how much of it is used while some queue is stalled, because a stalled queue
	// saves what has been received behind its capsule.
	stalledBuffer = 8 << 10
	batchSize     = 64       // commands per Prepare
	iovMax        = 256      // vectors per system call
	headsSize     = 32 << 10 // headers per sendmsg
	maxEvents     = 128      // of the epoll set, taken at once

	// pollsPerLook and bytesPerLook are how often the set is asked while it has not had anything
	// for a while: that many polls or bytes later, whatever comes first.
	pollsPerLook = 64
	bytesPerLook = 64 << 10
	// recent is how long a connection that had input counts as one that may have some again soon:
	// it stays active if it is alone, and takes turns with others if it is not. The reactor's clock
	// is as coarse.
	recent = int64(2 * time.Millisecond)

	// turnInput is about how much a queue that takes turns with others receives in its turn: the
	// data of two writes of 128 KiB.
	turnInput  = 2 * rxSize
	aloneInput = 1 << 30
	// directReceives is how often a queue that receives direct data is received from before
	// anything is sent on it: the responses of several writes leave together.
	directReceives = 4

	// socketEvents are edge-triggered, once for the life of a connection.
	socketEvents = unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET
)

// NewGroup makes the group of one reactor.
func (t *Transport) NewGroup(cfg fabric.GroupConfig) (fabric.Group, error) {
	if cfg.Loop == nil || cfg.Handler == nil || cfg.Memory == nil {
		return nil, errors.New("tcp: a group needs a loop, a handler and memory")
	}
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("tcp: epoll_create1: %w", err)
	}
	g := &Group{
		t: t, cfg: cfg, loop: cfg.Loop, epfd: epfd,
		rx: make([]byte, rxSize), iov: make([]sys.Iovec, 0, iovMax),
		heads: make([]byte, 0, headsSize),
		batch: make([]*fabric.Request, 0, batchSize),
		ready: make([]*fabric.Request, 0, batchSize),
		tick:  t.cfg.tickPeriod(),
	}
	g.onTick = g.checkDeadlines
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

// Load is the number of connections that are not known to be admin queues: until a host sends its
// Connect command, each may be an I/O queue. Any goroutine may call it.
func (g *Group) Load() int { return int(g.load.Load()) }

func (g *Group) adopt(c *conn) {
	if g.stopping {
		g.load.Add(-1)
		_ = c.Close()
		return
	}
	q := newQueue(g, c)
	if err := g.register(q); err != nil {
		g.t.log.Warn("connection refused", "remote", c.info.Remote, "err", err)
		g.load.Add(-1)
		_ = c.Close()
		return
	}
	c.adopted = true
	q.index = len(g.queues)
	g.queues = append(g.queues, q)
	g.activeUntil = g.loop.Now() + recent // its ICReq is on the way
	g.activate(q)
	g.startTick()
}

// register adds the queue's socket to the epoll set.
func (g *Group) register(q *queue) error {
	if !g.watched {
		if err := g.loop.Watch(g.epfd, unix.EPOLLIN, func(uint32) { g.look() }); err != nil {
			return err
		}
		g.watched = true
	}
	ev := unix.EpollEvent{Events: socketEvents, Fd: int32(q.fd)}
	if err := unix.EpollCtl(g.epfd, unix.EPOLL_CTL_ADD, q.fd, &ev); err != nil {
		return fmt.Errorf("tcp: epoll_ctl: %w", err)
	}
	for len(g.byFD) <= q.fd {
		g.byFD = append(g.byFD, nil)
	}
	g.byFD[q.fd] = q
	return nil
}

// unregister undoes register, before the socket is closed.
func (g *Group) unregister(q *queue) {
	g.byFD[q.fd] = nil
	_ = unix.EpollCtl(g.epfd, unix.EPOLL_CTL_DEL, q.fd, nil)
}

// Poll moves at most about budget commands along and returns how many steps it made.
func (g *Group) Poll(budget int) int {
	g.polls++
	if len(g.queues) > 0 &&
		(g.crowded() || g.polls >= pollsPerLook || g.moved >= bytesPerLook) {
		g.look()
	}
	work := g.runScheduled() + g.resume()
	var first *queue // that stays active
	for q := g.active.First(); q != nil && q != first && work < budget; q = g.active.First() {
		g.active.Remove(&q.active)
		steps := g.serve(q)
		work += steps
		if !q.active.Listed() && q.state != queueDead && (!q.drained || g.staysActive()) {
			g.active.Push(q, &q.active)
		}
		if first == nil && q.active.Listed() {
			first = q
		}
	}
	return work
}

// serve receives and sends for one queue and returns how many steps it made.
func (g *Group) serve(q *queue) int {
	if g.input = aloneInput; g.crowded() {
		g.input = turnInput
	}
	steps := q.receive()
	for i := 1; i < directReceives && steps > 0 && g.input > 0 && !q.drained &&
		q.expectsDirect(); i++ {
		steps += q.receive()
	}
	if steps > 0 {
		g.activeUntil = g.loop.Now() + recent
		if g.last != nil && g.last != q {
			g.crowdedUntil = g.activeUntil
		}
		g.last = q
	} else if q.blocked { // nothing better to do than to try again
		q.blocked = false
		q.schedule()
	}
	if q.scheduled.Listed() {
		g.scheduled.Remove(&q.scheduled)
		steps += q.run()
	}
	return steps
}

// runScheduled sends what was completed meanwhile, and tears down dead queues.
func (g *Group) runScheduled() int {
	work := 0
	var last *queue
	for q := g.scheduled.First(); q != nil && q != last; q = g.scheduled.First() {
		g.scheduled.Remove(&q.scheduled)
		work += q.run()
		if q.scheduled.Listed() && last == nil { // it continues in the next poll
			last = q
		}
	}
	return work
}

// crowded says that more than one connection has input these days.
func (g *Group) crowded() bool { return g.loop.Now() < g.crowdedUntil }

// staysActive says whether the only active queue stays so although its socket was read empty.
func (g *Group) staysActive() bool {
	return g.active.Empty() && !g.crowded() && g.loop.Now() < g.activeUntil
}

// look takes events of the epoll set, at most maxEvents of them: the rest is found by the next
// look, and keeps the reactor awake.
func (g *Group) look() {
	g.polls, g.moved = 0, 0
	n, _ := sys.EpollWait(g.epfd, g.events[:], 0)
	for i := range max(n, 0) {
		if q := g.byFD[g.events[i].Fd]; q != nil {
			q.event(g.events[i].Events)
		}
	}
}

// activate has the queue received from in the next poll.
func (g *Group) activate(q *queue) {
	q.drained = false
	if !q.active.Listed() && q.state != queueDead {
		g.active.Push(q, &q.active)
	}
}

// Arm prepares to sleep. All that arrives from now on is an event, since every socket has been read
// empty.
func (g *Group) Arm() bool {
	if !g.scheduled.Empty() || !g.resumed.Empty() || g.cfg.Memory.CanServe() {
		return false
	}
	for q := range g.active.All() {
		if !q.drained {
			return false
		}
	}
	for g.active.Pop() != nil {
	}
	return true
}

// remove takes a dead queue that has no requests left out of the group.
func (g *Group) remove(q *queue) {
	last := len(g.queues) - 1
	g.queues[last].index = q.index
	g.queues[q.index] = g.queues[last]
	g.queues[last] = nil
	g.queues = g.queues[:last]
	q.index = -1
	if g.last == q {
		g.last = nil
	}
	q.conn.uncharge()
	g.checkEmpty()
}

// Shutdown disconnects every queue and calls done on the reactor when the last one has ended.
// Reactor only, once.
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

// Close frees what the group owns. Every queue must have ended; see Shutdown. Reactor only, or
// after it has stopped.
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
	if g.epfd < 0 {
		return nil
	}
	if g.watched {
		_ = g.loop.Unwatch(g.epfd)
	}
	err := unix.Close(g.epfd)
	g.epfd = -1
	return err
}

var (
	_ fabric.Group        = (*Group)(nil)
	_ fabric.LoadReporter = (*Group)(nil)
)
