package disk

import (
	"math"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// step is one call to the kernel.
type step uint8

const (
	stepTransfer step = iota // read or write the rest
	stepBounced              // the same through aligned memory; by a worker
	stepSync                 // fdatasync
	stepZeroRange
	stepPunch   // a hole, which reads as zeroes
	stepDiscard // of a block device
	stepZeroes  // write zeroes; by a worker
)

// event is the reason why an op has arrived at its channel.
type event uint8

const (
	begun    event = iota // in a turn that had no steps left: lock its range
	executed              // a worker has made the step; res is its result
	passed                // the gate of the range lock that it follows has passed
	granted               // it has the unit that it waited for, or its turn to flush
	shared                // the flush that it shares is over; err is the outcome
)

// op is an IO of its channel's reactor, or of a worker, or it waits for its range or a flush.
type op struct {
	c     *channel
	index int // in channel.ops, and Scratch of its IO
	io    *backend.IO
	node  list.Node[op]

	step     step
	event    event
	locked   bool   // has locked its range
	write    bool   // exclusively
	canceled bool   // no further step is started
	waited   bool   // not started by Submit
	dirty    bool   // Disk.dirty before this flush
	res      int32  // of a worker's step, as io_uring returns it
	flags    int    // RWF_*
	opened   uint32 // Disk.opened when the step was started
	slot     int    // of the ring that has the step
	done     int64  // bytes transferred
	err      error
	span     span
	unit     int // of the span: the next to lock; it waits for this one
	// followers are ops that this one tells that the gate has passed, or that the flush is over.
	// The mutex of the range lock guards them while this op is the gate, and that of the syncer
	// while it waits for its turn to flush.
	followers list.List[op]
	iov       []sys.Iovec
	cmd       Command // of a Driver
	cause     error   // the Driver's error of a step that failed
}

// cachedMost is the maximum length of a transfer of the ring through the page cache in bytes: the
// kernel copies it at once, on the reactor. Transfers up to smallIO do not wait for a turn.
const (
	cachedMost = 128 << 10
	smallIO    = 8 << 10
)

// copies reports whether the kernel may copy the data of the op on the reactor.
func (o *op) copies() bool {
	d := o.c.d
	return o.step == stepTransfer && o.c.ring != nil && d.cfg.Offset == 0 && d.cfg.Driver == nil
}

// maxTransfer returns the maximum length of a transfer of the op.
func (o *op) maxTransfer() int {
	if o.copies() {
		return cachedMost
	}
	return math.MaxInt
}

// tellBatch is the number of followers that an op tells at a time.
const tellBatch = 32

// tell delivers an event, and o.err, to at most tellBatch followers of o. The others become
// followers of the last one, which tells them when it handles the event.
func (o *op) tell(e event) {
	for i := range tellBatch {
		f := o.followers.Pop()
		if f == nil {
			return
		}
		if f.err = o.err; i == tellBatch-1 {
			f.followers, o.followers = o.followers, list.List[op]{}
		}
		f.c.deliver(f, e)
	}
}

// vectors returns o.iov with the data left to transfer, as many vectors as one call takes.
func (o *op) vectors() []sys.Iovec {
	o.iov = o.iov[:0]
	c := mem.NewCursor(o.io.Segs, int(o.done))
	for left := o.transferLimit(); len(o.iov) < sys.MaxIovecs && left > 0; {
		b := c.Next(left)
		if b == nil {
			break
		}
		left -= len(b)
		o.iov = append(o.iov, sys.Iovec{})
		sys.SetIovec(&o.iov[len(o.iov)-1], b)
	}
	return o.iov
}

// whole sets o.iov to b alone and returns it.
func (o *op) whole(b []byte) []sys.Iovec {
	o.iov = append(o.iov[:0], sys.Iovec{})
	sys.SetIovec(&o.iov[0], b)
	return o.iov
}

// contiguous returns the data left to transfer if it is in one piece, otherwise nil.
func (o *op) contiguous() []byte {
	if len(o.io.Segs) != 1 {
		return nil
	}
	b := o.io.Segs[0].B[o.done:]
	return b[:min(len(b), o.transferLimit())]
}

// aligned reports whether O_DIRECT takes these segments as they are, or is not used.
func (d *Disk) aligned(segs []mem.Segment) bool {
	if d.cfg.Memory == 0 {
		return true
	}
	mask := uint64(d.cfg.Memory - 1)
	for i := range segs {
		// The kernel checks the address and the length of every vector.
		if mem.Addr(segs[i].B)&mask != 0 || len(segs[i].B)&(d.cfg.Offset-1) != 0 {
			return false
		}
	}
	return true
}
