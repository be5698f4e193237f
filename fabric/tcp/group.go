package tcp

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/tls"
	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// Group is the part of the transport on one reactor: its connections and the state that they share.
//
// A connection with unread input is active; active connections are served in turn. A connection is
// parked when its socket has been read empty: its next input is an event in the group's own epoll
// set, so one system call polls all parked connections. No edge is lost, because a connection is
// parked only after it was read empty. The reactor watches the set as one descriptor, so an event
// of any connection ends its sleep.
//
// A connection that is the only one with input stays active for a while, and each poll receives
// from it directly: that finds its next command with one system call instead of two. The epoll set
// is then polled only occasionally.
type Group struct {
	t    *Transport
	cfg  fabric.GroupConfig
	loop fabric.Loop

	steps     list.Steps
	queues    list.Set[queue] // all that have not been removed
	active    list.List[queue]
	scheduled list.List[queue]   // with data to send or to copy, or to be torn down
	resumed   list.List[request] // no longer waiting for memory

	// The epoll set, and the queues in it by descriptor.
	epfd    int
	byFD    []*queue
	events  [maxEvents]unix.EpollEvent
	watched bool // by the reactor

	last        *queue // the last queue that had input
	activeUntil int64  // until then it stays active if it is the only one
	turnsUntil  int64  // until then queues take turns, because several have input
	polls       int    // since the set was last polled
	moved       int    // bytes sent and received since then
	inTurn      int    // bytes sent, received and copied in this poll, and other costs
	inputFirst  bool   // in the next poll

	stalled  int // queues with in-capsule data that waits for memory
	borrowed int // requests of ready with their data in rx

	// The state of one Poll for one queue at a time.
	receiving
	iov   []sys.Iovec
	heads []byte
	tls   *tls.Buffers      // nil while no queue has used TLS
	batch []*fabric.Request // for Prepare
	ready []*fabric.Request // for Execute

	tick      int64 // nanoseconds between checks of deadlines
	ticking   bool  // the timer runs, or a check goes on
	ticks     bool  // a deadline has begun since the last check
	onTick    func()
	stopTick  func()
	refuse    atomic.Bool // Adopt fails
	load      atomic.Int64
	whenEmpty func()
}

// receiving is the input of one queue at a time.
type receiving struct {
	input   int   // bytes that it may still receive in its turn, approximately
	arrived int64 // when input was last received, by Loop.Clock
	rx      []byte
	unread  []byte // the end of the last input, for the next poll
	reader  *queue // that it belongs to; nil: there is none, and rx may be used
}

const (
	// rxSize is the size of the receive buffer: 128 KiB of data and the headers around them.
	rxSize = 130 << 10
	// stalledBuffer is the part of it in use while a queue is stalled, because a stalled queue
	// saves the data received after its capsule.
	stalledBuffer = 8 << 10
	batchSize     = 64       // commands per Prepare
	iovMax        = 256      // vectors per system call
	headsSize     = 32 << 10 // headers per sendmsg
	maxEvents     = 128      // of the epoll set, taken at once

	// pollsPerEvents and bytesPerEvents control how often the set is polled while only one
	// connection has input: after that many polls or bytes, whichever comes first.
	pollsPerEvents = 64
	bytesPerEvents = 64 << 10
	// recent is the time in which a connection that had input is expected to have more: it stays
	// active if it is the only one, and takes turns with the others if it is not. The reactor's
	// clock is not much finer.
	recent = int64(2 * time.Millisecond)

	// pollBytes is about the number of bytes that a poll receives, sends and copies for all queues,
	// and the most for one queue in its turn. The last turn begins with at least half of it.
	pollBytes = sendMost
	// The costs in this, as bytes, of a command, an H2CData PDU, a call that receives or sends, a
	// Connect command, the end of a session or a socket, and a request of a queue that ends.
	commandCost = 2 << 10
	dataCost    = 512
	receiveCost = 8 << 10
	sendCost    = 24 << 10
	connectCost = 192 << 10
	endCost     = 128 << 10
	requestCost = 1 << 10
	// resumeMost limits the commands that a poll resumes after a wait.
	resumeMost = 64

	// turnInput is about the input of a queue in its turn: the data of two 128 KiB writes.
	turnInput = 2 * rxSize
	// directReceives is the number of receives of direct data on a queue before it sends, so that
	// the responses of several writes leave together.
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
		t: t, cfg: cfg, loop: cfg.Loop, steps: list.StepsOf(cfg.Loop), epfd: epfd,
		receiving: receiving{rx: make([]byte, rxSize)}, iov: make([]sys.Iovec, 0, iovMax),
		heads: make([]byte, 0, headsSize),
		batch: make([]*fabric.Request, 0, batchSize),
		ready: make([]*fabric.Request, 0, batchSize),
		tick:  t.cfg.tickPeriod(),
	}
	g.onTick = g.checkDeadlines
	return g, nil
}

// Adopt takes over a connection, and closes it on error. Any goroutine may call it.
func (g *Group) Adopt(c fabric.Conn) error {
	tc, ok := c.(*conn)
	switch {
	case !ok:
		return errors.Join(fmt.Errorf("tcp: cannot adopt a %T", c), c.Close())
	case g.refuse.Load():
		return errors.Join(errors.New("tcp: the group is shutting down"), c.Close())
	}
	g.load.Add(1)
	tc.group.Store(g)
	g.loop.Post(func() { g.adopt(tc) })
	return nil
}

// Load is the number of connections that are not known to be admin queues: until a host sends its
// Connect command, each may be an I/O queue. Any goroutine may call it.
func (g *Group) Load() int { return int(g.load.Load()) }

func (g *Group) adopt(c *conn) {
	if g.refuse.Load() || c.evicted.Load() {
		g.load.Add(-1)
		_ = c.Close()
		return
	}
	q := newQueue(g, c)
	if err := g.register(q); err != nil {
		g.t.log.Peer(c.info.Remote).Report(event.ConnectionRefused, "err", err)
		g.load.Add(-1)
		_ = c.Close()
		return
	}
	c.q = q
	g.queues.Add(q, &q.place)
	g.activeUntil = g.loop.Now() + recent // its ICReq is on the way
	g.activate(q)
	g.startTick()
}

// register adds the queue's socket to the epoll set.
func (g *Group) register(q *queue) error {
	if !g.watched {
		if err := g.loop.Watch(g.epfd, unix.EPOLLIN, func(uint32) { g.pollEvents() }); err != nil {
			return err
		}
		g.watched = true
	}
	ev := unix.EpollEvent{Events: socketEvents, Fd: int32(q.fd)}
	if err := unix.EpollCtl(g.epfd, unix.EPOLL_CTL_ADD, q.fd, &ev); err != nil {
		return fmt.Errorf("tcp: epoll_ctl: %w", err)
	}
	if more := q.fd + 1 - len(g.byFD); more > 0 {
		g.byFD = append(g.byFD, make([]*queue, more)...)
	}
	g.byFD[q.fd] = q
	return nil
}

// unregister undoes register, before the socket is closed.
func (g *Group) unregister(q *queue) {
	g.byFD[q.fd] = nil
	_ = unix.EpollCtl(g.epfd, unix.EPOLL_CTL_DEL, q.fd, nil)
}

// Poll advances at most about budget commands and returns the number of steps made.
func (g *Group) Poll(budget int) int {
	g.polls++
	g.inTurn = 0
	if g.queues.Len() > 0 &&
		(g.takesTurns() || g.polls >= pollsPerEvents || g.moved >= bytesPerEvents) {
		g.pollEvents()
	}
	work, inputFirst := g.resume(), g.inputFirst
	g.inputFirst = !inputFirst
	if inputFirst {
		work += g.serveActive(budget)
	}
	work += g.runScheduled(budget / 2)
	if !inputFirst {
		work += g.serveActive(budget - work)
	}
	return work
}

// serveActive receives and sends for active queues, about budget commands.
func (g *Group) serveActive(budget int) (work int) {
	var first *queue // the first that stays active
	looked := 0
	if g.reader != nil && g.inTurn <= pollBytes/2 {
		work = g.reader.readOn()
	}
	for q := g.active.First(); q != nil && q != first && work < budget && looked < budget &&
		g.inTurn <= pollBytes/2 && g.reader == nil; q = g.active.First() {
		g.active.Remove(&q.active)
		work += g.serve(q)
		looked++
		if !q.active.Listed() && q.state != queueDead && (!q.drained || g.staysActive()) {
			g.active.Push(q, &q.active)
		}
		if first == nil && q.active.Listed() {
			first = q
		}
	}
	g.steps.Add(looked)
	return work
}

// serve receives and sends for one queue and returns the number of steps made.
func (g *Group) serve(q *queue) int {
	g.input = min(turnInput, q.room())
	steps := q.receive()
	for i := 1; i < directReceives && steps > 0 && g.input > 0 && !q.drained &&
		g.reader == nil && q.expectsDirect(); i++ {
		steps += q.receive()
	}
	q.acknowledge()
	if steps > 0 {
		g.activeUntil = g.loop.Now() + recent
		if g.last != nil && g.last != q {
			g.turnsUntil = g.activeUntil
		}
		g.last = q
	}
	if q.scheduled.Listed() && g.inTurn < pollBytes { // otherwise it keeps its place
		g.scheduled.Remove(&q.scheduled)
		steps += q.run()
	}
	return steps
}

// runScheduled sends completed data, and tears down dead queues, for at most most queues. The
// others come first in the next poll.
func (g *Group) runScheduled(most int) (work int) {
	var last *queue
	ran := 0
	for q := g.scheduled.First(); q != nil && q != last && ran < most &&
		g.inTurn <= pollBytes/2; q = g.scheduled.First() {
		g.scheduled.Remove(&q.scheduled)
		work += q.run()
		ran++
		if q.scheduled.Listed() && last == nil { // it continues in the next poll
			last = q
		}
	}
	g.steps.Add(ran)
	return work
}

// takesTurns reports whether several connections have input. Each then gets a limited turn.
func (g *Group) takesTurns() bool { return g.loop.Now() < g.turnsUntil }

// staysActive reports whether a queue stays active, as the only one, with its socket read empty.
func (g *Group) staysActive() bool {
	return g.active.Empty() && !g.takesTurns() && g.loop.Now() < g.activeUntil
}

// pollEvents takes at most maxEvents events of the epoll set. The remaining ones wait for the next
// call; until then the set is ready, and the reactor does not sleep.
func (g *Group) pollEvents() {
	g.polls, g.moved = 0, 0
	n, _ := sys.EpollWait(g.epfd, g.events[:], 0)
	for i := range max(n, 0) {
		if q := g.byFD[g.events[i].Fd]; q != nil {
			q.event(g.events[i].Events)
		}
	}
}

// activate makes the next poll receive from the queue.
func (g *Group) activate(q *queue) {
	q.drained = false
	if !q.active.Listed() && q.state != queueDead {
		g.active.Push(q, &q.active)
	}
}

// Arm prepares to sleep. Every socket has been read empty, so any further input is an event.
func (g *Group) Arm() bool {
	if !g.scheduled.Empty() || !g.resumed.Empty() || g.reader != nil || g.cfg.Memory.CanServe() {
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

// remove removes a dead queue without requests from the group.
func (g *Group) remove(q *queue) {
	g.queues.Remove(&q.place)
	if g.last == q {
		g.last = nil
	}
	q.conn.counted.Uncharge()
	g.checkEmpty()
}

// Shutdown disconnects all queues and calls done when the last has ended. Reactor only, once.
func (g *Group) Shutdown(done func()) {
	g.refuse.Store(true)
	g.whenEmpty = done
	g.inPieces(g.queues.Walk(func(q *queue) int {
		q.Disconnect(errShutdown)
		if q.closeBy != 0 { // after a fault it may stay open for longer
			q.closeBy = min(q.closeBy, q.now()+orderlyLinger.Nanoseconds())
		}
		return 1
	}), g.checkEmpty)
}

// inPieces runs list.Pieces on the reactor.
func (g *Group) inPieces(next func() int, done func()) {
	list.Pieces(g.loop.Post, g.steps, next, done)
}

var errShutdown = errors.New("the target is shutting down")

func (g *Group) checkEmpty() {
	if g.queues.Len() == 0 && g.whenEmpty != nil {
		// Not here: the caller is in the middle of a poll, and done may detach or close this group.
		g.loop.Post(g.whenEmpty)
		g.whenEmpty = nil
	}
}

// Close frees the group after the end of all queues (Shutdown). Reactor only, or once it stopped.
func (g *Group) Close() error {
	g.refuse.Store(true)
	if n := g.queues.Len(); n > 0 {
		return fmt.Errorf("tcp: close group: %d connections are still open", n)
	}
	if g.ticking {
		g.stopTick()
		g.ticking = false
	}
	g.rx, g.heads = nil, nil
	if g.epfd < 0 {
		return nil
	}
	if g.watched {
		_ = g.loop.Unwatch(g.epfd)
	}
	err := unix.Close(g.epfd)
	g.epfd = -1
	if g.tls != nil {
		err = errors.Join(err, g.tls.Close())
	}
	return err
}

var _ fabric.Group = (*Group)(nil)
