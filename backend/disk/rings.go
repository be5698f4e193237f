package disk

import (
	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/uring"
)

// openRing acquires the ring of the reactor.
func (c *channel) openRing(r backend.Reactor) error {
	cfg := uring.Config{EventFD: r.EventFD, Commands: c.d.cfg.Driver != nil}
	if r.Memory != nil {
		cfg.Memory = r.Memory.Bytes()
	}
	ring, err := uring.Acquire(cfg)
	if err != nil {
		return err
	}
	c.d.unregistered(ring.Refused())
	c.ring = ring
	return nil
}

// startRing starts a step of o on the ring. It returns false if the ring is full.
func (c *channel) startRing(o *op) bool {
	if !c.added || c.opened != o.opened {
		c.addFile(o.opened)
	}
	if c.d.cfg.Driver != nil {
		return c.startCommand(o)
	}
	io, off := o.io, o.io.Off+o.done
	var u uring.Op
	switch o.step {
	case stepTransfer:
		b := o.contiguous()
		switch {
		case io.Op == backend.OpRead && b != nil:
			u = uring.Read(b, off)
		case io.Op == backend.OpRead:
			u = uring.Readv(o.vectors(), off)
		case b != nil:
			u = uring.Write(b, off, uint32(o.flags))
		default:
			u = uring.Writev(o.vectors(), off, uint32(o.flags))
		}
	case stepSync:
		u = uring.Datasync()
	case stepZeroRange:
		u = uring.Fallocate(zeroRange, io.Off, io.Len)
	case stepPunch:
		u = uring.Fallocate(punchHole, io.Off, io.Len)
	case stepDiscard:
		u = uring.Discard(io.Off, io.Len)
	}
	started := c.ring.Start(c.file, &u, o)
	o.slot = c.ring.Last()
	return started
}

// addFile adds the file to the ring, in place of the one before.
func (c *channel) addFile(opened uint32) {
	if c.added {
		_ = c.ring.RemoveFile(c.file) // operations in progress keep it open
	}
	c.file = c.ring.AddFile(c.d.cfg.FD)
	c.added, c.opened = true, opened
}
