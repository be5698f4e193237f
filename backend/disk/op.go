package disk

import (
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// step is one call to the kernel.
type step uint8

const (
	stepTransfer step = iota // read or write what is left
	stepBounced              // the same through aligned memory; a worker's
	stepSync                 // fdatasync
	stepZeroRange
	stepPunch   // a hole, which reads as zeroes
	stepDiscard // of a block device
	stepZeroes  // write zeroes; a worker's
)

// news is what an op in an inbox has to tell.
type news uint8

const (
	executed news = iota // a worker made the step; res is its result
	admitted             // its blocks are free, or it is its turn to flush: start the step
	shared               // the flush it waited for is over; err is the outcome
)

// op is an IO on its way. It belongs to its channel's reactor, except while it is with a worker or
// waits in the fence or for a flush.
type op struct {
	c    *channel
	io   *backend.IO
	next *op

	step     step
	news     news
	fenced   bool   // holds its blocks
	write    bool   // holds them alone
	polled   bool   // was given to the ring that polls
	res      int32  // of a worker's step, as io_uring has it
	flags    int    // RWF_*
	opened   uint32 // Disk.opened when the step was begun
	done     int64  // bytes transferred
	unwanted bool   // no step is begun any more
	dirty    bool   // Disk.dirty before this flush
	err      error
	span     span
	shares   opList // flushes that end with this one
	iov      []sys.Iovec
	cmd      Command // of a Driver
	cause    error   // what a Driver said of a step that failed
}

// opList is a first-in first-out list.
type opList struct{ head, tail *op }

func (l *opList) push(o *op) {
	o.next = nil
	if l.tail == nil {
		l.head = o
	} else {
		l.tail.next = o
	}
	l.tail = o
}

func (l *opList) pop() *op {
	o := l.head
	if o == nil {
		return nil
	}
	if l.head = o.next; l.head == nil {
		l.tail = nil
	}
	o.next = nil
	return o
}

// putBack makes o the first again.
func (l *opList) putBack(o *op) {
	if o.next = l.head; l.head == nil {
		l.tail = o
	}
	l.head = o
}

// inbox is a stack that any goroutine may push to and its channel empties.
type inbox struct{ top atomic.Pointer[op] }

func (b *inbox) push(o *op) {
	for {
		o.next = b.top.Load()
		if b.top.CompareAndSwap(o.next, o) {
			return
		}
	}
}

// take empties the inbox, oldest first.
func (b *inbox) take() (first *op) {
	if b.top.Load() == nil {
		return nil
	}
	for o := b.top.Swap(nil); o != nil; {
		o.next, first, o = first, o, o.next
	}
	return first
}

// vectors makes o.iov of what is left to transfer, at most as many as one call takes, and returns
// it. The memory of the array stays.
func (o *op) vectors() []sys.Iovec {
	o.iov = o.iov[:0]
	skip := o.done
	for i := range o.io.Segs {
		b := o.io.Segs[i].B
		if n := int64(len(b)); skip >= n {
			skip -= n
			continue
		}
		o.iov = append(o.iov, sys.Iovec{})
		sys.SetIovec(&o.iov[len(o.iov)-1], b[skip:])
		if skip = 0; len(o.iov) == sys.MaxIovecs {
			break
		}
	}
	return o.iov
}

// whole makes o.iov of b alone and returns it.
func (o *op) whole(b []byte) []sys.Iovec {
	o.iov = append(o.iov[:0], sys.Iovec{})
	sys.SetIovec(&o.iov[0], b)
	return o.iov
}

// one is what is left to transfer, if it is in one piece.
func (o *op) one() []byte {
	if len(o.io.Segs) != 1 {
		return nil
	}
	return o.io.Segs[0].B[o.done:]
}

// aligned reports that O_DIRECT takes these segments as they are, or is not used.
func (d *Disk) aligned(segs []mem.Segment) bool {
	if d.cfg.Memory == 0 {
		return true
	}
	mask := uint64(d.cfg.Memory - 1)
	for i := range segs {
		// The kernel checks every vector's address and length.
		if mem.Addr(segs[i].B)&mask != 0 || len(segs[i].B)&(d.cfg.Offset-1) != 0 {
			return false
		}
	}
	return true
}
