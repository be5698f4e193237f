package uring

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Op is one operation on a file. Its memory belongs to the kernel from Start until the operation
// has completed. The zero Op does nothing.
type Op struct{ e sqe }

// Read reads at off into b, which lies outside the Go heap.
func Read(b []byte, off int64) Op { return transfer(opRead, b, off, 0) }

// Write writes b, which lies outside the Go heap, at off. flags are the flags of pwritev2(2).
func Write(b []byte, off int64, flags uint32) Op { return transfer(opWrite, b, off, flags) }

func transfer(opcode uint8, b []byte, off int64, flags uint32) Op {
	return Op{sqe{
		opcode: opcode, off: uint64(off),
		addr: address(unsafe.Pointer(unsafe.SliceData(b))), len: uint32(len(b)), opFlags: flags,
	}}
}

// Readv reads at off into the memory of iov, outside the Go heap. iov itself is part of a heap
// object that the caller keeps alive: it must not be on a stack.
func Readv(iov []unix.Iovec, off int64) Op { return vectored(opReadv, iov, off, 0) }

// Writev writes the memory of iov; see Readv and Write.
func Writev(iov []unix.Iovec, off int64, flags uint32) Op {
	return vectored(opWritev, iov, off, flags)
}

func vectored(opcode uint8, iov []unix.Iovec, off int64, flags uint32) Op {
	return Op{sqe{
		opcode: opcode, off: uint64(off),
		addr: address(unsafe.Pointer(unsafe.SliceData(iov))), len: uint32(len(iov)),
		opFlags: flags,
	}}
}

// Datasync is fdatasync(2).
func Datasync() Op { return Op{sqe{opcode: opFsync, opFlags: fsyncDatasync}} }

// Fallocate is fallocate(2).
func Fallocate(mode uint32, off, n int64) Op {
	return Op{sqe{opcode: opFallocate, off: uint64(off), addr: uint64(n), len: mode}}
}

// Discard is BLKDISCARD on a block device, Linux 6.12. off has the command in its lower half.
func Discard(off, n int64) Op {
	e := sqe{opcode: opCommand, addr: uint64(off), addr3: uint64(n)}
	*(*uint32)(unsafe.Pointer(&e.off)) = blockDiscard
	return Op{e}
}

func address(p unsafe.Pointer) uint64 { return uint64(uintptr(p)) }
