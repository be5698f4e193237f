package ram

import (
	"slices"

	"github.com/nvmf-target/nvmf-target/backend"
)

// The way of a change that needs a frame when there is none, because the one to be changed is on
// loan or because loans have the others:
//
//	Submit      the channel says that it waits, tries once more, and parks the change
//	Reserve     refuses, on every reactor, and the stashes of channels that do something are freed
//	Return etc. whoever returns a loan or frees frames has every channel that waits try again, and wakes its reactor
//	Poll        the channel tries again, in the order in which the changes came
//
// A change goes frame by frame and keeps what it has done while it waits for the next: only blocks
// are atomic.

// progress wakes those who wait.
func (d *device) progress() {
	if d.waiters.Load() == 0 {
		return
	}
	for _, c := range *d.channels.Load() {
		if c.waiting.Load() {
			c.retry.Store(true)
			c.wake()
		}
	}
}

// wait says whether the channel waits.
func (c *channel) wait(yes bool) {
	if c.waiting.Swap(yes) != yes {
		if yes {
			c.d.waiters.Add(1)
		} else {
			c.d.waiters.Add(-1)
		}
	}
}

// join makes c one of those that progress wakes, leave ends that.
func (d *device) join(c *channel) {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := append(slices.Clone(*d.channels.Load()), c)
	d.channels.Store(&list)
}

func (d *device) leave(c *channel) {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(*d.channels.Load()),
		func(o *channel) bool { return o == c })
	d.channels.Store(&list)
}

// change makes a step of an IO that changes something. One that lacks a frame waits from then on.
func (c *channel) change(io *backend.IO) {
	how := c.step(io)
	if how == blocked && !c.waiting.Load() {
		c.wait(true) // before another try: from then on the channel is woken
		how = c.step(io)
	}
	switch how {
	case finished:
		c.done.Push(io)
	case paused:
		c.long.Push(io)
		c.wake() // nobody else says that there is more to do
	case blocked:
		c.parked.Push(io)
	}
	if c.parked.First() == nil {
		c.wait(false)
	}
}

func (c *channel) step(io *backend.IO) (how outcome) {
	if io.Op == backend.OpWrite {
		return c.write(io)
	}
	how, io.Err = c.zero(io)
	for how == paused && io.Len <= chunk {
		how, io.Err = c.zero(io)
	}
	return how
}

// resume tries everything again that waits.
func (c *channel) resume() {
	c.retry.Store(false)
	parked := c.parked
	c.parked = backend.List{}
	for io := parked.Pop(); io != nil; io = parked.Pop() {
		c.change(io)
	}
}
