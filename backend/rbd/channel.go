//go:build cgo

package rbd

/*
#include "rbd.h"

#cgo noescape channel_start
#cgo nocallback channel_start
*/
import "C"

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/list"
)

const (
	// depth is the maximum number of operations of a channel in librbd.
	depth = 256
	// stepMost is the maximum number of operations that a Submit starts. A write takes 2 to 6 µs of
	// the reactor, and the first operation 20 µs, since it wakes a thread.
	stepMost = 16
	// zeroPiece and discardPiece are the maximum lengths of one operation of librbd, in bytes,
	// since librbd starts the operations on all of its objects at once. A longer IO takes several,
	// one after another.
	zeroPiece    = 16 << 20
	discardPiece = 256 << 20
)

// channel is one reactor's access to an image.
type channel struct {
	d     *device
	c     *C.struct_channel
	ops   []C.struct_op // of c
	batch []C.int32_t   // of c
	n     int           // operations in batch
	slots [depth]slot
	free  []int32 // slots that are not in use
	done  list.List[backend.IO]
	left  bool // Submit has left IOs for the next step
}

// slot is an operation in librbd.
type slot struct {
	io *backend.IO
	im *image // the slot is one of its users
}

// OpenChannel implements backend.Device.
func (d *device) OpenChannel(r backend.Reactor) (backend.Channel, error) {
	if r.EventFD == 0 {
		return nil, fmt.Errorf("channel of image %s: the reactor has no eventfd", d.cfg.Image)
	}
	c := &channel{d: d, c: C.channel_new(depth, C.int(r.EventFD))}
	if c.c == nil {
		return nil, fmt.Errorf("channel of image %s: %w", d.cfg.Image, unix.ENOMEM)
	}
	c.ops = unsafe.Slice(c.c.ops, depth)
	c.batch = unsafe.Slice(c.c.batch, depth)
	for i := range int32(depth) {
		c.free = append(c.free, i)
	}
	d.channels.Add(1)
	return c, nil
}

// armed and finished are the fields that threads of librbd also change.
func (c *channel) armed() *int32 { return (*int32)(unsafe.Pointer(&c.c.armed)) }

func (c *channel) finished() *uintptr { return (*uintptr)(unsafe.Pointer(&c.c.finished)) }

// Submit implements backend.Channel.
func (c *channel) Submit(ios []*backend.IO) (n int) {
	atomic.StoreInt32(c.armed(), 0)
	im, size := c.d.use(), c.d.info.Load().Size
	for n < len(ios) && c.n < stepMost && len(c.free) > 0 {
		io := ios[n]
		n++
		switch io.Err = io.Check(size); {
		case io.Err != nil:
		case im == nil:
			io.Err = errFenced
		case io.Op != backend.OpFlush && io.Len == 0:
		default:
			io.Scratch = 0
			if io.Err = c.add(io, im); io.Err == nil {
				continue
			}
		}
		c.done.Push(io, &io.Node)
	}
	c.left = n < len(ios) && len(c.free) > 0
	if im != nil {
		c.start(im)
		im.leave(1)
	}
	return n
}

// kinds are the kinds of operations.
var kinds = [...]C.int32_t{
	backend.OpRead: C.kind_read, backend.OpWrite: C.kind_write, backend.OpFlush: C.kind_flush,
	backend.OpWriteZeroes: C.kind_zero, backend.OpDiscard: C.kind_discard,
}

// add adds an IO, or its next piece, to the batch.
func (c *channel) add(io *backend.IO, im *image) error {
	if int(io.Op) >= len(kinds) {
		return fmt.Errorf("image: %v: %w", io.Op, backend.ErrUnsupported)
	}
	i := c.free[len(c.free)-1]
	o := &c.ops[i]
	o.kind = kinds[io.Op]
	o.off, o.len = C.uint64_t(uint64(io.Off)+io.Scratch), C.uint64_t(uint64(io.Len)-io.Scratch)
	switch io.Op {
	case backend.OpRead, backend.OpWrite:
		if err := fill(o, io); err != nil {
			return err
		}
	case backend.OpWriteZeroes:
		o.len = min(o.len, zeroPiece)
		if io.Flags&backend.Unmap != 0 {
			o.kind = C.kind_zero_thin
		}
	case backend.OpDiscard:
		o.len = min(o.len, discardPiece)
	}
	c.free = c.free[:len(c.free)-1]
	c.slots[i] = slot{io, im}
	c.batch[c.n] = C.int32_t(i)
	c.n++
	im.users.Add(1)
	return nil
}

// fill describes the memory of a read or write. The IO keeps it alive.
func fill(o *C.struct_op, io *backend.IO) error {
	if n := C.int32_t(len(io.Segs)); o.room < n && C.op_reserve(o, n) < 0 {
		return fmt.Errorf("image: %v of %d pieces: %w: %w", io.Op, n, unix.ENOMEM, backend.ErrIO)
	}
	iov := unsafe.Slice(o.iov, len(io.Segs))
	for i := range io.Segs {
		b := io.Segs[i].B
		// A plain store of an address, since this is not memory of Go.
		*(*uintptr)(unsafe.Pointer(&iov[i].iov_base)) = uintptr(unsafe.Pointer(unsafe.SliceData(b)))
		iov[i].iov_len = C.size_t(len(b))
	}
	o.count = C.int32_t(len(io.Segs))
	return nil
}

// start starts the batch.
func (c *channel) start(im *image) {
	if c.n > 0 {
		C.channel_start(c.c, im.handle, C.int(c.n))
		c.n = 0
	}
}

// Poll implements backend.Channel.
func (c *channel) Poll(done []*backend.IO) int {
	c.left = false
	atomic.StoreInt32(c.armed(), 0)
	if *c.finished() != 0 {
		c.reap()
	}
	return c.done.Fill(done)
}

// reap takes the finished operations, at most depth.
func (c *channel) reap() {
	var o *C.struct_op // oldest first
	for at := address(atomic.SwapUintptr(c.finished(), 0)); at != nil; {
		next := at.next
		at.next, o = o, at
		at = next
	}
	for ; o != nil; o = o.next {
		s := &c.slots[o.slot]
		io, im := s.io, s.im
		*s = slot{}
		c.free = append(c.free, int32(o.slot))
		if io.Err = c.outcome(o, io); io.Err == nil && c.more(o, io) {
			if io.Err = c.add(io, im); io.Err == nil {
				c.start(im)
				im.leave(1) // of the piece before
				continue
			}
		}
		c.done.Push(io, &io.Node)
		im.leave(1)
	}
}

func address(p uintptr) *C.struct_op { return *(**C.struct_op)(unsafe.Pointer(&p)) }

// more reports whether a piece of an IO is followed by another one.
func (c *channel) more(o *C.struct_op, io *backend.IO) bool {
	if io.Op != backend.OpWriteZeroes && io.Op != backend.OpDiscard {
		return false
	}
	io.Scratch += uint64(o.len)
	return io.Scratch < uint64(io.Len)
}

// outcome returns the error of a finished operation.
func (c *channel) outcome(o *C.struct_op, io *backend.IO) error {
	n := int64(o.result)
	if n >= 0 {
		if io.Op == backend.OpRead && n != io.Len {
			return fmt.Errorf("image: read of %d bytes at %d ends after %d: %w", io.Len, io.Off, n,
				backend.ErrOutOfRange)
		}
		return nil
	}
	errno := unix.Errno(-n)
	kind := backend.ErrIO
	switch errno {
	case unix.ESHUTDOWN:
		c.d.lose(errFenced)
		return errFenced
	case unix.EPERM, unix.ENOENT:
		c.d.lose(errRefused)
		return errRefused
	case unix.ENOSPC, unix.EDQUOT:
		kind = backend.ErrNoSpace
	case unix.EROFS:
		kind = backend.ErrReadOnly
	case unix.EINVAL: // librbd checks the range, and knows of a smaller size before the device
		kind = backend.ErrOutOfRange
	}
	return fmt.Errorf("image: %v of %d bytes at %d: %w: %w", io.Op, io.Len, io.Off, errno, kind)
}

// Arm implements backend.Channel.
func (c *channel) Arm() bool {
	if c.left || !c.done.Empty() {
		return false
	}
	atomic.StoreInt32(c.armed(), 1)
	if atomic.LoadUintptr(c.finished()) == 0 {
		return true
	}
	atomic.StoreInt32(c.armed(), 0)
	return false
}

// Close implements backend.Channel.
func (c *channel) Close() error {
	if len(c.free) != depth || !c.done.Empty() {
		return errors.New("close channel of an image: operations are outstanding")
	}
	C.channel_free(c.c)
	c.d.channels.Add(-1)
	return nil
}
