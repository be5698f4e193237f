package file

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// alignment is what O_DIRECT asks for.
type alignment struct {
	// offset is the unit of positions and lengths, memory of addresses, both in bytes and powers of two; 0 if the page
	// cache is used.
	offset, memory int
}

// probe finds out what the file system can do, without changing the file.
func (d *device) probe() error {
	if !d.cfg.Buffered {
		if err := d.goDirect(); err != nil {
			return err
		}
	}
	if d.direct.offset > d.info.BlockSize {
		d.info.PhysicalBlockSize = d.direct.offset
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(d.fd, &fs); err != nil {
		return fmt.Errorf("fstatfs: %w", err)
	}
	if size := int(fs.Bsize); size >= d.info.BlockSize && size&(size-1) == 0 && size <= 1<<20 {
		d.info.OptimalIO = size
	}
	if !d.cfg.ReadOnly {
		// Behind the end there is nothing to discard.
		err := unix.Fallocate(d.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, d.info.Size, 1<<20)
		d.info.Discard = err == nil
		d.info.DiscardZeroes = err == nil
	}
	return nil
}

// goDirect turns O_DIRECT on if the file system has it and its units fit the block size.
func (d *device) goDirect() error {
	var stx unix.Statx_t
	if err := unix.Statx(d.fd, "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &stx); err != nil && err != unix.ENOSYS {
		return fmt.Errorf("statx: %w", err)
	}
	a := alignment{offset: int(stx.Dio_offset_align), memory: int(stx.Dio_mem_align)}
	if stx.Mask&unix.STATX_DIOALIGN == 0 {
		// Linux before 6.1, or a file system that does not say. Pages and blocks of 4 KiB satisfy all of them.
		a = alignment{offset: 4096, memory: 4096}
	}
	if a.offset == 0 || a.memory == 0 || d.info.BlockSize%a.offset != 0 {
		return nil
	}
	flags, err := unix.FcntlInt(uintptr(d.fd), unix.F_GETFL, 0)
	if err != nil {
		return fmt.Errorf("fcntl(F_GETFL): %w", err)
	}
	if _, err := unix.FcntlInt(uintptr(d.fd), unix.F_SETFL, flags|unix.O_DIRECT); err == nil {
		d.direct = a
	}
	return nil
}
