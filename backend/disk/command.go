package disk

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/uring"
)

// Driver accesses a disk by its own commands instead of the system calls for files. Any goroutine
// may call the methods, with a Command that nothing else uses at that time.
type Driver interface {
	// Limit returns the longest command in bytes, whole blocks; 0 or less: there is none.
	Limit(op backend.Op) int64
	// Start queues a command. Its result is a status: 0 for success, a positive number that Failure
	// explains, or a negative errno. It returns false if the ring is full.
	Start(r *uring.Ring, f uring.File, cmd *Command, c uring.Completer) bool
	// Do carries a command out and returns its result. It may block.
	Do(cmd *Command) int32
	// Failure returns the error for a positive result. It wraps a sentinel of package backend.
	Failure(status int32) error
}

// Command is one step of an IO for a Driver. It does not move until the step is over.
type Command struct {
	Op       backend.Op
	FUA      bool // durable when it is over
	Unmap    bool // OpWriteZeroes: may deallocate
	Off, Len int64
	// Data is the data to transfer, or Vectors if it is not in one piece.
	Data    []byte
	Vectors []sys.Iovec
	// Scratch belongs to the driver. It is kept from command to command.
	Scratch any
}

// command sets o.cmd to the next step. It returns false if the data has too many segments for one.
func (o *op) command() bool {
	io, c := o.io, &o.cmd
	*c = Command{Op: io.Op, Off: io.Off + o.done, Len: io.Len - o.done, Scratch: c.Scratch}
	switch o.step {
	case stepSync:
		c.Op, c.Off, c.Len = backend.OpFlush, 0, 0
		return true
	case stepPunch:
		c.Unmap = true
	case stepTransfer:
		c.FUA = o.flags&unix.RWF_DSYNC != 0
	}
	c.Len = min(c.Len, o.c.d.cfg.Driver.Limit(c.Op))
	if o.step != stepTransfer {
		return true
	}
	if b := o.contiguous(); b != nil {
		c.Data = b[:c.Len]
		return true
	}
	c.Vectors, c.Len = clip(o.vectors(), c.Len, int64(o.c.d.cfg.Info.BlockSize))
	return c.Len > 0
}

// startCommand passes the step to the ring, or a large one to a worker. It returns false if the
// ring is full.
func (c *channel) startCommand(o *op) bool {
	if !o.command() {
		o.step = stepBounced
		return c.start(o)
	}
	started := c.d.cfg.Driver.Start(c.ring, c.file, &o.cmd, o)
	o.slot = c.ring.Last()
	return started
}

// transfer reads or writes the memory of iov, as much of it as one command takes. Workers call it.
func (o *op) transfer(iov []sys.Iovec, off int64, flags int) int32 {
	c, d := &o.cmd, o.c.d
	*c = Command{Op: backend.OpWrite, FUA: flags&unix.RWF_DSYNC != 0, Off: off, Scratch: c.Scratch}
	if o.io.Op == backend.OpRead {
		c.Op = backend.OpRead
	}
	c.Vectors, c.Len = clip(iov, d.cfg.Driver.Limit(c.Op), int64(d.cfg.Info.BlockSize))
	return o.outcome(d.cfg.Driver.Do(c))
}

// clip shortens iov, in place, to at most n bytes in whole blocks and returns their number.
func clip(iov []sys.Iovec, n, block int64) ([]sys.Iovec, int64) {
	total := int64(0)
	for i := range iov {
		total += int64(iov[i].Len)
	}
	total = min(n, total&^(block-1))
	left := total
	for i := range iov {
		if l := int64(iov[i].Len); l < left {
			left -= l
			continue
		}
		iov[i].SetLen(int(left))
		return iov[:i+1], total
	}
	return nil, 0
}

// outcome converts a driver's result to that of io_uring: bytes or a negative errno.
func (o *op) outcome(status int32) int32 {
	switch {
	case status < 0:
		return status
	case status == 0:
		return int32(o.cmd.Len)
	}
	err := o.c.d.cfg.Driver.Failure(status)
	if errors.Is(err, backend.ErrUnsupported) {
		return -int32(unix.EOPNOTSUPP)
	}
	o.cause = err
	return -int32(unix.EIO)
}

// failure returns the error of a step: the driver's error, or that of e.
func (o *op) failure(e syscall.Errno) error {
	d, off := o.c.d, o.io.Off+o.done
	if o.cause == nil {
		return d.failure(o.io.Op, off, e)
	}
	err := fmt.Errorf("%s: %v at %d: %w", d.cfg.Path, o.io.Op, off, o.cause)
	o.cause = nil
	return err
}
