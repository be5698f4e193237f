package fabrictest

import (
	"errors"
	"slices"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// Command is one command of the host with its result. The host owns it again when Done is true.
type Command struct {
	SQE nvme.SQE
	// Data is the host's buffer: sent, or filled. Its length is that described by the SGL.
	Data []byte
	// InCapsule reports whether the data is in the capsule.
	InCapsule bool
	// Malformed is a status found by the transport before Prepare; Broken is one found while data
	// moved.
	Malformed, Broken nvme.Status
	// Lost abandons the command after Prepare.
	Lost bool
	// Late keeps the host's data back until Arrive is called.
	Late bool

	CQE  nvme.CQE
	Done bool
	// Returned is the number of bytes that came back.
	Returned int
	// Then, if set, is called when the command is done, on the reactor.
	Then func()
}

// Reset makes the command ready to be sent again.
func (c *Command) Reset() { c.CQE, c.Done, c.Returned = nvme.CQE{}, false, 0 }

// Queue is one queue, both ends of it. Its methods belong to the reactor it was dialed on.
type Queue struct {
	loop    fabric.Loop
	memory  *mem.Pool
	h       fabric.Handler
	info    fabric.QueueInfo
	session fabric.Session
	slots   []slot
	free    []*slot
	batch   []*fabric.Request

	// RefuseDepth makes SetDepth fail.
	RefuseDepth error
	// NoZeroCopy: the queue can neither send from nor receive into memory of a namespace.
	NoZeroCopy bool
	// Depth, Peer and Claim are the arguments of SetDepth; Allow changes Peer and Claim.
	Depth int
	Peer  fabric.Peer
	Claim fabric.Claim
	// Holds counts the calls of Hold with true; Held is the last one.
	Holds atomic.Int64
	Held  atomic.Bool
	// Lingers makes the queue go on after Disconnect until HangUp, like a queue with transfers.
	Lingers bool
	// Reason is the reason given by the handler when it disconnected the queue.
	Reason error
	// OnClose, if set, is called when the queue has ended.
	OnClose func()
	closed  bool
}

type slot struct {
	req fabric.Request
	cmd *Command
	// capsule is the memory that in-capsule data is received into.
	capsule []byte
	memory  mem.Allocation
	waits   bool // deferred, until it executes
}

// Dial opens a queue on a reactor of a World.
func Dial(r *Reactor, h fabric.Handler, info fabric.QueueInfo) (*Queue, error) {
	return DialOn(r, r.memory, h, info)
}

// DialOn opens a queue on any reactor, with memory as its data memory. It is called on that
// reactor. info.MaxDepth requests are made at once.
func DialOn(l fabric.Loop, memory *mem.Pool, h fabric.Handler, info fabric.QueueInfo) (*Queue,
	error,
) {
	q := &Queue{loop: l, memory: memory, h: h, info: info}
	s, err := h.Open(q)
	if err != nil {
		return nil, err
	}
	q.session = s
	q.slots = make([]slot, info.MaxDepth)
	q.batch = make([]*fabric.Request, 0, info.MaxDepth)
	for i := range q.slots {
		c := &q.slots[len(q.slots)-1-i]
		c.req.Session, c.req.Queue, c.req.Owner = s, q, c
		q.free = append(q.free, c)
	}
	return q, nil
}

// Outstanding is the number of commands that have not come back.
func (q *Queue) Outstanding() int { return len(q.slots) - len(q.free) }

// Closed reports whether the queue has ended.
func (q *Queue) Closed() bool { return q.closed }

// errFull is the error for sending more commands than the queue has requests.
var errFull = errors.New("fabrictest: queue is full")

// Send passes a batch of commands to the handler. Commands sent on a closed queue are lost.
func (q *Queue) Send(cmds ...*Command) error {
	if q.closed {
		return nil
	}
	if len(cmds) > len(q.free) {
		return errFull
	}
	q.batch = q.batch[:0]
	for _, c := range cmds {
		s := q.free[len(q.free)-1]
		q.free = q.free[:len(q.free)-1]
		s.cmd = c
		s.req.Reset()
		s.req.Start = q.loop.Clock()
		s.req.SQE, s.req.HostLength, s.req.InCapsule, s.req.Status = c.SQE, uint32(len(c.Data)),
			c.InCapsule, c.Malformed
		q.batch = append(q.batch, &s.req)
	}
	q.h.Prepare(q.batch)
	live := q.batch[:0]
	for _, r := range q.batch {
		c := r.Owner.(*slot).cmd
		if c.Lost {
			q.h.Abandon(r)
			q.recycle(r)
			continue
		}
		if c.Late || r.Deferred && !r.InCapsule {
			r.Owner.(*slot).waits = true
			continue
		}
		r.Deferred = false
		q.moveIn(r, c)
		live = append(live, r)
	}
	q.h.Execute(live)
	return nil
}

// Arrive moves the data of a Late command, which is not deferred.
func (q *Queue) Arrive(c *Command) {
	for i := range q.slots {
		if s := &q.slots[i]; s.waits && s.cmd == c {
			s.waits = false
			s.req.Spent(fabric.StageHostData, q.loop.Clock())
			q.moveIn(&s.req, c)
			q.h.Execute([]*fabric.Request{&s.req})
		}
	}
}

// Resume implements fabric.Queue.
func (q *Queue) Resume(r *fabric.Request) {
	s := r.Owner.(*slot)
	q.loop.Post(func() {
		if !s.waits || !r.Deferred { // the queue has ended
			return
		}
		s.waits, r.Deferred = false, false
		r.Spent(fabric.StageWait, q.loop.Clock())
		q.moveIn(r, s.cmd)
		q.h.Execute([]*fabric.Request{r})
	})
}

// moveIn gives the request its memory and moves the host's data into it.
func (q *Queue) moveIn(r *fabric.Request, c *Command) {
	switch s := r.Owner.(*slot); {
	case r.Length == 0 || len(r.Segs) > 0:
	case r.InCapsule:
		s.capsule = slices.Grow(s.capsule[:0], int(r.Length))[:r.Length]
		r.Segs = append(r.Segs, mem.Segment{B: s.capsule})
	default:
		if !q.memory.Alloc(&s.memory, r.Flow, int(r.Length)) {
			r.Status = nvme.InternalError
			return
		}
		r.Segs = append(r.Segs, s.memory.Segs...)
	}
	if r.Dir == fabric.HostToController {
		b := c.Data
		for _, s := range r.Segs {
			b = b[copy(s.B, b):]
		}
	}
	if r.Status.OK() && !c.Broken.OK() {
		r.Status = c.Broken
	}
}

// Complete implements fabric.Queue.
func (q *Queue) Complete(reqs []*fabric.Request) {
	for _, r := range reqs {
		c := r.Owner.(*slot).cmd
		if !q.closed {
			c.CQE, c.Done = r.CQE, true
			if r.Dir == fabric.ControllerToHost && r.CQE.Status().OK() {
				for _, s := range r.Segs {
					c.Returned += copy(c.Data[c.Returned:], s.B)
				}
			}
		}
		if !q.closed {
			r.Spent(fabric.StageResponse, q.loop.Clock())
			q.h.Sent(r)
		}
		q.recycle(r)
		if c.Done && c.Then != nil {
			c.Then()
		}
	}
}

// recycle takes the request and its memory back.
func (q *Queue) recycle(r *fabric.Request) {
	switch {
	case r.ZeroCopy:
		q.h.EndZeroCopy(r)
	case r.InCapsule:
		clear(r.Owner.(*slot).capsule) // the next capsule arrives
	}
	s := r.Owner.(*slot)
	s.memory.Free()
	s.cmd = nil
	q.free = append(q.free, s)
}

// SetDepth implements fabric.Queue.
func (q *Queue) SetDepth(depth int, p fabric.Peer, c fabric.Claim) error {
	if q.RefuseDepth == nil {
		q.Depth, q.Peer, q.Claim = depth, p, c
	}
	return q.RefuseDepth
}

// Hold implements fabric.Queue.
func (q *Queue) Hold(on bool) {
	if q.Held.Store(on); on {
		q.Holds.Add(1)
	}
}

// Allow implements fabric.Queue.
func (q *Queue) Allow() error {
	q.Peer, q.Claim.Proven = fabric.Allowed, true
	return nil
}

// CanSendFrom implements fabric.Queue.
func (q *Queue) CanSendFrom([]mem.Segment) bool { return !q.NoZeroCopy }

// CanReceiveInto implements fabric.Queue.
func (q *Queue) CanReceiveInto([]mem.Segment) bool { return !q.NoZeroCopy }

// HandOverBuffers implements fabric.Queue. In-capsule data is part of the queue.
func (q *Queue) HandOverBuffers(r *fabric.Request) (free func()) {
	if r.ZeroCopy || r.InCapsule && r.Length > 0 {
		return nil
	}
	r.Segs = nil
	return r.Owner.(*slot).memory.HandOver()
}

// Disconnect implements fabric.Queue: the queue closes at the next step, unless it lingers.
func (q *Queue) Disconnect(reason error) {
	if q.Reason == nil {
		q.Reason = reason
		if !q.Lingers {
			q.loop.Post(q.HangUp)
		}
	}
}

// HangUp ends the queue suddenly, in a turn of its own.
func (q *Queue) HangUp() {
	if !q.closed {
		q.closed = true
		list.StepsOf(q.loop).Begin()
		for i := range q.slots {
			if s := &q.slots[i]; s.waits {
				s.waits = false
				q.h.Abandon(&s.req)
				q.recycle(&s.req)
			}
		}
		q.h.Close(q.session)
		if q.OnClose != nil {
			q.OnClose()
		}
	}
}

// Info implements fabric.Queue.
func (q *Queue) Info() *fabric.QueueInfo { return &q.info }
