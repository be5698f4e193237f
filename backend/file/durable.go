package file

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// fdatasync is replaced by tests.
var fdatasync = unix.Fdatasync

// flush makes durable what has been written before the call. Flushes that wait for one in progress share the next.
func (d *device) flush() error {
	before := d.syncs.Load()
	d.syncMu.Lock()
	defer d.syncMu.Unlock()
	if err := d.failed.Load(); err != nil {
		return *err
	}
	if d.syncs.Load() > before {
		return nil // one began, and ended well, after this call
	}
	d.syncs.Add(1)
	if err := fdatasync(d.fd); err != nil {
		d.syncFailed(fmt.Errorf("%s: fdatasync: %w: %w", d.cfg.Path, backend.ErrIO, err))
		return *d.failed.Load()
	}
	return nil
}

// syncFailed makes the failure of a durable write stay, unless it says that the write was refused, as for lack of space: then
// nothing was lost that had been accepted.
func (d *device) syncFailed(err error) {
	if !errors.Is(err, backend.ErrIO) && !errors.Is(err, backend.ErrGone) {
		return
	}
	err = fmt.Errorf("%w (writes may be lost; nothing more is accepted until the namespace is opened again)", err)
	d.failed.CompareAndSwap(nil, &err)
}

const (
	punchHole = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	zeroRange = unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE
)

// zero makes the range of io read as zeroes in the cheapest way the file system has.
func (w *worker) zero(io *backend.IO) error {
	if io.Flags&backend.Unmap != 0 && w.d.info.DiscardZeroes {
		return w.discard(io)
	}
	if !w.d.noZeroRange.Load() {
		switch e := w.d.fallocate(zeroRange, io); e {
		case 0:
			return nil
		case unix.EOPNOTSUPP, unix.ENOSYS:
			w.d.noZeroRange.Store(true)
		default:
			return w.d.failure(io.Op, io.Off, e)
		}
	}
	zeroes, err := w.buffer()
	if err != nil {
		return err
	}
	clear(zeroes)
	var iov [1]sys.Iovec
	for at := int64(0); at < io.Len; at += bounceSize {
		sys.SetIovec(&iov[0], zeroes[:min(bounceSize, io.Len-at)])
		if err := w.vectors(io.Op, iov[:], io.Off+at, 0); err != nil {
			return err
		}
	}
	return nil
}

// discard deallocates the range of io; it reads as zeroes afterwards.
func (w *worker) discard(io *backend.IO) error {
	if !w.d.info.Discard {
		return fmt.Errorf("%s: %v: the file system cannot punch holes: %w", w.d.cfg.Path, io.Op, backend.ErrUnsupported)
	}
	if e := w.d.fallocate(punchHole, io); e != 0 {
		return w.d.failure(io.Op, io.Off, e)
	}
	return nil
}

func (d *device) fallocate(mode uint32, io *backend.IO) syscall.Errno {
	if io.Len == 0 {
		return 0 // fallocate refuses it
	}
	for {
		err := unix.Fallocate(d.fd, mode, io.Off, io.Len)
		if err == nil {
			return 0
		}
		if e, ok := err.(syscall.Errno); !ok {
			return unix.EIO
		} else if e != unix.EINTR {
			return e
		}
	}
}
