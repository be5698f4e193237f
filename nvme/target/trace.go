package target

import (
	"context"
	"errors"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/observe"
)

// This file connects queues with the flight recorder (observe.Recorder).

const dumpHint = "nvmf-target trace --dumps shows its last commands"

// Loop implements observe.Queue.
func (s *session) Loop() fabric.Loop { return s.h.loop }

// Open implements observe.Queue.
func (s *session) Open(add func(r *fabric.Request, state string)) {
	for _, c := range s.cmds {
		if c.req == nil || c.then != nil {
			continue
		}
		state := observed.TraceWaiting
		if c.executing && !c.waits() {
			state = observed.TraceExecuting
		}
		add(c.req, state)
	}
}

// Describe implements observe.Queue. The host has connected.
func (s *session) Describe() observed.TraceQueue {
	return observed.TraceQueue{
		ID: s.id, Host: s.ctrl.HostNQN, Subsystem: s.ctrl.sub.NQN, CNTLID: s.ctrl.CNTLID,
		QID: s.qid, Reactor: s.h.index, Transport: s.info.Transport.String(), Local: s.info.Local,
		Remote: s.info.Remote,
	}
}

// CommandName implements observe.Queue.
func (s *session) CommandName(code nvme.Opcode, fabrics nvme.FabricsType,
) (name string, blocks bool) {
	o := &adminOps[code]
	switch {
	case code == nvme.FabricsOpcode:
		return fabricsOps[fabrics].name, false
	case s.qid != 0:
		o = &ioOps[code]
	}
	return o.name, o.flags&opBlocks != 0
}

// Trace calls fn with the recorded commands, see observe.Trace.
func (t *Target) Trace(ctx context.Context, q observed.TraceQuery,
	fn func(observed.TraceQueue) error,
) error {
	return observe.Trace(ctx, &t.dumps, t.recorders, q, fn)
}

// recorders has the queues of all reactors whose hosts have authenticated, if they have to.
func (t *Target) recorders() (list []observe.Reactor) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, h := range t.handlers {
		walk := func(visit func(*observe.Recorder), done func()) {
			h.inPieces(h.sessions.Walk(func(s *session) int {
				if s.ctrl != nil && !s.unproven() {
					visit(&s.trace)
				}
				return 1
			}), done)
		}
		list = append(list, observe.Reactor{Loop: h.loop, Walk: walk})
	}
	return list
}

// failure is the end of a controller that nobody has asked for.
type failure struct{ text string }

func (f *failure) Error() string { return f.text }

// dumpFailed keeps the queue if its end is an error. Reactor only, from Handler.Close.
func (s *session) dumpFailed() {
	if !s.trace.Records() {
		return
	}
	failed, _ := errors.AsType[*failure](s.why)
	reporter, _ := s.q.(fabric.FailureReporter)
	reason := ""
	switch {
	case failed != nil:
		reason = failed.text
	case s.why != nil: // it is wanted
	case reporter != nil && reporter.Failure() != nil:
		reason = reporter.Failure().Error()
	case s.qid != 0 && (s.outstanding > 0 || s.abandoned):
		reason = "the host left while commands were outstanding"
	}
	if reason != "" && s.trace.Dump(&s.h.t.dumps, reason) {
		s.ctrl.dumped.Store(true)
	}
}

// watchdog looks at a command that takes, or has taken, took nanoseconds.
func (s *session) watchdog(took int64) {
	duration := time.Duration(took).Round(time.Millisecond)
	if s.trace.Watchdog(&s.h.t.dumps, duration) {
		s.ctrl.PeerLog().Report(event.CommandStuck, "duration", duration, "subsystem",
			s.ctrl.sub.NQN, "host", s.ctrl.HostNQN, "qid", s.qid, "hint", dumpHint)
	}
}
