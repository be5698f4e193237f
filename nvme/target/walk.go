package target

import (
	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// The commands of many queues are visited in steps, one in each poll: those of queues that end, and
// in rounds, one after the other, those of all queues of the reactor, for timeouts and fences. A
// round need not visit commands that come meanwhile. So what must not happen between two steps is
// refused where devices get IOs; see channel.check.

const (
	// stepLooks is how many commands a step looks at. One that it completes or cancels counts as
	// actLooks.
	stepLooks = 512
	actLooks  = 8
)

// round visits the commands of all queues that there are when it begins.
type round struct {
	visit func(s *session, at *int) // visits commands of a queue from at on, see session.each
	done  func()
	next  func() int // begins the next queue; nil before the first one
	s     *session   // the queue that it is at
	at    int        // its next command
	node  list.Node[round]
}

// start begins a round, after those before it.
func (h *Handler) start(r *round) {
	h.rounds.Push(r, &r.node)
	h.steps.Add(h.walk())
}

// walk takes a step, and returns at how many commands it has looked. The caller runs the handler
// afterwards.
func (h *Handler) walk() int {
	if h.walking {
		return 0
	}
	h.walking = true
	for h.looks = stepLooks; h.looks > 0; h.looks-- {
		if s := h.ending.First(); s != nil {
			s.endStep()
		} else if r := h.rounds.First(); r != nil {
			h.advance(r)
		} else {
			break
		}
	}
	h.walking = false
	return stepLooks - h.looks
}

// advance goes on with a round, up to the end of a queue.
func (h *Handler) advance(r *round) {
	switch {
	case r.next == nil:
		r.next = h.sessions.Walk(func(s *session) int { r.s, r.at = s, 0; return 1 })
	case r.s != nil && r.s.place.Listed() && r.at < r.s.used:
		r.visit(r.s, &r.at)
	case r.next() == 0:
		h.rounds.Remove(&r.node)
		r.done()
	}
}

// each calls fn with the commands of a queue from at on, as far as the step goes. fn reports
// whether it has completed the command or canceled something.
func (s *session) each(at *int, fn func(c *cmd) bool) {
	for h := s.h; *at < s.used && h.looks > 0; h.looks-- {
		c := s.cmds[*at]
		*at++
		if fn(c) {
			h.looks -= actLooks - 1
		}
	}
}

// end begins to end what a queue that is over, or about to be disconnected, has at devices and at
// limits.
func (h *Handler) end(s *session) {
	s.endAt = 0
	if !s.ends.Listed() {
		h.ending.Push(s, &s.ends)
	}
}

// endStep goes on with that.
func (s *session) endStep() {
	s.each(&s.endAt, func(c *cmd) bool { return s.h.endCommand(c) })
	if s.endAt == s.used {
		s.h.ending.Remove(&s.ends)
		s.endIfIdle()
	}
}

// endCommand ends what a command waits for, and has its devices give its IOs back if the queue is
// over: the host may retry it elsewhere, and a late write must not follow. What a device cannot
// give back has closeGrace.
func (h *Handler) endCommand(c *cmd) bool {
	s, m := c.s, c.compound
	if c.waiting.Listed() { // what is parked the transport abandons
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
