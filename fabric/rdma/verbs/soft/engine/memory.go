package engine

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// Regions are found by key without a lock: the low bits of a key are its place in a table of
// atomic pointers. All bits are random, so that nobody guesses the key of a region. A table at most
// half full makes two draws enough on average.
const (
	keySlots = 1 << 16
	maxMR    = keySlots / 2
)

// PD is a protection domain: a verbs.PD. A queue pair holds its PD.
type PD struct {
	uses
	dev *Device
}

// mr is a memory region.
type mr struct {
	pd      *PD
	b       []byte
	addr    uint64
	key     uint32
	access  verbs.Access
	invalid atomic.Bool // the peer has invalidated the remote key
	freed   atomic.Bool
}

// AllocPD makes a protection domain.
func (d *Device) AllocPD() (verbs.PD, error) { return &PD{dev: d}, nil }

// Dealloc frees the PD. EBUSY if anything uses it.
func (p *PD) Dealloc() error {
	if err := p.free(); err != nil {
		return fmt.Errorf("free protection domain: %w", err)
	}
	return nil
}

// RegMR registers memory. The local and the remote key are the same; without AccessRemoteRead or
// AccessRemoteWrite no peer can use it.
func (p *PD) RegMR(b []byte, access verbs.Access) (verbs.MR, error) {
	const all = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead
	fail := func(err error) (verbs.MR, error) {
		return nil, fmt.Errorf("register %d bytes with access %#x: %w", len(b), access, err)
	}
	if len(b) == 0 || access&^all != 0 ||
		// As in ibv_reg_mr(3).
		access&verbs.AccessRemoteWrite != 0 && access&verbs.AccessLocalWrite == 0 {
		return fail(unix.EINVAL)
	}
	if err := p.Hold(); err != nil {
		return fail(err)
	}
	if err := reserve(&p.dev.mrs, maxMR); err != nil {
		p.Release()
		return fail(err)
	}
	m := &mr{pd: p, b: b, addr: mem.Addr(b), access: access}
	for {
		var k [4]byte
		_, _ = rand.Read(k[:]) // never fails
		m.key = binary.NativeEndian.Uint32(k[:])
		if m.key != 0 && p.dev.slot(m.key).CompareAndSwap(nil, m) {
			return m, nil
		}
	}
}

func (d *Device) slot(key uint32) *atomic.Pointer[mr] { return &d.table[key%keySlots] }

func (m *mr) LKey() uint32 { return m.key }
func (m *mr) RKey() uint32 { return m.key }

// Dereg frees the region. When it returns, no engine uses the memory. No engine may be held.
func (m *mr) Dereg() error {
	if m.freed.Swap(true) {
		return fmt.Errorf("deregister: %w", unix.EINVAL)
	}
	d := m.pd.dev
	d.slot(m.key).Store(nil)
	for _, e := range d.engines {
		e.Do(func() {}) // an engine uses the memory of a region only while it is held
	}
	m.b = nil
	d.mrs.Add(-1)
	m.pd.Release()
	return nil
}

// Local returns the memory of an element of a work request, false unless it is in one region of the
// protection domain with these rights. Engine held; the memory may be used until the engine is let
// go. An element of length 0 is not checked.
func (d *Device) Local(pd *PD, s verbs.SGE, need verbs.Access) ([]byte, bool) {
	if s.Length == 0 {
		return nil, true
	}
	m := d.slot(s.LKey).Load()
	if m == nil || m.key != s.LKey {
		return nil, false
	}
	return m.bytes(pd, s.Addr, s.Length, need)
}

// Remote returns the memory that a peer's RDMA request describes, false unless it is in one region
// of the protection domain with these rights and the key has not been invalidated. Engine held; the
// memory may be used until the engine is let go. A request of length 0 is not checked (C9-88).
func (d *Device) Remote(pd *PD, rkey uint32, addr uint64, n uint32, need verbs.Access) (
	[]byte, bool,
) {
	if n == 0 {
		return nil, true
	}
	m := d.remote(rkey)
	if m == nil {
		return nil, false
	}
	return m.bytes(pd, addr, n, need)
}

// remote returns the region of a remote key, nil if there is none.
func (d *Device) remote(rkey uint32) *mr {
	if m := d.slot(rkey).Load(); m != nil && m.key == rkey && m.remote() && !m.invalid.Load() {
		return m
	}
	return nil
}

func (m *mr) remote() bool {
	return m.access&(verbs.AccessRemoteRead|verbs.AccessRemoteWrite) != 0
}

func (m *mr) bytes(pd *PD, addr uint64, n uint32, need verbs.Access) ([]byte, bool) {
	off := addr - m.addr
	if m.pd != pd || m.access&need != need || addr < m.addr || off > uint64(len(m.b)) ||
		uint64(n) > uint64(len(m.b))-off {
		return nil, false
	}
	return m.b[off : off+uint64(n) : off+uint64(n)], true
}

// Invalidate makes a remote key invalid, as a SEND_WITH_INV of the peer demands (section 9.4.1.1).
// It reports false unless the key is a valid remote key of the protection domain. Local
// use of the region goes on. Engine held.
func (d *Device) Invalidate(pd *PD, rkey uint32) bool {
	m := d.remote(rkey)
	return m != nil && m.pd == pd && !m.invalid.Swap(true)
}
