// Package uring binds io_uring(7): there is a ring for each reactor and all its files.
//
//	Start   fills a submission entry (registered file, registered memory), which waits in the
//	        queue; while the devices may be idle, the first are submitted at once
//	Poll    submits all waiting entries by one io_uring_enter and calls the Completers of
//	        completed operations
//	Arm     makes completions write to the eventfd of the reactor from now on; until then
//	        nothing disturbs a reactor that polls
//
// Only the kernel and the ring use the shared memory, and each index has one writer. An index is
// stored with release and loaded with acquire semantics, which sync/atomic provides. Everything
// else belongs to the reactor.
//
// A Ring has fewer slots than its completion queue has entries, so the queue does not overflow. If
// it does, the kernel keeps the rest (IORING_FEAT_NODROP) until the next Poll.
package uring

import (
	"fmt"
	"math"
	"runtime"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// taskBatch is the maximum number of operations that the kernel finishes in one call
// (IO_LOCAL_TW_DEFAULT_MAX of its io_uring.c).
const taskBatch = 20

const (
	// While devices may be idle, the first entry is submitted at once, and then batches that grow
	// by this factor, so that devices need not wait for the next Poll (measured in docs/adr/0012).
	batchGrowth = 4
	atPoll      = math.MaxUint32

	// submitMost bounds the operations of one call, of a microsecond each, and reapMost the
	// completions that a Poll takes at a time.
	submitMost = 64
	reapMost   = 128
)

// Completer is the owner of an Op.
type Completer interface {
	// Complete is called within Poll when the Op has completed. res is the result of the Op,
	// usually a number of bytes, or a negative errno. Complete may call Start.
	Complete(res int32)
}

// Ring is one io_uring. After create only one thread uses it: the thread of the first call.
type Ring struct {
	cfg   Config
	fd    int
	flags uint32 // of io_uring_setup
	ring  []byte // mapped: both queues
	table []byte // mapped: submission entries

	enabled bool
	armed   bool
	more    bool   // the kernel may have left finished operations for the next call
	pending uint32 // entries that have not been submitted
	batch   uint32 // entries submitted without waiting for a Poll

	wide uint8 // 1 if entries take two places in sqes and cqes, otherwise 0

	sqHead, sqTail, sqFlags *uint32
	sqMask                  uint32
	sqes                    []sqe
	tail                    uint32 // as in *sqTail, or further

	cqHead, cqTail, cqFlags *uint32
	cqMask                  uint32
	cqes                    []cqe

	// slots are the Completers of operations, by user data. free are the unused slots.
	slots []Completer
	free  []int32
	last  int // the slot taken last

	// base and size are the registered memory, in pieces of bufferMax; refused is why it is not.
	base, size uint64
	refused    error
	files      []int32 // descriptors by slot of registered files, -1 for free ones
	update     int32   // a descriptor for the kernel to read, which must not be on a stack
}

// File is a descriptor used with a Ring.
type File struct {
	fd    int32
	fixed bool
}

// Start queues op on f for the next Poll. It returns false if the ring is full until a Poll.
func (r *Ring) Start(f File, op *Op, c Completer) bool {
	if !r.room() {
		return false
	}
	e := &r.sqes[(r.tail&r.sqMask)<<r.wide]
	*e = op.e
	if e.opcode == opRead || e.opcode == opWrite {
		if i, ok := r.registered(e.addr, e.len); ok {
			e.opcode, e.bufIndex = e.opcode-opRead+opReadFixed, i
		}
	}
	r.publish(e, f, c)
	return true
}

// StartCommand queues the command with this number, which the driver of f defines
// (IORING_OP_URING_CMD). payload, at most 80 bytes, is copied. data is the memory of the command if
// it is contiguous and outside the Go heap, otherwise nil. Config.Commands is set.
func (r *Ring) StartCommand(f File, number uint32, payload, data []byte, c Completer) bool {
	if !r.room() {
		return false
	}
	at := (r.tail & r.sqMask) << r.wide
	e := &r.sqes[at]
	*e, r.sqes[at+1] = sqe{opcode: opCommand, off: uint64(number)}, sqe{}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&e.addr3)), commandRoom), payload)
	if i, ok := r.registered(address(unsafe.Pointer(unsafe.SliceData(data))),
		uint32(len(data))); ok {
		e.opFlags, e.bufIndex = commandFixed, i
	}
	r.publish(e, f, c)
	return true
}

// Last returns the slot of the operation started last, for Cancel.
func (r *Ring) Last() int { return r.last }

// Cancel asks the kernel to cancel the operation of c in a slot. It completes as usual: soon, with
// ECANCELED, if the kernel could; a transfer of a device goes on. Cancel returns false if the slot
// is not c's or the ring is full.
func (r *Ring) Cancel(c Completer, slot int) bool {
	return slot < len(r.slots) && r.slots[slot] == c &&
		r.Start(File{}, &Op{sqe{opcode: opCancel, addr: uint64(slot)}}, ignored{})
}

// ignored ignores the result.
type ignored struct{}

func (ignored) Complete(int32) {}

// room reports whether there is a slot and an entry for one more operation.
func (r *Ring) room() bool {
	if len(r.free) == 0 {
		return false
	}
	if r.tail-atomic.LoadUint32(r.sqHead) > r.sqMask {
		r.enter(0)
		return r.tail-atomic.LoadUint32(r.sqHead) <= r.sqMask
	}
	return true
}

// publish hands the entry at the tail to the kernel.
func (r *Ring) publish(e *sqe, f File, c Completer) {
	slot := r.free[len(r.free)-1]
	r.free = r.free[:len(r.free)-1]
	r.slots[slot], r.last = c, int(slot)
	e.fd, e.userData = f.fd, uint64(slot)
	if f.fixed {
		e.flags = sqeFixedFile
	}
	r.tail++
	atomic.StoreUint32(r.sqTail, r.tail)
	if r.pending++; r.pending >= r.batch {
		r.batch *= batchGrowth
		r.enter(0)
	}
}

// registered returns the index of the registered buffer that holds n bytes at addr, if one does.
func (r *Ring) registered(addr uint64, n uint32) (uint16, bool) {
	at := addr - r.base
	if at >= r.size || uint64(n) > r.size-at || at/bufferMax != (at+uint64(n)-1)/bufferMax ||
		n == 0 {
		return 0, false
	}
	return uint16(at / bufferMax), true
}

// Poll submits waiting operations, at most submitMost, and calls the Completers of finished ones,
// at most 2*reapMost. It returns their number.
func (r *Ring) Poll() int {
	if r.armed {
		r.armed = false
		atomic.StoreUint32(r.cqFlags, cqEventFDDisabled)
	}
	n := r.reap()
	if r.mustEnter() {
		r.enter(enterGetEvents)
		k := r.reap()
		r.more = k >= taskBatch
		n += k
	}
	r.batch = atPoll
	if r.idle() {
		r.batch = 1
	}
	return n
}

// idle reports whether the devices may have nothing to do: everything has completed, or the rest
// may have finished as well and is left for the next call. If so, they work on the first operations
// while further ones are prepared. If they are busy, one large batch costs less.
func (r *Ring) idle() bool {
	left := r.Outstanding()
	return left == 0 || r.more && left <= taskBatch
}

// mustEnter reports whether to enter the kernel: to submit, finish, or fetch completions.
func (r *Ring) mustEnter() bool {
	return r.more || r.pending > 0 || atomic.LoadUint32(r.sqFlags)&(sqTaskrun|sqOverflow) != 0
}

// reap calls the Completers of the completions in the queue.
func (r *Ring) reap() int {
	head := *r.cqHead // written only here
	tail := atomic.LoadUint32(r.cqTail)
	if head == tail {
		return 0
	}
	n := min(int(tail-head), reapMost)
	for end := head + uint32(n); head != end; head++ {
		e := r.cqes[(head&r.cqMask)<<r.wide]
		slot := int32(e.userData)
		c := r.slots[slot]
		r.slots[slot] = nil
		r.free = append(r.free, slot)
		c.Complete(e.res)
	}
	atomic.StoreUint32(r.cqHead, head)
	return n
}

// Arm prepares for the sleep of the reactor: from now on a completion writes to the eventfd. It
// returns false if there is something to Poll for.
func (r *Ring) Arm() bool {
	if r.more || r.pending > 0 {
		return false
	}
	if r.armed {
		return r.quiet()
	}
	r.armed = true
	atomic.StoreUint32(r.cqFlags, 0)
	// Operations that finished before the store have not written to the eventfd. Entering makes the
	// kernel check, in the order of its own barriers: on a weakly ordered machine the flags in
	// shared memory could still be old. Once is not enough if the kernel leaves some of many
	// waiting operations, for which it does not set the flag again.
	for left := r.Outstanding(); left > 0 && r.quiet(); left -= taskBatch { // bound: slots
		r.enter(enterGetEvents)
	}
	return r.quiet()
}

// quiet reports whether there is nothing to Poll for, as far as shared memory shows.
func (r *Ring) quiet() bool {
	return *r.cqHead == atomic.LoadUint32(r.cqTail) &&
		atomic.LoadUint32(r.sqFlags)&(sqTaskrun|sqOverflow) == 0
}

// Outstanding returns the number of operations that have been started and not completed.
func (r *Ring) Outstanding() int { return len(r.slots) - len(r.free) }

// enter is io_uring_enter(2), without waiting. It is a raw call although it takes as long as the
// submissions in it (about a microsecond each). It does not sleep for them, because the kernel
// hands operations that would block to its own workers.
func (r *Ring) enter(flags uintptr) {
	if !r.enabled {
		r.enable()
	}
	submit := min(r.pending, submitMost)
	n, _, e := syscall.RawSyscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), uintptr(submit), 0,
		flags, 0, 0)
	switch e {
	case 0:
		r.pending -= min(uint32(n), r.pending)
	case unix.EAGAIN, unix.EBUSY, unix.EINTR:
		// no memory, too many completions, a signal: the next Poll tries again
	default:
		// EEXIST means another thread: there is no way to continue, operations are lost.
		panic(fmt.Sprintf("uring: io_uring_enter: %v", e))
	}
}

// enable makes this thread the only one of the ring, and locks the goroutine to it.
func (r *Ring) enable() {
	runtime.LockOSThread()
	r.enabled = true
	if r.flags&setupDisabled != 0 {
		if err := r.register(registerEnable, nil, 0); err != nil {
			panic(fmt.Sprintf("uring: enable the ring: %v", err))
		}
	}
}

// AddFile adds fd to the ring. If there is a free place, fd is registered, which saves the kernel a
// lookup per operation. The caller removes it before closing fd. It looks at 1,024 places at most.
func (r *Ring) AddFile(fd int) File {
	if !r.enabled {
		r.enable()
	}
	for slot := range r.files {
		if r.files[slot] == -1 {
			if r.setFile(slot, int32(fd)) != nil {
				break
			}
			return File{fd: int32(slot), fixed: true}
		}
	}
	return File{fd: int32(fd)}
}

// RemoveFile removes f, which has no outstanding operations.
func (r *Ring) RemoveFile(f File) error {
	if !f.fixed {
		return nil
	}
	return r.setFile(int(f.fd), -1)
}

func (r *Ring) setFile(slot int, fd int32) error {
	r.update = fd
	u := filesUpdate{offset: uint32(slot), data: address(unsafe.Pointer(&r.update))}
	err := r.register(registerFilesUpdate, unsafe.Pointer(&u), 1)
	if err == nil {
		r.files[slot] = fd
	}
	return err
}
