package target

import (
	"errors"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/authn"
	"github.com/nvmf-target/nvmf-target/nvme/target/compound"
	"github.com/nvmf-target/nvmf-target/nvme/target/controllers"
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
	"github.com/nvmf-target/nvmf-target/nvme/target/observe"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
	"github.com/nvmf-target/nvmf-target/nvme/target/shares"
)

// connectDeadline is how long a queue may exist without a successful Connect and, if its host has a
// key, authentication, in nanoseconds.
const connectDeadline = int64(10e9)

// refusedDeadline is how long a host over RDMA may keep a queue after it has read that it did not
// authenticate, in nanoseconds. Linux ends the connection at once.
const refusedDeadline = int64(1e9)

// session is the state of one queue. Its reactor owns it; others read activity and post to it.
type session struct {
	h     *Handler
	q     fabric.Queue
	info  *fabric.QueueInfo
	place list.Place // in Handler.sessions

	id     uint64 // unique in the target
	opened int64  // when, by Loop.Now
	port   *controllers.Port

	// flow gets the memory for commands without a namespace. It is stranger until the host is known
	// to be allowed, then shares.Host.Admin.
	flow     *mem.Flow
	stranger mem.Flow
	host     *shares.Host // nil: as above
	fused    *pair        // its second command has not come; nil if there is none

	// mustConcatenate: the connection has no TLS, which the subsystem requires, and serves nothing
	// but the exchange with which the host gets a PSK.
	mustConcatenate bool

	auth    *authn.Exchange // nil until the host has to authenticate, or does
	authCmd *cmd            // the Authentication Send of the message in process
	ending  error           // why the queue ends once the pending responses have been sent

	why error // the queue is disconnected; nil: it is not

	queue dispatch.Queue
	connected
	commandStates
	queueEnd
	trace observe.Recorder
	queueCounts
	stopDeadline func()
}

// connected is set by a successful Connect.
type connected struct {
	ctrl  *controller
	qid   uint16
	table *[256]op // of commands; nil: none until the host has authenticated
	// asking: the host is to authenticate again, see session.ask.
	asking bool
	size   uint32 // entries; 0 before Connect
	sqhd   uint32
	// noFlowControl: SQ flow control is disabled, SQHD is FFFFh (Base section 6.3, CATTR).
	noFlowControl bool
}

// commandStates are the commands of a queue.
type commandStates struct {
	cmds        []*cmd // all states, for Abort and timeouts; the first used are assigned
	used        int
	outstanding int  // executing commands
	abandoned   bool // commands were not executed because the queue ended
	done, spare []*fabric.Request
	completed   list.Node[session] // in Handler.completed while done has requests
}

// queueEnd is the end of a queue.
type queueEnd struct {
	ends  dispatch.Walk // see Handler.end
	endAt int           // the next command that is to end

	closed   bool  // by the transport
	stopped  bool  // see stop
	closedAt int64 // when the first of the two came
	ended    bool
	// disconnectCmd is a Disconnect command that waits for the other commands.
	disconnectCmd *cmd
	disconnected  bool // the Disconnect command is completed
}

// queueCounts are the counts of a queue.
type queueCounts struct {
	commands   uint64        // received
	nearlyFull uint64        // see observed.Connection
	moved      [3]uint64     // bytes of data of successful commands, by fabric.Direction
	activity   atomic.Uint64 // commands, for the keep alive timer of another reactor
}

// cmd is the state of one command from Prepare to Complete. Its request carries it as
// Request.Command and keeps it for the next command.
type cmd struct {
	io  backend.IO // Owner is the cmd itself
	s   *session
	i   int // in session.cmds
	req *fabric.Request
	op  *op
	ch  *channel // to the namespace; nil if the command has none, or all of them
	// pair is that of a fused command that waits for the other one; otherwise nil.
	pair *pair
	// zeroCopy is the channel that Request.Segs belongs to, until EndZeroCopy; nil: no zero copy.
	zeroCopy  *channel
	executing bool
	limited   bool // limits apply to the command
	// then is called in place of the queue if the command, and its request, are the target's own.
	then func(nvme.Status)
	// since is when the command was given to a device, 0 if no device has it.
	since int64
	// latency is where it is counted once its response has left; nil: nowhere.
	latency *observe.Entry
	traced  uint64 // its number in session.trace
	// free gives memory back that a device may use after a command was given up. req is nil then.
	free     func()
	capsule  mem.Allocation     // a copy of in-capsule data, see copyCapsule
	compound *compound.Compound // carries the command out, if that takes several IOs
	awaiting *awaiting          // the wait of the command; nil if it does not wait
	delayed  dispatch.Delayed[cmd]

	limitWait
}

// limitWait is the wait of a command at limits, or for a compound.
type limitWait struct {
	flow      *shares.Flow // of the channel
	atLimit   qos.Waiter
	admitted  bool // the command has waited, and is prepared again
	postponed compound.Postponed
}

func (c *cmd) isConnect() bool {
	return c.req.SQE.Opcode() == nvme.FabricsOpcode &&
		c.req.SQE.FabricsType() == nvme.FabricsConnect
}

func newSession(h *Handler, q fabric.Queue) *session {
	s := &session{
		h: h, q: q, info: q.Info(), opened: h.loop.Now(), id: h.t.lastSession.Add(1),
	}
	s.trace.Queue = s
	s.port = h.t.ports.State(s.info.PortID)
	s.port.Sessions.Add(1)
	s.startDeadline()
	s.stranger.Host = &h.strangers[1]
	if h.t.shared.Auth.IsKnown(s.info.Remote.Addr()) {
		s.stranger.Host = &h.strangers[0]
	}
	s.flow = &s.stranger
	h.sessions.Add(s, &s.place)
	h.sessionCount.Add(1)
	return s
}

// growMost is the number of states that are allocated at once, about 16 KiB.
const growMost = 32

// grow makes the states of n more commands.
func (s *session) grow(n int) {
	block := make([]cmd, n)
	for i := range block {
		c := &block[i]
		c.s, c.i = s, len(s.cmds)
		c.io.Owner = c
		s.cmds = append(s.cmds, c)
	}
}

// setDepth sets the number of commands that the queue may have.
func (s *session) setDepth(depth int) {
	s.done = append(make([]*fabric.Request, 0, depth+1), s.done...)
	s.spare = make([]*fabric.Request, 0, depth+1)
	s.size = uint32(depth)
}

// joinHost makes the session one of its host's.
func (s *session) joinHost() {
	proven := s.info.TLS != nil || s.auth != nil && s.auth.Proven
	s.host = s.h.shares.Join(s.ctrl.HostNQN, proven, s.info.Remote.Addr())
	s.flow = &s.host.Admin
}

// disconnecting reports whether the host has sent a Disconnect command.
func (s *session) disconnecting() bool { return s.disconnectCmd != nil || s.disconnected }

// disconnect starts the end of the queue. Reactor only.
func (s *session) disconnect(why error) {
	if s.closed {
		return
	}
	s.noteEnd(why)
	s.h.end(s)
	s.q.Disconnect(why)
}

// noteEnd keeps and logs the first reason for the end. The queues of a controller have one line in
// the log, see sessionEnded.
func (s *session) noteEnd(why error) {
	if s.why != nil {
		return
	}
	s.why = why
	if s.ctrl == nil || s.unproven() {
		s.report(event.Disconnecting, "reason", why)
	}
}

// report reports an event caused by a host that may be anybody.
func (s *session) report(k *event.Kind, args ...any) {
	s.h.t.shared.StrangerLog.Peer(s.info.Remote).Report(k, args...)
}

// disconnectRefused ends a queue after the answer with which its host was refused. Over RDMA the
// host has a moment to end the connection itself, because the end takes with it what the host has
// not finished: siw then fails a command whose bytes have left. Linux waits until a command is sent
// as well as for its response, and while it connects only a timeout of a minute ends the wait.
func (s *session) disconnectRefused() {
	if s.info.Transport != nvme.TransportRDMA || s.host != nil {
		s.disconnect(s.ending) // a host in use connects again when it loses the connection
		return
	}
	if s.why == nil {
		s.noteEnd(s.ending)
		s.stopDeadline()
		s.stopDeadline = s.h.after(refusedDeadline, func() { s.disconnect(s.ending) })
	}
}

// afterCompletion takes the steps that had to wait until commands were done.
func (s *session) afterCompletion() {
	switch {
	case s.disconnectCmd != nil && s.outstanding == 1: // only the Disconnect command itself
		s.finishDisconnect()
	case s.ending != nil && !s.completed.Listed():
		s.disconnectRefused()
	case s.disconnected && !s.completed.Listed():
		s.disconnect(errors.New("the host sent a Disconnect command"))
	}
	s.endIfIdle()
}

// finishDisconnect completes the Disconnect command; the queue ends when the response is out.
func (s *session) finishDisconnect() {
	c := s.disconnectCmd
	s.disconnectCmd, s.disconnected = nil, true
	s.h.finish(c, 0, nvme.Success)
}

// endIfIdle ends a closed session when its last command is back: only now may its memory be freed
// and its queue ID be used again.
func (s *session) endIfIdle() {
	if !s.closed || s.outstanding > 0 || s.completed.Listed() || s.ends.Listed() || s.ended {
		return
	}
	s.ended = true
	s.h.sessions.Remove(&s.place)
	s.h.sessionCount.Add(-1)
	s.port.Sessions.Add(-1)
	if s.host != nil {
		s.h.shares.Leave(s.host)
	}
	if s.ctrl != nil {
		s.ctrl.sessionEnded(s)
	}
}
