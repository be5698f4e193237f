package disk

import (
	"errors"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/uring"
)

// openRings acquires the rings of the reactor: one, and a second one for transfers that are polled
// for.
func (c *channel) openRings(r backend.Reactor) error {
	e := c.d.cfg.Engine
	cfg := uring.Config{
		EventFD: r.EventFD, SQPoll: e.SQPoll, SQIdle: sqIdle,
		Commands: c.d.cfg.Driver != nil,
	}
	if r.Memory != nil {
		cfg.Memory = r.Memory.Bytes()
	}
	ring, err := uring.Acquire(cfg)
	if err != nil {
		return err
	}
	c.d.unregistered(ring.Refused())
	c.rings = []*uring.Ring{ring}
	if !e.IOPoll || c.d.cfg.Offset == 0 || cfg.Commands {
		return nil
	}
	cfg.IOPoll = true
	if ring, err = uring.Acquire(cfg); err != nil {
		err = errors.Join(err, c.rings[0].Release())
		c.rings = nil
		return err
	}
	c.rings = append(c.rings, ring)
	return nil
}

// startRing starts a step of o on a ring. It returns false if the ring is full.
func (c *channel) startRing(o *op) bool {
	if !c.added || c.opened != o.opened {
		c.addFiles(o.opened)
	}
	if c.d.cfg.Driver != nil {
		return c.startCommand(o)
	}
	io, off := o.io, o.io.Off+o.done
	var u uring.Op
	use := 0
	switch o.step {
	case stepTransfer:
		b := o.one()
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
		if len(c.rings) > 1 && !c.d.noIOPoll.Load() {
			use = 1
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
	o.polled = use == 1
	started := c.rings[use].Start(c.files[use], &u, o)
	o.slot = c.rings[use].Last()
	return started
}

// addFiles adds the file to the rings, in place of the one before.
func (c *channel) addFiles(opened uint32) {
	for i, r := range c.rings {
		if c.added {
			_ = r.RemoveFile(c.files[i]) // operations in progress keep it open
		}
		c.files[i] = r.AddFile(c.d.cfg.FD)
	}
	c.added, c.opened = true, opened
}
