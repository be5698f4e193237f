package fabrictest

import (
	"errors"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// answer is the scripted reaction of the handler to a command.
type answer struct {
	// Dir and Length are Prepare's answer; Status refuses the command.
	Dir    fabric.Direction
	Length uint32
	Status nvme.Status
	// ZeroCopy is attached in Prepare if the queue can use it and the data is not in the capsule;
	// otherwise a read returns a copy of it.
	ZeroCopy []mem.Segment
	// Data is the result of a read, cut or zero-padded to Length.
	Data []byte
	// Result is DW0 and DW1 of the CQE.
	Result uint64
	// Hold delays completion until Finish is called.
	Hold bool
}

// handler is a scripted controller.
type handler struct {
	// Script answers each command; nil accepts everything without data.
	Script func(r *fabric.Request) answer
	// Written is called with the data of every command to the controller.
	Written func(r *fabric.Request, data []byte)
	// RefuseOpen makes Open fail.
	RefuseOpen bool

	// Numbers of calls so far; ZeroCopyEnds counts EndZeroCopy.
	Closed, Abandoned, ZeroCopyEnds int

	sessions map[*scripted]struct{}
}

type scripted struct {
	q       fabric.Queue
	answers map[*fabric.Request]answer
	held    []*fabric.Request
	heads   uint16
}

var errRefused = errors.New("fabrictest: the script refuses the queue")

// Open implements fabric.Handler.
func (h *handler) Open(q fabric.Queue) (fabric.Session, error) {
	if h.RefuseOpen {
		return nil, errRefused
	}
	if h.sessions == nil {
		h.sessions = make(map[*scripted]struct{})
	}
	s := &scripted{q: q, answers: make(map[*fabric.Request]answer)}
	h.sessions[s] = struct{}{}
	return s, nil
}

// Prepare implements fabric.Handler.
func (h *handler) Prepare(reqs []*fabric.Request) {
	for _, r := range reqs {
		if !r.Status.OK() {
			continue
		}
		var a answer
		if h.Script != nil {
			a = h.Script(r)
		}
		r.Session.(*scripted).answers[r] = a
		if r.Status = a.Status; !r.Status.OK() {
			continue
		}
		r.Dir, r.Length = a.Dir, a.Length
		canUse := r.Session.(*scripted).q.CanSendFrom
		if a.Dir == fabric.HostToController {
			canUse = r.Session.(*scripted).q.CanReceiveInto
		}
		if len(a.ZeroCopy) > 0 && !r.InCapsule && canUse(a.ZeroCopy) {
			r.Segs, r.ZeroCopy = append(r.Segs, a.ZeroCopy...), true
		}
	}
}

// Execute implements fabric.Handler.
func (h *handler) Execute(reqs []*fabric.Request) {
	for _, r := range reqs {
		s := r.Session.(*scripted)
		a := s.answers[r]
		if r.Status.OK() && r.Dir == fabric.HostToController && h.Written != nil {
			h.Written(r, gather(r.Segs))
		}
		if r.Status.OK() && a.Hold {
			s.held = append(s.held, r)
			continue
		}
		h.complete(s, r)
	}
}

// Finish completes every held command of every queue.
func (h *handler) Finish() {
	for s := range h.sessions {
		held := s.held
		s.held = nil
		for _, r := range held {
			h.complete(s, r)
		}
	}
}

// Held is the number of commands that wait for Finish.
func (h *handler) Held() int {
	n := 0
	for s := range h.sessions {
		n += len(s.held)
	}
	return n
}

// Disconnect ends every queue.
func (h *handler) Disconnect(reason error) {
	for s := range h.sessions {
		s.q.Disconnect(reason)
	}
}

func (h *handler) complete(s *scripted, r *fabric.Request) {
	a := s.answers[r]
	delete(s.answers, r)
	status := r.Status
	if status.OK() {
		if r.Dir == fabric.ControllerToHost && !r.ZeroCopy {
			scatter(r.Segs, append(gather(a.ZeroCopy), a.Data...))
		}
	}
	s.heads++
	r.CQE.Fill(a.Result, s.heads, r.SQE.CID(), status)
	s.q.Complete([]*fabric.Request{r})
}

// Abandon implements fabric.Handler.
func (h *handler) Abandon(r *fabric.Request) {
	h.Abandoned++
	delete(r.Session.(*scripted).answers, r)
}

// EndZeroCopy implements fabric.Handler.
func (h *handler) EndZeroCopy(*fabric.Request) { h.ZeroCopyEnds++ }

// WriterWaits implements fabric.Handler.
func (h *handler) Sent(*fabric.Request)             {}
func (h *handler) WriterWaits(*fabric.Request) bool { return false }

// Close implements fabric.Handler: held commands come back at once.
func (h *handler) Close(fs fabric.Session) {
	s := fs.(*scripted)
	h.Closed++
	delete(h.sessions, s)
	held := s.held
	s.held = nil
	for _, r := range held {
		h.complete(s, r)
	}
}

func gather(segs []mem.Segment) []byte {
	b := make([]byte, 0, mem.Length(segs))
	for _, s := range segs {
		b = append(b, s.B...)
	}
	return b
}

func scatter(segs []mem.Segment, data []byte) {
	for _, s := range segs {
		n := copy(s.B, data)
		data = data[n:]
		clear(s.B[n:])
	}
}
