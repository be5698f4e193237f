//go:build cgo

package ibv

/*
#include "bind.h"

#cgo noescape vb_post_send
#cgo nocallback vb_post_send
#cgo noescape vb_post_recv
#cgo nocallback vb_post_recv
#cgo noescape vb_post_srq_recv
#cgo nocallback vb_post_srq_recv
*/
import "C"

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

type qp struct {
	id     *id
	c      *C.struct_ibv_qp
	num    uint32
	inline int
}

// posted splits the result of a posting function into the number posted and the error.
func posted(call string, r C.uint64_t) (int, error) {
	if errno := unix.Errno(r >> 32); errno != 0 {
		return int(uint32(r)), fail(call, errno, "")
	}
	return int(uint32(r)), nil
}

func (q *qp) Num() uint32    { return q.num }
func (q *qp) MaxInline() int { return q.inline }

func (q *qp) PostSend(wrs []verbs.SendWR, sges []verbs.SGE) (int, error) {
	return posted("ibv_post_send",
		C.vb_post_send(q.c, (*C.struct_vb_send_wr)(unsafe.Pointer(unsafe.SliceData(wrs))),
			C.uint32_t(len(wrs)), (*C.struct_ibv_sge)(unsafe.Pointer(unsafe.SliceData(sges))),
			C.uint64_t(len(sges))))
}

func (q *qp) PostRecv(wrs []verbs.RecvWR) (int, error) {
	return posted("ibv_post_recv",
		C.vb_post_recv(q.c, (*C.struct_vb_recv_wr)(unsafe.Pointer(unsafe.SliceData(wrs))),
			C.uint32_t(len(wrs))))
}

func (q *qp) ToError() error {
	return fail("ibv_modify_qp", unix.Errno(C.vb_to_error(q.c)), "to the error state")
}

func (q *qp) ShortenRNRTimer() error {
	return fail("ibv_modify_qp", unix.Errno(C.vb_shorten_rnr_timer(q.c)),
		"to shorten the RNR timer")
}

func (q *qp) Destroy() error {
	q.id.cm.inEvent.Lock() // librdmacm uses the queue pair while it takes events
	defer q.id.cm.inEvent.Unlock()
	// rdma_destroy_qp returns nothing. It also frees completion queues that librdmacm has made
	// itself, but there are none here (rdma-core, librdmacm/cma.c, ucma_destroy_cqs).
	if err := fail("ibv_destroy_qp", unix.Errno(C.ibv_destroy_qp(q.c)), ""); err != nil {
		return err
	}
	q.id.c.qp = nil
	return nil
}

type srq struct {
	c   *C.struct_ibv_srq
	dev *device
}

func (p *pd) CreateSRQ(init verbs.SRQInit) (verbs.SRQ, error) {
	wr, err := count("MaxWR", init.MaxWR)
	if err != nil {
		return nil, err
	}
	sge, err := count("MaxSGE", init.MaxSGE)
	if err != nil {
		return nil, err
	}
	s := &srq{dev: p.dev}
	if err := fail("ibv_create_srq", unix.Errno(C.vb_create_srq(p.c, wr, sge, &s.c)),
		"of %d work requests with %d elements on %s",
		init.MaxWR, init.MaxSGE, p.dev.attr.Name); err != nil {
		return nil, err
	}
	p.dev.watchers.add(unsafe.Pointer(s.c), s)
	return s, nil
}

func (s *srq) PostRecv(wrs []verbs.RecvWR) (int, error) {
	return posted("ibv_post_srq_recv",
		C.vb_post_srq_recv(s.c, (*C.struct_vb_recv_wr)(unsafe.Pointer(unsafe.SliceData(wrs))),
			C.uint32_t(len(wrs))))
}

func (s *srq) Destroy() error {
	s.dev.watchers.remove(unsafe.Pointer(s.c)) // another may get the same address
	err := fail("ibv_destroy_srq", unix.Errno(C.ibv_destroy_srq(s.c)), "")
	if err != nil {
		s.dev.watchers.add(unsafe.Pointer(s.c), s)
	}
	return err
}
