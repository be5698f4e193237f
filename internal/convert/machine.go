package convert

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine gives access to storage.
type Machine interface {
	// Storage returns the storage at a path; ok is false if it is unknown.
	Storage(path string) (s Storage, ok bool)
}

// Storage describes a block device or a file.
type Storage struct {
	// Device: it is a block device with blocks of BlockSize bytes.
	Device bool
	// BlockSize of a file is the result of stat(2), 0 if unknown.
	BlockSize uint64
	// FileSystem is the block size of the file system of a file (FIGETBSZ).
	FileSystem uint64
}

// Local is this machine.
type Local struct{}

// figetbsz is FIGETBSZ (include/uapi/linux/fs.h).
const figetbsz = 2

// Storage implements Machine. It opens block devices and files for reading, and changes nothing.
func (Local) Storage(path string) (s Storage, ok bool) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return s, false
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFBLK:
		s.Device = true
	case unix.S_IFREG:
		s.BlockSize = uint64(st.Blksize)
	default:
		return s, false
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return s, true
	}
	defer func() { _ = unix.Close(fd) }()
	s.ask(func(request uint) (int, error) { return unix.IoctlGetInt(fd, request) })
	return s, true
}

// ask asks a device for its logical block size, a file for that of its file system.
func (s *Storage) ask(ioctl func(request uint) (int, error)) {
	size, request := &s.FileSystem, uint(figetbsz)
	if s.Device {
		size, request = &s.BlockSize, unix.BLKSSZGET
	}
	if n, err := ioctl(request); err == nil && n > 0 {
		*size = uint64(n)
	}
}

// at returns the storage at a path. If it is unknown, at recognizes a device by its name.
func (r *reader) at(path string) (s Storage, known bool) {
	if r.Machine != nil {
		if s, known = r.Machine.Storage(path); known {
			return s, true
		}
		s = Storage{}
	}
	s.Device = strings.HasPrefix(path, "/dev/") && !strings.HasPrefix(path, "/dev/shm/")
	return s, false
}

// assumed is the comment on an unconfirmed block size.
const assumed = "assumed: compare it with lsblk -o NAME,LOG-SEC at a host"

// assume returns storage for a file elsewhere, with the usual block size of file systems.
func (r *reader) assume(v *value, path string) storage {
	r.note(v, "%s is not on this machine, so its block size, that of its file system, is assumed "+
		"to be 4 KiB. Convert where it is, or look at a host: lsblk -o NAME,LOG-SEC", short(path))
	return storage{backend: "file", path: path, blockSize: 4096, blockComment: assumed}
}

// nvmetFileBlock is the largest block size of files in nvmet (nvmet_file_ns_enable in
// drivers/nvme/target/io-cmd-file.c). nvmet uses the block size of the inode, about which stat(2)
// and the file system may disagree.
const nvmetFileBlock = 4096

// nvmetStorage returns the storage of a namespace of nvmet, or why it cannot be used.
func (r *reader) nvmetStorage(v *value, path string) (st storage, why string) {
	s, known := r.at(path)
	of, stat := min(s.FileSystem, nvmetFileBlock), min(s.BlockSize, nvmetFileBlock)
	switch {
	case s.Device:
		return storage{backend: "block", path: path, comment: unstable(path)}, ""
	case !known:
		return r.assume(v, path), ""
	case of != stat:
		return st, fmt.Sprintf("its blocks may have %d bytes or %d. See at a host (lsblk -o "+
			"NAME,LOG-SEC), and add it with backend: file and that block_size", of, stat)
	}
	return storage{backend: "file", path: path, blockSize: of}, ""
}

// spdkStorage is nvmetStorage for bdev_aio_create and bdev_uring_create of SPDK. blockSize is the
// block size of the bdev; 0 means the block size of the device, or of stat(2) for a file.
func (r *reader) spdkStorage(v *value, path string, blockSize uint64) (st storage, why string) {
	const minimum = 512 // SPDK has no smaller blocks
	s, known := r.at(path)
	switch {
	case !s.Device && blockSize != 0:
		return storage{backend: "file", path: path, blockSize: blockSize}, ""
	case !s.Device && !known:
		return r.assume(v, path), ""
	case !s.Device:
		return storage{backend: "file", path: path, blockSize: s.BlockSize}, ""
	case s.BlockSize == 0 && blockSize > minimum:
		return st, fmt.Sprintf("it has blocks of %d bytes, and the block size of the device is "+
			"unknown, because it is not here. Convert on the machine that has it", blockSize)
	case s.BlockSize != 0 && blockSize != 0 && s.BlockSize != blockSize:
		return st, fmt.Sprintf("it has blocks of %d bytes, and the device of %d. With losetup "+
			"--sector-size %[1]d a loop device on it has them, too: add that with backend: block",
			blockSize, s.BlockSize)
	}
	return storage{backend: "block", path: path, comment: unstable(path)}, ""
}
