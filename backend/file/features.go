package file

import (
	"fmt"
	"math"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend/disk"
)

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

// allocatedBytes returns the space of a file, including the file system's own data for it.
func allocatedBytes(fd int) (int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("fstat: %w", err)
	}
	return st.Blocks << 9, nil
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

// available returns the size of blocks of a file system in bytes.
func available(fs *unix.Statfs_t, blocks uint64) int64 {
	unit := fs.Frsize
	if unit == 0 { // not every file system has fragments
		unit = fs.Bsize
	}
	return int64(min(blocks, math.MaxInt64/uint64(unit))) * unit
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
