package disk

import (
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/list"
)

// syncer serializes flushes, because the kernel reports a failure to only one of two callers. A
// flush in progress may have begun before later writes. Flushes that come in the meantime share the
// next one.
type syncer struct {
	mu    sync.Mutex
	busy  bool          // under mu
	queue list.List[op] // under mu
}

// flush begins a flush for o, or makes o share the next one.
func (c *channel) flush(o *op) {
	d := c.d
	switch info := d.info.Load(); {
	case info.ReadOnly:
		c.end(o, nil)
		return
	case info.Offline:
		c.end(o, fmt.Errorf("%s: %v: %w", d.cfg.Path, o.io.Op, backend.ErrOffline))
		return
	}
	if err := d.failed.Load(); err != nil {
		c.end(o, *err)
		return
	}
	o.step = stepSync
	d.sync.mu.Lock()
	wait := d.sync.busy
	if wait {
		d.sync.queue.Push(o, &o.node)
	}
	d.sync.busy = true
	d.sync.mu.Unlock()
	if !wait {
		c.ready.Push(o, &o.node)
	}
}

// synced ends the flush of o and of the ops that share it, and starts the next one.
func (c *channel) synced(o *op, res int32) {
	d := c.d
	var err error
	if d.cfg.Reopen != nil && res < 0 && !o.dirty && d.sizeNow() == 0 { // there was nothing to lose
		d.CheckNow()
		err = fmt.Errorf("%s: %v: %w", d.cfg.Path, o.io.Op, backend.ErrOffline)
	} else if res < 0 {
		err = d.flushFailed(o, syscall.Errno(-res))
	}
	if failed := d.failed.Load(); failed != nil {
		err = *failed
	}
	d.sync.mu.Lock()
	next := d.sync.queue.Pop()
	if next != nil {
		next.followers, d.sync.queue = d.sync.queue, list.List[op]{}
	}
	d.sync.busy = next != nil
	d.sync.mu.Unlock()
	if next != nil {
		next.c.deliver(next, granted)
	}
	o.err = err
	c.shareOutcome(o)
}

// flushFailed returns the error of a flush. It is permanent, unless the drive has not carried the
// flush out: then its cache still has everything.
func (d *Disk) flushFailed(o *op, e syscall.Errno) error {
	cause := o.cause
	if o.cause = nil; cause == nil {
		cause = fmt.Errorf("fdatasync: %w", e)
	}
	if errors.Is(cause, backend.ErrAborted) {
		if o.dirty {
			d.dirty.Store(true)
		}
		return fmt.Errorf("%s: flush: %w", d.cfg.Path, cause)
	}
	err := fmt.Errorf("%s: flush: %w: %w", d.cfg.Path, backend.ErrIO, cause)
	d.syncFailed(err)
	return err
}

// shareOutcome ends a flush with o.err, and tells the flushes that share it.
func (c *channel) shareOutcome(o *op) {
	o.tell(shared)
	err := o.err
	o.err = nil
	c.end(o, err)
}
