package target

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/observe"
)

// This file connects queues with the flight recorder (observe.Ring).

const (
	// watchdogAfter is how long a command may take, in nanoseconds: hosts give up after 30 s
	// (Linux io_timeout). watchdogEvery is how often the queue is kept then.
	watchdogAfter = int64(5e9)
	watchdogEvery = int64(60e9)

	dumpHint = "nvmf-target trace --dumps shows its last commands"
)

// flightRecord is the flight recorder of a queue.
type flightRecord struct {
	trace   observe.Ring // it starts when the host is known to be allowed
	watched int64        // when the watchdog last kept it, by Loop.Now
	// abandoned: commands were not executed because the queue ended.
	abandoned bool
}

// copyTrace takes a copy. Reactor only.
func (s *session) copyTrace(to *observe.TraceCopy) {
	to.Copy(&s.trace, s.h.loop.Clock())
	for _, c := range s.cmds {
		r := c.req
		if r == nil || c.then != nil {
			continue
		}
		state := observed.TraceWaiting
		if c.executing && !c.waits() {
			state = observed.TraceExecuting
		}
		to.AddOpen(r, state)
	}
}

// traceQueue describes the queue without its commands. Any goroutine may call it after Connect.
func (s *session) traceQueue() observed.TraceQueue {
	return observed.TraceQueue{
		ID: s.id, Host: s.ctrl.HostNQN, Subsystem: s.ctrl.sub.NQN, CNTLID: s.ctrl.CNTLID,
		QID: s.qid, Reactor: s.h.index, Transport: s.info.Transport.String(), Local: s.info.Local,
		Remote: s.info.Remote,
	}
}

// name implements observe.Namer.
func (s *session) name(code nvme.Opcode, fabrics nvme.FabricsType) (name string, blocks bool) {
	o := &adminOps[code]
	switch {
	case code == nvme.FabricsOpcode:
		return fabricsOps[fabrics].name, false
	case s.qid != 0:
		o = &ioOps[code]
	}
	return o.name, o.flags&opBlocks != 0
}

// traceEvery is how often reactors are asked for commands that a client follows.
const traceEvery = 100 * time.Millisecond

// Trace calls fn with the recorded commands, and with q.Follow goes on until ctx ends. An error is
// that of fn, or of ctx.
func (t *Target) Trace(ctx context.Context, q observed.TraceQuery,
	fn func(observed.TraceQueue) error,
) error {
	if q.Dumps {
		for _, d := range t.dumps.List(&q) {
			if err := fn(d); err != nil {
				return err
			}
		}
		return nil
	}
	tracer := t.NewTracer(q)
	for {
		if err := tracer.Read(ctx, fn); err != nil || !q.Follow {
			return err
		}
		select {
		case <-time.After(traceEvery):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Tracer reads the recorded commands, for one goroutine at a time.
type Tracer struct {
	t     *Target
	query observed.TraceQuery
	read  map[uint64]uint64 // the last number, by session.id
}

// NewTracer makes a Tracer. With q.Follow, Read returns each command once, after its response.
func (t *Target) NewTracer(q observed.TraceQuery) *Tracer {
	return &Tracer{t: t, query: q, read: map[uint64]uint64{}}
}

// Read calls fn with the recorded commands of each queue of an allowed host, when following only if
// there are new ones. A reactor copies a queue in a turn, which takes some 2 µs. An error is that
// of fn, or of ctx.
func (t *Tracer) Read(ctx context.Context, fn func(observed.TraceQueue) error) error {
	t.t.mu.Lock()
	handlers := slices.Clone(t.t.handlers)
	t.t.mu.Unlock()
	before, read := t.read, map[uint64]uint64{} // without queues that have ended
	for _, h := range handlers {
		var sessions []*session
		look := func(s *session) int {
			switch {
			case !s.trace.Records() || s.unproven() ||
				!t.query.Selects(s.ctrl.HostNQN, s.ctrl.sub.NQN, s.qid):
			case t.query.Follow && s.trace.Total() == before[s.id]: // no message for idle queues
				read[s.id] = s.trace.Total()
			default:
				sessions = append(sessions, s)
			}
			return 1
		}
		err := observe.DoAll(ctx, h.loop,
			func(done func()) { h.inPieces(h.sessions.Walk(look), done) })
		for i := 0; err == nil && i < len(sessions); i++ {
			s := sessions[i]
			if _, visited := read[s.id]; !visited {
				read[s.id], err = t.readQueue(ctx, s, fn)
			}
		}
		if err != nil {
			return err
		}
	}
	t.read = read
	return nil
}

func (t *Tracer) readQueue(ctx context.Context, s *session, fn func(observed.TraceQueue) error,
) (uint64, error) {
	from := new(observe.TraceCopy) // the reactor may use it after an error
	after := t.read[s.id]
	if err := observe.Do(ctx, s.h.loop, func() { s.copyTrace(from) }); err != nil {
		return 0, err
	}
	q := s.traceQueue()
	last := from.Describe(&q, s.name, after, t.query.Follow)
	if t.query.Follow && last == after {
		return last, nil
	}
	return last, fn(q)
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
	if reason != "" && s.dump(reason) {
		s.ctrl.dumped.Store(true)
	}
}

// watchdog makes a dump of the queue: one of its commands takes, or has taken, took nanoseconds.
func (s *session) watchdog(took int64) {
	now := s.h.loop.Now()
	if !s.trace.Records() || s.watched != 0 && now-s.watched < watchdogEvery {
		return
	}
	s.watched = now
	duration := time.Duration(took).Round(time.Millisecond)
	if s.dump(fmt.Sprintf("a command takes %v", duration)) {
		s.ctrl.peerLog().Trouble("a command takes long", "duration", duration, "subsystem",
			s.ctrl.sub.NQN, "host", s.ctrl.HostNQN, "qid", s.qid, "hint", dumpHint)
	}
}

// dump keeps the recorded commands, if there is room, and reports whether it did. Reactor only.
func (s *session) dump(reason string) bool {
	keep := s.h.t.dumps.Allows(s.info.Remote.Addr(), time.Now())
	if keep {
		from, q := new(observe.TraceCopy), s.traceQueue()
		s.copyTrace(from)
		from.Describe(&q, s.name, 0, false)
		q.Reason = reason
		s.h.t.dumps.Add(q)
	}
	return keep
}
