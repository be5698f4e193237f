//go:build cgo

// Package ibv binds verbs to rdma-core: libibverbs and librdmacm.
//
//	Go arrays without pointers -> one C call per batch (bind.c) -> work request chains -> driver
//
// The data path makes one C call per batch and allocates nothing. The communication manager's
// descriptor is non-blocking and watched by the Go runtime, so Next holds no thread and Close ends
// it.
package ibv

// #cgo pkg-config: libibverbs librdmacm
// #include <stdlib.h>
// #include "bind.h"
import "C"

import (
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// provider has the devices of IDs. librdmacm opens each device once for all IDs.
type provider struct {
	mu      sync.Mutex
	devices map[*C.struct_ibv_context]*device
}

// New returns the RDMA stack of this machine. It opens nothing yet.
func New() verbs.Provider {
	return &provider{devices: map[*C.struct_ibv_context]*device{}}
}

func (p *provider) Devices() ([]verbs.DeviceAttr, error) {
	var n C.int
	list, err := C.ibv_get_device_list(&n)
	if list == nil {
		return nil, noDevice(failErr("ibv_get_device_list", err, ""), unix.ENOSYS, unix.ENODEV,
			unix.ENOENT, unix.EIO)
	}
	defer C.ibv_free_device_list(list)
	var attrs []verbs.DeviceAttr
	for _, d := range unsafe.Slice(list, int(n)) {
		name := C.GoString(C.ibv_get_device_name(d))
		ctx, err := C.ibv_open_device(d)
		if ctx == nil {
			return nil, failErr("ibv_open_device", err, "%s", name)
		}
		a, err := query(ctx)
		C.ibv_close_device(ctx)
		if err != nil {
			return nil, err
		}
		attrs = append(attrs, a)
	}
	return attrs, nil
}

func query(ctx *C.struct_ibv_context) (verbs.DeviceAttr, error) {
	name := C.GoString(C.ibv_get_device_name(ctx.device))
	var a C.struct_vb_device_attr
	if err := fail("ibv_query_device", unix.Errno(C.vb_query(ctx, &a)), "%s", name); err != nil {
		return verbs.DeviceAttr{}, err
	}
	return verbs.DeviceAttr{
		Name: name, IWARP: a.iwarp != 0,
		ReadNeedsRemoteWrite: a.iwarp != 0, HoldsUnsignaledWrites: a.iwarp != 0,
		VendorID: uint32(a.dev.vendor_id),
		MaxQP:    int(a.dev.max_qp), MaxQPWR: int(a.dev.max_qp_wr), MaxSGE: int(a.dev.max_sge),
		MaxSGERD: int(a.dev.max_sge_rd),
		MaxCQ:    int(a.dev.max_cq), MaxCQE: int(a.dev.max_cqe), MaxMR: int(a.dev.max_mr),
		MaxMRSize:   uint64(a.dev.max_mr_size),
		MaxQPRdAtom: int(a.dev.max_qp_rd_atom), MaxQPInitRdAtom: int(a.dev.max_qp_init_rd_atom),
		MaxSRQ: int(a.dev.max_srq), MaxSRQWR: int(a.dev.max_srq_wr),
		MaxSRQSGE:      int(a.dev.max_srq_sge),
		NumCompVectors: int(a.comp_vectors), Node: sys.NodeOfDevice("infiniband", name),
	}, nil
}

func (p *provider) device(ctx *C.struct_ibv_context) (*device, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d := p.devices[ctx]; d != nil {
		return d, nil
	}
	attr, err := query(ctx)
	if err != nil {
		return nil, err
	}
	// The list holds a reference on every device. It is not freed: a device lives as long as the
	// provider, even after its last ID.
	if C.rdma_get_devices(nil) == nil {
		return nil, fail("rdma_get_devices", unix.EIO, "")
	}
	d := &device{ctx: ctx, attr: attr}
	if err := d.occupyInvalidKey(); err != nil {
		return nil, err
	}
	p.devices[ctx] = d
	return d, nil
}

// device is an open RDMA device.
type device struct {
	ctx  *C.struct_ibv_context
	attr verbs.DeviceAttr

	watchers watchers
}

func (d *device) Attr() verbs.DeviceAttr { return d.attr }

func (d *device) AllocPD() (verbs.PD, error) {
	c, err := C.ibv_alloc_pd(d.ctx)
	if c == nil {
		return nil, failErr("ibv_alloc_pd", err, "%s", d.attr.Name)
	}
	return &pd{dev: d, c: c}, nil
}

type pd struct {
	dev *device
	c   *C.struct_ibv_pd
}

func (p *pd) Dealloc() error {
	return fail("ibv_dealloc_pd", unix.Errno(C.ibv_dealloc_pd(p.c)), "%s", p.dev.attr.Name)
}

type mr struct {
	c *C.struct_ibv_mr
}

func (p *pd) RegMR(b []byte, access verbs.Access) (verbs.MR, error) {
	if len(b) == 0 {
		return nil, fail("ibv_reg_mr", unix.EINVAL, "of 0 bytes")
	}
	m := &mr{}
	errno := C.vb_reg_mr(p.c, unsafe.Pointer(unsafe.SliceData(b)), C.size_t(len(b)), C.int(access),
		&m.c)
	if err := fail("ibv_reg_mr", unix.Errno(errno), "of %d bytes on %s", len(b),
		p.dev.attr.Name); err != nil {
		return nil, err
	}
	return m, nil
}

func (m *mr) LKey() uint32 { return uint32(m.c.lkey) }
func (m *mr) RKey() uint32 { return uint32(m.c.rkey) }
func (m *mr) Dereg() error { return fail("ibv_dereg_mr", unix.Errno(C.ibv_dereg_mr(m.c)), "") }

// count converts a size for C.
func count(what string, n int) (C.uint32_t, error) {
	if n < 0 || n > 1<<30 {
		return 0, fmt.Errorf("%s %d: %w", what, n, unix.EINVAL)
	}
	return C.uint32_t(n), nil
}
