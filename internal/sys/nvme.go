package sys

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// nvmeAdminCommand is struct nvme_admin_cmd of linux/nvme_ioctl.h.
type nvmeAdminCommand struct {
	opcode, flags          uint8
	_                      uint16
	nsid                   uint32
	_                      [2]uint32
	_                      uint64
	addr                   uint64
	_                      uint32
	dataLen                uint32
	cdw10                  uint32
	_                      [5]uint32
	timeoutMillis, _result uint32
}

// nvmeIoctlAdmin is NVME_IOCTL_ADMIN_CMD: _IOWR('N', 0x41, struct nvme_admin_cmd).
const nvmeIoctlAdmin = 3<<30 | unsafe.Sizeof(nvmeAdminCommand{})<<16 | 'N'<<8 | 0x41

// NVMeLog reads len(b) bytes, a multiple of 4, of a log page of an NVMe drive whose character or block device fd is, for all
// namespaces. status is that of the command, without phase tag; 0 is success. It may block, ten seconds at most, and tells the
// scheduler.
func NVMeLog(fd int, lid uint8, b []byte) (status uint16, e syscall.Errno) {
	c := nvmeAdminCommand{
		opcode: 0x02, nsid: 0xFFFFFFFF, addr: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), dataLen: uint32(len(b)),
		cdw10: uint32(lid) | uint32(len(b)/4-1)<<16, timeoutMillis: 10_000,
	}
	var pin runtime.Pinner
	pin.Pin(unsafe.SliceData(b))
	defer pin.Unpin()
	r, _, e := syscall.Syscall(unix.SYS_IOCTL, uintptr(fd), nvmeIoctlAdmin, uintptr(unsafe.Pointer(&c)))
	if e != 0 {
		return 0, e
	}
	return uint16(r), 0
}
