// Package file is storage in a file. It opens, sizes and probes the file; package disk does the
// rest.
package file

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/disk"
)

// Config describes a file device.
type Config struct {
	// Path of a regular file. If there is none it is created with Size bytes, all zeroes and not
	// yet allocated.
	Path string
	// Size in bytes, a multiple of BlockSize. It must be the size of an existing file that is not
	// empty; 0 takes that over.
	Size int64
	// BlockSize is the logical block size in bytes.
	BlockSize int
	// ReadOnly opens the file for reading; several devices and processes may then share it.
	ReadOnly bool
	// Buffered keeps data in the kernel's page cache. Otherwise O_DIRECT is used where the file
	// system allows it for BlockSize.
	Buffered bool
	// Preallocate gives the file all of its space at once, so that no write fails later for lack of
	// space. For the same reason it keeps that space: nothing can be discarded, and zeroes are
	// written to the space that there is. Otherwise space is taken as it is written.
	Preallocate bool
	// DAX says whether blocks are lent from where they are: Auto, which "" means as well, On or
	// Off.
	DAX string
	// Engine makes the system calls.
	Engine disk.Engine
	// Log is for warnings; nil: none.
	Log *slog.Logger
}

// Open opens or creates the file and locks it against a second Open, here or in another process.
func Open(cfg Config) (backend.Device, error) {
	d, err := open(cfg)
	if err != nil {
		return nil, fmt.Errorf("file device %s: %w", cfg.Path, err)
	}
	return d, nil
}

func open(cfg Config) (_ backend.Device, err error) {
	if cfg.Path == "" {
		return nil, errors.New("no path is given")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	fd, created, err := openFile(cfg)
	if err != nil {
		return nil, err
	}
	locked := false
	defer func() {
		if err != nil {
			if created && locked { // for lack of space, say
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
	dc := disk.Config{
		Path: cfg.Path, FD: fd, Engine: cfg.Engine, Log: cfg.Log, Look: look(cfg),
		Info: backend.Info{
			Size: size, BlockSize: cfg.BlockSize, PhysicalBlockSize: cfg.BlockSize,
			VolatileCache: !cfg.ReadOnly, ReadOnly: cfg.ReadOnly, Identity: path,
		},
	}
	if err := probe(cfg, &dc); err != nil {
		return nil, err
	}
	region, err := mapped(cfg, &dc)
	if err != nil {
		return nil, err
	}
	d, err := disk.New(dc)
	switch {
	case err != nil && region != nil:
		return nil, errors.Join(err, region.Unmap())
	case err != nil:
		return nil, err
	case region == nil:
		return d, nil
	}
	return newDAX(d, region), nil
}

// look is what tells the size of the file. It says once that the file was deleted.
func look(cfg Config) func(fd int) (int64, error) {
	var once sync.Once
	return func(fd int) (int64, error) {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return 0, err
		}
		if st.Nlink == 0 {
			once.Do(func() {
				cfg.Log.Error(
					"the file of a namespace was deleted: what is in it is lost when the target ends", "path", cfg.Path)
			})
		}
		return st.Size, nil
	}
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
			err = fmt.Errorf(
				"open for writing: %w (mend the permissions, or make the namespace read-only)", err)
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
		if err := preallocate(fd, size, cfg); err != nil {
			_ = unix.Ftruncate(fd, 0)
			return 0, err
		}
		if err := unix.Fsync(fd); err != nil {
			return 0, fmt.Errorf("fsync: %w", err)
		}
	case size == 0:
		return 0, errors.New("is empty; give a size, or a file with content")
	case cfg.Size != 0 && cfg.Size != size:
		return 0, fmt.Errorf(
			"has %d bytes but %d are configured; correct or omit the size, or resize the file",
			size, cfg.Size)
	default:
		if err := preallocate(fd, size, cfg); err != nil {
			return 0, err
		}
	}
	if err := backend.CheckGeometry(size, cfg.BlockSize); err != nil {
		return 0, err
	}
	if created {
		return size, syncDirectory(cfg.Path)
	}
	return size, nil
}

// preallocate gives space to what has none, if it is wanted.
func preallocate(fd int, size int64, cfg Config) error {
	if !cfg.Preallocate || cfg.ReadOnly {
		return nil
	}
	if err := unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 0, size); err != nil {
		return fmt.Errorf("allocate %d bytes: %w (make room, or let it be sparse)", size, err)
	}
	return nil
}

// syncDirectory makes the name of a new file durable.
func syncDirectory(path string) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
