//go:build cgo

package ibv

/*
#include "bind.h"

#cgo noescape vb_poll
#cgo nocallback vb_poll
#cgo noescape vb_req_notify
#cgo nocallback vb_req_notify
#cgo noescape vb_drain
#cgo nocallback vb_drain
*/
import "C"

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

type cq struct {
	c   *C.struct_ibv_cq
	dev *device
}

var errPoll = errors.New("ibv_poll_cq: the completion queue has failed")

func (d *device) CreateCQ(entries int, ch verbs.CompChannel, vector int) (verbs.CQ, error) {
	var cc *C.struct_ibv_comp_channel
	if ch != nil {
		cc = ch.(*compChannel).c
	}
	if entries < 1 || entries > 1<<30 || vector < 0 {
		return nil, fail("ibv_create_cq", unix.EINVAL, "of %d entries, vector %d", entries, vector)
	}
	vector %= max(1, d.attr.NumCompVectors)
	c, err := C.ibv_create_cq(d.ctx, C.int(entries), nil, cc, C.int(vector))
	if c == nil {
		return nil, failErr("ibv_create_cq", err, "of %d entries on %s, at most %d", entries,
			d.attr.Name, d.attr.MaxCQE)
	}
	q := &cq{c, d}
	d.watchers.add(unsafe.Pointer(c), q)
	return q, nil
}

func (q *cq) Poll(wc []verbs.WC) (int, error) {
	n := C.vb_poll(q.c, (*C.struct_vb_wc)(unsafe.Pointer(unsafe.SliceData(wc))), C.int(len(wc)))
	if n < 0 {
		return 0, errPoll
	}
	return int(n), nil
}

func (q *cq) ReqNotify() error {
	if errno := C.vb_req_notify(q.c); errno != 0 {
		return fail("ibv_req_notify_cq", unix.Errno(errno), "")
	}
	return nil
}

func (q *cq) Destroy() error {
	q.dev.watchers.remove(unsafe.Pointer(q.c)) // another may get the same address
	err := fail("ibv_destroy_cq", unix.Errno(C.ibv_destroy_cq(q.c)), "")
	if err != nil {
		q.dev.watchers.add(unsafe.Pointer(q.c), q)
	}
	return err
}

type compChannel struct {
	c *C.struct_ibv_comp_channel
}

func (d *device) CreateCompChannel() (verbs.CompChannel, error) {
	c, err := C.ibv_create_comp_channel(d.ctx)
	if c == nil {
		return nil, failErr("ibv_create_comp_channel", err, "%s", d.attr.Name)
	}
	if err := unix.SetNonblock(int(c.fd), true); err != nil {
		C.ibv_destroy_comp_channel(c)
		return nil, failErr("fcntl", err, "completion channel")
	}
	return &compChannel{c}, nil
}

func (c *compChannel) FD() int { return int(c.c.fd) }

func (c *compChannel) Drain() (int, error) {
	n := C.vb_drain(c.c)
	if n < 0 {
		return 0, fail("ibv_get_cq_event", unix.Errno(-n), "")
	}
	return int(n), nil
}

func (c *compChannel) Close() error {
	return fail("ibv_destroy_comp_channel", unix.Errno(C.ibv_destroy_comp_channel(c.c)), "")
}
