package disk

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
)

// lookEvery is how often a disk is asked how large it is.
const lookEvery = time.Second

// watcher notices on a goroutine of its own that a disk grows, shrinks, goes and comes back. It
// alone changes Disk.info.
//
// A disk that is gone (its size is zero) may come back. Then Reopen opens it again, and the new
// file takes the number of the old descriptor, so that whoever uses that number goes on; rings
// learn from Disk.opened that they have to look the file up again. What was in the cache of the
// disk is lost, so if it had writes that no flush has covered, none is accepted any more.
type watcher struct {
	kick  chan struct{} // look now
	stop  chan struct{}
	ended chan struct{}

	mu sync.Mutex // held while notify runs
	// notify is told of changes; under mu.
	notify func()

	told string // why the disk does not come back, as last logged
}

func (d *Disk) startWatch() {
	w := &d.watch
	w.kick, w.stop, w.ended = make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(w.ended)
		tick := time.NewTicker(lookEvery)
		defer tick.Stop()
		for {
			select {
			case <-w.stop:
				return
			case <-tick.C:
			case <-w.kick:
			}
			d.look()
		}
	}()
}

// stopWatch waits, but not for ever: file systems in a network may leave fstat without an answer.
func (d *Disk) stopWatch() {
	if d.watch.stop == nil {
		return
	}
	close(d.watch.stop)
	select {
	case <-d.watch.ended:
	case <-time.After(lookEvery):
	}
}

// lookSoon has the watcher look now. Any goroutine.
func (d *Disk) lookSoon() {
	select {
	case d.watch.kick <- struct{}{}:
	default: // it will, or nobody watches
	}
}

// Notify implements backend.Changer.
func (d *Disk) Notify(fn func()) {
	d.watch.mu.Lock()
	d.watch.notify = fn
	d.watch.mu.Unlock()
}

// look compares the disk with what is known of it.
func (d *Disk) look() {
	old := d.info.Load()
	now := *old
	if !old.Offline || d.cfg.Reopen == nil {
		size := d.sizeNow()
		if now.Offline = size == 0; !now.Offline {
			now.Size = size
		}
	}
	switch {
	case now.Offline && !old.Offline:
		d.lost()
	case now.Offline && d.cfg.Reopen != nil && d.reopen(&now):
		d.cfg.Log.Warn("a disk is back", "path", d.cfg.Path, "bytes", now.Size)
	case !now.Offline && old.Offline:
		d.cfg.Log.Warn("a disk has content again", "path", d.cfg.Path, "bytes", now.Size)
	case now.Size != old.Size:
		d.cfg.Log.Warn("the size of a disk changed", "path", d.cfg.Path, "bytes before", old.Size,
			"bytes", now.Size)
	}
	now.Degraded = d.failed.Load() != nil
	if now == *old {
		return
	}
	d.info.Store(&now)
	d.watch.mu.Lock()
	defer d.watch.mu.Unlock()
	if d.watch.notify != nil {
		d.watch.notify()
	}
}

// sizeNow is the present size in whole blocks, 0 if the disk is gone. Any goroutine.
func (d *Disk) sizeNow() int64 {
	size, err := d.cfg.Look(d.cfg.FD)
	if err != nil {
		return 0
	}
	return size - size%int64(d.cfg.Info.BlockSize)
}

// lost takes notice that the disk is gone, and the content of its cache with it.
func (d *Disk) lost() {
	d.cfg.Log.Error("a disk is gone", "path", d.cfg.Path)
	if d.cfg.Block && d.cfg.Info.VolatileCache && d.dirty.Load() {
		d.syncFailed(fmt.Errorf("%s: gone with writes in its cache: %w", d.cfg.Path,
			backend.ErrOffline))
	}
}

// reopen puts the disk that is there now into the place of the one that is gone, and describes it.
func (d *Disk) reopen(info *backend.Info) bool {
	w := &d.watch
	c, err := d.cfg.Reopen()
	if err == nil {
		err = unix.Dup3(c.FD, d.cfg.FD, unix.O_CLOEXEC)
		_ = unix.Close(c.FD)
	}
	if err != nil {
		if text := err.Error(); text != w.told {
			w.told = text
			d.cfg.Log.Error("a disk that is gone is not back", "path", d.cfg.Path, "error", err)
		}
		return false
	}
	w.told = ""
	d.opened.Add(1)
	*info = c.Info
	return true
}

// verdict is the error of a step of o that failed with e, or that came to the end of the disk, 0.
// The medium is not to blame if the disk is gone, or smaller than it was.
func (c *channel) verdict(o *op, e syscall.Errno) error {
	d, io := c.d, o.io
	at := io.Off + o.done
	if d.cfg.Look != nil && (d.cfg.Block || e == 0) {
		size := d.sizeNow()
		switch {
		case size == 0 || o.opened != d.opened.Load():
			d.lookSoon()
			return fmt.Errorf("%s: %v at %d: %w", d.cfg.Path, io.Op, at, backend.ErrOffline)
		case io.Op != backend.OpFlush && io.Off+io.Len > size:
			d.lookSoon()
			return fmt.Errorf("%s: %v at %d, the disk now ends at %d: %w", d.cfg.Path, io.Op, at,
				size, backend.ErrOutOfRange)
		}
	}
	if e == 0 {
		return fmt.Errorf("%s: %v at %d: nothing was transferred: %w", d.cfg.Path, io.Op, at,
			backend.ErrIO)
	}
	return o.failure(e)
}

// returns says that an error is about a disk that may come back, whose cache is judged when its
// absence is noticed.
func (d *Disk) returns(err error) bool {
	return d.cfg.Reopen != nil && errors.Is(err, backend.ErrOffline)
}
