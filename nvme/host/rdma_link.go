package host

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
)

const (
	// The bounce buffer of each command, in bytes, for data that is not from Controller.Map.
	rdmaAdminBounce = 64 << 10
	rdmaBounce      = 4 << 10
	rdmaRecvID      = 1 << 63 // set in WRIDs of receives; the other bits are the index
)

// rdmaLink is the queue pair of a queue. submit collects SENDs; poll posts them in one call, reaps
// completions and posts the receives again. A command completes when its response has arrived and
// its SEND has completed: until then the device may read its capsule.
//
// One region contains the commands, the responses and the bounce buffers.
type rdmaLink struct {
	qid uint16

	cm           verbs.CM
	id           verbs.ID
	events       chan verbs.Event
	done         chan struct{} // closed when watch has ended
	disconnected atomic.Bool
	wakeFD       int

	dom    *domain
	ch     verbs.CompChannel
	cq     verbs.CQ
	qp     verbs.QP
	region *mem.Region
	mr     verbs.MR
	sqes   []byte
	cqes   []byte
	bounce []byte
	step   int // bytes of bounce per command
	base   uint64

	wrs   []verbs.SendWR
	sges  []verbs.SGE
	recvs []verbs.RecvWR
	wcs   [128]verbs.WC
	state []rdmaSlot
	fds   [3]unix.PollFd // of wait

	closed bool
}

// rdmaSlot is the state of a command over RDMA.
type rdmaSlot struct {
	sent, answered bool      // the SEND has completed, the response has arrived
	bounced        bool      // the data is in the bounce buffer
	data           verbs.SGE // in-capsule data, or a list of data blocks
	cqe            nvme.CQE
}

// receives returns the number of receives posted. The kernel's target makes its send queue as large
// as a host asks for (nvmet_rdma_create_queue_ib in drivers/nvme/target/rdma.c), and a command that
// needs more work requests than that waits for ever: a read of 1 MiB over siw, six pages a request,
// takes 44, and a queue of n receives has 4n+1 there, 2n+1 without memory registration.
func (p *linkParams) receives() int { return max(p.size, 16) }

// create creates the queue pair and posts a receive for every possible response, as Linux does.
func (l *rdmaLink) create(p linkParams) error {
	dev := l.id.Device()
	var err error
	if l.dom, err = p.mem.domain(dev); err != nil {
		return err
	}
	n, receives := max(p.size-1, 1), p.receives()
	l.step = rdmaBounce
	if p.qid == 0 {
		l.step = rdmaAdminBounce
	}
	l.region, err = mem.Map("host queue", n*nvme.SQESize+receives*nvme.CQESize+n*l.step)
	if err != nil {
		return err
	}
	b := l.region.Bytes()
	l.base = mem.Addr(b)
	l.sqes, b = b[:n*nvme.SQESize], b[n*nvme.SQESize:]
	l.cqes, l.bounce = b[:receives*nvme.CQESize], b[receives*nvme.CQESize:]
	if l.mr, err = l.dom.pd.RegMR(l.region.Bytes(), remoteAccess); err != nil {
		return err
	}
	if l.ch, err = dev.CreateCompChannel(); err != nil {
		return err
	}
	if l.cq, err = dev.CreateCQ(n+receives+1, l.ch, int(p.qid)); err != nil {
		return err
	}
	l.qp, err = l.id.CreateQP(l.dom.pd, verbs.QPInit{
		SendCQ: l.cq, RecvCQ: l.cq, MaxSendWR: n + 1, MaxRecvWR: receives + 1, MaxSendSGE: 2,
		MaxRecvSGE: 1,
	})
	if err != nil {
		return err
	}
	l.wrs = make([]verbs.SendWR, 0, n)
	l.sges = make([]verbs.SGE, 0, 2*n)
	l.recvs = make([]verbs.RecvWR, 0, max(receives, len(l.wcs)))
	l.state = make([]rdmaSlot, n)
	for i := range receives {
		l.receive(i)
	}
	return l.postRecvs()
}

func (l *rdmaLink) sqe(i int) *nvme.SQE { return (*nvme.SQE)(l.sqes[i*nvme.SQESize:]) }

// describe follows Linux: in-capsule data on I/O queues if it fits, else one keyed data block; a
// command without data has an empty one.
func (l *rdmaLink) describe(s *slot, i, capsule int) error {
	st := &l.state[i]
	*st = rdmaSlot{}
	n := uint32(len(s.data))
	s.moved = n // a host does not see the transfers of an RDMA controller
	if s.dir == noData {
		if !s.raw {
			s.sqe.SGL1().SetKeyed(nvme.SGLSubtypeAddress, 0, 0, 0)
		}
		return nil
	}
	addr, lkey, rkey, err := l.locate(s, i)
	if err != nil {
		return err
	}
	if s.blocks > 1 && !s.raw {
		return l.list(s, i, capsule, rkey)
	}
	s.capsuled = s.dir == toCtrl && l.qid != 0 && len(s.data) <= capsule
	switch {
	case s.capsuled:
		st.data = verbs.SGE{Addr: addr, Length: n, LKey: lkey}
		if !s.raw {
			s.sqe.SGL1().SetData(nvme.SGLDataBlock, nvme.SGLSubtypeOffset, 0, n)
		}
	case !s.raw:
		s.sqe.SGL1().SetKeyed(nvme.SGLSubtypeAddress, addr, n, rkey)
	}
	return nil
}

// list describes data by a Last Segment descriptor in the command and s.blocks keyed data blocks in
// the capsule (RDMA section 3.3.1).
func (l *rdmaLink) list(s *slot, i, capsule int, key uint32) error {
	n := uint32(s.blocks * nvme.SGLDescriptorSize)
	if l.state[i].bounced || s.blocks > len(s.data) || int(n) > min(capsule, l.step) {
		return fmt.Errorf("a list of %d data blocks for %d bytes: the data must be from "+
			"Controller.Map, and the list must fit into a capsule with %d bytes of data",
			s.blocks, len(s.data), capsule)
	}
	b := l.bounce[i*l.step:][:n]
	for k, rest := 0, s.data; k < s.blocks; k++ {
		size := len(rest) / (s.blocks - k)
		(*nvme.SGLDescriptor)(b[k*nvme.SGLDescriptorSize:]).SetKeyed(nvme.SGLSubtypeAddress,
			mem.Addr(rest), uint32(size), key)
		rest = rest[size:]
	}
	l.state[i].data = verbs.SGE{Addr: mem.Addr(b), Length: n, LKey: l.mr.LKey()}
	s.sqe.SGL1().SetData(nvme.SGLLastSegment, nvme.SGLSubtypeOffset, 0, n)
	return nil
}

// locate returns address and keys of data, copied to the bounce buffer unless from Map.
func (l *rdmaLink) locate(s *slot, i int) (addr uint64, lkey, rkey uint32, err error) {
	addr = mem.Addr(s.data)
	if k := l.dom.find(addr, uint64(len(s.data))); k != nil {
		return addr, k.lkey, k.rkey, nil
	}
	if len(s.data) > l.step {
		return 0, 0, 0, fmt.Errorf("%d bytes of data that are not from Controller.Map, at most %d",
			len(s.data), l.step)
	}
	l.state[i].bounced = true
	b := l.bounceOf(s, i)
	copy(b, s.data)
	return mem.Addr(b), l.mr.LKey(), l.mr.RKey(), nil
}

// bounceOf returns the bounce buffer for the data of a command.
func (l *rdmaLink) bounceOf(s *slot, i int) []byte { return l.bounce[i*l.step:][:len(s.data)] }

func (l *rdmaLink) submit(_ *Queue, i int) error {
	st := &l.state[i]
	wr := verbs.SendWR{
		WRID: uint64(i), Opcode: verbs.WRSend, Flags: verbs.SendSignaled,
		FirstSGE: uint32(len(l.sges)), NumSGE: 1,
	}
	l.sges = append(l.sges,
		verbs.SGE{Addr: l.base + uint64(i*nvme.SQESize), Length: nvme.SQESize, LKey: l.mr.LKey()})
	if st.data.Length > 0 {
		l.sges = append(l.sges, st.data)
		wr.NumSGE = 2
	}
	l.wrs = append(l.wrs, wr)
	return nil
}

func (l *rdmaLink) flush() error {
	if len(l.wrs) == 0 {
		return nil
	}
	n, err := l.qp.PostSend(l.wrs, l.sges)
	if err != nil {
		return fmt.Errorf("%w: posting %d of %d commands: %w", ErrClosed, n, len(l.wrs), err)
	}
	l.wrs, l.sges = l.wrs[:0], l.sges[:0]
	return nil
}

// receive collects the receive of response slot i for postRecvs.
func (l *rdmaLink) receive(i int) {
	r := verbs.RecvWR{WRID: rdmaRecvID | uint64(i), NumSGE: 1}
	r.SGE[0] = verbs.SGE{
		Addr: l.base + uint64(len(l.sqes)+i*nvme.CQESize), Length: nvme.CQESize,
		LKey: l.mr.LKey(),
	}
	l.recvs = append(l.recvs, r)
}

func (l *rdmaLink) postRecvs() error {
	if len(l.recvs) == 0 {
		return nil
	}
	if n, err := l.qp.PostRecv(l.recvs); err != nil {
		return fmt.Errorf("%w: posting %d of %d receives: %w", ErrClosed, n, len(l.recvs), err)
	}
	l.recvs = l.recvs[:0]
	return nil
}

func (l *rdmaLink) poll(q *Queue) error {
	_, err := l.reap(q)
	return err
}

// reap posts commands and handles completions. last is the number of completions that the last poll
// of the device has found. Responses that came before the end of the connection are handled before
// it is an error.
func (l *rdmaLink) reap(q *Queue) (last int, err error) {
	ended := l.disconnected.Load()
	if err := l.flush(); err != nil {
		return 0, err
	}
	for {
		n, err := l.cq.Poll(l.wcs[:])
		if err != nil {
			return 0, fmt.Errorf("%w: completion queue: %w", ErrClosed, err)
		}
		for i := range l.wcs[:n] {
			if err := l.handle(q, &l.wcs[i]); err != nil {
				return 0, err
			}
		}
		if err := l.postRecvs(); err != nil {
			return 0, err
		}
		if last = n; n < len(l.wcs) {
			break
		}
	}
	if ended {
		return 0, fmt.Errorf("%w: the controller disconnected", ErrClosed)
	}
	return last, nil
}

func (l *rdmaLink) handle(q *Queue, wc *verbs.WC) error {
	if wc.Status != verbs.WCSuccess {
		what := "command"
		if wc.WRID&rdmaRecvID != 0 {
			what = "receive"
		}
		return fmt.Errorf("%w: %s failed with work completion status %d, vendor error %#x",
			ErrClosed, what, wc.Status, wc.VendorErr)
	}
	if wc.WRID&rdmaRecvID == 0 {
		l.state[wc.WRID].sent = true
		return l.finish(q, int(wc.WRID))
	}
	at := int(wc.WRID &^ rdmaRecvID)
	if wc.ByteLen != nvme.CQESize {
		return q.violation("response of %d bytes", wc.ByteLen)
	}
	cqe := (*nvme.CQE)(l.cqes[at*nvme.CQESize:])
	s, i := q.find(cqe.CID())
	if s == nil || l.state[i].answered {
		return q.violation("completion of CID %#x, which is not outstanding: % x", cqe.CID(),
			cqe[:])
	}
	st := &l.state[i]
	if wc.Flags&verbs.WCWithInv != 0 {
		return q.violation("CID %#x: key %#x invalidated", s.cid, wc.InvalidatedRKey)
	}
	// SQHD is checked here, in order of arrival: the command itself completes with its SEND,
	// possibly after commands that are answered later.
	if err := q.checkSQHD(s, cqe); err != nil {
		return err
	}
	st.cqe, st.answered = *cqe, true
	l.receive(at)
	return l.finish(q, i)
}

// finish completes the command in slot i once the device no longer uses its memory.
func (l *rdmaLink) finish(q *Queue, i int) error {
	st := &l.state[i]
	if !st.sent || !st.answered {
		return nil
	}
	s := &q.slots[i]
	if st.bounced && s.dir == toHost {
		copy(s.data, l.bounceOf(s, i))
	}
	return q.complete(&st.cqe, false)
}

func (l *rdmaLink) wait(q *Queue, wakeFD int, d time.Duration) error {
	if err := l.cq.ReqNotify(); err != nil {
		return err
	}
	// Until there is none: a soft device may have put off packets, which leave then.
	for before, last := len(q.done), 1; last > 0; {
		var err error
		last, err = l.reap(q)
		if err != nil {
			_ = q.fail(err)
		}
		if len(q.done) > before {
			return nil
		}
		if err != nil {
			return err
		}
	}
	l.fds = [3]unix.PollFd{
		{Fd: int32(l.ch.FD()), Events: unix.POLLIN},
		{Fd: int32(l.wakeFD), Events: unix.POLLIN},
		{Fd: int32(wakeFD), Events: unix.POLLIN},
	}
	err := pollFor(l.fds[:], d)
	if _, derr := l.ch.Drain(); derr != nil {
		err = errors.Join(err, derr)
	}
	return err
}

// close frees all resources of the link.
func (l *rdmaLink) close() error {
	if l.closed {
		return nil
	}
	l.closed = true
	var errs []error
	do := func(err error) { errs = append(errs, err) }
	if l.qp != nil {
		_ = l.id.Disconnect()
		_ = l.qp.ToError()
		do(l.qp.Destroy())
	}
	do(l.id.Destroy())
	do(l.cm.Close())
	<-l.done
	do(unix.Close(l.wakeFD))
	if l.cq != nil {
		do(l.cq.Destroy())
	}
	if l.ch != nil {
		do(l.ch.Close())
	}
	if l.mr != nil {
		do(l.mr.Dereg())
	}
	if l.region != nil {
		do(l.region.Unmap())
	}
	if l.dom != nil {
		l.dom.release()
	}
	return errors.Join(errs...)
}
