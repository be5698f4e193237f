package backendtest

import (
	"errors"
	"sync"

	"github.com/nvmf-target/nvmf-target/backend"
)

// Faulty is a device that passes everything on to another one, except what it is told to fail or to
// hold. Its own methods may be called by any goroutine at any time.
type Faulty struct {
	backend.Device

	mu    sync.Mutex
	fault func(*backend.IO) error
	hold  func(*backend.IO) bool
	full  bool
	gives bool
	wakes map[*faultyChannel]func()
	held  int
}

// NewFaulty wraps dev, which it closes when it is closed.
func NewFaulty(dev backend.Device) *Faulty {
	return &Faulty{Device: dev, wakes: map[*faultyChannel]func(){}}
}

// Fail makes every IO that is submitted from now on fail with the error that fault returns for it,
// unless that is nil; the device never sees it. Fail(nil) ends that.
func (f *Faulty) Fail(fault func(*backend.IO) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fault
}

// Hold keeps the IOs that are submitted from now on and for which hold is true (all of them if hold
// is nil) away from the device, until Release: they are outstanding, and their memory is in use.
func (f *Faulty) Hold(hold func(*backend.IO) bool) {
	if hold == nil {
		hold = func(*backend.IO) bool { return true }
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hold = hold
}

// Release ends Hold: what was kept goes to the device.
func (f *Faulty) Release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hold = nil
	f.wakeAll()
}

// Held is the number of IOs that are kept.
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

// GivesBack makes IOs that are kept come back with ErrAborted when they are canceled.
func (f *Faulty) GivesBack() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gives = true
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
	kept  backend.List // held, or released and not yet taken by the device
	next  *backend.IO  // of kept, refused by a full device
	done  backend.List
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
			c.done.Push(io)
			return true
		}
	}
	if hold != nil && hold(io) {
		c.kept.Push(io)
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
	for !holding {
		if c.one[0] = c.next; c.next == nil {
			if c.one[0] = c.kept.Pop(); c.one[0] == nil {
				break
			}
		}
		if c.next = nil; c.inner.Submit(c.one[:]) == 0 {
			c.next = c.one[0]
			c.wake() // full: again after this Poll, which makes room
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
	gives := c.f.gives
	c.f.mu.Unlock()
	var rest backend.List
	for o := c.kept.Pop(); o != nil; o = c.kept.Pop() {
		if o != io || !gives {
			rest.Push(o)
			continue
		}
		o.Err = backend.ErrAborted
		c.done.Push(o)
		c.f.count(-1)
	}
	c.kept = rest
}

// Arm implements backend.Channel.
func (c *faultyChannel) Arm() bool { return c.done.First() == nil && c.inner.Arm() }

// Close implements backend.Channel.
func (c *faultyChannel) Close() error {
	if c.next != nil || c.kept.First() != nil || c.done.First() != nil {
		return errors.New("close channel of faulty device: operations are outstanding")
	}
	c.f.mu.Lock()
	delete(c.f.wakes, c)
	c.f.mu.Unlock()
	return c.inner.Close()
}
