package engine

import (
	"sync/atomic"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
	"github.com/nvmf-target/nvmf-target/internal/list"
)

// Bounds of one turn of an engine. The receive batch is bounded by wire.MaxBatch.
const (
	// maxRuns is the largest number of endpoints that run. It is above the number of those that one
	// receive batch and one batch of deadlines can schedule, so that the others get on.
	maxRuns = 2*wire.MaxBatch + maxExpired
	// maxExpired is the largest number of deadlines that are looked at.
	maxExpired = 64
	// maxTurns is the largest number of turns that a goroutine makes for others, closures apart.
	maxTurns = 16
)

// An Engine runs the endpoints of one socket. "Engine held" in a comment means: called from a
// closure of Do or from a method of an Endpoint of this engine.
type Engine struct {
	dev   *Device
	index int
	conn  conn

	// Notes of other goroutines.
	step  atomic.Bool        // Step was called
	calls list.Inbox[call]   // of Do
	kicks list.Inbox[Handle] // of Kick
	hand  handOver           // packets that arrived at another engine
	held  atomic.Bool
	// sleepers is the number of completion channels that listen to the socket, and one for the
	// background goroutine.
	sleepers atomic.Int32

	// The rest belongs to the holder.
	now       time.Duration
	endpoints map[uint32]*Handle // by queue pair number
	queue     list.List[Handle]  // endpoints to run, in turn
	deadlines deadlines
	timer     time.Duration // the time set at the socket, 0 if none
	header    wire.Header
	closed    bool

	stats Stats
}

// Stats are the counters of an engine. They are atomic, and any goroutine may read them.
type Stats struct {
	// Unparsed counts packets with impossible lengths or a wrong transport version, Unknown those
	// to a queue pair that does not exist.
	Unparsed, Unknown atomic.Uint64
	// HandedOver counts packets that arrived at the socket of another engine, HandOverLost those
	// that this engine had no room for.
	HandedOver, HandOverLost atomic.Uint64
}

// conn is a socket that remembers that a batch was full.
type conn struct {
	wire.Conn
	blocked bool
}

func (c *conn) Alloc(p *wire.Path, n int) []byte {
	b := c.Conn.Alloc(p, n)
	if b == nil {
		c.blocked = true
	}
	return b
}

// call is a closure of Do.
type call struct {
	fn   func()
	done chan struct{}
	node list.Node[call]
}

// Do runs fn while the engine is held, and returns when fn has returned. Any goroutine may call it,
// but not with an engine held: it would wait for itself. fn may attach, detach and schedule
// endpoints and push completions. It must not block.
func (e *Engine) Do(fn func()) {
	c := &call{fn: fn, done: make(chan struct{})}
	e.calls.Push(c, &c.node)
	e.enter()
	<-c.done
}

// Step makes one turn: it receives one batch of packets, expires deadlines, runs endpoints and
// flushes the batch. If another goroutine holds the engine, Step returns at once, and that goroutine
// makes the turn before it leaves. Any goroutine may call it. CQ.Poll does.
func (e *Engine) Step() {
	e.step.Store(true)
	e.enter()
}

// Conn returns the socket. Engine held. Endpoints call only Alloc, and only in Run: the engine calls
// the other methods. After Alloc has returned nil, the endpoint's Run returns true, and the engine
// runs it again when the socket takes packets.
func (e *Engine) Conn() wire.Conn { return &e.conn }

// Now returns the clock of the socket at the start of the turn. Engine held.
func (e *Engine) Now() time.Duration { return e.now }

// Index returns the completion vector, from 0.
func (e *Engine) Index() int { return e.index }

// Device returns the engine's device.
func (e *Engine) Device() *Device { return e.dev }

// Stats returns the counters of the engine; those of the socket are Conn().Stats().
func (e *Engine) Stats() *Stats { return &e.stats }

// enter makes turns until no note is left, unless another goroutine holds the engine. That one sees
// the caller's note: it lets go of the engine before it looks for notes, and the caller leaves the
// note before it tries to take the engine.
func (e *Engine) enter() {
	for turns := 0; e.noted(turns) && e.held.CompareAndSwap(false, true); turns++ {
		worked := e.turn()
		e.held.Store(false)
		if !worked {
			// A note is being left at this moment. The goroutine that leaves it comes here itself.
			return
		}
	}
}

// noted reports whether there is a note. After many turns for others only closures count, because
// somebody waits for them: the rest is done by the next Step.
func (e *Engine) noted(turns int) bool {
	return !e.calls.Empty() || turns < maxTurns && (e.step.Load() || !e.kicks.Empty())
}

// turn does the work of one turn and reports whether it found a note.
func (e *Engine) turn() (worked bool) {
	e.conn.blocked = false
	more := false
	if e.step.Load() {
		e.step.Store(false)
		worked = true
		more = e.receive()
		more = e.expire() || more
	} else {
		e.refresh()
	}
	for c := e.calls.Pop(); c != nil; c = e.calls.Pop() {
		worked = true
		c.fn()
		close(c.done)
	}
	for h := e.kicks.Pop(); h != nil; h = e.kicks.Pop() {
		worked = true
		h.kicked.Store(false) // before Run: a later Kick adds the endpoint again
		e.Schedule(h)
	}
	more = e.run() || more
	if e.closed {
		return worked
	}
	e.conn.Flush()
	e.setTimer()
	if (more || e.step.Load()) && e.sleepers.Load() > 0 {
		e.conn.Wake()
	}
	return worked
}

func (e *Engine) refresh() {
	if !e.closed {
		e.now = e.conn.Now()
	}
}
