package verbstest

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

// recvQueue is a ring of receives: the receives in [head, take) wait for their completion to be
// polled, and the receives in [take, tail) are free for messages.
type recvQueue struct {
	ring             []verbs.RecvWR
	head, take, tail uint64
}

func (r *recvQueue) post(wrs []verbs.RecvWR, maxSGE int) (int, error) {
	for i := range wrs {
		if r.tail-r.head == uint64(len(r.ring)) {
			return i, errRecvFull
		}
		if wrs[i].NumSGE > uint64(min(maxSGE, len(wrs[i].SGE))) {
			return i, errRecvWR
		}
		r.ring[r.tail%uint64(len(r.ring))] = wrs[i]
		r.tail++
	}
	return len(wrs), nil
}

func (r *recvQueue) next() *verbs.RecvWR {
	wr := &r.ring[r.take%uint64(len(r.ring))]
	r.take++
	return wr
}

type srq struct {
	object
	pd    *pd
	init  verbs.SRQInit
	rq    recvQueue
	posts uint64 // written without a lock: the race detector reports overlapping calls
}

func (p *pd) CreateSRQ(init verbs.SRQInit) (verbs.SRQ, error) {
	d := p.dev
	d.f.lock()
	defer d.f.unlock()
	if err := d.call(CallCreateSRQ); err != nil {
		return nil, err
	}
	a := &d.opt.Attr
	if p.freed || init.MaxWR < 1 || init.MaxWR > a.MaxSRQWR || init.MaxSGE < 0 ||
		init.MaxSGE > a.MaxSRQSGE {
		return nil, fmt.Errorf("%s: %d work requests, %d elements: %w", CallCreateSRQ, init.MaxWR,
			init.MaxSGE, unix.EINVAL)
	}
	if d.srqs >= a.MaxSRQ {
		return nil, fmt.Errorf("%s: %w", CallCreateSRQ, unix.ENOMEM)
	}
	d.srqs++
	p.uses++
	return &srq{
		object: newObject(&d.host.live.SRQs), pd: p, init: init,
		rq: recvQueue{ring: make([]verbs.RecvWR, init.MaxWR)},
	}, nil
}

func (s *srq) PostRecv(wrs []verbs.RecvWR) (int, error) {
	s.posts++
	d := s.pd.dev
	d.f.lock()
	defer d.f.unlock()
	s.use("PostRecv")
	n, err := s.rq.post(wrs, s.init.MaxSGE)
	for _, q := range d.qps {
		if q.srq == s {
			d.f.schedule(q.peer)
		}
	}
	return n, err
}

func (s *srq) Destroy() error {
	d := s.pd.dev
	d.f.lock()
	defer d.f.unlock()
	if err := s.free(d.host, CallDestroySRQ); err != nil {
		return err
	}
	s.pd.uses--
	d.srqs--
	return nil
}
