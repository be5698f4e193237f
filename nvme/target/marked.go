package target

import (
	"errors"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// errUncorrectable is why a marked block is not read. It is no error of the medium: neither the
// health log (Media and Data Integrity Errors, Base section 5.1.12.1.3) nor the log counts it.
var errUncorrectable = errors.New("the block is marked by Write Uncorrectable")

// withUncorrectable: a mark that a restart would end is none.
func withUncorrectable(c *controller) bool { return onIO(c) && c.t.marks != nil }

// prepareWriteUncorrectable checks a Write Uncorrectable command, which transfers nothing. What it
// may mark at once is no more than what may be marked in all.
func prepareWriteUncorrectable(c *cmd) nvme.Status {
	_, st := c.extent(backend.OpWriteUncorrectable)
	switch {
	case !st.OK():
		return st
	case c.req.SQE.RW().Flags()&nvme.RWDirective != 0:
		return invalidField // no directives (Base section 8.1.8)
	}
	return c.expect(0)
}

func executeWriteUncorrectable(h *Handler, c *cmd) {
	c.ch.ns.marks.begin()
	executeIO(h, c)
}

// markedChannel is the channel of a device whose namespace has had marks. It takes IOs in place of
// the device, or after it.
type markedChannel struct {
	backend.Channel
	u        *uncorrectable
	wake     func()
	geo      func() *geometry
	volatile bool
	held     map[*backend.IO]bool // that the device does not have
	stored   list.Inbox[backend.IO]
	done     list.List[backend.IO]
}

// mark makes the channel look for marks from now on. What the device has already was there at the
// same time as the command that marks, and may come before it.
func (ch *channel) mark() {
	ch.marked = true
	ch.dev = &markedChannel{
		Channel: ch.dev, u: ch.ns.marks, wake: ch.h.reactor.Wake, geo: ch.ns.geo.Load,
		volatile: ch.ns.geo.Load().info.Volatile, held: map[*backend.IO]bool{},
	}
}

// Submit implements backend.Channel.
func (c *markedChannel) Submit(ios []*backend.IO) int {
	m, from := *c.u.now.Load(), 0
	for i, io := range ios {
		at, marked := m.find(io.Off, io.Off+io.Len)
		switch {
		case io.Op == backend.OpWriteUncorrectable:
		case !marked || io.Op > backend.OpWrite && io.Op != backend.OpWriteZeroes:
			continue
		case io.Op != backend.OpRead:
			io.Flags |= backend.FUA // what has no mark any more must be there after a power failure
			continue
		}
		if from < i { // in their order
			if from += c.Channel.Submit(ios[from:i]); from < i {
				return from
			}
		}
		from = i + 1
		c.held[io] = true
		if io.Op == backend.OpRead {
			io.Err = &backend.Fault{Off: at, Err: errUncorrectable}
			c.done.Push(io, &io.Node)
		} else if io.Err = io.Check(c.geo().size()); io.Err != nil || c.change(io) {
			c.done.Push(io, &io.Node)
		}
	}
	if from < len(ios) {
		from += c.Channel.Submit(ios[from:])
	}
	return from
}

// Poll implements backend.Channel.
func (c *markedChannel) Poll(done []*backend.IO) int {
	c.stored.Take(&c.done)
	n := c.done.Fill(done)
	for _, io := range done[:n] {
		delete(c.held, io)
	}
	for _, io := range done[n : n+c.Channel.Poll(done[n:])] {
		if c.written(io) && !c.change(io) {
			c.held[io] = true
			continue
		}
		done[n] = io
		n++
	}
	return n
}

// written says that an IO has changed marked blocks. If its data may be lost, the mark has come
// while the device had it: the write was before.
func (c *markedChannel) written(io *backend.IO) bool {
	if io.Err != nil || io.Op != backend.OpWrite && io.Op != backend.OpWriteZeroes ||
		!c.volatile && io.Flags&backend.FUA == 0 {
		return false
	}
	_, marked := c.u.now.Load().find(io.Off, io.Off+io.Len)
	return marked
}

// change changes the marks of the blocks of an IO. If it returns false, that is not done yet.
func (c *markedChannel) change(io *backend.IO) bool {
	m := &markChange{
		ByteRange: ByteRange{io.Off, io.Off + io.Len}, add: io.Op == backend.OpWriteUncorrectable,
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
	c.u.store(m)
	return false
}

// Arm implements backend.Channel.
func (c *markedChannel) Arm() bool {
	return c.done.Empty() && c.Channel.Arm() && c.stored.Empty()
}

// Cancel implements backend.Canceler.
func (c *markedChannel) Cancel(io *backend.IO) {
	if d, ok := c.Channel.(backend.Canceler); ok && !c.held[io] {
		d.Cancel(io)
	}
}
