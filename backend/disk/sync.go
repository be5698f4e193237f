package disk

import (
	"fmt"
	"sync"
	"syscall"

	"github.com/nvmf-target/nvmf-target/backend"
)

// syncer serialises flushes: the kernel reports a failure to one of two callers only. Those that
// come while one is in progress, which may have begun before the writes they cover, share the next.
type syncer struct {
	mu    sync.Mutex
	busy  bool   // under mu
	queue opList // under mu
}

// flush begins a flush for o, or lets it share the next one.
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
		d.sync.queue.push(o)
	}
	d.sync.busy = true
	d.sync.mu.Unlock()
	if !wait {
		c.ready.push(o)
	}
}

// synced ends the flush of o and of those that share it, and has the next one begin.
func (c *channel) synced(o *op, res int32) {
	d := c.d
	var err error
	if d.cfg.Reopen != nil && res < 0 && !o.dirty && d.sizeNow() == 0 { // there was nothing to lose
		d.lookSoon()
		err = fmt.Errorf("%s: %v: %w", d.cfg.Path, o.io.Op, backend.ErrOffline)
	} else if res < 0 {
		err := fmt.Errorf("%s: fdatasync: %w: %w", d.cfg.Path, backend.ErrIO, syscall.Errno(-res))
		if o.cause != nil {
			err = fmt.Errorf("%s: flush: %w", d.cfg.Path, o.cause)
			o.cause = nil
		}
		d.syncFailed(err)
	}
	if failed := d.failed.Load(); failed != nil {
		err = *failed
	}
	d.sync.mu.Lock()
	next := d.sync.queue.pop()
	if next != nil {
		next.shares, d.sync.queue = d.sync.queue, opList{}
	}
	d.sync.busy = next != nil
	d.sync.mu.Unlock()
	if next != nil {
		next.c.deliver(next, admitted)
	}
	for s := o.shares.pop(); s != nil; s = o.shares.pop() {
		s.err = err
		s.c.deliver(s, shared)
	}
	c.end(o, err)
}
