// Package disk carries out IOs on a file descriptor. It is the common part of the devices of
// packages file, block and nvmedrive. One of two engines does the work: io_uring where it is
// allowed, otherwise a pool of goroutines that make blocking system calls.
//
// This is the path of an IO. Everything except the workers runs on the reactor of its channel:
//
//	Submit  io -> op -> range lock (waits while a racing command has one of its blocks) -> ready
//	pump    ready -> ring or worker: one step (a transfer, a flush, fallocate, ...)
//	Poll    step over -> ready again, if something is left (short transfer, FUA without O_DIRECT)
//	        -> done
//
// An op that waits occupies no thread. Events from other reactors (its range is locked, the flush
// that it shares is over) and results of workers arrive through an inbox.
//
// Durability: a write is in the volatile cache of the device until a flush, except with FUA. When a
// flush fails, the kernel drops the unwritten data and forgets about it: a second flush would
// succeed although data is lost. Therefore, a failure is permanent: every later flush and write
// fails until the device is opened again.
package disk

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/uring"
)

// The names of the engines, as in the configuration.
const (
	Auto    = "auto"     // io_uring, or threads with a warning
	IOUring = "io_uring" // nothing else
	Threads = "threads"
)

// Engine selects how system calls are made.
type Engine struct {
	// Name is Auto, IOUring or Threads; "" means Auto.
	Name string
}

// Config describes a Disk.
type Config struct {
	// Path names the disk in errors.
	Path string
	// FD is the open file or block device. The Disk owns and closes it once New has succeeded.
	FD   int
	Info backend.Info
	// Offset is the unit of positions and lengths that O_DIRECT requires, Memory the unit of
	// addresses, both in bytes and powers of two; 0 if the page cache is used.
	Offset, Memory int
	// Block: FD is a block device, of which BLKDISCARD frees space, not punching holes.
	Block bool
	// Driver replaces the system calls for files; nil for none.
	Driver Driver
	Engine Engine
	// Log is for warnings and errors; nil for none.
	Log *slog.Logger

	// Size returns the size of FD in bytes; 0 or an error: offline; nil: it does not change.
	// Any goroutine calls it, for block devices also reactors.
	Size func(fd int) (int64, error)
	// Space is as for backend.SpaceReporter, in bytes; nil if all space is allocated. Any goroutine
	// calls it.
	Space func(fd int) (allocated, free int64, err error)
	// Reopen opens and describes a disk that was offline, if it has come back and is the same. The
	// Disk takes over the new FD. nil if the disk comes back by itself.
	Reopen func() (Config, error)
}

// Disk is a backend.Device.
type Disk struct {
	cfg      Config
	uring    bool
	ranges   rangeLock
	channels atomic.Int32

	// info is the current description, opened the number of returns of the disk; see watcher.
	info   atomic.Pointer[backend.Info]
	opened atomic.Uint32
	watch  watcher

	// noZeroRange and noCommand: FALLOC_FL_ZERO_RANGE, discards by io_uring do not work here.
	noZeroRange, noCommand atomic.Bool

	// failed is the reason to refuse flushes and writes, nil if there is none.
	failed atomic.Pointer[error]
	sync   syncer
	// dirty reports whether writes have completed that no flush has covered.
	dirty atomic.Bool

	// maxWorkers limits the blocking system calls in progress per channel. Workers are started when
	// needed; with io_uring they are needed for unaligned data and little else.
	maxWorkers int
	workers    sync.WaitGroup // of all channels
	// inject replaces results in tests. Any goroutine calls it.
	inject func(s step, res int32) int32
}

var (
	_ backend.Changer       = (*Disk)(nil)
	_ backend.SpaceReporter = (*Disk)(nil)
)

// New makes a Disk of an open descriptor. On error FD stays open.
func New(cfg Config) (*Disk, error) {
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	d := &Disk{cfg: cfg, maxWorkers: 32}
	d.info.Store(&d.cfg.Info)
	d.ranges.init(cfg.Info.BlockSize)
	d.noZeroRange.Store(cfg.Driver != nil && cfg.Driver.Limit(backend.OpWriteZeroes) <= 0)
	if err := cfg.Engine.check(); err != nil {
		return nil, err
	}
	switch cfg.Engine.Name {
	case "", Auto:
		d.uring = d.fallBack(available()) == nil
	case IOUring:
		d.uring = true
	}
	if cfg.Size != nil {
		d.startWatch()
	}
	return d, nil
}

// check returns an error if this engine cannot be used.
func (e *Engine) check() error {
	switch e.Name {
	case "", Auto, Threads:
		return nil
	case IOUring:
		if err := available(); err != nil {
			return fmt.Errorf("engine io_uring: %w", err)
		}
		return nil
	}
	return fmt.Errorf("engine %q is not known; use %s, %s or %s", e.Name, Auto, IOUring, Threads)
}

// available returns the reason why io_uring cannot be used; tests replace it.
var available = sync.OnceValue(uring.Available)

var warnOnce sync.Once

// fallBack warns, once per process, that io_uring cannot be used. It returns err.
func (d *Disk) fallBack(err error) error {
	if err != nil {
		warnOnce.Do(func() {
			d.cfg.Log.Warn("io_uring cannot be used: disks are served by threads, "+
				"which costs more CPU for each command", "err", err)
		})
	}
	return err
}

var unregisteredOnce sync.Once

// unregistered warns once per process if err is why io_uring has no registered memory.
func (d *Disk) unregistered(err error) {
	if err == nil {
		return
	}
	hint := ""
	if errors.Is(err, unix.ENOMEM) {
		hint = " (raise the limit of locked memory: ulimit -l, LimitMEMLOCK=)"
	}
	unregisteredOnce.Do(func() {
		d.cfg.Log.Warn("memory cannot be registered with io_uring: each transfer costs more CPU",
			"err", fmt.Errorf("%w%s", err, hint))
	})
}

func (d *Disk) Info() backend.Info { return *d.info.Load() }

func (d *Disk) Space() (allocated, free int64, err error) {
	if d.cfg.Space == nil {
		return 0, 0, errors.ErrUnsupported
	}
	allocated, free, err = d.cfg.Space(d.cfg.FD)
	return min(allocated, d.Info().Size), free, err
}

// Close implements backend.Device. It does not flush: flushed data is durable anyway.
func (d *Disk) Close() error {
	if n := d.channels.Load(); n != 0 {
		return fmt.Errorf("close %s: %d channels are open", d.cfg.Path, n)
	}
	d.workers.Wait() // they are idle, or in Reactor.Wake
	d.stopWatch()
	if err := CloseLocked(d.cfg.FD); err != nil {
		return fmt.Errorf("close %s: %w", d.cfg.Path, err)
	}
	return nil
}

// CloseLocked releases the lock (flock) of a file and closes it. Closing alone would leave the lock
// to a child process that has not yet executed its program.
func CloseLocked(fd int) error {
	_ = unix.Flock(fd, unix.LOCK_UN)
	return unix.Close(fd)
}

// failure returns the error of a system call.
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

// syncFailed makes the failure of a durable write permanent, unless the write was refused, for
// example for lack of space: then no accepted data is lost.
func (d *Disk) syncFailed(err error) {
	if !errors.Is(err, backend.ErrIO) && !errors.Is(err, backend.ErrOffline) {
		return
	}
	err = fmt.Errorf("%w; nothing more is accepted until the namespace is opened again: %w",
		backend.ErrDegraded, err)
	if d.failed.CompareAndSwap(nil, &err) {
		d.CheckNow() // which publishes it
		d.cfg.Log.Error("a flush failed: the disk takes no more writes", "err", err)
	}
}
