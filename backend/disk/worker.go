package disk

import (
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

const (
	// bounceSize is the buffer of a worker for data not aligned for O_DIRECT, in bytes.
	bounceSize = 256 << 10
	purpose    = "disk bounce buffers"

	punchHole = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	zeroRange = unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE
)

// worker makes the system calls of one op after another, on its own goroutine.
type worker struct {
	d      *Disk
	bounce *mem.Region
}

func (c *channel) work() {
	w := worker{d: c.d}
	for o := range c.jobs {
		o.res = w.do(o)
		c.deliver(o, executed)
	}
	if w.bounce != nil {
		_ = w.bounce.Unmap()
	}
}

// do makes the step of o, with a result as of io_uring: bytes or a negative errno.
func (w *worker) do(o *op) int32 {
	fd := w.d.cfg.FD
	if drv := w.d.cfg.Driver; drv != nil && o.step != stepBounced && o.step != stepZeroes {
		if o.command() {
			return o.outcome(drv.Do(&o.cmd))
		}
		o.step = stepBounced
	}
	switch o.step {
	case stepTransfer:
		return w.vectors(o, o.vectors(), o.io.Off+o.done, o.flags)
	case stepBounced:
		return w.bounced(o)
	case stepSync:
		return errno(unix.Fdatasync(fd))
	case stepZeroRange:
		return errno(unix.Fallocate(fd, zeroRange, o.io.Off, o.io.Len))
	case stepPunch:
		return errno(unix.Fallocate(fd, punchHole, o.io.Off, o.io.Len))
	case stepDiscard:
		return -int32(sys.BlockDiscard(fd, o.io.Off, o.io.Len))
	default:
		return w.zeroes(o)
	}
}

func errno(err error) int32 {
	if err == nil {
		return 0
	}
	if e, ok := err.(syscall.Errno); ok {
		return -int32(e)
	}
	return -int32(unix.EIO)
}

func (w *worker) vectors(o *op, iov []sys.Iovec, off int64, flags int) int32 {
	var n int
	var e syscall.Errno
	if w.d.cfg.Driver != nil {
		return o.transfer(iov, off, flags)
	}
	if o.io.Op == backend.OpRead {
		n, e = sys.Preadv2(w.d.cfg.FD, iov, off, flags)
	} else {
		n, e = sys.Pwritev2(w.d.cfg.FD, iov, off, flags)
	}
	if e != 0 {
		return -int32(e)
	}
	return int32(n)
}

// bounced moves a part of the rest, between units of O_DIRECT, through aligned memory.
func (w *worker) bounced(o *op) int32 {
	buf, e := w.buffer()
	if e != 0 {
		return -int32(e)
	}
	from := o.done &^ int64(w.d.cfg.Offset-1) // a short transfer may have ended within a unit
	buf = buf[:min(bounceSize, o.io.Len-from)]
	data := mem.NewCursor(o.io.Segs, int(from))
	if o.io.Op == backend.OpWrite {
		data.CopyTo(buf)
	}
	n := w.vectors(o, o.whole(buf), o.io.Off+from, o.flags)
	if n > 0 {
		if o.io.Op == backend.OpRead {
			data.CopyFrom(buf[:n])
		}
		n = max(n-int32(o.done-from), 0)
	}
	return n
}

// zeroes writes zeroes to all of the range.
func (w *worker) zeroes(o *op) int32 {
	buf, e := w.buffer()
	if e != 0 {
		return -int32(e)
	}
	clear(buf)
	for at := int64(0); at < o.io.Len; {
		n := w.vectors(o, o.whole(buf[:min(bounceSize, o.io.Len-at)]), o.io.Off+at, 0)
		if n <= 0 {
			return min(n, -1)
		}
		at += int64(n)
	}
	return 0
}

// buffer returns the worker's own aligned memory of bounceSize bytes.
func (w *worker) buffer() ([]byte, syscall.Errno) {
	if w.bounce == nil {
		r, err := mem.Map(purpose, bounceSize)
		if err != nil {
			return nil, unix.ENOMEM
		}
		w.bounce = r
	}
	return w.bounce.Bytes(), 0
}
