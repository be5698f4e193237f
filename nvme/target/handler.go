package target

import (
	"errors"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
	"github.com/nvmf-target/nvmf-target/nvme/target/compound"
	"github.com/nvmf-target/nvmf-target/nvme/target/controllers"
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
	"github.com/nvmf-target/nvmf-target/nvme/target/observe"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
	"github.com/nvmf-target/nvmf-target/nvme/target/shares"
)

// HandlerConfig has the parts of the reactor that a Handler uses.
type HandlerConfig struct {
	// Loop is the reactor that calls the handler.
	Loop fabric.Loop
	// Index of the reactor, for logs.
	Index int
	// Memory is the reactor's data memory. Transports supply the memory of commands; the handler
	// allocates only for copies of in-capsule data, which a device may use for longer than the
	// queue can keep the receive buffer; see namespaces.Config.Timeout.
	Memory *mem.Pool
	// EventFD is an eventfd that wakes the reactor, which devices pass to the kernel; 0: none.
	EventFD int
}

// strangersPart is the divisor of the data memory for the share of all strangers together. Queues
// of strangers are queues without a successful Connect, queues of discovery controllers, and queues
// of hosts that have not authenticated. Addresses from which a host has authenticated before have
// another share of this size.
const strangersPart = 16

// Handler is the controller side of one reactor: a fabric.Handler, and a poller of the reactor for
// its channels. All methods belong to that reactor.
type Handler struct {
	t            *Target
	loop         fabric.Loop
	functions    controllers.Reactor
	index        int
	reactor      backend.Reactor // as devices see it
	memory       *mem.Pool       // nil in tests without one
	steps        list.Steps
	sessions     list.Set[session]
	sessionCount atomic.Int64

	shares shares.Table
	// strangers are the shares of queues without a host. The first is for addresses from which a
	// host has authenticated before, the second for all others, which cannot use up the first.
	strangers [2]mem.Share
	dispatch  *dispatch.Channels
	channels  []*channel // by Namespace.Slot
	opened    int        // channels that are not closed
	completions
	latency   observe.Latencies
	gate      *qos.Gate
	compounds *compound.Pool

	delayLists
}

var _ fabric.Handler = (*Handler)(nil)

// NewHandler makes the handler of one reactor. The caller attaches it to the reactor as a poller.
func (t *Target) NewHandler(cfg HandlerConfig) (*Handler, error) {
	if cfg.Loop == nil {
		return nil, errors.New("target: handler without a loop")
	}
	h := &Handler{
		t: t, loop: cfg.Loop, index: cfg.Index, steps: list.StepsOf(cfg.Loop),
	}
	now := func() int64 { return h.loop.Now() } // tests change the loop
	h.functions = controllers.Reactor{Now: h.loop.Now, Post: h.post, Pieces: h.inPieces}
	h.compounds = compound.NewPool(compound.Config{
		Now: now, Post: h.post, Memory: cfg.Memory,
		Resume: h.resumePostponed,
	})
	h.gate = qos.NewGate(cfg.Loop.Now, h.after, h.steps, h.admit)
	h.latency = observe.NewLatencies(cfg.Loop)
	h.shares = shares.Table{
		Now: h.loop.Now, Pieces: h.inPieces, Limiters: t.limiters, Latency: &h.latency,
		Hosts: map[shares.Key]*shares.Host{}, Owners: map[subnet.Owner]*shares.Owner{},
	}
	delays := func(d int64, end func(*cmd)) dispatch.Delays[cmd] {
		return dispatch.Delays[cmd]{Now: now, After: h.after, Delay: d, End: end}
	}
	h.delayed = delays(notReadyDelay, func(c *cmd) { h.finishDelayed(c, notReady) })
	h.awaiting = delays(int64(admin.AnswerWait), h.endAwait)
	h.halves = delays(pairWait, h.endHalf)
	h.changing = delays(int64(drainDeadline), h.endAwait)
	h.reactor = backend.Reactor{Wake: cfg.Loop.Wake, EventFD: cfg.EventFD}
	if cfg.Memory != nil {
		h.memory, h.reactor.Memory = cfg.Memory, cfg.Memory.Region()
		for i := range h.strangers {
			h.strangers[i].Limit = cfg.Memory.Max(nil) / strangersPart
		}
	}
	h.dispatch = dispatch.NewChannels(dispatch.Config{
		Now: now, Post: h.post, Steps: h.steps,
		Reactor: h.reactor, Log: t.log, Done: h.ioDone, Exclude: h.exclude,
		Queue: func(io *backend.IO) *dispatch.Queue {
			if s := queueOf(io); s != nil {
				return &s.queue
			}
			return nil
		},
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed.Load() {
		return nil, errClosed
	}
	t.handlers = append(t.handlers, h)
	return h, nil
}

// Poll takes back completed IOs from devices and passes them on, continues commands that limits no
// longer delay, and begins the work of owners in turn. It returns the number of steps. Those of
// devices exceed budget no more than dispatch.Channels.Poll does.
func (h *Handler) Poll(budget int) int {
	n := h.gate.Poll()
	n += h.compounds.Poll()
	n += h.dispatch.Poll(budget - n)
	if n > 0 {
		h.run()
	}
	return n
}

// Arm reports whether the reactor may sleep, see dispatch.Channels.Arm.
func (h *Handler) Arm() bool {
	return !h.gate.Ready() && !h.compounds.Ready() && h.dispatch.Arm()
}

// post runs fn on the reactor and then delivers completions. Any goroutine may call it.
func (h *Handler) post(fn func()) {
	h.loop.Post(func() {
		fn()
		h.run()
	})
}

// after runs fn on the reactor d nanoseconds from now, as post does. Reactor only.
func (h *Handler) after(d int64, fn func()) (stop func()) {
	return h.loop.After(d, func() {
		fn()
		h.run()
	})
}

// timer is one timer of a handler at a time. Its zero value does not run. Reactor only.
type timer struct{ end func() }

// set runs fn d nanoseconds from now, and stops the timer before that.
func (t *timer) set(h *Handler, d int64, fn func()) {
	t.stop()
	t.end = h.after(d, fn)
}

func (t *timer) stop() {
	if t.end != nil {
		t.end()
		t.end = nil
	}
}

// inPieces does many things, see list.Pieces. Reactor only.
func (h *Handler) inPieces(next func() int, done func()) {
	list.Pieces(h.post, h.steps, next, done)
}

// Open implements fabric.Handler.
func (h *Handler) Open(q fabric.Queue) (fabric.Session, error) {
	if h.t.closed.Load() {
		return nil, errClosed
	}
	if h.t.ports.State(q.Info().PortID).Removed.Load() {
		return nil, errPortRemoved
	}
	return newSession(h, q), nil
}

// Close implements fabric.Handler.
func (h *Handler) Close(fs fabric.Session) {
	s := fs.(*session)
	if s.closed {
		return
	}
	if s.closed, s.queue.Over = true, true; !s.stopped {
		s.closedAt = h.loop.Now()
	}
	s.dumpFailed()
	s.stopDeadline()
	if c := s.ctrl; c != nil && s.qid == 0 {
		c.adminClosed()
	}
	h.end(s)
	if s.auth != nil {
		s.endAuthentication()
	}
	h.run()
	h.holdLate(s, h.loop.Now())
	h.run()
	s.endIfIdle()
}

// disconnect ends the queues of the reactor that a function selects.
func (h *Handler) disconnect(why error, selects func(*session) bool) {
	h.inPieces(h.sessions.Walk(func(s *session) int {
		if !selects(s) {
			return 1
		}
		s.disconnect(why)
		return s.looks()
	}), func() {})
}

// debugFailure logs a failed command at the debug level.
func (h *Handler) debugFailure(c *cmd, st nvme.Status) {
	if !h.t.shared.HostLog.Logs(event.CommandFailed) {
		return
	}
	name := "unknown command"
	if c.op != nil {
		name = c.op.name
	}
	c.s.ctrl.PeerLog().Report(event.CommandFailed, "command", name, "opcode", c.req.SQE.Opcode(),
		"status", st.String(), "host", c.s.ctrl.HostNQN, "qid", c.s.qid, "nsid", c.req.SQE.NSID())
}
