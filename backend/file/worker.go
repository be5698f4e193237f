package file

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

const (
	// bounceSize is the memory through which a worker moves data whose address is not aligned for O_DIRECT.
	bounceSize = 256 << 10
	purpose    = "file bounce buffers"
)

// worker makes the system calls of one IO after the other.
type worker struct {
	d      *device
	iov    []sys.Iovec
	bounce *mem.Region
}

func (w *worker) close() {
	if w.bounce != nil {
		_ = w.bounce.Unmap()
	}
}

// do carries io out.
func (w *worker) do(io *backend.IO) error {
	d := w.d
	switch io.Op {
	case backend.OpRead:
		d.ranges.lock(io.Off, io.Len, false)
		defer d.ranges.unlock(io.Off, io.Len, false)
		return w.transfer(io, 0)
	case backend.OpFlush:
		if d.cfg.ReadOnly {
			return nil
		}
		return d.flush()
	case backend.OpWrite, backend.OpWriteZeroes, backend.OpDiscard:
	default:
		return fmt.Errorf("%s: %v: %w", d.cfg.Path, io.Op, backend.ErrUnsupported)
	}
	if d.cfg.ReadOnly {
		return fmt.Errorf("%s: %v: %w", d.cfg.Path, io.Op, backend.ErrReadOnly)
	}
	if err := d.failed.Load(); err != nil {
		return *err
	}
	if err := w.change(io); err != nil {
		return err
	}
	if io.Flags&backend.FUA != 0 && (io.Op != backend.OpWrite || d.direct.offset == 0) {
		return d.flush()
	}
	return nil
}

// change carries out whatever changes the file.
func (w *worker) change(io *backend.IO) error {
	w.d.ranges.lock(io.Off, io.Len, true)
	defer w.d.ranges.unlock(io.Off, io.Len, true)
	switch io.Op {
	case backend.OpWriteZeroes:
		return w.zero(io)
	case backend.OpDiscard:
		return w.discard(io)
	}
	// With O_DIRECT the write itself reports every error. Through the page cache RWF_DSYNC could take away the report of a
	// failed write-back that a flush should get, so there FUA is a flush.
	if io.Flags&backend.FUA == 0 || w.d.direct.offset == 0 {
		return w.transfer(io, 0)
	}
	err := w.transfer(io, unix.RWF_DSYNC)
	if err != nil {
		w.d.syncFailed(err)
	}
	return err
}

// transfer reads or writes all of io.
func (w *worker) transfer(io *backend.IO, flags int) error {
	if !w.aligned(io.Segs) {
		return w.transferBounced(io, flags)
	}
	w.iov = w.iov[:0]
	for i := range io.Segs {
		if len(io.Segs[i].B) > 0 {
			w.iov = append(w.iov, sys.Iovec{})
			sys.SetIovec(&w.iov[len(w.iov)-1], io.Segs[i].B)
		}
	}
	err := w.vectors(io.Op, w.iov, io.Off, flags)
	clear(w.iov)
	return err
}

// aligned reports that O_DIRECT takes these segments as they are, or is not used.
func (w *worker) aligned(segs []mem.Segment) bool {
	if w.d.direct.memory == 0 {
		return true
	}
	mask := uint64(w.d.direct.memory - 1)
	for i := range segs {
		// The kernel checks every vector's address and length.
		if mem.Addr(segs[i].B)&mask != 0 || len(segs[i].B)&(w.d.direct.offset-1) != 0 {
			return false
		}
	}
	return true
}

// vectors moves iov to or from the file at off until everything is done. Short transfers go on where they ended.
func (w *worker) vectors(op backend.Op, iov []sys.Iovec, off int64, flags int) error {
	for len(iov) > 0 {
		var n int
		var e syscall.Errno
		batch := iov[:min(len(iov), sys.MaxIovecs)]
		if op == backend.OpRead {
			n, e = sys.Preadv2(w.d.fd, batch, off, flags)
		} else {
			n, e = sys.Pwritev2(w.d.fd, batch, off, flags)
		}
		if e != 0 {
			return w.d.failure(op, off, e)
		}
		if n == 0 {
			return fmt.Errorf("%s: %v at %d: the file ends here, it must have been truncated: %w", w.d.cfg.Path, op, off, backend.ErrIO)
		}
		iov = sys.Advance(iov, n)
		off += int64(n)
	}
	return nil
}

// transferBounced moves the data through aligned memory.
func (w *worker) transferBounced(io *backend.IO, flags int) error {
	buf, err := w.buffer()
	if err != nil {
		return err
	}
	var segs [8]mem.Segment
	var iov [1]sys.Iovec
	for at := int64(0); at < io.Len; at += bounceSize {
		b := buf[:min(bounceSize, io.Len-at)]
		part := mem.Slice(segs[:0], io.Segs, int(at), len(b))
		sys.SetIovec(&iov[0], b)
		if io.Op == backend.OpWrite {
			gather(b, part)
		}
		if err := w.vectors(io.Op, iov[:], io.Off+at, flags); err != nil {
			return err
		}
		if io.Op == backend.OpRead {
			scatter(part, b)
		}
	}
	return nil
}

// buffer is the worker's own aligned memory of bounceSize bytes.
func (w *worker) buffer() ([]byte, error) {
	if w.bounce == nil {
		r, err := mem.Map(purpose, bounceSize)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", backend.ErrIO, err)
		}
		w.bounce = r
	}
	return w.bounce.Bytes(), nil
}

func gather(b []byte, segs []mem.Segment) {
	for i := range segs {
		b = b[copy(b, segs[i].B):]
	}
}

func scatter(segs []mem.Segment, b []byte) {
	for i := range segs {
		b = b[copy(segs[i].B, b):]
	}
}

// failure is the error of a system call.
func (d *device) failure(op backend.Op, off int64, e syscall.Errno) error {
	class := backend.ErrIO
	switch e {
	case unix.ENOSPC, unix.EDQUOT, unix.EFBIG:
		class = backend.ErrNoSpace
	case unix.EROFS:
		class = backend.ErrReadOnly
	case unix.EOPNOTSUPP, unix.ENOSYS:
		class = backend.ErrUnsupported
	case unix.ENODEV, unix.ENXIO, unix.ESTALE:
		class = backend.ErrGone
	}
	return fmt.Errorf("%s: %v at %d: %w: %w", d.cfg.Path, op, off, class, e)
}
