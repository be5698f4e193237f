// Package backend is the contract between the controller and storage: bytes, blocks and nothing of
// NVMe.
//
// A Device is opened once; each reactor opens its own Channel on it and is the only user of that
// channel, so channels need no locks. Submit and Poll take batches in arrays that the caller owns.
package backend

import (
	"errors"
	"fmt"

	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// Op is what an IO does.
type Op uint8

// The operations.
const (
	OpRead  Op = iota // fill Segs from [Off, Off+Len)
	OpWrite           // store Segs to [Off, Off+Len)
	// make every write completed before this IO was submitted durable; Off and Len are ignored
	OpFlush
	OpWriteZeroes // make [Off, Off+Len) read as zeroes
	// deallocate [Off, Off+Len); it reads as zeroes afterwards if Info.DiscardZeroes
	OpDiscard
)

// Flags modify an operation.
type Flags uint8

// The flags.
const (
	FUA   Flags = 1 << iota // OpWrite, OpWriteZeroes: durable when completed
	Unmap                   // OpWriteZeroes: may deallocate
	// OpWrite: Segs are memory of the Receiver; it clears the flag when it takes them back, before
	// it is done
	ZeroCopy
)

// IO is one operation. The submitter owns it and its memory again once Poll has returned it; until
// then neither may be touched.
type IO struct {
	Op    Op
	Flags Flags
	// Off and Len are in bytes, multiples of Info.BlockSize, within Info.Size: the submitter has
	// checked.
	Off, Len int64
	// Segs is the data of reads and writes, Len bytes in total.
	Segs []mem.Segment
	// Err is the outcome: nil, or an error that wraps one of the sentinels below.
	Err error
	// Owner is the submitter's; devices do not look at it.
	Owner any
	// Next and Scratch are the device's while it has the IO.
	Next    *IO
	Scratch uint64
}

// The outcomes that the controller tells apart. Devices wrap them with %w and say what happened
// where.
var (
	ErrIO          = errors.New("I/O error")             // the medium or its driver failed
	ErrNoSpace     = errors.New("no space left")         // the backing store is full
	ErrReadOnly    = errors.New("read-only")             // the device takes no writes
	ErrOutOfRange  = errors.New("out of range")          // beyond the device's current size
	ErrUnsupported = errors.New("operation unsupported") // the device cannot do it at all
	ErrOffline     = errors.New("device is gone")        // removed or not there yet; may come back
	ErrAborted     = errors.New("aborted")               // given up on request or at a deadline

	// ErrDegraded is an ErrIO that stays: completed writes may be lost, as by a flush that failed,
	// and no flush or write succeeds until the device is opened again.
	ErrDegraded = fmt.Errorf("writes may be lost: %w", ErrIO)
)

// Fault is an error that tells where an IO failed: what it was to do before Off, in bytes of the
// device, is done.
type Fault struct {
	Off int64
	Err error
}

func (f *Fault) Error() string { return f.Err.Error() }

// Unwrap is the error without the place.
func (f *Fault) Unwrap() error { return f.Err }

// Info describes a device. It is a snapshot: Device.Info may return another one later.
type Info struct {
	// Size in bytes, a multiple of BlockSize.
	Size int64
	// BlockSize is the logical block size in bytes, a power of two, at least 512.
	BlockSize int
	// PhysicalBlockSize is the unit, at multiples of its size, that neither a power failure nor a
	// racing IO tears: a multiple of BlockSize.
	PhysicalBlockSize int
	// OptimalIO is the preferred I/O size in bytes, 0 if none.
	OptimalIO int
	// VolatileCache says that completed writes may be lost at a power failure until a flush.
	VolatileCache bool
	// ReadOnly devices refuse writes.
	ReadOnly bool
	// Discard says that OpDiscard frees space; DiscardZeroes that the range reads as zeroes
	// afterwards.
	Discard, DiscardZeroes bool
	// Thin says that the storage takes its space as it is written, and may run out of it; see
	// Allocator.
	Thin bool
	// Rotational media seek.
	Rotational bool
	// Offline says that the storage is not there for the time being: IOs fail with ErrGone. The
	// rest tells what it was.
	Offline bool
	// Degraded says that completed writes may be lost; see ErrDegraded.
	Degraded bool
	// Identity is a stable text that names the storage (a path, a serial number), for logs and
	// derived identifiers.
	Identity string
}

// Device is open storage. Its methods may be called by any goroutine; Open-time work may block.
type Device interface {
	// Info is the current description.
	Info() Info
	// OpenChannel makes a channel for one reactor. It may block.
	OpenChannel(r Reactor) (Channel, error)
	// Close frees the device; every channel must be closed.
	Close() error
}

// Changer is a Device that notices when its storage changes, disappears or comes back.
type Changer interface {
	Device
	// Notify has fn called, on a goroutine of the device, after Info has changed; nil ends that.
	// After Notify has returned, no earlier fn is running nor called any more.
	Notify(fn func())
}

// Allocator is a Device that knows how much space its content takes.
type Allocator interface {
	Device
	// Allocated is that space in bytes. It may block.
	Allocated() (int64, error)
}

// SpaceReporter is a thin Device that knows how much space is left where its content is stored.
type SpaceReporter interface {
	Device
	// FreeSpace is how many bytes are left there, for all that share it. It may block.
	FreeSpace() (int64, error)
}

// Canceler is a Channel that can be asked to give an IO back that nobody wants any more.
type Canceler interface {
	Channel
	// Cancel has the device not begin what it has not begun of an IO it has, and end what it can.
	// The IO comes back through Poll as ever, with ErrAborted or another outcome, at once or
	// whenever the storage lets go of it.
	Cancel(io *IO)
}

// Reactor is what a device learns of the reactor that a channel is for.
type Reactor struct {
	// Wake makes the reactor poll; any goroutine may call it. Devices that always complete within
	// Submit and Poll need not.
	Wake func()
	// EventFD is an eventfd that wakes the reactor from its sleep as Wake does, for the kernel to
	// add to; 0 if there is none. Each reactor has its own, so that channels find by it what they
	// share on one reactor.
	EventFD int
	// Memory is where the data of most IOs lies, for registration; nil if unknown. It is there
	// until the channel is closed.
	Memory *mem.Region
}

// Channel is one reactor's way to a device. Only that reactor calls it, always on the same thread.
type Channel interface {
	// Submit starts ios in any order and returns how many it took; if n < len(ios) the device is
	// full and the caller offers the rest again after a Poll.
	Submit(ios []*IO) (n int)
	// Poll fills done with finished IOs and returns how many. It never blocks.
	Poll(done []*IO) (n int)
	// Arm prepares for the reactor's sleep: from now on it is woken when Poll would return
	// something. False: Poll at once. It may be called again and again, and Poll and Submit end
	// what it began.
	Arm() bool
	// Close frees the channel. Everything submitted must have been returned by Poll.
	Close() error
}
