// Package file implements storage in a file: it opens, sizes and describes the file for package
// disk.
package file

import (
	"cmp"
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
	// Path is that of a regular file. A missing one is created with Size bytes, all zeroes.
	Path string
	// Size is in bytes, a multiple of BlockSize; 0 for the size of the file. A larger file is
	// served whole, since files may grow while they are served. A smaller one that is not empty is
	// refused.
	Size int64
	// BlockSize is the logical block size in bytes.
	BlockSize int
	// ReadOnly opens the file for reading; several devices and processes may then share it.
	ReadOnly bool
	// Buffered uses the page cache. Otherwise O_DIRECT is used where BlockSize allows it.
	Buffered bool
	// Preallocate allocates all space of the file at once, so that no later write fails for lack of
	// space. It also keeps that space: nothing can be discarded, and zeroes are written to the
	// existing space. Otherwise writes allocate space.
	Preallocate bool
	// Engine makes the system calls.
	Engine disk.Engine
	// Log is for warnings; nil for none.
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
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	fd, created, err := openFile(&cfg)
	if err != nil {
		return nil, err
	}
	locked := false
	defer func() {
		if err != nil {
			if created && locked { // for lack of space, for example
				_ = unix.Unlink(cfg.Path)
			}
			_ = disk.CloseLocked(fd)
		}
	}()
	if err := lock(fd, cfg.ReadOnly); err != nil {
		return nil, err
	}
	locked = true
	size, err := prepare(fd, &cfg, created)
	if err != nil {
		return nil, err
	}
	path, err := identity(cfg.Path)
	if err != nil {
		return nil, err
	}
	dc := disk.Config{
		Path: cfg.Path, FD: fd, Engine: cfg.Engine, Log: cfg.Log, Size: sizeOf(&cfg),
		Info: backend.Info{
			Size: size, BlockSize: cfg.BlockSize, PhysicalBlockSize: cfg.BlockSize,
			VolatileCache: !cfg.ReadOnly, ReadOnly: cfg.ReadOnly, Identity: path,
		},
	}
	if err := describe(&cfg, &dc); err != nil {
		return nil, err
	}
	return disk.New(dc)
}

// describe adds the abilities of the file system to the description, and changes nothing.
func describe(cfg *Config, d *disk.Config) error {
	if !cfg.Buffered {
		if err := setDirect(d); err != nil {
			return err
		}
		if d.Offset == 0 {
			cfg.Log.Warn("O_DIRECT is not possible here: the page cache is used", "path", cfg.Path)
		}
	}
	d.Info.PhysicalBlockSize = max(d.Info.BlockSize, d.Offset)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(d.FD, &fs); err != nil {
		return fmt.Errorf("fstatfs: %w", err)
	}
	if fs.Type == unix.FUSE_SUPER_MAGIC {
		// After a short read, io_uring reads the rest from the position of the first part: Linux
		// does not advance it if the server opens files with FOPEN_DIRECT_IO.
		d.Engine.Name = disk.Threads
	}
	if size := int(fs.Bsize); size >= d.Info.BlockSize && size&(size-1) == 0 && size <= 1<<20 {
		d.Info.OptimalIO = size
	}
	if !cfg.ReadOnly && !cfg.Preallocate {
		// Beyond the end there is nothing to discard.
		const how = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
		d.Info.Discard = unix.Fallocate(d.FD, how, d.Info.Size, 1<<20) == nil
		d.Info.DiscardZeroes = d.Info.Discard
	}
	d.Info.Thin, d.Space = !cfg.Preallocate, space
	return nil
}

// setDirect sets O_DIRECT if the file system supports it and its units fit the block size.
func setDirect(d *disk.Config) error {
	var stx unix.Statx_t
	if err := unix.Statx(d.FD, "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &stx); err != nil &&
		err != unix.ENOSYS {
		return fmt.Errorf("statx: %w", err)
	}
	offset, memory := int(stx.Dio_offset_align), int(stx.Dio_mem_align)
	if stx.Mask&unix.STATX_DIOALIGN == 0 {
		// Linux before 6.1, or a file system that does not report it. 4 KiB suits all of them.
		offset, memory = 4096, 4096
	}
	if offset == 0 || memory == 0 || d.Info.BlockSize%offset != 0 {
		return nil
	}
	flags, err := unix.FcntlInt(uintptr(d.FD), unix.F_GETFL, 0)
	if err != nil {
		return fmt.Errorf("fcntl(F_GETFL): %w", err)
	}
	if _, err := unix.FcntlInt(uintptr(d.FD), unix.F_SETFL, flags|unix.O_DIRECT); err == nil {
		d.Offset, d.Memory = offset, memory
	}
	return nil
}

// space returns the space of a file and of its file system for ordinary users, -1 if unknown.
func space(fd int) (allocated, free int64, err error) {
	var fs unix.Statfs_t
	if free = -1; unix.Fstatfs(fd, &fs) == nil {
		free = available(&fs, fs.Bavail)
	}
	allocated, err = allocatedBytes(fd)
	return allocated, free, err
}

// sizeOf returns a function that reads the size of the file, and logs once if it has been deleted.
func sizeOf(cfg *Config) func(fd int) (int64, error) {
	var once sync.Once
	return func(fd int) (int64, error) {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return 0, err
		}
		if st.Nlink == 0 {
			once.Do(func() {
				cfg.Log.Error("the file of a namespace was deleted: "+
					"its content is lost when the target ends", "path", cfg.Path)
			})
		}
		return st.Size, nil
	}
}

// identity returns the absolute path of the file, without symbolic links.
func identity(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(abs)
}

// openFile opens the file, or creates it if it does not exist.
func openFile(cfg *Config) (fd int, created bool, err error) {
	// Look before opening: opening a device or a FIFO has effects.
	var r backend.Report
	info := examine(cfg, &r)
	if err := r.Err(); err != nil {
		return -1, false, err
	}
	mode, verb := cfg.openMode(), "opened"
	if info == nil {
		mode, verb = mode|unix.O_CREAT|unix.O_EXCL, "created"
	}
	fd, err = unix.Open(cfg.Path, mode|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return -1, false, backend.WithHint(fmt.Errorf("cannot be %s: %w", verb, err),
			accessHint(err, cfg, info == nil))
	}
	return fd, info == nil, nil
}

func (cfg *Config) openMode() int {
	if cfg.ReadOnly {
		return unix.O_RDONLY
	}
	return unix.O_RDWR
}

// lock locks the file, exclusively or shared.
func lock(fd int, shared bool) error {
	how := unix.LOCK_EX
	if shared {
		how = unix.LOCK_SH
	}
	switch err := unix.Flock(fd, how|unix.LOCK_NB); err {
	case nil:
		return nil
	case unix.EWOULDBLOCK:
		return errInUse
	default:
		return fmt.Errorf("flock: %w", err)
	}
}

var errInUse = backend.WithHint(
	fmt.Errorf("%w by another namespace or process (flock)", backend.ErrInUse),
	"Stop its user, or give each namespace its own file.")

// prepare gives a file its size and its space, and returns the size of the device.
func prepare(fd int, cfg *Config, created bool) (int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("fstat: %w", err)
	}
	var r backend.Report
	size := cfg.sizeFor(st.Size, &r)
	if err := r.Err(); err != nil {
		return 0, err
	}
	for _, w := range r.Warnings {
		cfg.Log.Warn("a file "+w.What+". "+w.Hint, "path", cfg.Path)
	}
	if st.Size > 0 {
		return size, preallocate(fd, size, cfg)
	}
	// The file is new, or left by an interrupted creation.
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
	if created {
		return size, syncDirectory(cfg.Path)
	}
	return size, nil
}

// preallocate allocates the missing space, if configured.
func preallocate(fd int, size int64, cfg *Config) error {
	if !cfg.Preallocate || cfg.ReadOnly {
		return nil
	}
	if err := unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 0, size); err != nil {
		return backend.WithHint(fmt.Errorf("allocate %d bytes: %w", size, err),
			"Make room, or let it be sparse.")
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

// Resize changes the size of a closed file. Data beyond a smaller size is lost. A sparse file stays
// sparse, and Preallocate gets all space. After an error the file is as before.
func Resize(cfg Config, size int64) error {
	if err := resize(cfg, size); err != nil {
		return fmt.Errorf("file device %s: %w", cfg.Path, err)
	}
	return nil
}

func resize(cfg Config, size int64) (err error) {
	if err := backend.CheckGeometry(size, cfg.BlockSize); err != nil {
		return err
	}
	cfg.Size = 0 // the file may be smaller than the new size
	var r backend.Report
	if examine(&cfg, &r) == nil && len(r.Errors) == 0 {
		return errors.New("does not exist")
	}
	if err := r.Err(); err != nil {
		return err
	}
	fd, err := unix.Open(cfg.Path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return backend.WithHint(fmt.Errorf("cannot be opened: %w", err),
			accessHint(err, &cfg, false))
	}
	defer func() { err = errors.Join(err, disk.CloseLocked(fd)) }()
	if err := lock(fd, false); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("fstat: %w", err)
	}
	if err := unix.Ftruncate(fd, size); err != nil {
		return fmt.Errorf("set the size to %d bytes: %w", size, err)
	}
	if size > st.Size { // a shrunk file must not fail: its end is lost already
		if err := preallocate(fd, size, &cfg); err != nil {
			return errors.Join(err, unix.Ftruncate(fd, st.Size))
		}
	}
	if err := unix.Fsync(fd); err != nil {
		return fmt.Errorf("fsync: %w", err)
	}
	return nil
}
