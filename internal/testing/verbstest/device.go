package verbstest

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// device is one RDMA device of a machine.
type device struct {
	f       *Fabric
	host    *host
	opt     DeviceOptions
	removed bool

	mrs     []*mr // by index of the key
	freeMRs []uint32
	qps     []*qp
	nextQP  uint32
	cqs     []*cq
	srqs    int

	watchers []*watcher
}

// Keys are index<<8 | generation, as on common hardware. The remote key differs from the local one
// in its top bit, so a mix-up is detected.
const rkeyBit = 1 << 31

func (d *device) Attr() verbs.DeviceAttr { return d.opt.Attr }

// call returns the error of a call on the device, if one is due.
func (d *device) call(c Call) error {
	if d.removed {
		return fmt.Errorf("%s: %s: %w", c, d.opt.Attr.Name, unix.EIO)
	}
	return d.host.fault(c)
}

func (d *device) AllocPD() (verbs.PD, error) {
	d.f.lock()
	defer d.f.unlock()
	if err := d.call(CallAllocPD); err != nil {
		return nil, err
	}
	return &pd{object: newObject(&d.host.live.PDs), dev: d}, nil
}

type pd struct {
	object // used by memory regions, queue pairs, shared receive queues
	dev    *device
}

func (p *pd) Dealloc() error {
	p.dev.f.lock()
	defer p.dev.f.unlock()
	return p.free(p.dev.host, CallDeallocPD)
}

type mr struct {
	object
	pd     *pd
	b      []byte
	addr   uint64
	access verbs.Access
	key    uint32 // the local one
	// invalidated reports that a peer's SEND_WITH_INV has invalidated the remote key.
	invalidated bool
}

func (p *pd) RegMR(b []byte, access verbs.Access) (verbs.MR, error) {
	d := p.dev
	d.f.lock()
	defer d.f.unlock()
	if err := d.call(CallRegMR); err != nil {
		return nil, err
	}
	p.use("RegMR")
	switch {
	case len(b) == 0 || uint64(len(b)) > d.opt.Attr.MaxMRSize:
		return nil, fmt.Errorf("%s: %d bytes: %w", CallRegMR, len(b), unix.EINVAL)
	case access&^(verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead) != 0,
		access&verbs.AccessRemoteWrite != 0 && access&verbs.AccessLocalWrite == 0: // ibv_reg_mr(3)
		return nil, fmt.Errorf("%s: access %#x: %w", CallRegMR, access, unix.EINVAL)
	case len(d.mrs)-len(d.freeMRs) >= d.opt.Attr.MaxMR:
		return nil, fmt.Errorf("%s: %w", CallRegMR, unix.ENOMEM)
	}
	m := &mr{
		object: newObject(&d.host.live.MRs), pd: p, b: b, addr: mem.Addr(b), access: access,
	}
	if n := len(d.freeMRs); n > 0 {
		// The new generation makes the keys of the last user invalid.
		m.key = d.freeMRs[n-1]&^0xff | uint32(uint8(d.freeMRs[n-1])+1)
		d.freeMRs = d.freeMRs[:n-1]
		d.mrs[m.key>>8] = m
	} else {
		// Index 0 is never used, so key 0 is not valid.
		if len(d.mrs) == 0 {
			d.mrs = append(d.mrs, nil)
		}
		m.key = uint32(len(d.mrs))<<8 | 1
		d.mrs = append(d.mrs, m)
	}
	p.uses++
	d.host.live.MRBytes += uint64(len(b))
	d.host.live.RemoteMRs += m.remote()
	return m, nil
}

// remote returns 1 if peers have access to the memory.
func (m *mr) remote() int {
	if m.access&(verbs.AccessRemoteWrite|verbs.AccessRemoteRead) != 0 {
		return 1
	}
	return 0
}

func (m *mr) LKey() uint32 { return m.key }
func (m *mr) RKey() uint32 { return m.key | rkeyBit }

func (m *mr) Dereg() error {
	d := m.pd.dev
	d.f.lock()
	defer d.f.unlock()
	if err := m.free(d.host, CallDeregMR); err != nil {
		return err
	}
	m.pd.uses--
	d.host.live.MRBytes -= uint64(len(m.b))
	d.host.live.RemoteMRs -= m.remote()
	d.mrs[m.key>>8] = nil
	d.freeMRs = append(d.freeMRs, m.key)
	m.b = nil
	return nil
}

// findMR returns the region of a local or remote key, or nil.
func (d *device) findMR(key uint32, remote bool) *mr {
	if (key&rkeyBit != 0) != remote {
		return nil
	}
	key &^= rkeyBit
	if i := key >> 8; i < uint32(len(d.mrs)) {
		if m := d.mrs[i]; m != nil && m.key == key && !(remote && m.invalidated) {
			return m
		}
	}
	return nil
}

// bytes returns the memory described by a key, an address and a length. It returns false unless the
// memory is in one region of the protection domain with these rights.
func (d *device) bytes(p *pd, key uint32, remote bool, addr uint64, n uint32,
	need verbs.Access,
) ([]byte, bool) {
	m := d.findMR(key, remote)
	if m == nil || m.pd != p || m.access&need != need || addr < m.addr {
		return nil, false
	}
	off := addr - m.addr
	if off > uint64(len(m.b)) || uint64(n) > uint64(len(m.b))-off {
		return nil, false
	}
	return m.b[off : off+uint64(n)], true
}
