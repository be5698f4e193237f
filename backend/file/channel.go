package file

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/backend"
)

// maxOutstanding is the most IOs a channel takes.
const maxOutstanding = 1024

// channel is one reactor's. Fields above jobs are the reactor's alone.
type channel struct {
	d           *device
	outstanding int
	workers     int
	done        backend.List

	jobs     chan *backend.IO
	finished atomic.Pointer[backend.IO] // a stack linked through Next, newest first
	wake     func()
	wg       sync.WaitGroup
}

// OpenChannel implements backend.Device.
func (d *device) OpenChannel(r backend.Reactor) (backend.Channel, error) {
	d.channels.Add(1)
	return &channel{d: d, wake: r.Wake, jobs: make(chan *backend.IO, maxOutstanding)}, nil
}

// Submit implements backend.Channel.
func (c *channel) Submit(ios []*backend.IO) int {
	for i, io := range ios {
		if c.outstanding == maxOutstanding {
			return i
		}
		c.outstanding++
		if io.Err = io.Check(c.d.info.Size); io.Err != nil {
			c.done.Push(io)
			continue
		}
		if c.workers < c.d.cfg.Workers && c.outstanding > c.workers {
			c.workers++
			c.wg.Go(c.work)
		}
		c.jobs <- io // has room for all that are outstanding
	}
	return len(ios)
}

// Poll implements backend.Channel.
func (c *channel) Poll(done []*backend.IO) int {
	if c.finished.Load() != nil {
		var fifo *backend.IO
		for io := c.finished.Swap(nil); io != nil; {
			io.Next, fifo, io = fifo, io, io.Next
		}
		for fifo != nil {
			next := fifo.Next
			c.done.Push(fifo)
			fifo = next
		}
	}
	n := c.done.Fill(done)
	c.outstanding -= n
	return n
}

// Arm implements backend.Channel.
func (c *channel) Arm() bool { return c.done.First() == nil && c.finished.Load() == nil }

// Close implements backend.Channel. It ends the workers.
func (c *channel) Close() error {
	if c.outstanding != 0 {
		return fmt.Errorf("close channel of file device %s: %d operations are outstanding", c.d.cfg.Path, c.outstanding)
	}
	close(c.jobs)
	c.wg.Wait() // they are idle, or just returned from wake
	c.d.channels.Add(-1)
	return nil
}

// work is a worker.
func (c *channel) work() {
	w := worker{d: c.d}
	defer w.close()
	for io := range c.jobs {
		io.Err = w.do(io)
		for {
			io.Next = c.finished.Load()
			if c.finished.CompareAndSwap(io.Next, io) {
				break
			}
		}
		c.wake()
	}
}
