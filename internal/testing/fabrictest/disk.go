package fabrictest

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// The size of a Disk and of its blocks, in bytes.
const (
	DiskSize  = 4 << 20
	DiskBlock = 512
)

// A Disk serves commands for these namespaces in a special way.
const (
	HoldNSID     = 7 // they wait for Release, if the Disk has Hold
	ZeroCopyNSID = 8 // with zero copy, if the queue can use it
	FailNSID     = 9 // reads fail, with other data in their memory
)

// Disk is a fabric.Handler with one namespace in memory, for tests of transports. It panics if the
// transport breaks the contract. Everything but the atomics belongs to the reactor.
type Disk struct {
	Region *mem.Region // the namespace
	// Bytes: CDW10 and CDW12 of reads and writes are bytes, not blocks, the host may give more
	// memory than they need, and they need no Connect command before them.
	Bytes                         bool
	ZeroCopyReads, ZeroCopyWrites bool
	Piece                         int  // bytes of a segment of a zero copy; 0: half of it
	Hold                          bool // commands for HoldNSID wait for Release
	Optimistic                    bool // Prepare sets CompletesInExecute although they wait
	HasWriter                     bool // the result of WriterWaits
	OnExecute                     func([]*fabric.Request)
	OnSent                        func(*fabric.Request)
	Refuse                        error       // of Open
	Unproven                      atomic.Bool // hosts have only claimed their NQN
	// Others are commands without data of other opcodes. They call Complete.
	Others map[nvme.Opcode]func(*fabric.Request)

	Queue  fabric.Queue // the last one
	Held   []*fabric.Request
	states map[*fabric.Request]diskState
	one    [1]*fabric.Request

	// Numbers of calls, Ended for EndZeroCopy; of commands that are held; of writes carried out.
	Opened, Closed, Prepared, Executed, Completed, Abandoned, Ended atomic.Int64
	Holding, Written                                                atomic.Int64
}

type diskSession struct {
	q                         fabric.Queue
	connected, closed, noFlow bool
	sqhd, size                uint16
}

type diskState uint8

const (
	diskIdle diskState = iota
	diskPrepared
	diskExecuting
	diskHeld
	diskAttached // completed or abandoned, with zero copy
)

// NewDisk returns a Disk of zeroes. The test unmaps Region.
func NewDisk(t testing.TB) *Disk {
	t.Helper()
	return &Disk{
		Region: testutil.Value(mem.Map("test disk", DiskSize))(t),
		states: make(map[*fabric.Request]diskState),
	}
}

// Open implements fabric.Handler.
func (d *Disk) Open(q fabric.Queue) (fabric.Session, error) {
	if d.Queue = q; d.Refuse != nil {
		return nil, d.Refuse
	}
	d.Opened.Add(1)
	return &diskSession{q: q}, nil
}

// Close implements fabric.Handler.
func (d *Disk) Close(fs fabric.Session) {
	s := fs.(*diskSession)
	if s.closed {
		panic("closed twice")
	}
	s.closed = true
	for r, state := range d.states {
		switch {
		case r.Session != fs:
		case state == diskPrepared:
			panic(fmt.Sprintf("command %d is prepared when its session closes", r.SQE.CID()))
		case state == diskIdle:
			delete(d.states, r)
		}
	}
	d.Closed.Add(1)
}

// change moves a request to the next state, from one of two.
func (d *Disk) change(r *fabric.Request, to, from, or diskState) {
	if is := d.states[r]; is != from && is != or {
		panic(fmt.Sprintf("command %d is in state %d, not %d, on its way to %d", r.SQE.CID(), is,
			from, to))
	}
	d.states[r] = to
	if to == diskIdle && r.Session.(*diskSession).closed {
		delete(d.states, r)
	}
}

// Busy returns the number of requests that are not idle.
func (d *Disk) Busy() (n int) {
	for _, state := range d.states {
		if state != diskIdle {
			n++
		}
	}
	return n
}

// Prepare implements fabric.Handler.
func (d *Disk) Prepare(reqs []*fabric.Request) {
	for _, r := range reqs {
		d.change(r, diskPrepared, diskIdle, diskIdle)
		s := r.Session.(*diskSession)
		if d.Prepared.Add(1); s.closed {
			panic("Prepare after Close")
		}
		if len(r.Segs) != 0 || r.Length != 0 || r.ZeroCopy || r.Dir != fabric.NoData {
			panic("request is not clean")
		}
		if r.Status.OK() {
			r.Status = d.check(s, r)
		}
	}
}

// place returns the first byte and the number of bytes of a read or write.
func (d *Disk) place(r *fabric.Request) (off uint64, n uint32) {
	if d.Bytes {
		return uint64(r.SQE.CDW(10)), r.SQE.CDW(12)
	}
	return r.SQE.SLBA() * DiskBlock, r.SQE.NLB() * DiskBlock
}

func (d *Disk) check(s *diskSession, r *fabric.Request) nvme.Status {
	op := r.SQE.Opcode()
	connect := op == nvme.FabricsOpcode && r.SQE.FabricsType() == nvme.FabricsConnect
	off, n := d.place(r)
	switch {
	case d.Others[op] != nil:
		return nvme.Success
	case !d.Bytes && connect == s.connected:
		return nvme.CommandSequenceError
	case connect:
		if r.HostLength != nvme.ConnectDataSize {
			return nvme.DataSGLLengthInvalid | nvme.DNR
		}
		r.Dir, r.Length = fabric.HostToController, r.HostLength
		return nvme.Success
	case op == nvme.NVMFlush:
		return nvme.Success
	case op != nvme.NVMRead && op != nvme.NVMWrite:
		return nvme.InvalidOpcode | nvme.DNR
	case !d.Bytes && off+uint64(n) > DiskSize:
		return nvme.LBAOutOfRange | nvme.DNR
	case n > r.HostLength, !d.Bytes && n != r.HostLength:
		return nvme.DataSGLLengthInvalid | nvme.DNR
	case n == 0:
		return nvme.Success
	}
	r.Dir, r.Length = fabric.ControllerToHost, n
	zeroCopy := d.ZeroCopyReads
	if op == nvme.NVMWrite {
		r.Dir, r.CompletesInExecute = fabric.HostToController, !d.Hold || d.Optimistic
		zeroCopy = d.ZeroCopyWrites
	}
	if (zeroCopy || r.SQE.NSID() == ZeroCopyNSID) && !r.InCapsule {
		d.attach(r, d.Region.Bytes()[off:off+uint64(n)])
	}
	return nvme.Success
}

// attach attaches b to a request, in pieces, if its queue can use it.
func (d *Disk) attach(r *fabric.Request, b []byte) {
	piece := d.Piece
	if piece == 0 {
		piece = (len(b) + 1) / 2
	}
	for len(b) > 0 {
		m := min(len(b), piece)
		r.Segs = append(r.Segs, mem.Segment{B: b[:m], Region: d.Region.ID()})
		b = b[m:]
	}
	if r.Dir == fabric.HostToController {
		r.ZeroCopy = r.Queue.CanReceiveInto(r.Segs)
	} else {
		r.ZeroCopy = r.Queue.CanSendFrom(r.Segs)
	}
	if !r.ZeroCopy {
		r.Segs = r.Segs[:0]
	}
}

// Execute implements fabric.Handler.
func (d *Disk) Execute(reqs []*fabric.Request) {
	if d.OnExecute != nil {
		d.OnExecute(reqs)
	}
	for _, r := range reqs {
		d.Executed.Add(1)
		d.change(r, diskExecuting, diskPrepared, diskPrepared)
		if r.Status.OK() && mem.Length(r.Segs) != int(r.Length) {
			panic(fmt.Sprintf("%d bytes of memory for %d bytes of data", mem.Length(r.Segs),
				r.Length))
		}
		switch other := d.Others[r.SQE.Opcode()]; {
		case r.Status.OK() && other != nil:
			other(r)
		case r.Status.OK() && d.Hold && r.SQE.NSID() == HoldNSID:
			d.change(r, diskHeld, diskExecuting, diskExecuting)
			d.Held = append(d.Held, r)
			d.Holding.Add(1)
		default:
			d.finish(r)
		}
	}
}

// Release carries out the commands that are held.
func (d *Disk) Release() {
	held := d.Held
	d.Held = nil
	for _, r := range held {
		d.finish(r)
	}
}

func (d *Disk) finish(r *fabric.Request) {
	st, result := r.Status, uint64(0)
	off, _ := d.place(r)
	switch op := r.SQE.Opcode(); {
	case !st.OK():
	case op == nvme.FabricsOpcode:
		result, st = 1, d.connect(r)
	case op == nvme.NVMWrite:
		if d.Written.Add(1); r.ZeroCopy {
			break // it is there already
		}
		for _, s := range r.Segs {
			off += uint64(copy(d.Region.Bytes()[off:], s.B))
		}
	case op == nvme.NVMRead && r.SQE.NSID() == FailNSID:
		for _, s := range r.Segs {
			copy(s.B, "secret of another host")
		}
		st = nvme.UnrecoveredReadError
	case op == nvme.NVMRead && !r.ZeroCopy:
		for _, s := range r.Segs {
			off += uint64(copy(s.B, d.Region.Bytes()[off:]))
		}
	}
	d.Complete(r, st, result)
}

func (d *Disk) connect(r *fabric.Request) nvme.Status {
	s, c := r.Session.(*diskSession), r.SQE.Connect()
	claim := fabric.Claim{
		Host: s.q.Info().Remote.String(), Proven: !d.Unproven.Load(), Admin: true,
	}
	if err := s.q.SetDepth(int(c.SQSIZE())+1, fabric.Allowed, claim); err != nil {
		return nvme.ConnectInvalidParameters | nvme.DNR
	}
	s.connected, s.size = true, c.SQSIZE()+1
	s.noFlow = c.CATTR()&nvme.CATTRNoFlowControl != 0
	return nvme.Success
}

// Complete completes a request that executes or is held.
func (d *Disk) Complete(r *fabric.Request, st nvme.Status, result uint64) {
	if d.states[r] == diskHeld {
		d.Holding.Add(-1)
	}
	next := diskIdle
	if r.ZeroCopy {
		next = diskAttached
	}
	d.change(r, next, diskExecuting, diskHeld)
	s, sqhd := r.Session.(*diskSession), uint16(0xFFFF)
	if !s.noFlow {
		if s.size > 0 {
			s.sqhd = (s.sqhd + 1) % s.size
		}
		sqhd = s.sqhd
	}
	r.CQE.Fill(result, sqhd, r.SQE.CID(), st)
	d.Completed.Add(1)
	d.one[0] = r
	s.q.Complete(d.one[:])
}

// Abandon implements fabric.Handler.
func (d *Disk) Abandon(r *fabric.Request) {
	next := diskIdle
	if r.ZeroCopy {
		next = diskAttached
	}
	d.change(r, next, diskPrepared, diskPrepared)
	d.Abandoned.Add(1)
}

// Sent implements fabric.Handler.
func (d *Disk) Sent(r *fabric.Request) {
	if d.OnSent != nil {
		d.OnSent(r)
	}
}

// WriterWaits implements fabric.Handler.
func (d *Disk) WriterWaits(*fabric.Request) bool { return d.HasWriter }

// EndZeroCopy implements fabric.Handler.
func (d *Disk) EndZeroCopy(r *fabric.Request) {
	d.change(r, diskIdle, diskAttached, diskAttached)
	d.Ended.Add(1)
}
