package disk

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/uring"
)

const (
	// maxOutstanding is the maximum number of IOs that a channel takes.
	maxOutstanding = 1024

	// turnSteps is the number of steps a channel makes from one poll to the next. Locking or
	// unlocking a unit of the range lock is one step, of about 10 ns; each op costs opSteps in
	// addition. Ops that come when no steps are left wait for the next poll.
	turnSteps = 4096
	opSteps   = 64
)

// channel belongs to one reactor. Other goroutines use only inbox, wake and jobs.
type channel struct {
	d           *Disk
	outstanding int
	ops         []*op         // all
	free        list.List[op] // not in use, the latest first
	ready       list.List[op] // with a step to start
	arrived     list.List[op] // with an event to handle
	steps       int           // left of turnSteps
	turn        *backend.Turn
	done        list.List[backend.IO]
	workers     int
	working     int // ops with workers

	// ring is nil with threads. file is its file for the descriptor of Disk.opened, if added.
	ring   *uring.Ring
	file   uring.File
	added  bool
	opened uint32

	inbox list.Inbox[op]
	wake  func()
	jobs  chan *op
}

// OpenChannel implements backend.Device.
func (d *Disk) OpenChannel(r backend.Reactor) (backend.Channel, error) {
	c := &channel{
		d: d, wake: r.Wake, turn: r.Turn, jobs: make(chan *op, maxOutstanding), steps: turnSteps,
	}
	if d.uring && r.EventFD != 0 {
		if err := c.openRing(r); err != nil {
			if d.cfg.Engine.Name == IOUring {
				return nil, fmt.Errorf("%s: %w", d.cfg.Path, err)
			}
			_ = d.fallBack(err)
		}
	}
	d.channels.Add(1)
	return c, nil
}

func (c *channel) Submit(ios []*backend.IO) int {
	for i, io := range ios {
		if c.outstanding == maxOutstanding {
			c.pump()
			return i
		}
		c.outstanding++
		c.begin(io)
	}
	c.pump()
	return len(ios)
}

// begin makes an op for io and chooses its first step.
func (c *channel) begin(io *backend.IO) {
	d := c.d
	o := c.free.Pop()
	if o == nil {
		o = &op{c: c, index: len(c.ops)}
		c.ops = append(c.ops, o)
	}
	o.io, o.done, o.flags, o.write = io, 0, 0, io.Op != backend.OpRead
	io.Scratch = uint64(o.index)
	o.dirty, o.canceled, o.waited, o.cause = false, false, false, nil
	if io.Op == backend.OpFlush {
		c.flush(o)
		return
	}
	if err := d.refuse(io); err != nil || io.Len == 0 {
		c.end(o, err)
		return
	}
	switch io.Op {
	case backend.OpWriteZeroes:
		switch {
		case io.Flags&backend.Unmap != 0 &&
			(d.cfg.Info.DiscardZeroes || d.cfg.Block && !d.noZeroRange.Load()):
			o.step = stepPunch
		case d.noZeroRange.Load():
			o.step = stepZeroes
		default:
			o.step = stepZeroRange
		}
	case backend.OpDiscard:
		if o.step = stepPunch; d.cfg.Block {
			o.step = stepDiscard
		}
	default:
		if o.step = stepTransfer; !d.aligned(io.Segs) {
			o.step = stepBounced
		}
		// With O_DIRECT the write reports every error. Through the page cache RWF_DSYNC could
		// consume the report of a failed write-back that a flush should get: FUA is a flush there.
		if io.Op == backend.OpWrite && io.Flags&backend.FUA != 0 && d.cfg.Offset != 0 {
			o.flags = unix.RWF_DSYNC
		}
	}
	if c.steps -= opSteps; c.steps <= 0 {
		o.event = begun
		c.arrived.Push(o, &o.node)
		return
	}
	c.locked(o, d.ranges.lock(o))
}

// locked makes an op ready if it has all of its range. Otherwise the rest is granted later.
func (c *channel) locked(o *op, all bool) {
	if o.locked = all; all {
		c.ready.Push(o, &o.node)
	}
}

// refuse returns the error of an IO that the disk does not attempt.
func (d *Disk) refuse(io *backend.IO) error {
	info := d.info.Load()
	if info.Offline {
		return fmt.Errorf("%s: %v: %w", d.cfg.Path, io.Op, backend.ErrOffline)
	}
	if err := io.Check(info.Size); err != nil {
		return err
	}
	switch io.Op {
	case backend.OpRead:
		return nil
	case backend.OpDiscard:
		if !info.Discard && !info.ReadOnly {
			return fmt.Errorf("%s: %v: space cannot be freed here: %w", d.cfg.Path, io.Op,
				backend.ErrUnsupported)
		}
	case backend.OpWrite, backend.OpWriteZeroes:
	default:
		return fmt.Errorf("%s: %v: %w", d.cfg.Path, io.Op, backend.ErrUnsupported)
	}
	if info.ReadOnly {
		return fmt.Errorf("%s: %v: %w", d.cfg.Path, io.Op, backend.ErrReadOnly)
	}
	if err := d.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// deliver puts an op into the inbox and wakes the reactor. Any goroutine calls it.
func (c *channel) deliver(o *op, e event) {
	o.event = e
	c.inbox.Push(o, &o.node)
	c.wake()
}

func (c *channel) Poll(done []*backend.IO) int {
	c.receive()
	c.pump()
	if c.ring != nil {
		c.ring.Poll()
	}
	c.pump() // steps that followed
	n := c.done.Fill(done)
	c.outstanding -= n
	return n
}

// receive handles the events of ops until the steps of the turn are used up, which takes at most
// turnSteps/opSteps ops. The last one may take more steps than are left.
func (c *channel) receive() {
	c.inbox.Take(&c.arrived) // at most maxOutstanding
	for c.steps = turnSteps; c.steps > 0; c.steps -= opSteps {
		o := c.arrived.Pop()
		if o == nil {
			return
		}
		o.waited = true
		switch {
		case o.event == begun:
			c.locked(o, c.d.ranges.lock(o))
		case o.event == passed:
			c.locked(o, c.d.ranges.passed(o))
		case o.event == executed:
			c.working--
			c.stepped(o, o.res)
		case o.event == shared:
			c.shareOutcome(o)
		case o.step == stepSync:
			c.ready.Push(o, &o.node)
		default:
			c.locked(o, c.d.ranges.granted(o))
		}
	}
}

func (c *channel) pump() {
	for o := c.ready.Pop(); o != nil; o = c.ready.Pop() {
		if !c.start(o) {
			c.ready.PushFirst(o, &o.node)
			return
		}
	}
}

// start passes the step of o to the ring or to a worker. It returns false if the ring is full, or
// the turn of the reactor is over.
func (c *channel) start(o *op) bool {
	if o.canceled && o.step != stepSync { // other flushes wait for this one
		c.end(o, c.d.failure(o.io.Op, o.io.Off+o.done, unix.ECANCELED))
		return true
	}
	o.opened = c.d.opened.Load()
	if o.step == stepSync && c.d.dirty.Load() { // completions from here on belong to the next flush
		c.d.dirty.Store(false)
		o.dirty = true
	}
	if c.ring != nil && o.step != stepBounced && o.step != stepZeroes &&
		(o.step != stepDiscard || !c.d.noCommand.Load()) {
		// An IO that has not waited is in the turn in which the disk got it.
		if n := min(o.io.Len-o.done, cachedMost); (o.waited || o.done > 0) && n > smallIO &&
			o.copies() && !c.turn.Take(n) {
			return false
		}
		return c.startRing(o)
	}
	c.working++
	if c.workers < c.d.maxWorkers && c.working > c.workers {
		c.workers++
		c.d.workers.Go(c.work)
	}
	c.jobs <- o // has room for all outstanding ops
	return true
}

func (o *op) Complete(res int32) {
	if o.c.d.cfg.Driver != nil {
		res = o.outcome(res)
	}
	o.c.stepped(o, res)
}

// stepped is called when a step of o is over. res is its result in the form of io_uring.
func (c *channel) stepped(o *op, res int32) {
	d := c.d
	if d.inject != nil {
		res = d.inject(o.step, res)
	}
	switch e := syscall.Errno(-res); {
	case o.step == stepSync && res != -int32(unix.EINTR) && res != -int32(unix.EAGAIN):
		c.synced(o, res)
		return
	case res >= 0:
	case c.retryStep(o, e):
		c.ready.Push(o, &o.node)
		return
	default:
		err := c.stepError(o, e)
		if o.flags&unix.RWF_DSYNC != 0 && !d.removed(err) {
			d.syncFailed(err)
		}
		c.end(o, err)
		return
	}
	if o.step <= stepBounced {
		if res == 0 {
			c.end(o, c.stepError(o, 0))
			return
		}
		if o.done += int64(res); o.done < o.io.Len {
			if o.step = stepTransfer; d.cfg.Offset != 0 &&
				(o.done&int64(d.cfg.Offset-1) != 0 || !d.aligned(o.io.Segs)) {
				o.step = stepBounced
			}
			c.ready.Push(o, &o.node)
			return
		}
	} else if d.cfg.Driver != nil && o.step != stepZeroes {
		if o.done += int64(res); o.done < o.io.Len {
			c.ready.Push(o, &o.node)
			return
		}
	}
	if o.io.Flags&backend.FUA != 0 && o.write && o.flags == 0 {
		c.unlock(o)
		c.flush(o)
		return
	}
	c.end(o, nil)
}

// retryStep reports whether to repeat the step of o after this error, or another one.
func (c *channel) retryStep(o *op, e syscall.Errno) bool {
	unknown := e == unix.EOPNOTSUPP || e == unix.ENOSYS || e == unix.EINVAL || e == unix.ENOTTY
	switch {
	case e == unix.EINTR || e == unix.EAGAIN:
	case o.step == stepZeroRange && (e == unix.EOPNOTSUPP || e == unix.ENOSYS):
		c.d.noZeroRange.Store(true)
		o.step = stepZeroes
	case o.step == stepPunch && o.io.Op == backend.OpWriteZeroes && e == unix.EOPNOTSUPP:
		o.step = stepZeroRange // it may be unmapped, but need not be
	case o.step == stepDiscard && unknown && c.ring != nil && c.d.cfg.Driver == nil &&
		!c.d.noCommand.Load():
		c.d.noCommand.Store(true)
	default:
		return false
	}
	return true
}

// Cancel implements backend.Canceler. A flush continues, since others may share it.
func (c *channel) Cancel(io *backend.IO) {
	i := io.Scratch
	if i >= uint64(len(c.ops)) || c.ops[i].io != io || c.ops[i].step == stepSync {
		return
	}
	o := c.ops[i]
	o.canceled = true
	if c.ring != nil {
		c.ring.Cancel(o, o.slot)
	}
}

func (c *channel) unlock(o *op) {
	if o.locked {
		o.locked = false
		c.d.ranges.unlock(o)
	}
}

// end completes the IO of o, which Poll returns.
func (c *channel) end(o *op, err error) {
	c.unlock(o)
	if err == nil && o.write && o.io.Flags&backend.FUA == 0 && o.io.Op != backend.OpFlush &&
		!c.d.dirty.Load() {
		c.d.dirty.Store(true)
	}
	if err != nil && o.done > 0 {
		err = &backend.Fault{Off: o.io.Off + o.done, Err: err}
	}
	clear(o.iov)
	o.io.Err = err
	c.done.Push(o.io, &o.io.Node)
	o.io = nil
	c.free.PushFirst(o, &o.node)
}

func (c *channel) Arm() bool {
	if !c.done.Empty() || !c.ready.Empty() || !c.arrived.Empty() || !c.inbox.Empty() {
		return false
	}
	return c.ring == nil || c.ring.Arm()
}

// Close implements backend.Channel. It does not wait for workers, as Disk.Close does.
func (c *channel) Close() error {
	if c.outstanding != 0 {
		return fmt.Errorf("close channel of %s: %d operations are outstanding", c.d.cfg.Path,
			c.outstanding)
	}
	close(c.jobs)
	var errs []error
	if c.added {
		errs = append(errs, c.ring.RemoveFile(c.file))
	}
	if c.ring != nil {
		errs = append(errs, c.ring.Release())
	}
	c.d.channels.Add(-1)
	return errors.Join(errs...)
}
