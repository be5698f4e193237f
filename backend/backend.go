// Package backend is the contract between the controller and storage: bytes and blocks, nothing of
// NVMe.
//
// A Device is opened once. Each reactor opens a Channel of its own on it and is the only user of
// that channel, so channels need no locks. Submit and Poll take batches in arrays that the caller
// owns.
//
// An IO carries a list node, so a device keeps what it has in a list.List[IO] without allocating:
// Submit puts an IO that is finished on such a list, and Poll returns List.Fill. A device whose IOs
// complete on other threads pushes them to a list.Inbox[IO], calls Reactor.Wake, and takes the
// inbox in Poll; Arm returns false while the inbox is not empty. Operations that wait for
// something that a channel on another reactor holds use a RetryGroup.
//
// Devices and channels may have optional abilities, each an interface of its own: Changer and
// SpaceReporter for devices; Canceler, ZeroCopyReader and ZeroCopyWriter for channels.
package backend

import (
	"errors"
	"fmt"

	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// Op is what an IO does.
type Op uint8

// The operations.
const (
	// OpRead fills Segs from [Off, Off+Len).
	OpRead Op = iota
	// OpWrite stores Segs to [Off, Off+Len).
	OpWrite
	// OpFlush makes every write durable that completed before this IO was submitted. Off and Len
	// are ignored.
	OpFlush
	// OpWriteZeroes makes [Off, Off+Len) read as zeroes.
	OpWriteZeroes
	// OpDiscard deallocates [Off, Off+Len), which reads as zeroes afterwards if Info.DiscardZeroes.
	OpDiscard
	// OpWriteUncorrectable makes reads of [Off, Off+Len) fail until it is written. The controller
	// carries it out, and devices get none.
	OpWriteUncorrectable
)

// Flags modify an operation.
type Flags uint8

// The flags.
const (
	// FUA: the data of an OpWrite or OpWriteZeroes is durable when it completes.
	FUA Flags = 1 << iota
	// Unmap: an OpWriteZeroes may deallocate.
	Unmap
	// ZeroCopy commits a zero-copy write: the Segs of this OpWrite are those that
	// ZeroCopyWriter.StartZeroCopyWrite returned. The device clears the flag when it takes them
	// back, before the IO completes.
	ZeroCopy
)

// Range is a range of a device, in bytes.
type Range struct{ Off, End int64 }

// IO is one operation. From Submit until Poll returns it, the IO and the memory of its segments
// belong to the device, and the submitter touches neither.
type IO struct {
	Op    Op
	Flags Flags
	// Off and Len are in bytes, multiples of Info.BlockSize and within Info.Size, which the
	// submitter has checked.
	Off, Len int64
	// Segs is the data of a read or write, Len bytes in total.
	Segs []mem.Segment
	// Err is the outcome: nil, or an error that wraps one of the sentinels below.
	Err error
	// Owner, Place and Waits are the submitter's. Devices do not look at them.
	Owner any
	Place list.Node[IO] // on a list of the submitter
	Waits bool          // on the list of IOs that no device has yet
	// Node and Scratch are the device's while it has the IO. Node is on no list when the IO is
	// submitted or returned.
	Node    list.Node[IO]
	Scratch uint64
}

// The outcomes that the controller distinguishes. Devices wrap them with %w in errors that say what
// failed and where.
var (
	ErrIO          = errors.New("I/O error")             // the medium or its driver failed
	ErrNoSpace     = errors.New("no space left")         // the backing store is full
	ErrReadOnly    = errors.New("read-only")             // the device takes no writes
	ErrOutOfRange  = errors.New("out of range")          // beyond the device's current size
	ErrUnsupported = errors.New("operation unsupported") // the device cannot do it at all
	ErrOffline     = errors.New("device is offline")     // not there now; may come back
	ErrAborted     = errors.New("aborted")               // given up on request or at a deadline

	// ErrDegraded is an ErrIO that stays: completed writes may be lost, as after a failed flush,
	// and no flush or write succeeds until the device is opened again.
	ErrDegraded = fmt.Errorf("writes may be lost: %w", ErrIO)
)

// Fault is an error that says where an IO failed. Everything before Off, in bytes from the start of
// the device, has been done.
type Fault struct {
	Off int64
	Err error
}

func (f *Fault) Error() string { return f.Err.Error() }

// Unwrap returns the error without the position.
func (f *Fault) Unwrap() error { return f.Err }

// Info describes a device. It is a snapshot: Device.Info may return another one later.
type Info struct {
	// Size in bytes, a multiple of BlockSize.
	Size int64
	// BlockSize is the logical block size in bytes, a power of two from MinBlockSize to
	// MaxBlockSize.
	BlockSize int
	// PhysicalBlockSize is the unit, at multiples of its size, that neither a power failure nor a
	// racing IO tears: a multiple of BlockSize.
	PhysicalBlockSize int
	// OptimalIO is the preferred I/O size in bytes, 0 if there is none.
	OptimalIO int
	// VolatileCache says that completed writes may be lost at a power failure until a flush.
	VolatileCache bool
	// ReadOnly devices refuse writes.
	ReadOnly bool
	// Discard says that OpDiscard frees space, DiscardZeroes that the range reads as zeroes
	// afterwards.
	Discard, DiscardZeroes bool
	// Volatile says that nothing of the content outlives the device.
	Volatile bool
	// Thin says that the storage allocates space when it is written, and may run out of it; see
	// SpaceReporter.
	Thin bool
	// Rotational media seek.
	Rotational bool
	// Offline says that the storage is not there for the time being: IOs fail with ErrOffline. The
	// other fields describe it as it was.
	Offline bool
	// Degraded says that completed writes may be lost; see ErrDegraded.
	Degraded bool
	// Identity is a stable text that names the storage (a path, a serial number), for logs and
	// derived identifiers.
	Identity string
}

// Device is open storage. Any goroutine may call its methods.
type Device interface {
	// Info returns the current description.
	Info() Info
	// OpenChannel opens a channel for one reactor. It may block.
	OpenChannel(r Reactor) (Channel, error)
	// Close frees the device. It fails while a channel is open. It may block.
	Close() error
}

// Changer is a Device that notices when its storage changes, disappears or comes back.
type Changer interface {
	Device
	// Notify sets the function that the device calls, on a goroutine of its own, after Info has
	// changed; nil for none. Once Notify has returned, the function set before is not running and
	// is not called again.
	Notify(fn func())
}

// SpaceReporter is a thin Device that knows how much space its content takes.
type SpaceReporter interface {
	Device
	// Space returns that space, and how much is left for all that share the place where the content
	// is stored, both in bytes; free is -1 if it is not known. It may block.
	Space() (allocated, free int64, err error)
}

// Reactor is what a device knows of the reactor that a channel belongs to.
type Reactor struct {
	// Wake makes the reactor poll. Any goroutine may call it. Devices that always complete within
	// Submit and Poll need not.
	Wake func()
	// EventFD is an eventfd that wakes the reactor from its sleep as Wake does, for the kernel to
	// write to; 0 if there is none. Each reactor has its own, by which channels find what they
	// share on one reactor.
	EventFD int
	// Memory holds the data of most IOs, for registration; nil if unknown. It stays mapped until
	// the channel is closed.
	Memory *mem.Region
}

// Channel is one reactor's access to a device. Only that reactor calls it, always on the same
// thread.
type Channel interface {
	// Submit starts ios in any order and returns how many it took. If n < len(ios), the device is
	// full, and the caller offers the rest again after a Poll.
	Submit(ios []*IO) (n int)
	// Poll stores finished IOs in done and returns how many. It never blocks.
	Poll(done []*IO) (n int)
	// Arm prepares for the reactor's sleep: from now on the device wakes the reactor when Poll
	// would return something. If it returns false, there is something to Poll for already. Arm may
	// be called repeatedly; Poll and Submit disarm.
	Arm() bool
	// Close frees the channel. It fails while an IO is outstanding or a zero-copy read or write
	// has not ended.
	Close() error
}

// Canceler is a Channel that can abort an IO.
type Canceler interface {
	Channel
	// Cancel makes the device abort what it can of an IO that it has: it starts nothing further
	// for the IO and cancels what is in progress as far as possible. Poll returns the IO as usual,
	// with ErrAborted or another outcome, at once or when the storage has finished with it.
	Cancel(io *IO)
}
