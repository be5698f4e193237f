package e2e

import (
	"sync"

	"github.com/nvmf-target/nvmf-target/backend"
)

// gate is a device in front of another one. It can hold IOs, fail them, and refuse to accept any.
type gate struct {
	backend.Device
	mu       sync.Mutex
	shut     bool  // hold all IOs
	fail     error // fail the IOs that are not held
	held     int   // IOs
	full     bool  // accept no IO
	channels []*gateChannel
}

type gateChannel struct {
	g     *gate
	under backend.Channel
	wake  func()
	held  []*backend.IO // under g.mu
	done  []*backend.IO // failed, under g.mu
}

func (g *gate) OpenChannel(r backend.Reactor) (backend.Channel, error) {
	c, err := g.Device.OpenChannel(r)
	if err != nil {
		return nil, err
	}
	ch := &gateChannel{g: g, under: c, wake: r.Wake}
	g.mu.Lock()
	g.channels = append(g.channels, ch)
	g.mu.Unlock()
	return ch, nil
}

// set opens or shuts the gate. If fail is not nil, all IOs that pass fail with it, including the
// ones held so far.
func (g *gate) set(shut bool, fail error) {
	g.mu.Lock()
	g.shut, g.fail = shut, fail
	channels := g.channels
	g.mu.Unlock()
	for _, c := range channels {
		c.wake()
	}
}

// setFull makes the device refuse all IOs, or accept them again.
func (g *gate) setFull(full bool) {
	g.mu.Lock()
	g.full = full
	channels := g.channels
	g.mu.Unlock()
	for _, c := range channels {
		c.wake()
	}
}

// holds returns the number of IOs held.
func (g *gate) holds() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.held
}

func (c *gateChannel) Submit(ios []*backend.IO) int {
	c.g.mu.Lock()
	defer c.g.mu.Unlock()
	if c.g.full {
		return 0
	}
	c.held = append(c.held, ios...)
	c.g.held += len(ios)
	return len(ios)
}

func (c *gateChannel) Poll(done []*backend.IO) int {
	c.g.mu.Lock()
	if !c.g.shut {
		c.g.held -= len(c.held)
		if c.g.fail != nil {
			for _, io := range c.held {
				io.Err = c.g.fail
			}
			c.done = append(c.done, c.held...)
			c.held = nil
		} else if len(c.held) > 0 {
			n := c.under.Submit(c.held)
			c.g.held += len(c.held) - n
			c.held = c.held[n:]
		}
	}
	n := copy(done, c.done)
	c.done = c.done[n:]
	c.g.mu.Unlock()
	return n + c.under.Poll(done[n:])
}

func (c *gateChannel) Arm() bool { return c.under.Arm() }

func (c *gateChannel) Close() error { return c.under.Close() }
