package soft

import (
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/internal/observed"
)

// counters is called with each counter of a device: its name, and the values that it adds up.
type counters func(name string, values ...*atomic.Uint64)

// Counters returns the counters of the device, none before its sockets are open. Counters that
// drivers of adapters also have get the same names. Any goroutine may call it.
func (p *Provider) Counters() []observed.PortCounter {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dev == nil {
		return nil
	}
	var list []observed.PortCounter
	device := p.dev.Attr().Name
	p.dev.count(func(name string, values ...*atomic.Uint64) {
		c := observed.PortCounter{Device: device, Port: "1", Counter: name}
		for _, v := range values {
			c.Value += v.Load()
		}
		list = append(list, c)
	})
	return list
}
