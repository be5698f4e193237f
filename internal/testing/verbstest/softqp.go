package verbstest

import (
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

// Faults of the work of soft queue pairs:
//
//	Hold of a SEND or WRITE   it and all later ones are posted when the fault is released
//	Hold of a READ            it is executed, and its completion and later ones are held
//	Fail, Drop                it is posted with memory of nobody, and the status of its completion
//	                          is replaced

// softChannel is a completion channel. Its descriptor is an epoll of that of the soft one and of an
// eventfd for completions that were held.
type softChannel struct {
	verbs.CompChannel
	dev *softDevice
	object
	fd, eventfd int
}

func newSoftChannel(d *softDevice, inner verbs.CompChannel) (*softChannel, error) {
	c := &softChannel{CompChannel: inner, dev: d, object: newObject(&d.h.live.CompChannels)}
	var err error
	if c.eventfd, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
		return nil, err
	}
	if c.fd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, err
	}
	for _, fd := range []int{c.eventfd, inner.FD()} {
		err := unix.EpollCtl(c.fd, unix.EPOLL_CTL_ADD, fd,
			&unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
		if err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *softChannel) FD() int { return c.fd }

func (c *softChannel) signal() {
	_, _ = unix.Write(c.eventfd, []byte{7: 1}) // any count
}

func (c *softChannel) Drain() (int, error) {
	var b [8]byte
	n, err := c.CompChannel.Drain()
	if _, e := unix.Read(c.eventfd, b[:]); e == nil {
		n++
	}
	return n, err
}

func (c *softChannel) Close() error {
	return c.dev.release(&c.object, CallDestroyCompChannel, func() error {
		err := c.CompChannel.Close()
		if err == nil {
			_, _ = unix.Close(c.fd), unix.Close(c.eventfd)
		}
		return err
	})
}

// softCQ is a completion queue.
type softCQ struct {
	verbs.CQ
	dev *softDevice
	ch  *softChannel // nil if there is none
	object

	mu     sync.Mutex
	qps    []*softQP // that send
	out    []verbs.WC
	held   int // queue pairs with faults
	failed bool
	polls  uint64 // written without a lock: the race detector reports overlapping calls
}

func (c *softCQ) Poll(wc []verbs.WC) (n int, err error) {
	c.polls++
	f := c.dev.h.f
	if n, err = c.poll(wc); n == 0 && err == nil {
		if d, ok := f.soft.mem.Next(); ok && d == 0 {
			f.settle()
			n, err = c.poll(wc)
		}
	}
	return n, err
}

func (c *softCQ) poll(wc []verbs.WC) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed {
		return 0, errOverrun
	}
	if c.held == 0 && len(c.out) == 0 {
		return c.CQ.Poll(wc)
	}
	if n, err = c.CQ.Poll(wc); err != nil {
		return 0, err
	}
	for i := range wc[:n] {
		at := slices.IndexFunc(c.qps, func(q *softQP) bool { return q.Num() == wc[i].QPNum })
		if at < 0 {
			c.out = append(c.out, wc[i])
		} else {
			c.qps[at].completed(&wc[i])
		}
	}
	n = copy(wc, c.out)
	c.out = slices.Delete(c.out, 0, n)
	return n, nil
}

func (c *softCQ) ReqNotify() error {
	c.polls++
	return c.CQ.ReqNotify()
}

// fail makes the queue unusable. Locked.
func (c *softCQ) fail() {
	c.mu.Lock()
	c.failed = true
	c.mu.Unlock()
	c.dev.d.raise(verbs.AsyncEvent{Type: verbs.AsyncCQErr, CQ: c})
	for _, q := range slices.Clone(c.dev.qps) {
		if q.scq == c {
			q.fail()
		}
	}
}

func (c *softCQ) Destroy() error {
	return c.dev.release(&c.object, CallDestroyCQ, func() error {
		err := c.CQ.Destroy()
		if err == nil {
			c.dev.cqs = slices.DeleteFunc(c.dev.cqs, func(x *softCQ) bool { return x == c })
		}
		return err
	})
}

// softQP is a queue pair.
type softQP struct {
	verbs.QP
	scq *softCQ
	object
	posts uint64 // written without a lock: the race detector reports overlapping calls

	// Guarded by the lock of scq.
	faulty  bool // it has met a fault and counts in softCQ.held
	waiting []softSend
	sent    []softSend // signaled, not completed, since the first READ was held
	kept    []verbs.WC // of the first ones of sent that have completed
	status  verbs.WCStatus
	dead    bool
}

// softSend is a posted work request.
type softSend struct {
	wr   verbs.SendWR
	sges []verbs.SGE
	by   *Injection // holds it; nil: nothing does
}

func (q *softQP) PostSend(wrs []verbs.SendWR, sges []verbs.SGE) (n int, err error) {
	q.posts++
	f := q.scq.dev.h.f
	f.lock()
	q.scq.mu.Lock()
	if len(f.faults) == 0 && !q.faulty {
		n, err = q.QP.PostSend(wrs, sges)
	} else {
		for n < len(wrs) && err == nil {
			wr := wrs[n]
			own := slices.Clone(sges[wr.FirstSGE:][:wr.NumSGE])
			wr.FirstSGE = 0
			if err = q.post(softSend{wr: wr, sges: own}, true); err == nil {
				n++
			}
		}
	}
	q.scq.mu.Unlock()
	f.unlock()
	f.settle()
	return n, err
}

// post posts a work request, or holds it. If check, it looks for faults.
func (q *softQP) post(s softSend, check bool) error {
	if len(q.waiting) > 0 && !q.dead {
		q.waiting = append(q.waiting, s)
		return nil
	}
	if i := q.match(s.wr.Opcode, check); i != nil {
		if !q.faulty {
			q.faulty = true
			q.scq.held++
		}
		if i.fault.Hold {
			i.releases = append(i.releases, func() { q.released(i) })
			s.by = i
			if s.wr.Opcode != verbs.WRRDMARead {
				q.waiting = append(q.waiting, s)
				return nil
			}
		} else {
			s.wr.NumSGE, s.wr.Flags = 1, s.wr.Flags|verbs.SendSignaled
			s.sges = []verbs.SGE{{Addr: 1, Length: 1}}
			if q.status = i.fault.Fail; i.fault.Drop {
				q.status = verbs.WCRetryExcErr
			}
		}
	}
	if _, err := q.QP.PostSend([]verbs.SendWR{s.wr}, s.sges); err != nil {
		return err
	}
	if s.wr.Flags&verbs.SendSignaled != 0 && (s.by != nil || len(q.sent) > 0) {
		q.sent = append(q.sent, s)
	}
	return nil
}

// match returns the fault that affects a work request, nil if none does. If check, the fabric is
// locked; otherwise none is looked for.
func (q *softQP) match(op verbs.SendOpcode, check bool) *Injection {
	if !check || q.dead {
		return nil
	}
	for _, i := range q.scq.dev.h.f.faults {
		if i.match(q.scq.dev.h, op) {
			return i
		}
	}
	return nil
}

// released ends a fault. Locked.
func (q *softQP) released(i *Injection) {
	q.scq.mu.Lock()
	defer q.scq.mu.Unlock()
	for k := range q.sent {
		if q.sent[k].by == i {
			q.sent[k].by = nil
		}
	}
	q.deliver()
	if len(q.waiting) > 0 && q.waiting[0].by == i {
		q.postWaiting()
	}
	if q.scq.ch != nil {
		q.scq.ch.signal()
	}
}

func (q *softQP) postWaiting() {
	list := q.waiting
	q.waiting = nil
	for k, s := range list {
		s.by = nil
		_ = q.post(s, k > 0) // in the error state it is flushed
	}
}

// completed takes a completion to the queue, or keeps it.
func (q *softQP) completed(wc *verbs.WC) {
	switch {
	case wc.Status != verbs.WCSuccess:
		q.flush()
		if wc.Status == verbs.WCLocProtErr && q.status != 0 {
			wc.Status, q.status = q.status, 0
		}
	case wc.Opcode == verbs.WCRecv || len(q.sent) <= len(q.kept) ||
		q.sent[len(q.kept)].wr.WRID != wc.WRID:
	case q.dead: // it was held
		wc.Status, wc.Opcode, q.sent = verbs.WCWRFlushErr, badOpcode, q.sent[1:]
	default:
		q.kept = append(q.kept, *wc)
		q.deliver()
		return
	}
	q.scq.out = append(q.scq.out, *wc)
}

// deliver delivers the completions that nothing holds.
func (q *softQP) deliver() {
	for len(q.kept) > 0 && q.sent[0].by == nil {
		q.scq.out = append(q.scq.out, q.kept[0])
		q.kept, q.sent = q.kept[1:], q.sent[1:]
	}
}

// flush ends the faults of a queue pair in the error state.
func (q *softQP) flush() {
	if q.dead {
		return
	}
	q.dead = true
	for _, wc := range q.kept {
		wc.Status, wc.Opcode = verbs.WCWRFlushErr, badOpcode
		q.scq.out = append(q.scq.out, wc)
	}
	q.kept, q.sent = nil, q.sent[len(q.kept):]
	q.postWaiting()
}

// ended is called when the queue pair has gone to the error state.
func (q *softQP) ended() {
	q.scq.mu.Lock()
	defer q.scq.mu.Unlock()
	if q.faulty {
		q.flush()
		if q.scq.ch != nil {
			q.scq.ch.signal()
		}
	}
}

// fail moves the queue pair to the error state as a device does. Locked.
func (q *softQP) fail() {
	_ = q.QP.ToError()
	q.ended()
}

func (q *softQP) PostRecv(wrs []verbs.RecvWR) (int, error) {
	q.posts++
	n, err := q.QP.PostRecv(wrs)
	q.scq.dev.h.f.settle()
	return n, err
}

func (q *softQP) ToError() error {
	err := q.QP.ToError()
	q.ended()
	q.scq.dev.h.f.settle()
	return err
}

func (q *softQP) Destroy() error {
	d := q.scq.dev
	return d.release(&q.object, CallDestroyQP, func() error {
		if err := q.QP.Destroy(); err != nil {
			return err
		}
		d.qps = slices.DeleteFunc(d.qps, func(x *softQP) bool { return x == q })
		q.scq.mu.Lock()
		defer q.scq.mu.Unlock()
		q.scq.qps = slices.DeleteFunc(q.scq.qps, func(x *softQP) bool { return x == q })
		if q.faulty {
			q.scq.held--
		}
		return nil
	})
}
