package target

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// HandlerConfig is what a Handler needs of its reactor.
type HandlerConfig struct {
	// Loop is the reactor that calls the handler.
	Loop fabric.Loop
	// Index of the reactor, for logs.
	Index int
	// Memory is the reactor's data memory. Transports supply the memory of commands; the handler
	// takes some only for in-capsule data that a device may have for longer than the queue can
	// spare it.
	Memory *mem.Pool
	// EventFD wakes the reactor when something is added to it, for backends; 0 if there is none.
	EventFD int
}

// Handler is the controller side of one reactor: a fabric.Handler, and a poller of the reactor for
// its backend channels. All methods belong to that reactor.
type Handler struct {
	t            *Target
	loop         fabric.Loop
	index        int
	reactor      backend.Reactor // as devices see it
	memory       *mem.Pool       // nil in tests without one
	sessions     map[*session]struct{}
	sessionCount atomic.Int64

	channels []*channel // by namespace.slot
	touched  []*channel // have new IOs
	active   []*channel // have IOs outstanding
	finished [64]*backend.IO

	listed  []*session // have completions to hand over
	kicking bool
	multis  *multi // free list

	watching  func() // ends the timer that looks for overdue commands, nil if it does not run
	later     []delayed
	stopLater func() // ends the timer of later, nil if it does not run

	logged   int // lines in the current second
	logStart int64
}

var _ fabric.Handler = (*Handler)(nil)

// NewHandler makes the handler of one reactor. The caller attaches it to the reactor as a poller.
func (t *Target) NewHandler(cfg HandlerConfig) (*Handler, error) {
	if cfg.Loop == nil {
		return nil, errors.New("target: handler without a loop")
	}
	h := &Handler{t: t, loop: cfg.Loop, index: cfg.Index, sessions: make(map[*session]struct{})}
	h.reactor = backend.Reactor{Wake: cfg.Loop.Wake, EventFD: cfg.EventFD}
	if cfg.Memory != nil {
		h.memory, h.reactor.Memory = cfg.Memory, cfg.Memory.Region()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed.Load() {
		return nil, errClosed
	}
	t.handlers = append(t.handlers, h)
	return h, nil
}

// post runs fn on the reactor and then hands over what it completed. Any goroutine may call it.
func (h *Handler) post(fn func()) {
	h.loop.Post(func() {
		fn()
		h.kick()
	})
}

// after runs fn on the reactor d nanoseconds from now, as post does. Reactor only.
func (h *Handler) after(d int64, fn func()) (stop func()) {
	return h.loop.After(d, func() {
		fn()
		h.kick()
	})
}

// Open implements fabric.Handler.
func (h *Handler) Open(q fabric.Queue) (fabric.Session, error) {
	if h.t.closed.Load() {
		return nil, errClosed
	}
	return newSession(h, q), nil
}

// Prepare implements fabric.Handler.
func (h *Handler) Prepare(reqs []*fabric.Request) {
	var last *session
	for _, r := range reqs {
		s := r.Session.(*session)
		if s != last {
			last.publish()
			last = s
		}
		s.commands++
		c := s.cmd(r)
		c.req, c.op = r, nil
		if !r.Status.OK() {
			continue
		}
		if st := s.prepare(c); !st.OK() {
			r.Status, r.Dir, r.Length = st, fabric.NoData, 0
		}
	}
	last.publish()
}

// Execute implements fabric.Handler.
func (h *Handler) Execute(reqs []*fabric.Request) {
	for _, r := range reqs {
		c := r.Command.(*cmd)
		c.busy = true
		c.s.outstanding++
		switch {
		case r.Status.OK():
			c.op.execute(h, c)
		case r.Status == notReady:
			h.finishLater(c, notReady)
		default:
			h.refuse(c, r.Status)
		}
	}
	h.kick()
}

// Abandon implements fabric.Handler. Nothing is held between Prepare and Execute but what Release
// returns.
func (h *Handler) Abandon(req *fabric.Request) {
	c := req.Command.(*cmd)
	c.req, c.op, c.ns = nil, nil, nil
}

// Close implements fabric.Handler.
func (h *Handler) Close(fs fabric.Session) {
	s := fs.(*session)
	if s.closed {
		return
	}
	s.closed, s.closedAt = true, h.loop.Now()
	s.stopDeadline()
	if c := s.ctrl; c != nil && s.qid == 0 {
		c.adminClosed()
	}
	for _, ch := range h.channels {
		if ch != nil && len(ch.pending) > 0 {
			ch.purge(s)
		}
	}
	h.finishDelayed(func(d *delayed) bool { return d.c.s == s })
	h.kick()
	s.endIfIdle()
}

// finish completes a command: exactly once, with every byte of the CQE written. The completion
// leaves with the next kick.
func (h *Handler) finish(c *cmd, result uint64, st nvme.Status) {
	s, r := c.s, c.req
	if !st.OK() {
		st = s.failed(c, st)
	}
	r.CQE.Fill(result, s.advance(), r.SQE.CID(), st)
	c.busy, c.since, c.req, c.op, c.ns = false, 0, nil, nil, nil
	s.outstanding--
	s.done = append(s.done, r)
	if !s.listed {
		s.listed = true
		h.listed = append(h.listed, s)
	}
}

// kick submits and reaps what was touched and hands completions to the queues, until nothing is
// left to do. Queues may call back into Execute or Close meanwhile: what these add is taken care of
// by the kick that is already running.
func (h *Handler) kick() {
	if h.kicking {
		return
	}
	h.kicking = true
	for len(h.touched) > 0 || len(h.listed) > 0 {
		for i := 0; i < len(h.touched); i++ { // the list may grow
			ch := h.touched[i]
			ch.touched = false
			ch.push()
			ch.reap()
			ch.settle()
		}
		clear(h.touched)
		h.touched = h.touched[:0]
		for i := 0; i < len(h.listed); i++ {
			s := h.listed[i]
			s.listed = false
			batch := s.done
			s.done, s.spare = s.spare[:0], batch
			s.q.Complete(batch)
			clear(batch)
			s.afterCompletion()
		}
		clear(h.listed)
		h.listed = h.listed[:0]
	}
	h.kicking = false
}

// Poll reaps what backends have finished and completes it. It returns the number of steps made.
func (h *Handler) Poll(int) int {
	n := 0
	for i := 0; i < len(h.active); {
		ch := h.active[i]
		n += ch.reap()
		n += ch.push()
		if ch.inflight > 0 || len(ch.pending) > 0 {
			i++
			continue
		}
		last := len(h.active) - 1
		h.active[i], h.active[last] = h.active[last], nil
		h.active = h.active[:last]
		ch.active = false
		ch.settle()
	}
	if n > 0 {
		h.kick()
	}
	return n
}

// Arm says whether the reactor may sleep: backends wake it when they finish something, but one that
// is idle and refused an IO must be asked again.
func (h *Handler) Arm() bool {
	for _, ch := range h.active {
		if ch.inflight == 0 && len(ch.pending) > 0 || ch.inflight > 0 && !ch.dev.Arm() {
			return false
		}
	}
	return true
}

// disconnectAll ends every queue of the reactor.
func (h *Handler) disconnectAll() {
	for s := range h.sessions {
		s.disconnect(errClosed)
	}
}

// logLimit is how many lines a reactor logs in a second, so that no peer fills the disk.
const logLimit = 20

func (h *Handler) warn(msg string, args ...any) { h.logLine(slog.LevelWarn, msg, args) }
func (h *Handler) note(msg string, args ...any) { h.logLine(slog.LevelInfo, msg, args) }

// debugFailure logs a failed command, for those who look for the reason.
func (h *Handler) debugFailure(c *cmd, st nvme.Status) {
	if !h.t.log.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	name := "unknown command"
	if c.op != nil {
		name = c.op.name
	}
	h.logLine(slog.LevelDebug, "command failed", []any{
		"command", name, "opcode", c.req.SQE.Opcode(), "status", st.String(), "host",
		c.s.ctrl.hostNQN, "qid", c.s.qid,
		"nsid", c.req.SQE.NSID(),
	})
}

func (h *Handler) logLine(level slog.Level, msg string, args []any) {
	if now := h.loop.Now(); now-h.logStart > 1e9 || h.logStart == 0 {
		if h.logged > logLimit {
			h.t.log.Warn("log lines were dropped", "reactor", h.index, "lines", h.logged-logLimit)
		}
		h.logStart, h.logged = now, 0
	}
	if h.logged++; h.logged <= logLimit {
		h.t.log.Log(context.Background(), level, msg, args...)
	}
}
