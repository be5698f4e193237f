// Package file is storage in a file, by ordinary blocking system calls in a pool of goroutines per channel.
//
// The way of an IO:
//
//	Submit (reactor) -> jobs -> a worker locks the blocks, makes the system calls, unlocks -> done (lock-free) -> wake
//	Poll (reactor)   <- done
//
// The hand-over to a worker is a Go channel: whoever blocks has to leave the reactor, and waking the thread that will block costs
// far more than the queue. The rest of the path takes no lock that another reactor holds for long.
//
// Atomicity: the file system promises little about racing reads and writes, so that workers lock what they touch; see ranges.go.
//
// Durability: a write is in the volatile cache of the device until a flush, except with FUA. When a flush fails the kernel drops
// what it could not write and forgets about it: a second flush would succeed although data is lost. So a failure stays: from
// then on every flush and every write fails until the device is opened again.
package file

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
)

// Config describes a file device.
type Config struct {
	// Path of a regular file. If there is none it is created with Size bytes, all zeroes and not yet allocated.
	Path string
	// Size in bytes, a multiple of BlockSize. It must be the size of an existing file that is not empty; 0 takes that over.
	Size int64
	// BlockSize is the logical block size in bytes.
	BlockSize int
	// ReadOnly opens the file for reading; several devices and processes may then share it.
	ReadOnly bool
	// Buffered keeps data in the kernel's page cache. Otherwise O_DIRECT is used where the file system allows it for BlockSize.
	Buffered bool
	// Workers is the largest number of system calls in progress per channel, 0 for the default of 32. They are started as
	// needed.
	Workers int
}

const defaultWorkers = 32

type device struct {
	cfg  Config
	info backend.Info
	fd   int
	// direct is what O_DIRECT asks for, zeroes if the page cache is used.
	direct alignment

	ranges   ranges
	channels atomic.Int32

	// noZeroRange is set when the file system turns out not to know FALLOC_FL_ZERO_RANGE.
	noZeroRange atomic.Bool

	// failed is why flushes and writes are refused, nil while all is well.
	failed atomic.Pointer[error]
	// syncMu serialises fdatasync: the kernel reports a failure to one of two callers only. syncs counts those begun.
	syncMu sync.Mutex
	syncs  atomic.Uint64
}

// Open opens or creates the file and locks it against a second Open, here or in another process.
func Open(cfg Config) (backend.Device, error) {
	d, err := open(cfg)
	if err != nil {
		return nil, fmt.Errorf("file device %s: %w", cfg.Path, err)
	}
	return d, nil
}

func open(cfg Config) (_ *device, err error) {
	if cfg.Path == "" {
		return nil, errors.New("no path is given")
	}
	if cfg.Workers == 0 {
		cfg.Workers = defaultWorkers
	}
	if cfg.Workers < 1 || cfg.Workers > maxOutstanding {
		return nil, fmt.Errorf("%d workers: must be from 1 to %d", cfg.Workers, maxOutstanding)
	}
	fd, created, err := openFile(cfg)
	if err != nil {
		return nil, err
	}
	locked := false
	defer func() {
		if err != nil {
			if created && locked {
				_ = unix.Unlink(cfg.Path)
			}
			_ = unix.Close(fd)
		}
	}()
	if err := lock(fd, cfg.ReadOnly); err != nil {
		return nil, err
	}
	locked = true
	size, err := settleSize(fd, cfg, created)
	if err != nil {
		return nil, err
	}
	path, err := identity(cfg.Path)
	if err != nil {
		return nil, err
	}
	d := &device{cfg: cfg, fd: fd, info: backend.Info{
		Size: size, BlockSize: cfg.BlockSize, PhysicalBlockSize: cfg.BlockSize,
		VolatileCache: !cfg.ReadOnly, ReadOnly: cfg.ReadOnly, Identity: path,
	}}
	d.ranges.init(cfg.BlockSize)
	if err := d.probe(); err != nil {
		return nil, err
	}
	return d, nil
}

// identity is the path as it is reached from anywhere.
func identity(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(abs)
}

// openFile opens the file, or creates it if it does not exist.
func openFile(cfg Config) (fd int, created bool, err error) {
	// Look before opening: opening a device or a FIFO has effects.
	switch st, err := os.Stat(cfg.Path); {
	case errors.Is(err, os.ErrNotExist) && !cfg.ReadOnly:
		fd, err := create(cfg)
		return fd, err == nil, err
	case errors.Is(err, os.ErrNotExist):
		return -1, false, errors.New("no such file, and a read-only device does not create one")
	case err != nil:
		return -1, false, errors.Unwrap(err)
	case st.IsDir():
		return -1, false, errors.New("is a directory; give the path of a file in it")
	case !st.Mode().IsRegular():
		return -1, false, fmt.Errorf("is not a regular file (%v)", st.Mode().Type())
	}
	mode := unix.O_RDWR
	if cfg.ReadOnly {
		mode = unix.O_RDONLY
	}
	fd, err = unix.Open(cfg.Path, mode|unix.O_CLOEXEC, 0)
	switch err {
	case nil:
		return fd, false, nil
	case unix.EROFS, unix.EACCES, unix.EPERM:
		if !cfg.ReadOnly {
			err = fmt.Errorf("open for writing: %w (mend the permissions, or make the namespace read-only)", err)
		}
	}
	return -1, false, err
}

// create makes the file. Its length is set by settleSize.
func create(cfg Config) (int, error) {
	if err := backend.CheckGeometry(cfg.Size, cfg.BlockSize); err != nil {
		return -1, fmt.Errorf("cannot create it: %w", err)
	}
	fd, err := unix.Open(cfg.Path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return -1, fmt.Errorf("create it: %w", err)
	}
	return fd, nil
}

func lock(fd int, shared bool) error {
	how := unix.LOCK_EX
	if shared {
		how = unix.LOCK_SH
	}
	switch err := unix.Flock(fd, how|unix.LOCK_NB); err {
	case nil:
		return nil
	case unix.EWOULDBLOCK:
		return errors.New("is in use by another namespace or process (flock)")
	default:
		return fmt.Errorf("flock: %w", err)
	}
}

// settleSize gives an empty file its size and compares that of any other with the configured one.
func settleSize(fd int, cfg Config, created bool) (int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("fstat: %w", err)
	}
	size := st.Size
	switch {
	case size == 0 && cfg.Size > 0 && !cfg.ReadOnly:
		// New, or left behind when creating it was interrupted.
		size = cfg.Size
		if err := backend.CheckGeometry(size, cfg.BlockSize); err != nil {
			return 0, err
		}
		if err := unix.Ftruncate(fd, size); err != nil {
			return 0, fmt.Errorf("set the size to %d bytes: %w", size, err)
		}
		if err := unix.Fsync(fd); err != nil {
			return 0, fmt.Errorf("fsync: %w", err)
		}
	case size == 0:
		return 0, errors.New("is empty; give a size, or a file with content")
	case cfg.Size != 0 && cfg.Size != size:
		return 0, fmt.Errorf("has %d bytes but %d are configured; correct or omit the size, or resize the file", size, cfg.Size)
	}
	if err := backend.CheckGeometry(size, cfg.BlockSize); err != nil {
		return 0, err
	}
	if created {
		return size, syncDirectory(cfg.Path)
	}
	return size, nil
}

// syncDirectory makes the name of a new file durable.
func syncDirectory(path string) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Info implements backend.Device.
func (d *device) Info() backend.Info { return d.info }

// Close implements backend.Device. It does not flush: what the hosts flushed is durable, what they did not is theirs to lose,
// and the kernel writes it back all the same.
func (d *device) Close() error {
	if n := d.channels.Load(); n != 0 {
		return fmt.Errorf("close file device %s: %d channels are open", d.cfg.Path, n)
	}
	if err := unix.Close(d.fd); err != nil {
		return fmt.Errorf("close file device %s: %w", d.cfg.Path, err)
	}
	return nil
}
