package uring

import "unsafe"

// The parts of linux/io_uring.h that this package uses.

// sqe is struct io_uring_sqe, the form with 64 bytes.
type sqe struct {
	opcode   uint8
	flags    uint8
	ioprio   uint16
	fd       int32
	off      uint64
	addr     uint64
	len      uint32
	opFlags  uint32 // rw_flags, fsync_flags, ...
	userData uint64
	bufIndex uint16
	_        [6]byte
	addr3    uint64
	_        uint64
}

// commandRoom is the number of bytes of a command in an entry of 128 bytes, from addr3 on.
const commandRoom = 80

// cqe is struct io_uring_cqe, the form with 16 bytes.
type cqe struct {
	userData uint64
	res      int32
	flags    uint32
}

// params is struct io_uring_params.
type params struct {
	sqEntries, cqEntries, flags, sqThreadCPU, sqThreadIdle, features, wqFD uint32
	_                                                                      [3]uint32
	sq                                                                     sqOffsets
	cq                                                                     cqOffsets
}

type sqOffsets struct {
	head, tail, mask, entries, flags, dropped, array, _ uint32
	_                                                   uint64
}

type cqOffsets struct {
	head, tail, mask, entries, overflow, cqes, flags, _ uint32
	_                                                   uint64
}

// filesUpdate is struct io_uring_rsrc_update.
type filesUpdate struct {
	offset, _ uint32
	data      uint64
}

// filesRegister is struct io_uring_rsrc_register.
type filesRegister struct {
	nr, flags  uint32
	_          uint64
	data, tags uint64
}

// The sizes of the kernel. A difference does not compile.
var (
	_ [64]byte  = [unsafe.Sizeof(sqe{})]byte{}
	_ [16]byte  = [unsafe.Sizeof(cqe{})]byte{}
	_ [120]byte = [unsafe.Sizeof(params{})]byte{}
	_ [16]byte  = [unsafe.Sizeof(filesUpdate{})]byte{}
	_ [32]byte  = [unsafe.Sizeof(filesRegister{})]byte{}
)

const (
	// IORING_OFF_SQ_RING; with IORING_FEAT_SINGLE_MMAP also the completion queue
	offRing = 0
	offSQEs = 0x10000000 // IORING_OFF_SQES

	setupCQSize       = 1 << 3
	setupDisabled     = 1 << 6
	setupSubmitAll    = 1 << 7
	setupCoopTaskrun  = 1 << 8
	setupTaskrunFlag  = 1 << 9
	setupSQE128       = 1 << 10
	setupCQE32        = 1 << 11
	setupSingleIssuer = 1 << 12
	setupDeferTaskrun = 1 << 13

	featSingleMmap = 1 << 0
	featNoDrop     = 1 << 1

	sqOverflow = 1 << 1
	sqTaskrun  = 1 << 2

	cqEventFDDisabled = 1 << 0

	enterGetEvents = 1 << 0

	registerBuffers     = 0
	registerEventFD     = 4
	registerFilesUpdate = 6
	registerEnable      = 12
	registerFiles2      = 13

	filesSparse = 1 << 0 // IORING_RSRC_REGISTER_SPARSE

	sqeFixedFile = 1 << 0

	opReadv      = 1
	opWritev     = 2
	opFsync      = 3
	opReadFixed  = 4
	opWriteFixed = 5
	opCancel     = 14
	opFallocate  = 17
	opRead       = 22
	opWrite      = 23
	opCommand    = 46

	fsyncDatasync = 1 << 0

	commandFixed = 1 << 0 // IORING_URING_CMD_FIXED

	// blockDiscard is BLOCK_URING_CMD_DISCARD of linux/blkdev.h (Linux 6.12).
	blockDiscard = 0x12 << 8
)
