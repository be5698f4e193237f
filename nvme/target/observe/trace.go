package observe

import (
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// This file is the flight recorder: the last commands of each queue, without their data. The ring
// of a queue has one writer, its reactor, and is read by messages to it.

// TraceDepth is the number of recorded commands of a queue, besides the commands not yet completed.
const TraceDepth = 512

// Ring has the last commands of a queue. The zero value records nothing. Reactor only.
type Ring struct {
	records *[TraceDepth]record
	total   uint64 // commands added
}

// Start begins to record.
func (r *Ring) Start() { r.records = new([TraceDepth]record) }

// Records reports whether commands are recorded.
func (r *Ring) Records() bool { return r.records != nil }

// Total returns the number of commands added, which is the number of the last one.
func (r *Ring) Total() uint64 { return r.total }

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
	traceUnit = 4       // stages are counted in 1<<traceUnit ns, up to 69 s
	hasLeft   = 1 << 15 // in record.status: the response has left; a status has 15 bits
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

// NoStatus is the status of a command whose queue ended before it was completed.
const NoStatus = 1<<15 - 1

// Add adds a command that is completed or never will be. It returns its number, 0 if not recorded.
func (r *Ring) Add(req *fabric.Request, status uint16) uint64 {
	if r.records == nil {
		return 0
	}
	e := &r.records[r.total%TraceDepth]
	r.total++
	e.fill(req)
	e.status, e.stages = status, [fabric.Stages]uint32{}
	return r.total
}

// Sent adds the stages of the command with a number, when the response has left.
func (r *Ring) Sent(req *fabric.Request, number uint64) {
	if number == 0 || r.total-number >= TraceDepth {
		return
	}
	e := &r.records[(number-1)%TraceDepth]
	e.status |= hasLeft
	e.setStages(req)
}

// TraceCopy is the copy that a reactor makes of a queue in a turn.
type TraceCopy struct {
	ring   [TraceDepth]record
	total  uint64   // Ring.total
	open   []record // commands that are not completed
	states []string // their states
	clock  int64
	time   time.Time
}

// Copy copies a ring that records, at a time of Loop.Clock. Reactor only.
func (t *TraceCopy) Copy(r *Ring, clock int64) {
	t.ring, t.total, t.clock, t.time = *r.records, r.total, clock, time.Now()
}

// AddOpen adds a command that is not completed. Reactor only.
func (t *TraceCopy) AddOpen(r *fabric.Request, state string) {
	var e record
	e.fill(r)
	e.setStages(r)
	t.open, t.states = append(t.open, e), append(t.states, state)
}

// Namer returns the name of a command of a queue, and reports whether the command names blocks by
// SLBA and NLB. It gets the type of Fabrics commands.
type Namer func(nvme.Opcode, nvme.FabricsType) (name string, blocks bool)

// Describe adds the commands after a number to q. onlyDone: up to the first command with a response
// that has not left. It returns the number of the last command. Any goroutine may call it.
func (t *TraceCopy) Describe(q *observed.TraceQueue, name Namer, after uint64, onlyDone bool,
) (last uint64) {
	q.Time, q.Commands = t.time, []observed.TraceCommand{}
	first := after
	if t.total > TraceDepth {
		first = max(first, t.total-TraceDepth)
	}
	q.Missed = first - after
	for after = first; after < t.total; after++ {
		c := t.command(name, &t.ring[after%TraceDepth])
		if onlyDone && c.State == observed.TraceResponding {
			break
		}
		c.Number = after + 1
		q.Commands = append(q.Commands, c)
	}
	if onlyDone {
		return after
	}
	open := len(q.Commands)
	for i := range t.open {
		c := t.command(name, &t.open[i])
		c.State, c.Status, c.StatusCode = t.states[i], "", 0
		q.Commands = append(q.Commands, c)
	}
	slices.SortFunc(q.Commands[open:],
		func(a, b observed.TraceCommand) int { return a.Start.Compare(b.Start) })
	return after
}

// command returns a record as others see it.
func (t *TraceCopy) command(name Namer, e *record) observed.TraceCommand {
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
	if st := nvme.Status(e.status &^ hasLeft); e.status == NoStatus {
		c.State = observed.TraceAbandoned
	} else if c.Status, c.StatusCode = "success", uint16(st); !st.OK() {
		c.Status = st.String()
	}
	if nvme.Opcode(e.opcode) == nvme.FabricsOpcode {
		c.FabricsType = uint16(e.nsid)
		c.Command, _ = name(nvme.FabricsOpcode, nvme.FabricsType(e.nsid))
		return c
	}
	n, blocks := name(nvme.Opcode(e.opcode), 0)
	c.Command, c.NSID, c.Fused = n, e.nsid, uint16(e.bits&3)
	if blocks {
		c.LBA, c.Blocks, c.FUA = e.cdw10, int(e.cdw12)+1, e.bits&fuaBit != 0
	} else {
		c.CDW10, c.CDW11, c.CDW12 = uint32(e.cdw10), uint32(e.cdw10>>32), e.cdw12
	}
	return c
}

const (
	// maxDumps is the most dumps at a time, maxDumpsOfPeer the most of queues from one network, and
	// dumpsFor how long a dump is kept.
	maxDumps, maxDumpsOfPeer = 32, 8
	dumpsFor                 = 24 * time.Hour
	// dumpEvery is the least time in which a network makes maxDumpsOfPeer of them.
	dumpEvery = 10 * time.Second
)

// Dumps keep the recorded commands of queues for later, when a queue fails or a command has taken
// too long. The size of all dumps, and their rate, do not depend on peers. Any goroutine may use
// them.
type Dumps struct {
	mu   sync.Mutex
	list []observed.TraceQueue // oldest first
}

// Allows reports whether a queue of a peer may be kept now.
func (d *Dumps) Allows(peer netip.Addr, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.expire(now)
	oldest, n := d.of(peer)
	return n < maxDumpsOfPeer || now.Sub(d.list[oldest].Time) >= dumpEvery
}

// of returns the index of the oldest dump of a peer's network, and their number. d.mu is held.
func (d *Dumps) of(peer netip.Addr) (oldest, n int) {
	network := subnet.Of(peer)
	for i, q := range slices.Backward(d.list) {
		if subnet.Of(q.Remote.Addr()) == network {
			oldest = i
			n++
		}
	}
	return oldest, n
}

// expire drops the dumps that have been kept for dumpsFor. The caller holds d.mu.
func (d *Dumps) expire(now time.Time) {
	d.list = slices.DeleteFunc(d.list,
		func(q observed.TraceQueue) bool { return now.Sub(q.Time) >= dumpsFor })
}

// Add keeps a queue in place of older ones. Other reactors may have added some since Allows.
func (d *Dumps) Add(q observed.TraceQueue) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if oldest, n := d.of(q.Remote.Addr()); n >= maxDumpsOfPeer {
		d.list = slices.Delete(d.list, oldest, oldest+1)
	} else if len(d.list) >= maxDumps {
		d.list = slices.Delete(d.list, 0, 1)
	}
	d.list = append(d.list, q)
}

// List returns the dumps of the queues of a query, oldest first, which nobody changes.
func (d *Dumps) List(of *observed.TraceQuery) []observed.TraceQueue {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.expire(time.Now())
	return slices.DeleteFunc(slices.Clone(d.list), func(q observed.TraceQueue) bool {
		return !of.Selects(q.Host, q.Subsystem, q.QID)
	})
}
