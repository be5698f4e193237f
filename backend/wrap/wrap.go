// Package wrap is storage that passes everything on to other storage, late or not at all, so that
// slow and failing disks can be rehearsed: Delay, Limit and Error. What it does at random depends
// on a seed and on the order of operations only.
package wrap

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
)

// Ops says which operations are concerned: bit 1<<backend.OpRead and so on. 0 means all.
type Ops uint

func (o Ops) has(op backend.Op) bool { return o == 0 || o>>op&1 != 0 }

// policy decides about the operations of one channel. Only the channel's reactor calls it.
type policy interface {
	// judge answers when an operation may go to the device, in nanoseconds of the channel's clock;
	// now and before mean at once. An error is its outcome, and the device never sees it.
	judge(io *backend.IO, now int64) (due int64, err error)
}

// device is the storage behind, and what makes the policy of each channel. It closes the storage
// when it is closed.
type device struct {
	backend.Device
	// policy is called once for each channel, numbered from 0; it may be called by several
	// goroutines.
	policy   func(channel uint64) policy
	channels atomic.Uint64
}

// Notify implements backend.Changer for storage that does.
func (d *device) Notify(fn func()) {
	if c, ok := d.Device.(backend.Changer); ok {
		c.Notify(fn)
	}
}

// Allocated implements backend.Allocator for storage that does.
func (d *device) Allocated() (int64, error) {
	if a, ok := d.Device.(backend.Allocator); ok {
		return a.Allocated()
	}
	return 0, errors.ErrUnsupported
}

// FreeSpace implements backend.SpaceReporter for storage that does.
func (d *device) FreeSpace() (int64, error) {
	if r, ok := d.Device.(backend.SpaceReporter); ok {
		return r.FreeSpace()
	}
	return 0, errors.ErrUnsupported
}

// OpenChannel implements backend.Device.
func (d *device) OpenChannel(r backend.Reactor) (backend.Channel, error) {
	inner, err := d.Device.OpenChannel(r)
	if err != nil {
		return nil, err
	}
	alarm, err := newAlarm(r.Wake)
	if err != nil {
		return nil, errors.Join(err, inner.Close())
	}
	return &channel{inner: inner, policy: d.policy(d.channels.Add(1) - 1), alarm: alarm}, nil
}

// channel takes every operation at once. It is late, ready for the device, in the device, or done;
// then Poll returns it.
type channel struct {
	inner    backend.Channel
	policy   policy
	late     heap
	ready    backend.List
	batch    []*backend.IO // from ready, refused by a full device; never more than batchSize
	array    [batchSize]*backend.IO
	inflight int // in the device
	done     backend.List
	alarm    *alarm
}

const batchSize = 32

// Submit implements backend.Channel.
func (c *channel) Submit(ios []*backend.IO) int {
	now := clock()
	for _, io := range ios {
		switch due, err := c.policy.judge(io, now); {
		case err != nil:
			io.Err = err
			c.done.Push(io)
		case due > now:
			c.late.push(io, due)
		default:
			c.ready.Push(io)
		}
	}
	c.pass()
	return len(ios)
}

// pass gives the device what is ready until it is full.
func (c *channel) pass() {
	for {
		if len(c.batch) == 0 {
			if c.batch = c.array[:c.ready.Fill(c.array[:])]; len(c.batch) == 0 {
				return
			}
		}
		n := c.inner.Submit(c.batch)
		c.inflight += n
		clear(c.batch[:n])
		if c.batch = c.batch[n:]; len(c.batch) > 0 {
			return
		}
	}
}

// Poll implements backend.Channel.
func (c *channel) Poll(done []*backend.IO) int {
	if len(c.late) > 0 {
		for now := clock(); len(c.late) > 0 && c.late[0].due <= now; {
			c.ready.Push(c.late.pop())
		}
	}
	c.pass()
	n := c.done.Fill(done)
	m := c.inner.Poll(done[n:])
	c.inflight -= m
	if m > 0 {
		c.pass() // there is room
	}
	return n + m
}

// Arm implements backend.Channel.
func (c *channel) Arm() bool {
	if c.done.First() != nil || len(c.batch) > 0 && c.inflight == 0 {
		return false
	}
	if len(c.late) > 0 {
		wait := c.late[0].due - clock()
		if wait <= 0 || c.alarm.set(time.Duration(wait)) != nil {
			return false
		}
	}
	return c.inner.Arm()
}

// Cancel implements backend.Canceler for storage that does. What is late stays late.
func (c *channel) Cancel(io *backend.IO) {
	if inner, ok := c.inner.(backend.Canceler); ok {
		inner.Cancel(io)
	}
}

// Close implements backend.Channel.
func (c *channel) Close() error {
	if len(c.late) > 0 || len(c.batch) > 0 || c.done.First() != nil {
		return errors.New("close channel: operations are outstanding")
	}
	if err := c.inner.Close(); err != nil {
		return err
	}
	return c.alarm.close()
}

// clock is monotonic, in nanoseconds.
func clock() int64 { return int64(time.Since(start)) }

var start = time.Now()
