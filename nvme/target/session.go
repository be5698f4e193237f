package target

import (
	"errors"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// connectDeadline is how long a queue may exist without a successful Connect, in nanoseconds.
const connectDeadline = int64(10e9)

// session is the state of one queue. It belongs to the reactor of its handler; other reactors read
// activity and post to it.
type session struct {
	h    *Handler
	q    fabric.Queue
	info *fabric.QueueInfo

	// Set by a successful Connect.
	ctrl  *controller
	qid   uint16
	table *[256]op
	size  uint32 // entries; 0 before Connect
	sqhd  uint32
	// noFlow: SQ flow control is disabled, SQHD is FFFFh (Base section 6.3, CATTR).
	noFlow bool

	cmds        []*cmd // the first used of them are states of requests
	used        int
	done, spare []*fabric.Request
	listed      bool
	outstanding int // executing commands
	closed      bool
	closedAt    int64
	ended       bool
	leaving     *cmd // a Disconnect command that waits for the others
	left        bool // the Disconnect command is completed

	commands     uint64        // received
	activity     atomic.Uint64 // commands, for the keep alive timer of another reactor
	stopDeadline func()
}

// cmd is the state of one command from Prepare to Complete.
type cmd struct {
	io   backend.IO // Owner is the cmd itself
	s    *session
	i    int // in session.cmds
	req  *fabric.Request
	op   *op
	ns   *namespace
	loan *channel // lent its blocks, or memory for them, between Prepare and Release
	busy bool     // between Execute and Complete
	// since is when the command was given to a device, 0 if none has it. Of those that were given
	// up req is nil, and free gives their memory back.
	since int64
	free  func()
	own   []mem.Segment // in-capsule data, see takeCapsule
	multi *multi        // carries the command out, if it takes several IOs
}

func (c *cmd) isConnect() bool {
	return c.req.SQE.Opcode() == nvme.FabricsOpcode &&
		c.req.SQE.FabricsType() == nvme.FabricsConnect
}

func newSession(h *Handler, q fabric.Queue) *session {
	s := &session{h: h, q: q, info: q.Info()}
	s.stopDeadline = h.after(connectDeadline, func() {
		s.disconnect(errors.New("no successful Connect command in time"))
	})
	h.sessions[s] = struct{}{}
	h.sessionCount.Add(1)
	return s
}

// cmd returns the state of a request, which it gets with its first command. States are made in
// advance by Connect; before that they are few.
func (s *session) cmd(r *fabric.Request) *cmd {
	if c, ok := r.Command.(*cmd); ok {
		return c
	}
	if s.used == len(s.cmds) {
		s.grow(s.used + 1)
	}
	c := s.cmds[s.used]
	s.used++
	r.Command = c
	return c
}

func (s *session) grow(n int) {
	block := make([]cmd, n-len(s.cmds))
	for i := range block {
		c := &block[i]
		c.s, c.i = s, len(s.cmds)
		c.io.Owner = c
		s.cmds = append(s.cmds, c)
	}
}

// reserve makes what depth commands need, so that none of them allocates.
func (s *session) reserve(depth int) {
	if depth > len(s.cmds) {
		s.grow(depth)
	}
	s.done = append(make([]*fabric.Request, 0, depth+1), s.done...)
	s.spare = make([]*fabric.Request, 0, depth+1)
}

// publish tells the keep alive timer of the commands received so far.
func (s *session) publish() {
	if s != nil {
		s.activity.Store(s.commands)
	}
}

// advance moves the head of the submission queue past one entry and returns the SQHD of a
// completion.
func (s *session) advance() uint16 {
	if s.noFlow {
		return 0xFFFF
	}
	if s.size == 0 {
		return 0
	}
	if s.sqhd++; s.sqhd == s.size {
		s.sqhd = 0
	}
	return uint16(s.sqhd)
}

// failed notes an unsuccessful command in the error log. The status that is returned has the More
// bit set if it did (Base figure 100).
func (s *session) failed(c *cmd, st nvme.Status) nvme.Status {
	err := c.io.Err
	c.io.Err = nil // the next command with this tag may fail before it has an IO
	switch st.Code() {
	case nvme.AbortRequested, nvme.AbortedSQDeletion:
		return st
	}
	// no Connect makes an entry, not even one too many (Base section 6.3)
	if s.ctrl == nil || c.isConnect() {
		return st
	}
	s.h.debugFailure(c, st)
	s.ctrl.errors.add(s, &c.req.SQE, st, c.failedLBA(err))
	return st | statusMore
}

// statusMore is the More bit of the status field (Base figure 100).
const statusMore nvme.Status = 1 << 13

// disconnect starts the end of the queue. Reactor only.
func (s *session) disconnect(why error) {
	if !s.closed {
		s.q.Disconnect(why)
	}
}

// afterCompletion does what had to wait until commands were done.
func (s *session) afterCompletion() {
	switch {
	case s.leaving != nil && s.outstanding == 1: // only the Disconnect command itself
		s.leave()
	case s.left && !s.listed:
		s.disconnect(errors.New("the host sent a Disconnect command"))
	}
	s.endIfIdle()
}

// leave completes the Disconnect command; the queue ends when the response is out.
func (s *session) leave() {
	c := s.leaving
	s.leaving, s.left = nil, true
	s.h.finish(c, 0, nvme.Success)
}

// endIfIdle ends a closed session whose last command is back: only now may its memory go and its
// queue ID be used again.
func (s *session) endIfIdle() {
	if !s.closed || s.outstanding > 0 || s.listed || s.ended {
		return
	}
	s.ended = true
	delete(s.h.sessions, s)
	s.h.sessionCount.Add(-1)
	if s.ctrl != nil {
		s.ctrl.sessionEnded(s)
	}
}
