//go:build cgo

package ibv

// #include "bind.h"
import "C"

import (
	"math"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

// id is a communication identifier.
type id struct {
	cm  *cm
	c   *C.struct_rdma_cm_id
	v4  *C.struct_rdma_cm_id // of a listener at ::, which also listens for IPv4
	ctx any

	// Copies of librdmacm's data, made under cm.mu at changes, since reads may follow Destroy.
	dev           *device
	local, remote netip.AddrPort
}

func (i *id) SetContext(v any) { i.ctx = v }
func (i *id) Context() any     { return i.ctx }

// refresh copies addresses and device, with cm.mu held and the C ID alive.
func (i *id) refresh() {
	var l, r C.struct_vb_addr
	C.vb_addrs(i.c, &l, &r)
	i.local, i.remote = fromC(&l), fromC(&r)
	if i.dev == nil && i.c.verbs != nil {
		// An error means that the device is going away; its calls would fail as well.
		i.dev, _ = i.cm.p.device(i.c.verbs)
	}
}

func (i *id) Device() verbs.Device {
	i.cm.mu.Lock()
	defer i.cm.mu.Unlock()
	if i.dev == nil {
		return nil
	}
	return i.dev
}

func (i *id) Local() netip.AddrPort {
	i.cm.mu.Lock()
	defer i.cm.mu.Unlock()
	return i.local
}

func (i *id) Remote() netip.AddrPort {
	i.cm.mu.Lock()
	defer i.cm.mu.Unlock()
	return i.remote
}

// milliseconds converts a timeout for C, at least 1.
func milliseconds(d time.Duration) C.int {
	return C.int(min(max(d.Milliseconds(), 1), math.MaxInt32))
}

func (i *id) ResolveAddr(src, dst netip.AddrPort, timeout time.Duration) error {
	s, err := toC(src)
	if err != nil {
		return err
	}
	d, err := toC(dst)
	if err != nil {
		return err
	}
	errno := unix.Errno(C.vb_resolve_addr(i.c, &s, &d, milliseconds(timeout)))
	return noDevice(fail("rdma_resolve_addr", errno, "%v", dst), unix.ENODEV, unix.EADDRNOTAVAIL)
}

func (i *id) ResolveRoute(timeout time.Duration) error {
	if r, err := C.rdma_resolve_route(i.c, milliseconds(timeout)); r != 0 {
		return failErr("rdma_resolve_route", err, "%v", i.Remote())
	}
	return nil
}

func (i *id) CreateQP(vpd verbs.PD, init verbs.QPInit) (verbs.QP, error) {
	q := C.struct_vb_qp_init{send_cq: init.SendCQ.(*cq).c, recv_cq: init.RecvCQ.(*cq).c}
	if init.SRQ != nil {
		q.srq = init.SRQ.(*srq).c
	}
	for _, x := range []struct {
		to   *C.uint32_t
		what string
		n    int
	}{
		{&q.max_send_wr, "MaxSendWR", init.MaxSendWR},
		{&q.max_recv_wr, "MaxRecvWR", init.MaxRecvWR},
		{&q.max_send_sge, "MaxSendSGE", init.MaxSendSGE},
		{&q.max_recv_sge, "MaxRecvSGE", init.MaxRecvSGE},
		{&q.max_inline, "MaxInline", init.MaxInline},
	} {
		n, err := count(x.what, x.n)
		if err != nil {
			return nil, err
		}
		*x.to = n
	}
	i.cm.inEvent.Lock() // librdmacm uses the queue pair while it takes events
	defer i.cm.inEvent.Unlock()
	errno := unix.Errno(C.vb_create_qp(i.c, vpd.(*pd).c, &q))
	if err := fail("rdma_create_qp", errno, "with %d/%d work requests of %d/%d elements",
		init.MaxSendWR, init.MaxRecvWR, init.MaxSendSGE, init.MaxRecvSGE); err != nil {
		return nil, err
	}
	return &qp{id: i, c: i.c.qp, num: uint32(i.c.qp.qp_num), inline: int(q.max_inline)}, nil
}

// toParam converts connection parameters for C.
func toParam(call string, p *verbs.ConnParam) (c C.struct_vb_conn_param, err error) {
	if len(p.PrivateData) > math.MaxUint8 {
		return c, fail(call, unix.EINVAL, "with %d bytes of private data", len(p.PrivateData))
	}
	c.responder_resources, c.initiator_depth = C.uint8_t(p.ResponderResources),
		C.uint8_t(p.InitiatorDepth)
	c.retry_count, c.rnr_retry_count = C.uint8_t(p.RetryCount), C.uint8_t(p.RNRRetryCount)
	if p.FlowControl {
		c.flow_control = 1
	}
	c.private_len = C.uint8_t(len(p.PrivateData))
	copy(bytesOf(&c.private_data), p.PrivateData)
	return c, nil
}

// param converts connection parameters from C. The private data is copied.
func param(c *C.struct_vb_conn_param) verbs.ConnParam {
	p := verbs.ConnParam{
		ResponderResources: uint8(c.responder_resources), InitiatorDepth: uint8(c.initiator_depth),
		RetryCount: uint8(c.retry_count), RNRRetryCount: uint8(c.rnr_retry_count),
		FlowControl: c.flow_control != 0,
	}
	if n := int(c.private_len); n > 0 {
		p.PrivateData = slices.Clone(bytesOf(&c.private_data)[:n])
	}
	return p
}

func (i *id) Connect(p verbs.ConnParam) error {
	c, err := toParam("rdma_connect", &p)
	if err != nil {
		return err
	}
	return fail("rdma_connect", unix.Errno(C.vb_connect(i.c, &c, 0)), "%v", i.Remote())
}

func (i *id) Accept(p verbs.ConnParam) error {
	c, err := toParam("rdma_accept", &p)
	if err != nil {
		return err
	}
	return fail("rdma_accept", unix.Errno(C.vb_connect(i.c, &c, 1)), "of %v", i.Remote())
}

func (i *id) Reject(private []byte) error {
	p := verbs.ConnParam{PrivateData: private}
	c, err := toParam("rdma_reject", &p)
	if err != nil {
		return err
	}
	return fail("rdma_reject", unix.Errno(C.vb_reject(i.c, &c.private_data[0], c.private_len)),
		"of %v", i.Remote())
}

func (i *id) Disconnect() error {
	i.cm.inEvent.Lock()
	defer i.cm.inEvent.Unlock()
	r, err := C.rdma_disconnect(i.c)
	if i.c.qp != nil {
		C.vb_to_error(i.c.qp) // iWARP closes the stream in order and may wait for the peer
	}
	// EINVAL and ENOTCONN: the connection no longer exists.
	if r != 0 && err != unix.EINVAL && err != unix.ENOTCONN {
		return failErr("rdma_disconnect", err, "from %v", i.Remote())
	}
	return nil
}

func (i *id) Destroy() error {
	// Remove it from the map first: no event may find it, and its address may be reused.
	c := i.cm
	c.mu.Lock()
	delete(c.ids, i.c)
	delete(c.ids, i.v4)
	c.mu.Unlock()
	for _, cid := range []*C.struct_rdma_cm_id{i.v4, i.c} {
		if cid == nil {
			continue
		}
		if r, err := C.rdma_destroy_id(cid); r != 0 {
			return failErr("rdma_destroy_id", err, "")
		}
	}
	return nil
}
