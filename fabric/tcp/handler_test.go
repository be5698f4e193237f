package tcp

import (
	"fmt"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// disk is a fabric.Handler with one namespace in memory. It panics if the transport breaks the
// contract. Everything but the atomics belongs to the reactor.
type disk struct {
	data           *mem.Region
	zeroCopyReads  bool // reads are zero copy, in pieces
	piece          int  // bytes of a piece
	zeroCopyWrites bool // writes are zero copy
	hold           bool // commands with NSID 7 wait for release
	optimistic     bool // Prepare sets CompletesInExecute
	writerWaits    bool // for zero-copy reads
	onExecute      func()
	onSent         func(*fabric.Request)
	refuse         error
	discovery      bool        // Connect creates discovery controllers
	unproven       atomic.Bool // hosts have only claimed their NQN

	held      []*fabric.Request
	sessions  map[*session]struct{}
	one       [1]*fabric.Request
	opened    atomic.Int64
	closed    atomic.Int64
	ended     atomic.Int64 // zero copies
	abandoned atomic.Int64
	executed  atomic.Int64
	written   atomic.Int64
}

const (
	blockSize = 512
	diskSize  = 4 << 20
	holdNSID  = 7
)

type session struct {
	q         fabric.Queue
	connected bool
	closed    bool
	noFlow    bool
	states    []cmdState
	sqhd      uint16
	size      uint16
}

type cmdState uint8

const (
	idle cmdState = iota
	prepared
	executing
	attached
)

func newDisk(zeroCopy bool) *disk {
	r, err := mem.Map("test disk", diskSize)
	if err != nil {
		panic(err)
	}
	fillPattern(r.Bytes())
	return &disk{
		data: r, zeroCopyReads: zeroCopy, piece: 1536,
		sessions: make(map[*session]struct{}),
	}
}

// pattern is the initial content of the disk.
func pattern(i int) byte { return byte(i>>9) ^ byte(i*7) }

func fillPattern(b []byte) {
	const period = 1 << 17
	for i := range b[:min(period, len(b))] {
		b[i] = pattern(i)
	}
	for n := period; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

func (d *disk) Open(q fabric.Queue) (fabric.Session, error) {
	if d.refuse != nil {
		return nil, d.refuse
	}
	s := &session{q: q, states: make([]cmdState, MaxQueueDepth)}
	d.sessions[s] = struct{}{}
	d.opened.Add(1)
	return s, nil
}

func (d *disk) Close(fs fabric.Session) {
	s := fs.(*session)
	if s.closed {
		panic("closed twice")
	}
	for i, st := range s.states {
		if st == prepared || st == attached {
			panic(fmt.Sprintf("request %d is in state %d when its session closes", i, st))
		}
	}
	s.closed = true
	delete(d.sessions, s)
	d.closed.Add(1)
}

func (d *disk) change(r *fabric.Request, from, to cmdState) *session {
	s := r.Session.(*session)
	if st := &s.states[r.Owner.(*request).tag]; *st != from {
		panic(fmt.Sprintf("request %d is in state %d, not %d, on its way to %d", r.SQE.CID(), *st,
			from, to))
	} else {
		*st = to
	}
	return s
}

func (d *disk) Prepare(reqs []*fabric.Request) {
	for _, r := range reqs {
		s := d.change(r, idle, prepared)
		if s.closed {
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

func (d *disk) check(s *session, r *fabric.Request) nvme.Status {
	op := r.SQE.Opcode()
	connect := op == nvme.FabricsOpcode && r.SQE.FabricsType() == nvme.FabricsConnect
	if connect == s.connected {
		return nvme.CommandSequenceError
	}
	n := r.SQE.NLB() * blockSize
	off := r.SQE.SLBA() * blockSize
	switch {
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
	case off+uint64(n) > diskSize:
		return nvme.LBAOutOfRange | nvme.DNR
	case r.HostLength != n:
		return nvme.DataSGLLengthInvalid | nvme.DNR
	}
	r.Length = n
	r.Dir = fabric.ControllerToHost
	if op == nvme.NVMWrite {
		r.Dir, r.CompletesInExecute = fabric.HostToController, !d.hold || d.optimistic
	}
	if op == nvme.NVMWrite && d.zeroCopyWrites && !r.InCapsule || op == nvme.NVMRead &&
		d.zeroCopyReads {
		b := d.data.Bytes()[off : off+uint64(n)]
		for len(b) > 0 {
			m := min(len(b), d.piece)
			r.Segs = append(r.Segs, mem.Segment{B: b[:m], Region: d.data.ID()})
			b = b[m:]
		}
		r.ZeroCopy = true
	}
	return nvme.Success
}

func (d *disk) Execute(reqs []*fabric.Request) {
	if d.onExecute != nil {
		d.onExecute()
	}
	for _, r := range reqs {
		d.executed.Add(1)
		d.change(r, prepared, executing)
		if r.Dir != fabric.NoData && r.Status.OK() && mem.Length(r.Segs) != int(r.Length) {
			panic(fmt.Sprintf("%d bytes of memory for %d bytes of data", mem.Length(r.Segs),
				r.Length))
		}
		if d.hold && r.SQE.NSID() == holdNSID {
			d.held = append(d.held, r)
			continue
		}
		d.finish(r)
	}
}

func (d *disk) release() {
	held := d.held
	d.held = nil
	for _, r := range held {
		d.finish(r)
	}
}

func (d *disk) finish(r *fabric.Request) {
	s := r.Session.(*session)
	st := r.Status
	result := uint64(0)
	switch op := r.SQE.Opcode(); {
	case !st.OK():
	case op == nvme.FabricsOpcode:
		c := r.SQE.Connect()
		peer := fabric.Allowed
		if d.discovery {
			peer = fabric.Discovery
		}
		claim := fabric.Claim{
			Host: s.q.Info().Remote.String(), Proven: !d.unproven.Load(), Admin: true,
		}
		if err := s.q.SetDepth(int(c.SQSIZE())+1, peer, claim); err != nil {
			st = nvme.ConnectInvalidParameters | nvme.DNR
			break
		}
		s.connected, s.size = true, c.SQSIZE()+1
		s.noFlow = c.CATTR()&nvme.CATTRNoFlowControl != 0
		result = 1
	case op == nvme.NVMWrite:
		d.written.Add(1)
		off := r.SQE.SLBA() * blockSize
		for _, sg := range r.Segs {
			if r.ZeroCopy {
				break // it is there already
			}
			off += uint64(copy(d.data.Bytes()[off:], sg.B))
		}
	case op == nvme.NVMRead && !r.ZeroCopy:
		off := r.SQE.SLBA() * blockSize
		for _, sg := range r.Segs {
			off += uint64(copy(sg.B, d.data.Bytes()[off:]))
		}
	}
	sqhd := uint16(0xFFFF)
	if !s.noFlow {
		if s.size > 0 {
			s.sqhd = (s.sqhd + 1) % s.size
		}
		sqhd = s.sqhd
	}
	next := idle
	if r.ZeroCopy {
		next = attached
	}
	d.change(r, executing, next)
	r.CQE.Fill(result, sqhd, r.SQE.CID(), st)
	d.one[0] = r
	s.q.Complete(d.one[:])
}

func (d *disk) Abandon(r *fabric.Request) {
	next := idle
	if r.ZeroCopy {
		next = attached
	}
	d.change(r, prepared, next)
	d.abandoned.Add(1)
}

func (d *disk) Sent(r *fabric.Request) {
	if d.onSent != nil {
		d.onSent(r)
	}
}

func (d *disk) WriterWaits(*fabric.Request) bool { return d.writerWaits }

func (d *disk) EndZeroCopy(r *fabric.Request) {
	d.change(r, attached, idle)
	d.ended.Add(1)
}
