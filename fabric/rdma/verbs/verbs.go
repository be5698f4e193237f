// Package verbs has the RDMA verbs and the RDMA communication manager as pure-Go types and batch
// interfaces. Package verbs/ibv binds them to rdma-core, and internal/testing/verbstest is an
// in-process fake that can inject faults. Both pass the same conformance suite.
//
// Names follow libibverbs and librdmacm: the manual page of the call with a method's name applies,
// unless the comment differs. Data-path calls (CQ.Poll, CQ.ReqNotify, QP.PostSend, PostRecv) never
// block, and only one goroutine at a time may make them on an object. All other calls may block,
// and any goroutine may make them.
package verbs

import "errors"

// Errors of every binding.
var (
	// ErrClosed is returned by CM.Next after CM.Close.
	ErrClosed = errors.New("event channel closed")
	// ErrNoDevice: no RDMA device has the address, or there is none.
	ErrNoDevice = errors.New("no RDMA device")
	// ErrNotBuilt is returned by every call of a program built without cgo.
	ErrNotBuilt = errors.New("built without support of RDMA devices (CGO_ENABLED=0)")
)

// Provider is one RDMA stack.
type Provider interface {
	// Devices lists the RDMA devices present now.
	Devices() ([]DeviceAttr, error)
	// NewCM opens a communication manager with its own event channel (rdma_create_event_channel).
	NewCM() (CM, error)
}

// VendorSIW is the vendor ID of the kernel's software iWARP (SIW_VENDOR_ID in
// drivers/infiniband/sw/siw/siw.h). It deviates from the specifications in undocumented ways: it
// lets a peer read a region without the right to, and keeps the connection after a SEND that could
// not invalidate its key.
const VendorSIW = 0x626d74

// DeviceAttr describes a device (ibv_query_device).
type DeviceAttr struct {
	Name string // rxe0, mlx5_0
	// IWARP: the transport is iWARP, where a message without a receive ends its connection.
	IWARP bool
	// ReadNeedsRemoteWrite reports whether the sink of an RDMA READ needs AccessRemoteWrite.
	ReadNeedsRemoteWrite bool
	// HoldsUnsignaledWrites reports whether the device may read the memory of an unsignaled RDMA
	// WRITE even after a later work request has completed.
	HoldsUnsignaledWrites  bool
	VendorID               uint32
	MaxQP, MaxQPWR, MaxSGE int
	// MaxSGERD is the largest number of SGEs of an RDMA READ.
	MaxSGERD                     int
	MaxCQ, MaxCQE, MaxMR         int
	MaxMRSize                    uint64
	MaxQPRdAtom, MaxQPInitRdAtom int // READs served and issued at once per QP
	MaxSRQ, MaxSRQWR, MaxSRQSGE  int
	NumCompVectors               int
	// WritesFirst reports whether RDMA WRITEs that follow each other cost less than WRITEs and
	// SENDs in turn. The user then posts the WRITEs of several messages before their SENDs.
	WritesFirst bool
	// Unlocked reports whether registered memory is not locked.
	Unlocked bool
	Node     int // NUMA node, negative if there is none
}

// Device is an open device. It is shared by all IDs on it and lives as long as the Provider.
type Device interface {
	Attr() DeviceAttr
	AllocPD() (PD, error)
	CreateCompChannel() (CompChannel, error)
	// CreateCQ makes a completion queue with at least the given entries; ch may be nil (polling
	// only); vector is taken modulo NumCompVectors.
	CreateCQ(entries int, ch CompChannel, vector int) (CQ, error)
	// Watch calls fn with the asynchronous events of the device, one after the other, until stop is
	// called. fn must neither block, nor free objects, nor call stop: freeing the object of an
	// event may wait until fn returns, so that its number is not used again. A call may still run
	// when stop returns.
	Watch(fn func(AsyncEvent)) (stop func(), err error)
}

// Access are the rights of a memory region.
type Access uint32

// Access flags with the values of enum ibv_access_flags.
const (
	AccessLocalWrite  Access = 1 << 0
	AccessRemoteWrite Access = 1 << 1
	AccessRemoteRead  Access = 1 << 2
)

// PD is a protection domain.
type PD interface {
	// RegMR registers b, which lies outside the Go heap and outlives the MR.
	RegMR(b []byte, access Access) (MR, error)
	CreateSRQ(init SRQInit) (SRQ, error)
	Dealloc() error
}

// MR is a memory region.
type MR interface {
	LKey() uint32
	RKey() uint32
	Dereg() error
}

// CompChannel delivers completion events through a file descriptor.
type CompChannel interface {
	// FD becomes readable when an armed CQ gets a completion.
	FD() int
	// Drain takes and acknowledges every pending event without blocking and returns their number.
	Drain() (int, error)
	Close() error
}

// CQ is a completion queue.
type CQ interface {
	// Poll fills wc and returns the number of completions, or an error for a failed CQ (overrun).
	Poll(wc []WC) (n int, err error)
	// ReqNotify arms the CQ: its channel becomes readable at the next completion. Poll after
	// arming, and go on until there is no completion, before you wait for the channel.
	ReqNotify() error
	Destroy() error
}

// SRQInit sizes a shared receive queue.
type SRQInit struct{ MaxWR, MaxSGE int }

// SRQ is a shared receive queue. A queue pair that uses one and goes to the error state takes no
// more of its receives. The device reports that with AsyncQPLastWQEReached; earlier completions of
// the queue pair are in its CQ by then. A receive with a message arriving at that moment may be
// lost without a completion (rxe).
type SRQ interface {
	PostRecv(wrs []RecvWR) (n int, err error)
	Destroy() error
}

// QPInit describes a reliable-connected QP (ibv_qp_init_attr). Completions are signaled per WR
// (sq_sig_all 0).
type QPInit struct {
	SendCQ, RecvCQ                               CQ
	SRQ                                          SRQ // nil: own receive queue
	MaxSendWR, MaxRecvWR, MaxSendSGE, MaxRecvSGE int
	// MaxInline is the requested size. If the device refuses it, the request is repeated with 0.
	// See QP.MaxInline.
	MaxInline int
}

// QP is a queue pair made on an ID.
type QP interface {
	// Num is the queue pair number, as in WC.QPNum.
	Num() uint32
	// MaxInline is the number of bytes SendInline may carry.
	MaxInline() int
	// PostSend posts wrs in order with one call; WR i uses sges[FirstSGE : FirstSGE+NumSGE]. It
	// returns the number posted; err is nil if all were. The arrays may be reused at once.
	PostSend(wrs []SendWR, sges []SGE) (n int, err error)
	// PostRecv posts receives; not for a QP with an SRQ.
	PostRecv(wrs []RecvWR) (n int, err error)
	// ShortenRNRTimer makes the peer of a connected QP wait for 1.28 ms before it repeats a message
	// that found no receive, instead of 655 ms, the maximum, which the connection manager sets. Not
	// on iWARP, which has no such timer.
	ShortenRNRTimer() error
	// ToError moves the QP to the error state: everything posted before completes with
	// WCWRFlushErr. Work posted after a QP failed may be refused, flushed, or forgotten without a
	// completion (rxe: receives, siw: all), and a QP that failed by itself may flush only after
	// ToError (siw). When a CQ is empty after Destroy, nothing more comes.
	ToError() error
	// Destroy frees the QP; nothing of it appears in a CQ polled empty afterwards. After an error
	// the device may continue to use all memory given to it, and no method may be called, because
	// libsiw has unmapped the queues by then.
	Destroy() error
}

// SGE is a scatter/gather element, laid out as struct ibv_sge.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   uint32
}

// SendOpcode is the operation of a SendWR, with the values of enum ibv_wr_opcode.
type SendOpcode uint32

// The operations used.
const (
	WRRDMAWrite   SendOpcode = 0
	WRSend        SendOpcode = 2
	WRRDMARead    SendOpcode = 4
	WRSendWithInv SendOpcode = 9
)

// SendFlags with the values of enum ibv_send_flags.
type SendFlags uint32

// The flags used.
const (
	SendSignaled SendFlags = 1 << 1
	SendInline   SendFlags = 1 << 3
)

// SendWR is a send work request, pointer-free.
type SendWR struct {
	WRID           uint64
	RemoteAddr     uint64 // RDMA READ and WRITE
	Opcode         SendOpcode
	Flags          SendFlags
	FirstSGE       uint32
	NumSGE         uint32
	RKey           uint32 // RDMA READ and WRITE
	InvalidateRKey uint32 // SEND_WITH_INV
}

// RecvWR is a receive work request with up to two elements, pointer-free.
type RecvWR struct {
	WRID   uint64
	NumSGE uint64
	SGE    [2]SGE
}

// WCStatus is the outcome of a work request, with the values of enum ibv_wc_status.
type WCStatus uint32

// The outcomes in use.
const (
	WCSuccess        WCStatus = 0
	WCLocLenErr      WCStatus = 1
	WCLocQPOpErr     WCStatus = 2
	WCLocProtErr     WCStatus = 4
	WCWRFlushErr     WCStatus = 5
	WCLocAccessErr   WCStatus = 8
	WCRemInvReqErr   WCStatus = 9
	WCRemAccessErr   WCStatus = 10
	WCRemOpErr       WCStatus = 11
	WCRetryExcErr    WCStatus = 12
	WCRNRRetryExcErr WCStatus = 13
	WCGeneralErr     WCStatus = 21
)

// WCOpcode is the completed operation, with the values of enum ibv_wc_opcode. It is valid only if
// Status is WCSuccess.
type WCOpcode uint32

// The completions in use.
const (
	WCSend      WCOpcode = 0
	WCRDMAWrite WCOpcode = 1
	WCRDMARead  WCOpcode = 2
	WCRecv      WCOpcode = 128
)

// WCFlags with the values of enum ibv_wc_flags.
type WCFlags uint32

// The flags used.
const (
	WCWithInv WCFlags = 1 << 3
)

// WC is a work completion, pointer-free.
type WC struct {
	WRID            uint64
	Status          WCStatus
	Opcode          WCOpcode
	VendorErr       uint32
	ByteLen         uint32
	QPNum           uint32
	Flags           WCFlags
	InvalidatedRKey uint32
	_               uint32
}
