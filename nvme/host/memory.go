package host

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// remoteAccess are the access rights of the host's memory: the controller reads and writes it.
const remoteAccess = verbs.AccessLocalWrite | verbs.AccessRemoteRead | verbs.AccessRemoteWrite

// memory is the data memory of one controller: regions outside the Go heap and, over RDMA, the
// protection domain of each device in use with the regions registered in it.
type memory struct {
	mu      sync.Mutex
	regions []*mem.Region
	domains map[verbs.Device]*domain
	freed   bool
}

// domain is a protection domain. It exists while a link uses it.
type domain struct {
	m     *memory
	dev   verbs.Device
	pd    verbs.PD
	links int // under m.mu
	mrs   []verbs.MR
	keys  atomic.Pointer[[]regionKey] // replaced under m.mu, read by links
}

type regionKey struct {
	addr, end  uint64
	lkey, rkey uint32
}

// Map allocates n bytes outside the Go heap for data, valid until Close. Over RDMA the data of I/O
// commands must be in such memory; over TCP any memory will do.
func (c *Controller) Map(n int) ([]byte, error) {
	m := c.mem
	m.mu.Lock()
	defer m.mu.Unlock()
	r, err := mem.Map("host data", n)
	if err != nil {
		return nil, err
	}
	m.regions = append(m.regions, r)
	for _, d := range m.domains {
		if err := d.register(r); err != nil {
			return nil, err
		}
	}
	return r.Bytes()[:n], nil
}

// domain returns the domain of a device for one more link, which calls release at its end.
func (m *memory) domain(dev verbs.Device) (*domain, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if d := m.domains[dev]; d != nil {
		d.links++
		return d, nil
	}
	pd, err := dev.AllocPD()
	if err != nil {
		return nil, err
	}
	d := &domain{m: m, dev: dev, pd: pd, links: 1}
	d.keys.Store(new([]regionKey))
	for _, r := range m.regions {
		if err := d.register(r); err != nil {
			d.dealloc()
			return nil, err
		}
	}
	if m.domains == nil {
		m.domains = make(map[verbs.Device]*domain)
	}
	m.domains[dev] = d
	return d, nil
}

func (d *domain) register(r *mem.Region) error {
	b := r.Bytes()
	mr, err := d.pd.RegMR(b, remoteAccess)
	if err != nil {
		return fmt.Errorf("register %d bytes: %w", len(b), err)
	}
	d.mrs = append(d.mrs, mr)
	addr := mem.Addr(b)
	keys := append([]regionKey(nil), *d.keys.Load()...)
	keys = append(keys,
		regionKey{addr: addr, end: addr + uint64(len(b)), lkey: mr.LKey(), rkey: mr.RKey()})
	d.keys.Store(&keys)
	return nil
}

// find returns the keys of the region that contains n bytes at addr, or nil.
func (d *domain) find(addr, n uint64) *regionKey {
	keys := *d.keys.Load()
	for i := range keys {
		if k := &keys[i]; addr >= k.addr && addr+n <= k.end {
			return k
		}
	}
	return nil
}

// release ends a link's use of the domain; the last link frees it.
func (d *domain) release() {
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	if d.links--; d.links == 0 {
		d.dealloc()
		delete(d.m.domains, d.dev)
		d.m.unmap()
	}
}

func (d *domain) dealloc() {
	for _, mr := range d.mrs {
		_ = mr.Dereg()
	}
	d.mrs = nil
	_ = d.pd.Dealloc()
}

// free unmaps the data once no link has it registered.
func (m *memory) free() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.freed = true
	m.unmap()
}

// unmap requires mu.
func (m *memory) unmap() {
	if !m.freed || len(m.domains) > 0 {
		return
	}
	for _, r := range m.regions {
		_ = r.Unmap()
	}
	m.regions = nil
}

func newEventFD() (int, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	return fd, os.NewSyscallError("eventfd", err)
}

func wakeEventFD(fd int) { _, _ = unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

func drainEventFD(fd int) {
	var b [8]byte
	_, _ = unix.Read(fd, b[:])
}
