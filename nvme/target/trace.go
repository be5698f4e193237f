package target

import (
	"context"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/observe"
)

// This file is the flight recorder: the last commands of each queue, without their data. The ring
// of a queue has one writer, its reactor, and is read by messages to it.

// TraceDepth is how many commands of a queue are recorded, those that are not completed besides.
const TraceDepth = 512

// record is what is kept of a command. Of Fabrics commands it has nothing but the type: the others
// are of authentication, or say what the connection is known for. Its size times TraceDepth is
// fabric.HandlerMemory.
type record struct {
	start        int64                 // Request.Start
	cdw10        uint64                // with CDW11: SLBA
	stages       [fabric.Stages]uint32 // in traceUnits
	nsid         uint32                // of Fabrics commands FCTYPE
	length       uint32                // Request.Length
	cid, status  uint16
	cdw12        uint16 // bits 15:0: NLB
	opcode, bits uint8  // FUSE in bits 1:0, and fuaBit
}

const (
	traceUnit = 4         // stages are counted in 1<<traceUnit ns, up to 69 s
	hasLeft   = 1 << 15   // in record.status: so has the response; a status has 15 bits
	noStatus  = 1<<15 - 1 // the queue ended before the command was completed
	fuaBit    = 1 << 2
)

// fill sets everything but the stages and the status.
func (e *record) fill(r *fabric.Request) {
	q := &r.SQE
	e.start, e.length, e.cid, e.opcode = r.Start, r.Length, q.CID(), uint8(q.Opcode())
	if e.opcode == uint8(nvme.FabricsOpcode) {
		e.nsid, e.cdw10, e.cdw12, e.bits = uint32(q.FabricsType()), 0, 0, 0
		return
	}
	e.nsid, e.cdw10, e.cdw12 = q.NSID(), q.SLBA(), uint16(q.CDW(12))
	e.bits = q.FUSE() | uint8(q.CDW(12)>>30&1)<<2
}

func (e *record) setStages(r *fabric.Request) {
	a, b, c, d := r.Stages[0], r.Stages[1], r.Stages[2], r.Stages[3]
	if uint64(a|b|c|d)>>traceUnit > math.MaxUint32 {
		for i, ns := range &r.Stages {
			e.stages[i] = uint32(min(ns>>traceUnit, math.MaxUint32))
		}
		return
	}
	e.stages = [fabric.Stages]uint32{ // a loop takes twice as many instructions
		uint32(a >> traceUnit), uint32(b >> traceUnit), uint32(c >> traceUnit),
		uint32(d >> traceUnit),
	}
}

// record adds a command to the ring once it is completed, or will never be.
func (c *cmd) record(r *fabric.Request, status uint16) {
	s := c.s
	if s.trace == nil {
		return
	}
	e := &s.trace[s.traced%TraceDepth]
	s.traced++
	c.traced = s.traced
	e.fill(r)
	e.status, e.stages = status, [fabric.Stages]uint32{}
}

// recordSent adds the stages, when the response has left.
func (c *cmd) recordSent(r *fabric.Request) {
	s := c.s
	if s.trace == nil || c.traced == 0 || s.traced-c.traced >= TraceDepth {
		return
	}
	e := &s.trace[(c.traced-1)%TraceDepth]
	e.status |= hasLeft
	e.setStages(r)
}

// TraceState is how far a command has come.
type TraceState uint8

// The states.
const (
	TraceWaiting    TraceState = iota // for memory, at a limit, or for data from the host
	TraceExecuting                    // by the handler, or its device
	TraceResponding                   // it is completed, and the response has not left
	TraceDone                         // the response has left
	TraceAbandoned                    // the queue ended before it was executed
)

// String is as the control interface has it.
func (s TraceState) String() string {
	return [...]string{"waiting", "executing", "responding", "done", "abandoned"}[s]
}

// TraceCommand is a recorded command.
type TraceCommand struct {
	// Number counts those of the queue from 1, in the order of their completion; 0: it is not
	// completed.
	Number uint64
	State  TraceState
	// Name is that of the command, "" if the target does not have it.
	Name   string
	Opcode nvme.Opcode
	// FabricsType is that of Fabrics commands, which have nothing of what follows but CID, Status
	// and times.
	FabricsType nvme.FabricsType
	CID         uint16
	NSID        uint32
	// CDW10 has CDW11 in its upper half: SLBA of commands with Blocks.
	CDW10  uint64
	CDW12  uint16 // bits 15:0
	Blocks int    // 0: the command does not name any by SLBA and NLB
	FUA    bool
	FUSE   uint8
	Length uint32 // bytes of data
	// Status counts once the command is completed.
	Status nvme.Status
	// Start is when the capsule arrived. The response has left after the sum of Stages, in the
	// state TraceDone.
	Start  time.Time
	Stages [fabric.Stages]time.Duration
}

// TraceQueue is what is recorded of a queue.
type TraceQueue struct {
	// ID is that of the connection, unique until the target ends.
	ID              uint64
	HostNQN, SubNQN string
	CNTLID, QID     uint16
	Reactor         int
	Transport       nvme.TransportType
	Local, Remote   netip.AddrPort
	// Time is when this was copied, Reason why, if nobody has asked for it.
	Time   time.Time
	Reason string
	// Missed is how many completed commands before these are no longer known, or were not when they
	// could have been read.
	Missed uint64
	// Commands are completed, in the order of Number, or are not, in that of Start.
	Commands []TraceCommand
}

// traceCopy is what a reactor copies of a queue in a turn.
type traceCopy struct {
	ring   [TraceDepth]record
	traced uint64   // session.traced
	open   []record // commands that are not completed
	states []TraceState
	clock  int64
	time   time.Time
}

// copyTrace takes a copy. Reactor only.
func (s *session) copyTrace(to *traceCopy) {
	to.ring, to.traced = *s.trace, s.traced
	to.clock, to.time = s.h.loop.Clock(), time.Now()
	for _, c := range s.cmds {
		r := c.req
		if r == nil || c.then != nil {
			continue
		}
		var e record
		e.fill(r)
		e.setStages(r)
		to.open = append(to.open, e)
		st := TraceWaiting
		if c.executing && !c.waiting.Listed() {
			st = TraceExecuting
		}
		to.states = append(to.states, st)
	}
}

// queue describes the queue with the commands after a number; onlyDone: up to the first one whose
// response has not left. It returns the number of the last one. Any goroutine may call it after
// Connect.
func (s *session) queue(from *traceCopy, after uint64, onlyDone bool) (*TraceQueue, uint64) {
	q := &TraceQueue{
		ID: s.id, HostNQN: s.ctrl.hostNQN, SubNQN: s.ctrl.sub.nqn, CNTLID: s.ctrl.cntlid,
		QID: s.qid, Reactor: s.h.index, Transport: s.info.Transport, Local: s.info.Local,
		Remote: s.info.Remote, Time: from.time,
	}
	first := after
	if from.traced > TraceDepth {
		first = max(first, from.traced-TraceDepth)
	}
	q.Missed = first - after
	for after = first; after < from.traced; after++ {
		c := from.command(s.qid, &from.ring[after%TraceDepth])
		if onlyDone && c.State == TraceResponding {
			break
		}
		c.Number = after + 1
		q.Commands = append(q.Commands, c)
	}
	if onlyDone {
		return q, after
	}
	open := len(q.Commands)
	for i := range from.open {
		c := from.command(s.qid, &from.open[i])
		c.State, c.Status = from.states[i], 0
		q.Commands = append(q.Commands, c)
	}
	slices.SortFunc(q.Commands[open:],
		func(a, b TraceCommand) int { return a.Start.Compare(b.Start) })
	return q, after
}

// command is a record as others see it.
func (t *traceCopy) command(qid uint16, e *record) TraceCommand {
	c := TraceCommand{
		State: TraceResponding, Opcode: nvme.Opcode(e.opcode), CID: e.cid, Length: e.length,
		Status: nvme.Status(e.status &^ hasLeft),
		Start:  t.time.Add(time.Duration(e.start - t.clock)),
	}
	switch {
	case e.status&hasLeft != 0:
		c.State = TraceDone
	case e.status == noStatus:
		c.State, c.Status = TraceAbandoned, 0
	}
	for i, units := range e.stages {
		c.Stages[i] = time.Duration(units) << traceUnit
	}
	if c.Opcode == nvme.FabricsOpcode {
		c.FabricsType = nvme.FabricsType(e.nsid)
		c.Name = fabricsOps[c.FabricsType].name
		return c
	}
	o := &adminOps[e.opcode]
	if qid != 0 {
		o = &ioOps[e.opcode]
	}
	c.Name, c.NSID, c.CDW10, c.CDW12 = o.name, e.nsid, e.cdw10, e.cdw12
	c.FUSE = e.bits & 3
	if o.flags&opBlocks != 0 {
		c.Blocks, c.FUA = int(e.cdw12)+1, e.bits&fuaBit != 0
	}
	return c
}

// TraceFilter selects queues.
type TraceFilter struct {
	HostNQN, SubNQN string // "" is all
	QID             int    // negative is all
}

func (f *TraceFilter) selects(hostNQN, subNQN string, qid uint16) bool {
	return (f.HostNQN == "" || f.HostNQN == hostNQN) && (f.SubNQN == "" || f.SubNQN == subNQN) &&
		(f.QID < 0 || f.QID == int(qid))
}

// Tracer reads what is recorded, for one goroutine at a time.
type Tracer struct {
	t      *Target
	filter TraceFilter
	follow bool
	read   map[uint64]uint64 // the last number, by session.id
}

// NewTracer makes a Tracer. With follow, Read returns each command once, when its response has
// left.
func (t *Target) NewTracer(f TraceFilter, follow bool) *Tracer {
	return &Tracer{t: t, filter: f, follow: follow, read: map[uint64]uint64{}}
}

// Read calls fn with what there is of each queue whose host is allowed, when following only if
// there is something new. A reactor copies a queue in a turn, which takes some 2 µs. An error is
// that of fn, or of ctx.
func (t *Tracer) Read(ctx context.Context, fn func(*TraceQueue) error) error {
	t.t.mu.Lock()
	handlers := slices.Clone(t.t.handlers)
	t.t.mu.Unlock()
	before, read := t.read, map[uint64]uint64{} // without those that have ended
	for _, h := range handlers {
		var sessions []*session
		look := func(s *session) int {
			switch {
			case s.trace == nil || s.unproven() ||
				!t.filter.selects(s.ctrl.hostNQN, s.ctrl.sub.nqn, s.qid):
			case t.follow && s.traced == before[s.id]: // no message for idle queues
				read[s.id] = s.traced
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

func (t *Tracer) readQueue(ctx context.Context, s *session, fn func(*TraceQueue) error,
) (uint64, error) {
	from := new(traceCopy) // the reactor may use it after an error
	after := t.read[s.id]
	if err := observe.Do(ctx, s.h.loop, func() { s.copyTrace(from) }); err != nil {
		return 0, err
	}
	q, last := s.queue(from, after, t.follow)
	if t.follow && last == after {
		return last, nil
	}
	return last, fn(q)
}
