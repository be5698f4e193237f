package marks

import (
	"errors"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/list"
)

// ErrMarked is the error for reads of a marked block. It is not an error of the medium.
var ErrMarked = errors.New("the block is marked by Write Uncorrectable")

// channel is that of a namespace that has had marks. It handles IOs for or after the device.
type channel struct {
	backend.Channel
	u        *Marks
	wake     func()
	size     func() int64
	volatile bool
	held     map[*backend.IO]bool // not in the device
	// writes has the writes of marked blocks, and the newest id of their marks when they began.
	// They remove no newer marks: another write of the blocks may have come between.
	writes map[*backend.IO]uint64
	stored list.Inbox[backend.IO]
	done   list.List[backend.IO]
}

// Marked reports whether any of the n bytes at off is marked.
func (u *Marks) Marked(off, n int64) bool {
	_, _, marked := u.now.Load().find(off, off+n)
	return marked
}

// Wrap returns a channel that checks for marks, in place of c, on the same reactor; wake wakes it.
// IOs already in the device are concurrent with the IO that marks, and may be ordered before it.
// size returns the bytes of the device; volatile is backend.Info.Volatile.
func (u *Marks) Wrap(c backend.Channel, wake func(), size func() int64, volatile bool,
) backend.Channel {
	return &channel{
		Channel: c, u: u, wake: wake, size: size, volatile: volatile,
		held: map[*backend.IO]bool{}, writes: map[*backend.IO]uint64{},
	}
}

func (c *channel) Submit(ios []*backend.IO) int {
	n := c.submit(ios)
	for _, io := range ios[n:] {
		delete(c.writes, io) // it may never come again
	}
	return n
}

// submit is Submit, but for the writes that the device has not taken.
func (c *channel) submit(ios []*backend.IO) int {
	m, from := *c.u.now.Load(), 0
	for i, io := range ios {
		at, newest, marked := m.find(io.Off, io.Off+io.Len)
		switch {
		case io.Op == backend.OpWriteUncorrectable:
		case !marked || io.Op > backend.OpWrite && io.Op != backend.OpWriteZeroes:
			continue
		case io.Op != backend.OpRead:
			io.Flags |= backend.FUA // a block without its mark must be durable
			c.writes[io] = newest
			continue
		}
		if from < i { // in order
			if from += c.Channel.Submit(ios[from:i]); from < i {
				return from
			}
		}
		from = i + 1
		c.held[io] = true
		if io.Op == backend.OpRead {
			io.Err = &backend.Fault{Off: at, Err: ErrMarked}
			c.done.Push(io, &io.Node)
		} else if io.Err = io.Check(c.size()); io.Err != nil || c.change(io, 0) {
			c.done.Push(io, &io.Node)
		}
	}
	if from < len(ios) {
		from += c.Channel.Submit(ios[from:])
	}
	return from
}

func (c *channel) Poll(done []*backend.IO) int {
	c.stored.Take(&c.done)
	n := c.done.Fill(done)
	for _, io := range done[:n] {
		delete(c.held, io)
	}
	for _, io := range done[n : n+c.Channel.Poll(done[n:])] {
		newest, marked := c.writes[io]
		delete(c.writes, io)
		if marked && io.Err == nil && c.u.Marked(io.Off, io.Len) && !c.change(io, newest) {
			c.held[io] = true
			continue
		}
		done[n] = io
		n++
	}
	return n
}

// change changes the marks of an IO's blocks; a write removes marks up to id. It returns false if
// that has to wait.
func (c *channel) change(io *backend.IO, id uint64) bool {
	m := &change{
		mark: mark{backend.Range{Off: io.Off, End: io.Off + io.Len}, id},
		add:  io.Op == backend.OpWriteUncorrectable,
	}
	if c.volatile {
		io.Err = c.u.change(m)
		return true
	}
	m.done = func(err error) {
		io.Err = err
		c.stored.Push(io, &io.Node)
		c.wake()
	}
	c.u.keep(m)
	return false
}

func (c *channel) Arm() bool {
	return c.done.Empty() && c.Channel.Arm() && c.stored.Empty()
}

func (c *channel) Cancel(io *backend.IO) {
	if d, ok := c.Channel.(backend.Canceler); ok && !c.held[io] {
		d.Cancel(io)
	}
}
