package backendtest

import (
	"errors"
	"sync"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/list"
)

// Faulty is a wrapper that fails or holds IOs on request. Any goroutine may call its methods at any
// time.
type Faulty struct {
	backend.Device

	mu    sync.Mutex
	fault func(*backend.IO) error
	hold  func(*backend.IO) bool
	full  bool
	abort bool
	fence func() bool
	wakes map[*faultyChannel]func()
	held  int
}

// NewFaulty wraps dev. Close closes dev, too.
func NewFaulty(dev backend.Device) *Faulty {
	return &Faulty{Device: dev, wakes: map[*faultyChannel]func(){}}
}

// Fail makes every IO submitted from now on complete with the error that fault returns for it,
// unless that is nil. The device never sees such an IO. Fail(nil) ends that.
func (f *Faulty) Fail(fault func(*backend.IO) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fault
}

// Hold keeps IOs submitted from now on from the device until Release: the IOs that hold returns
// true for, or all of them if hold is nil. They are outstanding, and their memory is in use.
func (f *Faulty) Hold(hold func(*backend.IO) bool) {
	if hold == nil {
		hold = func(*backend.IO) bool { return true }
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hold = hold
}

// Release ends Hold: the held IOs go to the device.
func (f *Faulty) Release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hold = nil
	f.wakeAll()
}

// Held returns the number of held IOs.
func (f *Faulty) Held() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.held
}

// Full makes Submit take nothing while it is true.
func (f *Faulty) Full(full bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.full = full
	f.wakeAll()
}

// HonorCancel makes Cancel complete a held IO with ErrAborted. Otherwise Cancel does nothing.
func (f *Faulty) HonorCancel() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.abort = true
}

// OnFence sets the function that Fence calls; nil for none.
func (f *Faulty) OnFence(fn func() bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fence = fn
}

// Fence implements backend.Fencer.
func (f *Faulty) Fence() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fence == nil || f.fence()
}

func (f *Faulty) wakeAll() {
	for _, wake := range f.wakes {
		wake()
	}
}

// OpenChannel implements backend.Device.
func (f *Faulty) OpenChannel(r backend.Reactor) (backend.Channel, error) {
	inner, err := f.Device.OpenChannel(r)
	if err != nil {
		return nil, err
	}
	c := &faultyChannel{f: f, inner: inner, wake: r.Wake}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wakes[c] = r.Wake
	return c, nil
}

type faultyChannel struct {
	f     *Faulty
	inner backend.Channel
	wake  func()
	held  list.List[backend.IO] // held, or released and not yet taken by the device
	done  list.List[backend.IO]
	one   [1]*backend.IO
}

// Submit implements backend.Channel.
func (c *faultyChannel) Submit(ios []*backend.IO) int {
	for i, io := range ios {
		if !c.submit(io) {
			return i
		}
	}
	return len(ios)
}

func (c *faultyChannel) submit(io *backend.IO) bool {
	c.f.mu.Lock()
	fault, hold, full := c.f.fault, c.f.hold, c.f.full
	c.f.mu.Unlock()
	if full {
		return false
	}
	if fault != nil {
		if err := fault(io); err != nil {
			io.Err = err
			c.done.Push(io, &io.Node)
			return true
		}
	}
	if hold != nil && hold(io) {
		c.held.Push(io, &io.Node)
		c.f.count(1)
		return true
	}
	c.one[0] = io
	return c.inner.Submit(c.one[:]) == 1
}

func (f *Faulty) count(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held += n
}

// Poll implements backend.Channel.
func (c *faultyChannel) Poll(done []*backend.IO) int {
	c.f.mu.Lock()
	holding := c.f.hold != nil
	c.f.mu.Unlock()
	for !holding && !c.held.Empty() {
		io := c.held.Pop()
		if c.one[0] = io; c.inner.Submit(c.one[:]) == 0 {
			c.held.PushFirst(io, &io.Node)
			c.wake() // full: try again after this Poll, which makes room
			break
		}
		c.f.count(-1)
	}
	n := c.done.Fill(done)
	return n + c.inner.Poll(done[n:])
}

// Cancel implements backend.Canceler.
func (c *faultyChannel) Cancel(io *backend.IO) {
	c.f.mu.Lock()
	abort := c.f.abort
	c.f.mu.Unlock()
	for held := range c.held.All() {
		if held == io && abort {
			c.held.Remove(&io.Node)
			io.Err = backend.ErrAborted
			c.done.Push(io, &io.Node)
			c.f.count(-1)
		}
	}
}

// Arm implements backend.Channel.
func (c *faultyChannel) Arm() bool { return c.done.Empty() && c.inner.Arm() }

// Close implements backend.Channel.
func (c *faultyChannel) Close() error {
	if !c.held.Empty() || !c.done.Empty() {
		return errors.New("close channel of faulty device: operations are outstanding")
	}
	c.f.mu.Lock()
	delete(c.f.wakes, c)
	c.f.mu.Unlock()
	return c.inner.Close()
}
