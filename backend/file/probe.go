package file

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/disk"
)

// Probe reports the errors that Open would return, and possible later failures. It leaves no trace:
// an unnamed file shows whether a file of that size can be created.
func Probe(cfg Config) (r backend.Report) {
	cfg.Engine.Probe(&r)
	info := examine(&cfg, &r)
	if len(r.Errors) > 0 {
		return r
	}
	allocated := int64(0)
	if info == nil {
		probeNew(&cfg, &r)
	} else {
		allocated = probeFile(&cfg, &r)
	}
	if len(r.Errors) > 0 || cfg.ReadOnly {
		return r
	}
	size := cfg.Size
	if info != nil {
		size = max(size, info.Size())
	}
	probeSpace(&cfg, size-allocated, &r)
	return r
}

// examine checks the path, and returns nil if there is no file yet.
func examine(cfg *Config, r *backend.Report) os.FileInfo {
	if cfg.Path == "" {
		r.Errorf("Add path.", "no path is given")
		return nil
	}
	info, err := os.Stat(cfg.Path)
	if errors.Is(err, fs.ErrNotExist) {
		examineNew(cfg, r)
		return nil
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		r.Errorf("Let the user that runs the target reach it.", "cannot be reached: %v",
			errors.Unwrap(err))
	case err != nil:
		r.Errorf("Correct the path.", "cannot be reached: %v", errors.Unwrap(err))
	case info.IsDir():
		r.Errorf("Name a file in it.", "is a directory")
	case info.Mode()&os.ModeCharDevice != 0 && strings.HasPrefix(filepath.Base(cfg.Path), "dax"):
		r.Errorf("Make it one of mode fsdax (ndctl), mount ext4 or xfs there, and name a file "+
			"in it.", "is persistent memory without a file system")
	case info.Mode().Type() == os.ModeDevice:
		r.Errorf("Use backend: block.", "is a block device, not a regular file")
	case !info.Mode().IsRegular():
		r.Errorf("Name a regular file.", "is a %s, not a regular file", kindOf(info.Mode()))
	case pseudo(cfg.Path):
		r.Errorf("Name a file on a disk.", "is a file of the kernel, which holds no data")
	default:
		cfg.sizeFor(info.Size(), r)
	}
	return info
}

// kindOf names a file that is neither regular nor a directory.
func kindOf(mode fs.FileMode) string {
	switch {
	case mode&fs.ModeCharDevice != 0:
		return "character device"
	case mode&fs.ModeNamedPipe != 0:
		return "FIFO"
	}
	return "socket"
}

// examineNew checks the directory of a file that does not exist yet.
func examineNew(cfg *Config, r *backend.Report) {
	dir := filepath.Dir(cfg.Path)
	info, err := os.Stat(dir)
	to, linkErr := os.Readlink(cfg.Path)
	switch {
	case linkErr == nil:
		r.Errorf("Create that file, or delete the link.",
			"is a symbolic link to %s, which does not exist", to)
	case err != nil || !info.IsDir():
		r.Errorf("Create it: mkdir -p "+dir+".", "cannot be created: directory %s does not exist",
			dir)
	case cfg.ReadOnly:
		r.Errorf("Create the file, or delete read_only.",
			"does not exist: no such file, and a read-only namespace is not created")
	case pseudo(dir):
		r.Errorf("Name a file on a disk.", "cannot be created: %s is the kernel's", dir)
	case cfg.Size == 0:
		r.Errorf("Add size to create it, for instance size: 10GiB.",
			"does not exist, and no size is given")
	default:
		if err := backend.CheckGeometry(cfg.Size, cfg.BlockSize); err != nil {
			r.Errorf("Correct size or block_size.", "cannot be created: %v", err)
		}
	}
}

// pseudoFileSystems are the kernel's file systems with files that hold no data.
var pseudoFileSystems = map[int64]bool{
	unix.PROC_SUPER_MAGIC: true, unix.SYSFS_MAGIC: true, unix.CGROUP_SUPER_MAGIC: true,
	unix.CGROUP2_SUPER_MAGIC: true, unix.DEBUGFS_MAGIC: true, unix.TRACEFS_MAGIC: true,
	unix.SECURITYFS_MAGIC: true, unix.BPF_FS_MAGIC: true, unix.PSTOREFS_MAGIC: true,
	unix.EFIVARFS_MAGIC: true, unix.SELINUX_MAGIC: true,
}

func pseudo(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && pseudoFileSystems[st.Type]
}

// sizeFor returns the size of the device in a file that has this many bytes.
func (cfg *Config) sizeFor(have int64, r *backend.Report) int64 {
	size := have
	switch {
	case have == 0 && (cfg.Size == 0 || cfg.ReadOnly):
		r.Errorf("Add size, for instance size: 10GiB, or name a file with content.", "is empty")
		return 0
	case have == 0:
		size = cfg.Size
	case have < cfg.Size:
		r.Errorf("Grow it with truncate --size, or correct or delete size.",
			"has %d bytes but %d are configured", have, cfg.Size)
		return 0
	case have > cfg.Size && cfg.Size > 0 && cfg.BlockSize > 0:
		// It has grown, perhaps while it was served. Only whole blocks are served.
		size -= size % int64(cfg.BlockSize)
		r.Warnf("Correct or delete size.", "has %d bytes, more than the %d that are configured: "+
			"%d are served", have, cfg.Size, size)
	}
	if err := backend.CheckGeometry(size, cfg.BlockSize); err != nil {
		r.Errorf("Correct size and block_size, or resize the file.", "%v", err)
	}
	return size
}

// probeFile tests whether a file can be opened, and returns its allocated bytes.
func probeFile(cfg *Config, r *backend.Report) (allocated int64) {
	fd, err := unix.Open(cfg.Path, cfg.openMode()|unix.O_CLOEXEC, 0)
	if err != nil {
		r.Errorf(accessHint(err, cfg, false), "cannot be opened: %v", err)
		return 0
	}
	defer func() { _ = disk.CloseLocked(fd) }()
	if err := lock(fd, cfg.ReadOnly); err != nil || !cfg.ReadOnly {
		disk.ProbeUsers(cfg.Path, err, r)
	}
	allocated, _ = allocatedBytes(fd)
	return allocated
}

// accessHint returns the fix for an error of open(2) or access(2) of the file or directory.
func accessHint(err error, cfg *Config, isNew bool) string {
	switch {
	case errors.Is(err, unix.EROFS):
		return "Mount its file system for writing (of a systemd service: ReadWritePaths=), " +
			"or set read_only: true."
	case !errors.Is(err, fs.ErrPermission):
		return ""
	case isNew:
		return "Give the user that runs the target the right to write to " +
			filepath.Dir(cfg.Path) + "."
	case cfg.ReadOnly:
		return "Give the user that runs the target the right to read it."
	}
	return "Give the user that runs the target the right to write it, or set read_only: true."
}

// probeNew tests whether the file can be created.
func probeNew(cfg *Config, r *backend.Report) {
	dir := filepath.Dir(cfg.Path)
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		r.Errorf(accessHint(err, cfg, true), "cannot be created: %v", err)
		return
	}
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return // not every file system has unnamed files
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Ftruncate(fd, cfg.Size); err != nil {
		r.Errorf("Make it smaller, or use a file system for larger files, such as xfs.",
			"cannot be created: %d bytes: %v", cfg.Size, err)
	}
}

// probeSpace compares the bytes not allocated yet with the free space of the file system.
func probeSpace(cfg *Config, missing int64, r *backend.Report) {
	var st unix.Statfs_t
	var at unix.Stat_t
	path := cfg.Path
	if unix.Stat(path, &at) != nil {
		path = filepath.Dir(path)
	}
	if unix.Statfs(path, &st) != nil || unix.Stat(path, &at) != nil {
		return
	}
	free := available(&st, st.Bavail)
	if os.Geteuid() == 0 {
		free = available(&st, st.Bfree) // root may use the reserved blocks
	}
	r.Space = backend.Space{
		FileSystem: at.Dev, Free: free, Growth: max(missing, 0), AtOnce: cfg.Preallocate,
	}
	switch {
	case missing <= free:
	case cfg.Preallocate:
		r.Errorf("Make room, or make it smaller, or use preallocate: sparse.",
			"needs %d more bytes, and its file system has %d free", missing, free)
	default:
		r.Warnf("Make room, or make it smaller: writes fail when the file system is full.",
			"may grow by %d bytes, and its file system has %d free", missing, free)
	}
}

// allocatedBytes returns the space of a file, including the file system's own data for it.
func allocatedBytes(fd int) (int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("fstat: %w", err)
	}
	return st.Blocks << 9, nil
}

// available returns the size of blocks of a file system in bytes.
func available(fs *unix.Statfs_t, blocks uint64) int64 {
	unit := cmp.Or(fs.Frsize, fs.Bsize) // not every file system has fragments
	return int64(min(blocks, math.MaxInt64/uint64(unit))) * unit
}
