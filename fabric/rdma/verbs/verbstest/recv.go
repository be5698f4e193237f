package verbstest

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

// recvQueue is a ring of receives: [head, take) wait for their completion to be polled, [take,
// tail) are free for messages.
type recvQueue struct {
	ring             []verbs.RecvWR
	head, take, tail uint64
}

func (r *recvQueue) post(wr *verbs.RecvWR, maxSGE int) error {
	if r.tail-r.head == uint64(len(r.ring)) {
		return errRecvFull
	}
	if wr.NumSGE > uint64(min(maxSGE, len(wr.SGE))) {
		return errRecvWR
	}
	r.ring[r.tail%uint64(len(r.ring))] = *wr
	r.tail++
	return nil
}

func (r *recvQueue) next() *verbs.RecvWR {
	wr := &r.ring[r.take%uint64(len(r.ring))]
	r.take++
	return wr
}

type srq struct {
	pd        *pd
	init      verbs.SRQInit
	rq        recvQueue
	uses      int
	destroyed bool
	posts     uint64
}

func (p *pd) CreateSRQ(init verbs.SRQInit) (verbs.SRQ, error) {
	d := p.dev
	d.f.lock()
	defer d.f.unlock()
	if err := d.call(CallCreateSRQ); err != nil {
		return nil, err
	}
	a := &d.opt.Attr
	if p.dead || init.MaxWR < 1 || init.MaxWR > a.MaxSRQWR || init.MaxSGE < 0 ||
		init.MaxSGE > a.MaxSRQSGE {
		return nil, fmt.Errorf("%s: %d work requests, %d elements: %w", CallCreateSRQ, init.MaxWR,
			init.MaxSGE, unix.EINVAL)
	}
	if d.srqs >= a.MaxSRQ {
		return nil, fmt.Errorf("%s: %w", CallCreateSRQ, unix.ENOMEM)
	}
	d.srqs++
	d.host.live.SRQs++
	p.uses++
	return &srq{pd: p, init: init, rq: recvQueue{ring: make([]verbs.RecvWR, init.MaxWR)}}, nil
}

func (s *srq) PostRecv(wrs []verbs.RecvWR) (int, error) {
	s.posts++
	d := s.pd.dev
	d.f.lock()
	defer d.f.unlock()
	if s.destroyed {
		panic("verbstest: PostRecv on a destroyed shared receive queue")
	}
	n := 0
	var err error
	for ; n < len(wrs) && err == nil; n++ {
		if err = s.rq.post(&wrs[n], s.init.MaxSGE); err != nil {
			break
		}
	}
	for _, q := range d.qps {
		if q.srq == s {
			d.f.kick(q.peer)
		}
	}
	return n, err
}

func (s *srq) Destroy() error {
	d := s.pd.dev
	d.f.lock()
	defer d.f.unlock()
	if s.destroyed {
		panic("verbstest: shared receive queue freed twice")
	}
	if s.uses > 0 {
		return fmt.Errorf("%s: %d queue pairs use it: %w", CallDestroySRQ, s.uses, unix.EBUSY)
	}
	s.destroyed = true
	s.pd.uses--
	d.srqs--
	d.host.live.SRQs--
	return nil
}
