package target

import (
	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// The commands of many queues are visited in pieces: those of queues that end, and in rounds those
// of all queues of the reactor, for timeouts and fences. A round does not visit commands that come
// meanwhile. What must not happen between two pieces is refused where devices get IOs; see
// channel.check.

// walk is a visit of commands. A reactor makes one after the other, in one chain of pieces: however
// many there are, it does a piece between two polls.
type walk struct {
	next func() int // as of list.Pieces
	done func()
	node list.Node[walk] // in Handler.walks
}

// lookMost is how many commands a step of a walk looks at. One that it completes or cancels is a
// step of its own.
const lookMost = 8

// start begins a walk, after those before it. The caller runs the handler afterwards.
func (h *Handler) start(w *walk) {
	h.walks.Push(w, &w.node)
	if h.walking {
		return
	}
	h.walking = true
	h.inPieces(h.walkOn, func() { h.walking = false })
}

// walkOn takes a step of the first walk.
func (h *Handler) walkOn() int {
	w := h.walks.First()
	if w == nil {
		return 0
	}
	if n := w.next(); n > 0 {
		return n
	}
	h.walks.Remove(&w.node)
	w.done()
	return 1
}

// visitAll returns the next of a walk that calls fn with the commands of the queues that there are
// when it begins, except those of queues that skips selects.
func (h *Handler) visitAll(skips func(*session) bool, fn func(*cmd) bool) (next func() int) {
	var queues func() int
	var s *session
	at := 0
	return func() int {
		if queues == nil {
			queues = h.sessions.Walk(func(o *session) int { s, at = o, 0; return 1 })
		}
		if s != nil && !skips(s) && s.look(&at, fn) {
			return 1
		}
		return queues()
	}
}

// look calls fn with a few commands of a queue from at on, until it returns true: it has completed
// the command, or canceled something. look returns false if there are none.
func (s *session) look(at *int, fn func(c *cmd) bool) bool {
	for n := range lookMost {
		if *at >= s.used {
			return n > 0
		}
		*at++
		if fn(s.cmds[*at-1]) {
			break
		}
	}
	return true
}

// end begins to end what a queue that is over, or about to be disconnected, has at devices and at
// limits. The caller runs the handler afterwards.
func (h *Handler) end(s *session) {
	s.endAt = 0
	if s.ends.node.Listed() {
		return
	}
	s.ends = walk{done: s.endIfIdle, next: func() int {
		if s.look(&s.endAt, h.endCommand) {
			return 1
		}
		return 0
	}}
	h.start(&s.ends)
}

// endCommand ends what a command waits for, and has its devices give its IOs back if the queue is
// over: the host may retry it elsewhere, and a late write must not follow. What a device cannot
// give back has closeGrace.
func (h *Handler) endCommand(c *cmd) bool {
	s, m := c.s, c.compound
	if c.waiting.Listed() { // the transport abandons parked commands
		h.stopWaiting(c)
		if c.executing {
			h.endWaiter(c, nvme.AbortedSQDeletion)
		}
		return true
	}
	if !s.isOver() {
		return false
	}
	switch {
	case s.closed && c.delays != nil:
		c.delays.end(c)
	case !c.executing:
		return false
	case m != nil:
		m.abort(h)
	case c.since != 0 && c.ch.withdraw(&c.io):
		c.io.Err = backend.ErrAborted
		c.ch.done(&c.io)
	case c.since != 0:
		c.ch.cancel(&c.io)
	default:
		return false
	}
	return true
}
