// Package backend defines the contract between controller and storage. It is about bytes and
// blocks, not about NVMe.
//
// A Device is opened once. Each reactor opens its own Channel on it. A channel has no other user,
// so it needs no locks. Submit and Poll take batches in arrays that the caller owns.
//
// An IO carries a list node, so a device keeps its IOs in a list.List[IO] without allocating:
// Submit puts a finished IO on such a list, and Poll returns List.Fill. A device that completes IOs
// on other threads pushes them to a list.Inbox[IO], calls Reactor.Wake, and takes the inbox in
// Poll; Arm returns false while the inbox is not empty. Operations that wait for a resource of a
// channel on another reactor use a RetryGroup.
//
// Devices and channels may have optional abilities, each with its own interface: Changer, Fencer,
// SpaceReporter and Replaceable for devices; Canceler, ZeroCopyReader and ZeroCopyWriter for
// channels.
package backend

import (
	"errors"
	"fmt"

	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// Op is the operation of an IO.
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
	// OpDiscard deallocates [Off, Off+Len), which reads as zeroes if Info.DiscardZeroes.
	OpDiscard
	// OpWriteUncorrectable makes reads of [Off, Off+Len) fail until a write. Devices never see it.
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
	// ZeroCopy commits a zero-copy write: the Segs of this OpWrite are the ones that
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
	// Off and Len are in bytes: multiples of Info.BlockSize, within Info.Size. The submitter has
	// checked that.
	Off, Len int64
	// Segs is the data of a read or write, Len bytes in total.
	Segs []mem.Segment
	// Err is the outcome: nil, or an error that wraps one of the sentinels below.
	Err error
	// Owner, Place, On and Awaited belong to the submitter. Devices ignore them.
	Owner   any
	Place   list.Node[IO]  // on a list of the submitter
	On      *list.List[IO] // that list; nil: none
	Awaited any            // nil if nothing waits for the IO
	// Node and Scratch are the device's while it has the IO. Node is on no list before and after.
	Node    list.Node[IO]
	Scratch uint64
}

// The outcomes that the controller distinguishes. Devices wrap them with %w in errors that describe
// the failure and its place.
var (
	ErrIO          = errors.New("I/O error")             // the medium or its driver failed
	ErrNoSpace     = errors.New("no space left")         // the backing store is full
	ErrReadOnly    = errors.New("read-only")             // the device takes no writes
	ErrOutOfRange  = errors.New("out of range")          // beyond the device's current size
	ErrUnsupported = errors.New("operation unsupported") // the device cannot do it at all
	ErrOffline     = errors.New("device is offline")     // gone for now; may come back
	ErrAborted     = errors.New("aborted")               // given up on request or at a deadline

	// ErrDegraded is an ErrIO that stays: completed writes may be lost, as after a failed flush,
	// and no flush or write succeeds until the device is opened again.
	ErrDegraded = fmt.Errorf("writes may be lost: %w", ErrIO)
)

// Fault is an error at a position: everything before Off, from the device's start, has been done.
type Fault struct {
	Off int64
	Err error
}

func (f *Fault) Error() string { return f.Err.Error() }

// Unwrap returns the error without the position.
func (f *Fault) Unwrap() error { return f.Err }

// Info is a snapshot of a device's description: a later one may differ.
type Info struct {
	// Size is in bytes, a multiple of BlockSize.
	Size int64
	// BlockSize is the logical block size in bytes, a power of two from MinBlockSize to
	// MaxBlockSize.
	BlockSize int
	// PhysicalBlockSize is the unit, at multiples of its size, that is never torn by a power
	// failure or a racing IO. It is a multiple of BlockSize.
	PhysicalBlockSize int
	// OptimalIO is the preferred I/O size in bytes, 0 if there is none.
	OptimalIO int
	// VolatileCache: a power failure may lose completed writes that no flush covers.
	VolatileCache bool
	// ReadOnly reports whether the device refuses writes.
	ReadOnly bool
	// Discard: OpDiscard frees space. DiscardZeroes: the range reads as zeroes afterwards.
	Discard, DiscardZeroes bool
	// Volatile reports whether the content is lost when the device is closed.
	Volatile bool
	// Thin: the storage allocates space by writes and may run out; see SpaceReporter.
	Thin bool
	// Rotational reports whether the media rotate, so that seeks take time.
	Rotational bool
	// Offline: the storage is absent for now, IOs fail with ErrOffline, other fields are old.
	// Standby: it is offline because another machine may serve it, and the other fields are up to
	// date. Elsewhere: another machine takes it over, and fences this one first.
	Offline, Standby, Elsewhere bool
	// Degraded reports whether completed writes may be lost; see ErrDegraded.
	Degraded bool
	// Identity is a stable name of the storage (path, serial), for logs and identifiers.
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
	// Notify sets the function that the device calls, on its own goroutine, after Info has changed;
	// nil for none. Once Notify has returned, the previous function is not running and is not
	// called again.
	Notify(fn func())
}

// Fencer is a Device on storage that other machines use as well, and that can refuse the operations
// of a device for good. A write that the storage may still carry out could overtake the retry of a
// host through another machine. So a command that takes too long is completed only after Fence.
type Fencer interface {
	Device
	// Fence makes the storage refuse the operations that the device has, and reports whether it
	// does. The device is offline until the storage has answered all of them. Fence does not block:
	// it is called again until it returns true.
	Fence() bool
}

// SpaceReporter is a thin Device that can report the space of its content.
type SpaceReporter interface {
	Device
	// Space returns the space of the content, and the space left in the place that stores it,
	// shared with any other users, both in bytes; free is -1 if it is not known. It may block.
	Space() (allocated, free int64, err error)
}

// Replaceable is a Device on storage that is found by a path, which may lead elsewhere later.
type Replaceable interface {
	Device
	// InPlace returns an error if the path no longer leads to the storage. It may block.
	InPlace() error
}

// Reactor is the reactor of a channel, as a device sees it.
type Reactor struct {
	// Wake makes the reactor poll, from any goroutine. Devices without other threads need not.
	Wake func()
	// EventFD is an eventfd that wakes the reactor as Wake does, for the kernel to write to; 0 if
	// there is none. Each reactor has its own. Channels use it as the key of the resources that
	// they share on one reactor.
	EventFD int
	// Memory is the region of most IOs' data until the channel is closed; nil if unknown.
	Memory *mem.Region
	// Turn limits the work of one poll of the reactor; nil if nothing does.
	Turn *Turn
}

// Turn is the number of bytes that the channels of a reactor may still copy or free in a poll. A
// step of a channel frees at most half of them, so that later IOs get the rest.
type Turn struct{ Left int64 }

// Take reports whether anything is left. If so, it takes n bytes, even if fewer are left.
func (t *Turn) Take(n int64) bool {
	if t == nil {
		return true
	}
	ok := t.Left > 0
	if ok {
		t.Left -= n
	}
	return ok
}

// Channel is one reactor's access to a device. Only that reactor calls it, always on the same
// thread.
type Channel interface {
	// Submit starts ios in any order and returns how many it took. If n < len(ios), the device is
	// full. The caller submits the rest again after a Poll.
	Submit(ios []*IO) (n int)
	// Poll stores finished IOs in done and returns how many. It never blocks.
	Poll(done []*IO) (n int)
	// Arm prepares for the reactor's sleep: from now on the device wakes the reactor when Poll
	// would return something. It returns false if there is already something to poll for. Arm may
	// be called repeatedly; Poll and Submit disarm.
	Arm() bool
	// Close frees the channel. It fails with an IO or a zero-copy read or write outstanding.
	Close() error
}

// Canceler is a Channel that can abort an IO.
type Canceler interface {
	Channel
	// Cancel aborts an IO as far as possible: the device starts nothing further for it and cancels
	// operations in progress. Poll returns the IO as usual, with ErrAborted or another outcome, at
	// once or when the storage has finished with it.
	Cancel(io *IO)
}
