// Package wrap has wrappers that simulate slow and failing disks: Delay and Error. They pass
// operations on to other storage, but delay some and fail others. Their random choices depend only
// on a seed and on the order of operations.
package wrap

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/list"
)

// affects reports whether an operation is in ops; empty ops contain all operations.
func affects(ops []backend.Op, op backend.Op) bool {
	return len(ops) == 0 || slices.Contains(ops, op)
}

// policy decides about the operations of one channel. Only the channel's reactor calls it.
type policy interface {
	// admit returns when an operation may go to the device, in nanoseconds of the channel's clock;
	// now or earlier means at once. An error completes the operation, and the device never sees it.
	admit(io *backend.IO, now int64) (due int64, err error)
}

// device is a wrapper. Close closes the wrapped device, too.
type device struct {
	backend.Device
	// policy makes the policy of each channel, numbered from 0. Any goroutine calls it.
	policy   func(channel uint64) policy
	channels atomic.Uint64
}

// Notify implements backend.Changer if the wrapped device does.
func (d *device) Notify(fn func()) {
	if c, ok := d.Device.(backend.Changer); ok {
		c.Notify(fn)
	}
}

// Fence implements backend.Fencer if the wrapped device does.
func (d *device) Fence() bool {
	f, ok := d.Device.(backend.Fencer)
	return !ok || f.Fence()
}

// Space implements backend.SpaceReporter if the wrapped device does.
func (d *device) Space() (allocated, free int64, err error) {
	if r, ok := d.Device.(backend.SpaceReporter); ok {
		return r.Space()
	}
	return 0, 0, errors.ErrUnsupported
}

// InPlace implements backend.Replaceable if the wrapped device does.
func (d *device) InPlace() error {
	if r, ok := d.Device.(backend.Replaceable); ok {
		return r.InPlace()
	}
	return nil
}

func (d *device) OpenChannel(r backend.Reactor) (backend.Channel, error) {
	inner, err := d.Device.OpenChannel(r)
	if err != nil {
		return nil, err
	}
	t, err := newTimer(r.Wake)
	if err != nil {
		return nil, errors.Join(err, inner.Close())
	}
	return &channel{inner: inner, policy: d.policy(d.channels.Add(1) - 1), timer: t}, nil
}

// channel takes every operation at once: it is delayed, ready, in the device, or done for Poll.
type channel struct {
	inner    backend.Channel
	policy   policy
	delayed  list.Heap[backend.IO] // by the time at which they are due
	ready    list.List[backend.IO]
	batch    []*backend.IO // from ready, refused by a full device
	array    [batchSize]*backend.IO
	inflight int // in the device
	done     list.List[backend.IO]
	timer    *timer
}

const batchSize = 32

func (c *channel) Submit(ios []*backend.IO) int {
	now := clock()
	for _, io := range ios {
		switch due, err := c.policy.admit(io, now); {
		case err != nil:
			io.Err = err
			c.done.Push(io, &io.Node)
		case due > now:
			*place(io) = 0
			c.delayed.Set(io, place(io), due)
		default:
			c.ready.Push(io, &io.Node)
		}
	}
	c.submit()
	return len(ios)
}

// submit submits ready operations to the device until it is full.
func (c *channel) submit() {
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

func (c *channel) Poll(done []*backend.IO) int {
	if c.delayed.Len() > 0 {
		now := clock()
		for range batchSize {
			io, due := c.delayed.First()
			if io == nil || due > now {
				break
			}
			c.delayed.Remove(place(io))
			c.ready.Push(io, &io.Node)
		}
	}
	c.submit()
	n := c.done.Fill(done)
	m := c.inner.Poll(done[n:])
	c.inflight -= m
	if m > 0 {
		c.submit() // there is room
	}
	return n + m
}

// place is the place of an operation in channel.delayed: its Scratch.
func place(io *backend.IO) *list.Place { return (*list.Place)(&io.Scratch) }

func (c *channel) Arm() bool {
	if !c.done.Empty() || len(c.batch) > 0 && c.inflight == 0 {
		return false
	}
	if io, due := c.delayed.First(); io != nil {
		wait := due - clock()
		if wait <= 0 || c.timer.set(time.Duration(wait)) != nil {
			return false
		}
	}
	return c.inner.Arm()
}

// Cancel implements backend.Canceler. An operation that has not reached the wrapped device never
// will; any other is canceled by the wrapped device.
func (c *channel) Cancel(io *backend.IO) {
	if c.withdraw(io) {
		io.Err = backend.ErrAborted
		c.done.Push(io, &io.Node)
	} else if inner, ok := c.inner.(backend.Canceler); ok {
		inner.Cancel(io)
	}
}

// withdraw takes back an operation. It returns false if the device has it, or it is done.
func (c *channel) withdraw(io *backend.IO) bool {
	if c.delayed.Has(io, place(io)) {
		c.delayed.Remove(place(io))
		return true
	}
	if i := slices.Index(c.batch, io); i >= 0 {
		c.batch = slices.Delete(c.batch, i, i+1)
		return true
	}
	for waiting := range c.ready.All() {
		if waiting == io {
			c.ready.Remove(&io.Node)
			return true
		}
	}
	return false
}

func (c *channel) Close() error {
	if c.delayed.Len() > 0 || len(c.batch) > 0 || !c.done.Empty() {
		return errors.New("close channel: operations are outstanding")
	}
	if err := c.inner.Close(); err != nil {
		return err
	}
	return c.timer.close()
}

// clock returns a monotonic time in nanoseconds.
func clock() int64 { return int64(time.Since(start)) }

var start = time.Now()

// timer wakes a reactor at a time. It is a timerfd, since Go's timers may be a millisecond late.
type timer struct {
	fd    int
	file  *os.File // owns fd
	spec  unix.ItimerSpec
	ended chan struct{}
}

func newTimer(wake func()) (*timer, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("timer: %w", err)
	}
	t := &timer{fd: fd, file: os.NewFile(uintptr(fd), "timer"), ended: make(chan struct{})}
	go t.run(wake)
	return t, nil
}

func (t *timer) run(wake func()) {
	defer close(t.ended)
	var expirations [8]byte
	for {
		if _, err := t.file.Read(expirations[:]); err != nil {
			return // closed
		}
		wake()
	}
}

// set makes the timer expire once, after d, which is positive. It replaces an earlier setting.
func (t *timer) set(d time.Duration) error {
	t.spec.Value = unix.NsecToTimespec(int64(d))
	return unix.TimerfdSettime(t.fd, 0, &t.spec, nil)
}

// close stops the timer and waits until wake is not running.
func (t *timer) close() error {
	err := t.file.Close()
	<-t.ended
	return err
}
