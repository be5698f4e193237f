package isolation

import (
	"sync"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// fault is a condition that several culprits may turn on. It ends when the last of them has ended
// it. Any goroutine may use it.
type fault struct {
	mu      sync.Mutex
	users   int
	on, off func()
}

// begin turns the fault on; end turns it off.
func (f *fault) begin() (end func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.users++; f.users == 1 {
		f.on()
	}
	return sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.users--; f.users == 0 {
			f.off()
		}
	})
}

// stall is a fault that makes calls hang.
type stall struct {
	fault
	stalled sync.RWMutex
}

func (s *stall) init() { s.on, s.off = s.stalled.Lock, s.stalled.Unlock }

// pass returns when nobody has turned the fault on.
func (s *stall) pass() {
	s.stalled.RLock()
	defer s.stalled.RUnlock()
}

// thinDevice is a thin device that may hang when asked for its space, like a network file system.
type thinDevice struct {
	backend.Device
	stall
}

// Info implements backend.Device.
func (d *thinDevice) Info() backend.Info {
	i := d.Device.Info()
	i.Thin = true
	return i
}

// Space implements backend.SpaceReporter.
func (d *thinDevice) Space() (allocated, free int64, err error) {
	d.pass()
	return blockSize, -1, nil
}

// drive is an admin.Drive that may hang when asked for its health.
type drive struct{ stall }

// ID implements admin.Drive.
func (d *drive) ID() string { return "drive" }

// Counts implements admin.Drive.
func (d *drive) Counts() bool { return false }

// SMART implements admin.Drive.
func (d *drive) SMART() (*nvme.SMARTLog, error) {
	d.pass()
	return new(nvme.SMARTLog), nil
}
