package engine

import (
	"math"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/packet"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
	"github.com/nvmf-target/nvmf-target/internal/list"
)

// Bounds of one turn of an engine. The receive batch is bounded by wire.MaxBatch.
const (
	// maxExpired is the largest number of deadlines that are looked at.
	maxExpired = 32
	// maxPutOff is the number of turns for which deadlines wait while packets do.
	maxPutOff = 8
	// maxRuns is the largest number of endpoints that run: as many as a receive batch, a batch that
	// other engines handed over, and the deadlines schedule.
	maxRuns = 2*wire.MaxBatch + maxExpired
	// maxSent is the number of packets after which no other endpoint runs.
	maxSent = 512
	// maxCalls is the largest number of closures of Do that run.
	maxCalls = 16
	// maxTurns is the largest number of turns that a goroutine makes at once. All but the first are
	// for others. If they ask for more, a helper goroutine takes over.
	maxTurns = 4
)

// An Engine runs the endpoints of one socket. "Engine held" in a comment means: called from a
// closure of Do or from a method of an Endpoint of this engine.
type Engine struct {
	dev   *Device
	index int
	conn  conn

	// Notes of other goroutines.
	step  atomic.Bool        // by Step
	calls list.Inbox[call]   // by Do
	kicks list.Inbox[Handle] // by Kick
	inbox inbox              // packets that arrived at another socket

	// left: a turn of Poll has left work for the next one.
	left atomic.Bool

	held   atomic.Bool
	helped atomic.Bool   // the helper goroutine runs
	helper chan struct{} // wakes it; has room for one
	helpers
	// sleepers is the number of completion channels that listen to the socket, and one for the
	// background goroutine.
	sleepers atomic.Int32

	// The rest belongs to the holder.
	polled    bool               // see Polled
	now       time.Duration      // see Now; 0 until the turn has read the clock
	endpoints map[uint32]*Handle // by queue pair number
	queue     list.List[Handle]  // endpoints to run, in turn
	deadlines deadlines
	reads     reads
	putOff    int           // turns in which deadlines have waited for packets
	timer     time.Duration // the time set at the socket, 0 if none
	tidied    time.Duration // the time of the last turn that took stopped deadlines out
	header    packet.Header
	count     list.Steps

	stats Stats
}

// helpers has the notes for the goroutines of Options.Background.
type helpers struct {
	// attended is set by a CQ.Poll if its caller does not sleep next.
	attended atomic.Bool
	// owed wakes the goroutine that sends packets after a poll has left them, and arming the one
	// that waits for the socket. Both have room for one.
	owed, arming chan struct{}
}

// Stats are the counters of an engine. They are atomic, and any goroutine may read them.
type Stats struct {
	// Unparsed counts packets with impossible lengths or a wrong transport version, Unknown packets
	// to a queue pair that does not exist.
	Unparsed, Unknown atomic.Uint64
	// HandedOver counts packets that arrived at another socket, HandOverLost packets that
	// this engine had no room for.
	HandedOver, HandOverLost atomic.Uint64
}

// conn is a socket that remembers, for a turn, whether a batch was full, and the packets sent.
type conn struct {
	wire.Conn
	blocked bool
	sent    int
}

func (c *conn) Alloc(p *wire.Path, n int) []byte {
	b := c.Conn.Alloc(p, n)
	if c.sent++; b == nil {
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
	e.enter(maxTurns, false)
	<-c.done
}

// Step makes one turn: it receives one batch of packets, expires deadlines, runs endpoints and
// flushes the batch. If another goroutine holds the engine, Step returns at once, and that
// goroutine makes the turn. Any goroutine may call it. CQ.Poll does.
func (e *Engine) Step() { e.makeStep(false) }

func (e *Engine) makeStep(polled bool) {
	e.step.Store(true)
	e.enter(maxTurns, polled)
}

// Polled reports whether another turn follows soon: this one is a turn of CQ.Poll. So an endpoint
// may put off packets that go well with others to come; its Run returns true. Engine held.
func (e *Engine) Polled() bool { return e.polled }

// Conn returns the socket. Engine held. Endpoints call only Alloc, in Run or in a closure of Do,
// and the engine calls the other methods. After Alloc has returned nil, the endpoint's Run returns
// true, and the engine runs it again when the socket takes packets.
func (e *Engine) Conn() wire.Conn { return &e.conn }

// Moved counts n packets that an endpoint has sent or received at a socket of its own, so that
// the bound of a turn holds for all endpoints together. Engine held.
func (e *Engine) Moved(n int) { e.conn.sent += n }

// Now returns the clock of the socket, read once in a turn. Engine held.
func (e *Engine) Now() time.Duration {
	if e.now == 0 {
		e.now = e.conn.Now()
	}
	return e.now
}

// Index returns the completion vector, from 0.
func (e *Engine) Index() int { return e.index }

// Stats returns the counters of the engine; Conn().Stats() has the counters of the socket.
func (e *Engine) Stats() *Stats { return &e.stats }

// enter makes turns until no note is left, unless another goroutine holds the engine. That one
// finds the caller's note: it looks for notes after it has let go of the engine, and the caller
// leaves the note before it tries to take the engine.
func (e *Engine) enter(most int, polled bool) {
	for turns := 0; e.noted(); turns++ {
		if turns == most {
			e.help()
			return
		}
		if !e.held.CompareAndSwap(false, true) {
			return
		}
		e.polled = polled
		if !e.turn() {
			// A note is being left at this moment. The goroutine that leaves it may have found the
			// engine held, and then does not come back.
			runtime.Gosched()
		}
	}
}

// noted reports whether another goroutine has left a note.
func (e *Engine) noted() bool {
	return e.step.Load() || !e.kicks.Empty() || !e.calls.Empty()
}

// help lets the helper goroutine make turns until no note is left. It starts at the first call and
// lives until Close.
func (e *Engine) help() {
	if !e.helped.Swap(true) {
		e.dev.helpers.Go(func() {
			for range e.helper {
				e.enter(math.MaxInt, false)
			}
		})
	}
	nudge(e.helper)
}

// turn makes a turn, lets go of the engine, and reports whether it found a note.
func (e *Engine) turn() (worked bool) {
	defer e.held.Store(false) // also after a panic: cleaning up takes it again
	e.count.Begin()
	e.conn.blocked, e.conn.sent = false, 0
	more, stepped := false, e.step.Swap(false)
	if stepped {
		worked = true
		if more = e.receive(); more && e.putOff < maxPutOff {
			e.putOff++ // the acknowledgments may be waiting
		} else if e.putOff = 0; e.expire() {
			more, e.putOff = true, maxPutOff // the rest has waited as well
		}
	} else {
		e.now = 0 // most of these turns only send
	}
	for range maxCalls {
		c := e.calls.Pop()
		if c == nil {
			break
		}
		worked = true
		c.fn()
		close(c.done)
	}
	for range maxRuns {
		h := e.kicks.Pop()
		if h == nil {
			break
		}
		e.count.Add(1)
		worked = true
		h.kicked.Store(false) // before Run: a later Kick adds the endpoint again
		e.Schedule(h)
	}
	more = e.run() || more
	e.conn.Flush()
	e.setTimer()
	// A goroutine that goes to sleep adds itself to sleepers and then calls Step. If that is too
	// late to be seen here, its note leads to another turn. After a turn of Poll, either the caller
	// polls again, because it got completions and nobody else sleeps, or Poll makes another turn.
	if more && e.polled || stepped { // else left is for the next turn of Poll
		e.left.Store(more && e.polled)
	}
	if more && !e.polled && e.sleepers.Load() > 0 {
		e.conn.Wake()
	}
	return worked
}
