package host

import (
	"sync"

	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// memory is the data memory of one controller: regions outside the Go heap, and over RDMA their registrations.
type memory struct {
	mu      sync.Mutex
	regions []*mem.Region
	onMap   func(*mem.Region) error // registers a region; nil over TCP
	onFree  func()
}

// Map maps n bytes for data. They live until Close. Over RDMA the data of I/O commands must come from here; over TCP any memory will
// do.
func (c *Controller) Map(n int) ([]byte, error) {
	m := c.mem
	m.mu.Lock()
	defer m.mu.Unlock()
	r, err := mem.Map("host data", n)
	if err != nil {
		return nil, err
	}
	if m.onMap != nil {
		if err := m.onMap(r); err != nil {
			_ = r.Unmap()
			return nil, err
		}
	}
	m.regions = append(m.regions, r)
	return r.Bytes()[:n], nil
}

func (m *memory) free() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.onFree != nil {
		m.onFree()
	}
	for _, r := range m.regions {
		_ = r.Unmap()
	}
	m.regions = nil
}
