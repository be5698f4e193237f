// Package uring is the binding to io_uring(7): one ring per reactor, shared by whatever works on
// files there.
//
//	Start   a submission entry is filled (registered file, registered memory) and waits in the queue; the first ones do not wait
//	        while the devices may have nothing to do
//	Poll    one io_uring_enter submits all that wait and fetches completions, each of which calls its Completer
//	Arm     from now on a completion writes to the reactor's eventfd; until then nothing disturbs a reactor that polls
//
// Shared memory: the kernel and we are the only two parties; each index has one writer. What it
// publishes is stored with release and loaded with acquire semantics, which sync/atomic gives.
// Everything else is the reactor's alone.
//
// A Ring has as many slots as completions it surely has room for, so its completion queue does not
// overflow; should it still, the kernel keeps the rest (IORING_FEAT_NODROP) until the next Poll.
package uring

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// taskBatch is how much of what finishes operations the kernel runs in one call
// (IO_LOCAL_TW_DEFAULT_MAX of its io_uring.c).
const taskBatch = 20

const (
	// earlyGrowth is how much more is prepared each time before the devices get it, while they may
	// have nothing to do.
	earlyGrowth = 4
	never       = math.MaxUint32
)

// Completer is told the outcome of an Op: a number of bytes or whatever it returns, or a negative
// errno. It is called within Poll and may call Start.
type Completer interface {
	Complete(res int32)
}

// Ring is one io_uring. After New only one thread uses it: the one that made the first call.
type Ring struct {
	cfg   Config
	fd    int
	flags uint32 // of io_uring_setup
	ring  []byte // mapped: both queues
	table []byte // mapped: submission entries

	enabled bool
	armed   bool
	more    bool   // the kernel may have left finished operations for the next call
	pending uint32 // entries that the kernel has not been told of
	early   uint32 // the kernel is told of so many without waiting for a Poll

	wide uint8 // 1 if entries take two places in sqes and cqes, otherwise 0

	sqHead, sqTail, sqFlags *uint32
	sqMask                  uint32
	sqes                    []sqe
	tail                    uint32 // as published in *sqTail, or further

	cqHead, cqTail, cqFlags *uint32
	cqMask                  uint32
	cqes                    []cqe

	// slots are who started what; an entry's user data is its slot. free are those not in use.
	slots []Completer
	free  []int32

	// base and size are the registered memory, in pieces of bufferMax; refused is why there is
	// none.
	base, size uint64
	refused    error
	files      []int32 // descriptors by slot of registered files, -1 for free ones
	update     int32   // a descriptor for the kernel to read: a stack may move, this does not
}

// File is a descriptor that a Ring works on.
type File struct {
	fd    int32
	fixed bool
}

// Start queues op on f; the next Poll submits it at the latest. False: the ring is full, try again
// after a Poll.
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

// StartCommand queues a command that the driver of f defines (IORING_OP_URING_CMD): number tells
// which, and payload, at most 80 bytes, is copied. data is what payload refers to if that is one
// piece of memory outside of the Go heap, otherwise nil. Config.Commands is set.
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

// Cancel asks the kernel to give up what c has started. That completes as ever, soon and with
// ECANCELED if the kernel could. It cannot take a transfer back that a device has. False: c has
// nothing on this ring, or the ring is full.
func (r *Ring) Cancel(c Completer) bool {
	slot := slices.Index(r.slots, c)
	return slot >= 0 && r.Start(File{}, &Op{sqe{opcode: opCancel, addr: uint64(slot)}}, deaf{})
}

// deaf does not care for the outcome.
type deaf struct{}

func (deaf) Complete(int32) {}

// room says that there is a slot and an entry for one more operation.
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
	r.slots[slot] = c
	e.fd, e.userData = f.fd, uint64(slot)
	if f.fixed {
		e.flags = sqeFixedFile
	}
	r.tail++
	atomic.StoreUint32(r.sqTail, r.tail)
	if r.pending++; r.pending >= r.early {
		r.early *= earlyGrowth
		r.enter(0)
	}
}

// registered is the index of the registered piece of memory that holds n bytes at addr, if one
// does.
func (r *Ring) registered(addr uint64, n uint32) (uint16, bool) {
	at := addr - r.base
	if at >= r.size || uint64(n) > r.size-at || at/bufferMax != (at+uint64(n)-1)/bufferMax ||
		n == 0 {
		return 0, false
	}
	return uint16(at / bufferMax), true
}

// Poll submits what waits and calls the Completer of all that is finished. It returns how many.
func (r *Ring) Poll() int {
	if r.armed {
		r.armed = false
		atomic.StoreUint32(r.cqFlags, cqEventFDDisabled)
	}
	n := r.reap()
	if r.owed() {
		r.enter(enterGetEvents)
		k := r.reap()
		r.more = k >= taskBatch
		n += k
	}
	r.early = never
	if r.dry() {
		r.early = 1
	}
	return n
}

// dry says that the devices may have nothing to do: all is back, or the rest may be finished as
// well, which the kernel keeps for the next call. Then they work on the first operations while
// further ones are prepared; while they are busy larger batches cost less.
func (r *Ring) dry() bool {
	left := r.Outstanding()
	return r.flags&setupSQPoll == 0 && (left == 0 || r.more && left <= taskBatch)
}

// owed says that the kernel has to be entered: to submit, to run what finishes operations, or to
// fetch completions.
func (r *Ring) owed() bool {
	switch flags := atomic.LoadUint32(r.sqFlags); {
	case r.more || flags&(sqTaskrun|sqOverflow) != 0:
		return true
	case r.flags&setupSQPoll != 0:
		if r.pending = 0; flags&sqNeedWakeup == 0 {
			return false
		}
		return r.tail != atomic.LoadUint32(r.sqHead)
	case r.flags&setupIOPoll != 0:
		return r.Outstanding() > 0
	}
	return r.pending > 0
}

// reap calls the Completers of what the queue holds.
func (r *Ring) reap() int {
	head := *r.cqHead // only we write it
	tail := atomic.LoadUint32(r.cqTail)
	if head == tail {
		return 0
	}
	n := int(tail - head)
	for ; head != tail; head++ {
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

// Arm prepares for the reactor's sleep: from now on a completion adds to the eventfd. False: there
// is something to Poll for.
func (r *Ring) Arm() bool {
	if r.flags&setupIOPoll != 0 {
		return r.Outstanding() == 0 // nothing tells of these completions
	}
	if r.more || r.pending > 0 && r.flags&setupSQPoll == 0 {
		return false
	}
	if r.armed {
		return r.quiet()
	}
	r.armed = true
	atomic.StoreUint32(r.cqFlags, 0)
	// What finished before the store told nobody. Entering makes the kernel look itself, in the
	// order of its own barriers: on a weakly ordered machine the flags in shared memory could still
	// be those of before. Once is not enough if so much waits that the kernel leaves some of it,
	// for which it does not raise the flag again.
	for left := r.Outstanding(); left > 0 && r.quiet(); left -= taskBatch {
		r.enter(enterGetEvents)
	}
	return r.quiet()
}

// quiet says that there is nothing to Poll for, as far as can be seen in shared memory.
func (r *Ring) quiet() bool {
	return *r.cqHead == atomic.LoadUint32(r.cqTail) &&
		atomic.LoadUint32(r.sqFlags)&(sqTaskrun|sqOverflow) == 0
}

// Outstanding is the number of operations that have been started and not completed.
func (r *Ring) Outstanding() int { return len(r.slots) - len(r.free) }

// enter is io_uring_enter(2), without waiting. It is a raw call although it takes as long as the
// submissions in it do (about a microsecond each): it never sleeps for them, because the kernel
// hands what would block to workers of its own.
func (r *Ring) enter(flags uintptr) {
	if !r.enabled {
		r.enable()
	}
	submit := r.pending
	if r.flags&setupSQPoll != 0 {
		submit = 0
		if r.tail != atomic.LoadUint32(r.sqHead) {
			submit, flags = r.tail-atomic.LoadUint32(r.sqHead), flags|enterSQWakeup
		}
	}
	n, _, e := syscall.RawSyscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), uintptr(submit), 0,
		flags, 0, 0)
	switch e {
	case 0:
		r.pending -= min(uint32(n), r.pending)
	case unix.EAGAIN, unix.EBUSY, unix.EINTR:
		// No memory, completions first, a signal: the next Poll tries again.
	default:
		// EEXIST is another thread than before. Nothing of it can be mended, and operations would
		// be lost.
		panic(fmt.Sprintf("uring: io_uring_enter: %v", e))
	}
}

// enable makes the calling thread the only one that may use the ring, and the goroutine stay on it.
func (r *Ring) enable() {
	runtime.LockOSThread()
	r.enabled = true
	if r.flags&setupDisabled != 0 {
		if err := r.register(registerEnable, nil, 0); err != nil {
			panic(fmt.Sprintf("uring: enable the ring: %v", err))
		}
	}
}

// AddFile makes fd known to the ring: registered if there is a place, which saves the kernel
// looking it up each time. The caller removes it before it closes fd.
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

// RemoveFile forgets f; nothing that was started on it is outstanding.
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
