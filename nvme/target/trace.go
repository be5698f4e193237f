package target

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/observe"
)

// This file is the flight recorder: the last commands of each queue, without their data. The ring
// of a queue has one writer, its reactor, and is read by messages to it.

// TraceDepth is the number of recorded commands of a queue, besides the commands not yet completed.
const TraceDepth = 512

// record is the record of a command. Of Fabrics commands it has nothing but the type: the other
// fields belong to authentication, or are known of the connection. Its size times TraceDepth is
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

// flightRecord is the flight recorder of a queue.
type flightRecord struct {
	// trace is the ring of the flight recorder, nil until the host is known to be allowed; traced
	// commands were added to it.
	trace   *[TraceDepth]record
	traced  uint64
	watched int64 // when the watchdog last kept it, by Loop.Now
	// abandoned: commands were not executed because the queue ended.
	abandoned bool
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

// traceCopy is the copy that a reactor makes of a queue in a turn.
type traceCopy struct {
	ring   [TraceDepth]record
	traced uint64   // session.traced
	open   []record // commands that are not completed
	states []string // observed.TraceWaiting or TraceExecuting
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
		st := observed.TraceWaiting
		if c.executing && !c.waits() {
			st = observed.TraceExecuting
		}
		to.states = append(to.states, st)
	}
}

// queue describes the queue with the commands after a number. onlyDone: up to the first command
// with a response that has not left. It returns the number of the last command. Any goroutine may
// call it after Connect.
func (s *session) queue(from *traceCopy, after uint64, onlyDone bool,
) (q observed.TraceQueue, last uint64) {
	q = observed.TraceQueue{
		ID: s.id, Host: s.ctrl.hostNQN, Subsystem: s.ctrl.sub.nqn, CNTLID: s.ctrl.cntlid,
		QID: s.qid, Reactor: s.h.index, Transport: s.info.Transport.String(), Local: s.info.Local,
		Remote: s.info.Remote, Time: from.time, Commands: []observed.TraceCommand{},
	}
	first := after
	if from.traced > TraceDepth {
		first = max(first, from.traced-TraceDepth)
	}
	q.Missed = first - after
	for after = first; after < from.traced; after++ {
		c := from.command(s.qid, &from.ring[after%TraceDepth])
		if onlyDone && c.State == observed.TraceResponding {
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
		c.State, c.Status, c.StatusCode = from.states[i], "", 0
		q.Commands = append(q.Commands, c)
	}
	slices.SortFunc(q.Commands[open:],
		func(a, b observed.TraceCommand) int { return a.Start.Compare(b.Start) })
	return q, after
}

// command is a record as others see it.
func (t *traceCopy) command(qid uint16, e *record) observed.TraceCommand {
	took := func(s fabric.Stage) float64 {
		return (time.Duration(e.stages[s]) << traceUnit).Seconds()
	}
	c := observed.TraceCommand{
		State: observed.TraceResponding, Opcode: uint16(e.opcode), CID: e.cid, Length: e.length,
		Start:       t.time.Add(time.Duration(e.start - t.clock)),
		WaitSeconds: took(fabric.StageWait), HostDataSeconds: took(fabric.StageHostData),
		BackendSeconds: took(fabric.StageBackend), ResponseSeconds: took(fabric.StageResponse),
	}
	if e.status&hasLeft != 0 {
		c.State = observed.TraceDone
	}
	if st := nvme.Status(e.status &^ hasLeft); e.status == noStatus {
		c.State = observed.TraceAbandoned
	} else if c.Status, c.StatusCode = "success", uint16(st); !st.OK() {
		c.Status = st.String()
	}
	if nvme.Opcode(e.opcode) == nvme.FabricsOpcode {
		c.FabricsType = uint16(e.nsid)
		c.Command = fabricsOps[nvme.FabricsType(e.nsid)].name
		return c
	}
	o := &adminOps[e.opcode]
	if qid != 0 {
		o = &ioOps[e.opcode]
	}
	c.Command, c.NSID, c.Fused = o.name, e.nsid, uint16(e.bits&3)
	if o.flags&opBlocks != 0 {
		c.LBA, c.Blocks, c.FUA = e.cdw10, int(e.cdw12)+1, e.bits&fuaBit != 0
	} else {
		c.CDW10, c.CDW11, c.CDW12 = uint32(e.cdw10), uint32(e.cdw10>>32), e.cdw12
	}
	return c
}

// selected reports whether a TraceQuery asks for a queue.
func selected(q *observed.TraceQuery, host, subsystem string, qid uint16) bool {
	return (q.Host == "" || q.Host == host) && (q.Subsystem == "" || q.Subsystem == subsystem) &&
		(q.Queue < 0 || q.Queue == int(qid))
}

// traceEvery is how often reactors are asked for commands that a client follows.
const traceEvery = 100 * time.Millisecond

// Trace calls fn with the recorded commands, and with q.Follow goes on until ctx ends. An error is
// that of fn, or of ctx.
func (t *Target) Trace(ctx context.Context, q observed.TraceQuery,
	fn func(observed.TraceQueue) error,
) error {
	if q.Dumps {
		for _, d := range t.TraceDumps(q) {
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

// NewTracer makes a Tracer. With q.Follow, Read returns each command once, when its response has
// left.
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
			case s.trace == nil || s.unproven() ||
				!selected(&t.query, s.ctrl.hostNQN, s.ctrl.sub.nqn, s.qid):
			case t.query.Follow && s.traced == before[s.id]: // no message for idle queues
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

func (t *Tracer) readQueue(ctx context.Context, s *session, fn func(observed.TraceQueue) error,
) (uint64, error) {
	from := new(traceCopy) // the reactor may use it after an error
	after := t.read[s.id]
	if err := observe.Do(ctx, s.h.loop, func() { s.copyTrace(from) }); err != nil {
		return 0, err
	}
	q, last := s.queue(from, after, t.query.Follow)
	if t.query.Follow && last == after {
		return last, nil
	}
	return last, fn(q)
}
