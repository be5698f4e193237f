// Package disk carries out IOs on a descriptor: it is what the devices of packages file and block
// have in common. One of two engines does the work, io_uring where it is allowed, otherwise a pool
// of goroutines that make blocking system calls.
//
// The way of an IO; everything but the workers runs on its channel's reactor:
//
//	Submit  -> op -> fence (waits if a racing command holds one of its blocks) -> ready
//	pump    ready -> ring or worker: one step (a transfer, a flush, fallocate, ...)
//	Poll    step done -> again, if something is left to do (short transfer, FUA without O_DIRECT) -> done
//
// An op waits without occupying anybody. What one reactor has for another's op (its blocks are
// free, the flush that it shares is over) comes through an inbox without locks, as does what
// workers finish.
//
// Durability: a write is in the volatile cache of the device until a flush, except with FUA. When a
// flush fails the kernel drops what it could not write and forgets about it: a second flush would
// succeed although data is lost. So a failure stays: from then on every flush and every write fails
// until the device is opened again.
package disk

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/uring"
)

// The engines, as they are called in the configuration.
const (
	Auto    = "auto"     // io_uring, or with a warning threads
	IOUring = "io_uring" // nothing else
	Threads = "threads"
)

// Engine says how system calls are made.
type Engine struct {
	// Name is Auto, which "" means as well, IOUring or Threads.
	Name string
	// SQPoll lets a thread of the kernel submit; it sleeps after SQIdle without work, 0: a second.
	SQPoll bool
	SQIdle time.Duration
	// IOPoll polls the device instead of waiting for its interrupts, for transfers with O_DIRECT.
	IOPoll bool
	// Workers is the largest number of blocking system calls in progress per channel, 0 for the
	// default of 32. They are started as needed; with io_uring for little but data at odd
	// addresses.
	Workers int
}

const defaultWorkers = 32

// Config describes a Disk.
type Config struct {
	// Path names the disk in errors.
	Path string
	// FD is the open file or block device. The Disk owns and closes it, once New has succeeded.
	FD   int
	Info backend.Info
	// Offset is the unit of positions and lengths that O_DIRECT asks for, Memory that of addresses,
	// both in bytes and powers of two; 0 if the page cache is used.
	Offset, Memory int
	// Block: FD is a block device, whose space is given back by BLKDISCARD instead of by punching
	// holes.
	Block bool
	// Driver takes the place of the system calls for files; nil: none.
	Driver Driver
	Engine Engine
	Log    *slog.Logger

	// Look tells the present size of what FD refers to, in bytes; 0 or an error: it is gone. Any
	// goroutine calls it, for block devices also reactors. nil: the size does not change.
	Look func(fd int) (int64, error)
	// Allocated tells how much space the content of FD takes, in bytes; nil: all of it. Any
	// goroutine calls it.
	Allocated func(fd int) (int64, error)
	// FreeSpace returns how many bytes are left where the content of FD takes its space; nil: it
	// has all of its space. Any goroutine calls it.
	FreeSpace func(fd int) (int64, error)
	// Reopen opens and describes the disk again that is gone, if it is there and the same. The Disk
	// takes the new FD over. nil: what is gone comes back by itself.
	Reopen func() (Config, error)
}

// Disk is a backend.Device.
type Disk struct {
	cfg      Config
	uring    bool
	fence    fence
	channels atomic.Int32

	// info is the present description, and opened counts how often the disk came back; see watcher.
	info   atomic.Pointer[backend.Info]
	opened atomic.Uint32
	watch  watcher

	// noZeroRange, noCommand and noIOPoll are set when the kernel turns out not to know
	// FALLOC_FL_ZERO_RANGE, discards by io_uring, or polled transfers for this file.
	noZeroRange, noCommand, noIOPoll atomic.Bool

	// failed is why flushes and writes are refused, nil while all is well.
	failed atomic.Pointer[error]
	sync   syncer
	// dirty says that writes have completed that no flush has covered.
	dirty atomic.Bool

	// tamper replaces results in tests; any goroutine.
	tamper func(s step, res int32) int32
}

var (
	_ backend.Changer       = (*Disk)(nil)
	_ backend.Allocator     = (*Disk)(nil)
	_ backend.SpaceReporter = (*Disk)(nil)
)

// New makes a Disk of an open descriptor. An error leaves FD open.
func New(cfg Config) (*Disk, error) {
	e := &cfg.Engine
	if e.Workers == 0 {
		e.Workers = defaultWorkers
	}
	if e.Workers < 1 || e.Workers > maxOutstanding {
		return nil, fmt.Errorf("%d workers: must be from 1 to %d", e.Workers, maxOutstanding)
	}
	if e.SQIdle == 0 {
		e.SQIdle = time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	d := &Disk{cfg: cfg}
	d.info.Store(&d.cfg.Info)
	d.fence.init(cfg.Info.BlockSize)
	d.noZeroRange.Store(cfg.Driver != nil && cfg.Driver.Limit(backend.OpWriteZeroes) <= 0)
	switch e.Name {
	case Threads:
	case "", Auto:
		d.uring = d.fallBack(available()) == nil
	case IOUring:
		if err := available(); err != nil {
			return nil, fmt.Errorf("engine io_uring: %w", err)
		}
		d.uring = true
	default:
		return nil, fmt.Errorf("engine %q is not known; use %s, %s or %s", e.Name, Auto, IOUring,
			Threads)
	}
	if cfg.Look != nil {
		d.startWatch()
	}
	return d, nil
}

// available tells why io_uring cannot be used; tests replace it.
var available = sync.OnceValue(uring.Available)

var warnOnce sync.Once

// fallBack warns, once in the process, that io_uring cannot be used. It returns err.
func (d *Disk) fallBack(err error) error {
	if err != nil {
		warnOnce.Do(func() {
			d.cfg.Log.Warn(
				"io_uring cannot be used: disks are served by threads, which costs more CPU for each command", "error", err)
		})
	}
	return err
}

var unregisteredOnce sync.Once

// unregistered warns, once in the process, that io_uring works without knowing the reactors'
// memory, if err says why.
func (d *Disk) unregistered(err error) {
	if err == nil {
		return
	}
	mend := ""
	if errors.Is(err, unix.ENOMEM) {
		mend = " (raise the limit of locked memory: ulimit -l, LimitMEMLOCK=)"
	}
	unregisteredOnce.Do(func() {
		d.cfg.Log.Warn("memory cannot be registered with io_uring: each transfer costs more CPU",
			"error", fmt.Errorf("%w%s", err, mend))
	})
}

// Info implements backend.Device.
func (d *Disk) Info() backend.Info { return *d.info.Load() }

// Allocated implements backend.Allocator.
func (d *Disk) Allocated() (int64, error) {
	size := d.Info().Size
	if d.cfg.Allocated == nil {
		return size, nil
	}
	n, err := d.cfg.Allocated(d.cfg.FD)
	return min(n, size), err
}

// FreeSpace implements backend.SpaceReporter.
func (d *Disk) FreeSpace() (int64, error) {
	if d.cfg.FreeSpace == nil {
		return 0, errors.ErrUnsupported
	}
	return d.cfg.FreeSpace(d.cfg.FD)
}

// Close implements backend.Device. It does not flush: what the hosts flushed is durable, what they
// did not is theirs to lose, and the kernel writes it back all the same.
func (d *Disk) Close() error {
	if n := d.channels.Load(); n != 0 {
		return fmt.Errorf("close %s: %d channels are open", d.cfg.Path, n)
	}
	d.stopWatch()
	if err := unix.Close(d.cfg.FD); err != nil {
		return fmt.Errorf("close %s: %w", d.cfg.Path, err)
	}
	return nil
}

// failure is the error of a system call.
func (d *Disk) failure(op backend.Op, off int64, e syscall.Errno) error {
	class := backend.ErrIO
	switch e {
	case unix.ENOSPC, unix.EDQUOT, unix.EFBIG:
		class = backend.ErrNoSpace
	case unix.EROFS, unix.EPERM: // a block device that became read-only says EPERM
		class = backend.ErrReadOnly
	case unix.EOPNOTSUPP, unix.ENOSYS:
		class = backend.ErrUnsupported
	case unix.ECANCELED:
		class = backend.ErrAborted
	case unix.ENODEV, unix.ENXIO, unix.ESTALE:
		class = backend.ErrOffline
	}
	return fmt.Errorf("%s: %v at %d: %w: %w", d.cfg.Path, op, off, class, e)
}

// syncFailed makes the failure of a durable write stay, unless it says that the write was refused,
// as for lack of space: then nothing was lost that had been accepted.
func (d *Disk) syncFailed(err error) {
	if !errors.Is(err, backend.ErrIO) && !errors.Is(err, backend.ErrOffline) {
		return
	}
	err = fmt.Errorf("%w; nothing more is accepted until the namespace is opened again: %w",
		backend.ErrDegraded, err)
	if d.failed.CompareAndSwap(nil, &err) {
		d.lookSoon() // which makes it known
		d.cfg.Log.Error("a flush failed: the disk takes no more writes", "error", err)
	}
}
