package sys

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// NVMeCommand is struct nvme_passthru_cmd64 of linux/nvme_ioctl.h: a command for an NVMe drive. The
// names are from the submission queue entry (NVM Express Base Specification 2.0, section 3.3.3.1).
// The caller keeps the memory given to SetData and SetVectors alive.
type NVMeCommand struct {
	Opcode, flags        uint8
	_                    uint16
	NSID                 uint32
	CDW2, CDW3           uint32
	metadata, addr       uint64
	metadataLen, dataLen uint32
	CDW10                [6]uint32 // CDW10 to CDW15
	TimeoutMillis, _     uint32    // 0: the default of the driver
	Result               uint64    // dwords 0 and 1 of the completion, after NVMeIoctl
}

// nvmeUringSize is the size of struct nvme_uring_cmd, which is NVMeCommand without the result.
const nvmeUringSize = 72

// The sizes of the kernel. A difference does not compile.
var (
	_ [80]byte            = [unsafe.Sizeof(NVMeCommand{})]byte{}
	_ [nvmeUringSize]byte = [unsafe.Offsetof(NVMeCommand{}.Result)]byte{}
)

// The ioctls of linux/nvme_ioctl.h for NVMeIoctl, and the command numbers for io_uring.
const (
	NVMeID = 'N'<<8 | 0x40
	// NVME_IOCTL_ADMIN64_CMD
	NVMeAdmin = readWrite | unsafe.Sizeof(NVMeCommand{})<<16 | 'N'<<8 | 0x47
	// NVME_IOCTL_IO64_CMD
	NVMeIO = readWrite | unsafe.Sizeof(NVMeCommand{})<<16 | 'N'<<8 | 0x48
	// NVME_IOCTL_IO64_CMD_VEC
	NVMeIOVec = readWrite | unsafe.Sizeof(NVMeCommand{})<<16 | 'N'<<8 | 0x49
	NVMeUring = readWrite | nvmeUringSize<<16 | 'N'<<8 | 0x80 // NVME_URING_CMD_IO
	// NVME_URING_CMD_IO_VEC
	NVMeUringVec = readWrite | nvmeUringSize<<16 | 'N'<<8 | 0x81

	readWrite = 3 << 30 // _IOWR of asm-generic/ioctl.h
)

// SetData makes b the data of the command.
func (c *NVMeCommand) SetData(b []byte) {
	c.addr, c.dataLen = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), uint32(len(b))
}

// SetVectors makes the memory of iov the data of a command of NVMeIOVec or NVMeUringVec.
func (c *NVMeCommand) SetVectors(iov []Iovec) {
	c.addr, c.dataLen = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(iov)))), uint32(len(iov))
}

// Uring returns the command in the form that io_uring takes.
func (c *NVMeCommand) Uring() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(c)),
		nvmeUringSize)
}

// NVMeIoctl sends c to the drive of the device fd. status is the status of the command without
// phase tag; 0 is success. It may block for c's timeout, and the scheduler knows.
func NVMeIoctl(fd int, request uintptr, c *NVMeCommand) (status uint16, e syscall.Errno) {
	r, _, e := syscall.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(c)))
	if e != 0 {
		return 0, e
	}
	return uint16(r), 0
}

// NVMeNamespace returns the NSID of the character or block device fd (NVME_IOCTL_ID).
func NVMeNamespace(fd int) (uint32, syscall.Errno) {
	r, _, e := syscall.Syscall(unix.SYS_IOCTL, uintptr(fd), NVMeID, 0)
	return uint32(r), e
}
