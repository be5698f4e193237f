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

// checkInterval is the time between checks of the size of a disk.
const checkInterval = time.Second

// watcher notices by a goroutine that a disk changes or goes offline. It alone changes Disk.info.
//
// A disk that is offline (its size is zero) may come back. Then Reopen opens it again, and the new
// file gets the number of the old descriptor, so users of that number continue; rings see from
// Disk.opened that they have to add the file again. The cache content of the disk is lost. So if
// the disk had writes that no flush has covered, no more are accepted.
type watcher struct {
	kick  chan struct{} // check now
	stop  chan struct{}
	ended chan struct{}

	mu     sync.Mutex // held while notify runs
	notify func()     // under mu

	lastErr string // the last logged reason why the disk does not come back
}

func (d *Disk) startWatch() {
	w := &d.watch
	w.kick, w.stop, w.ended = make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(w.ended)
		tick := time.NewTicker(checkInterval)
		defer tick.Stop()
		for {
			select {
			case <-w.stop:
				return
			case <-tick.C:
			case <-w.kick:
			}
			d.check()
		}
	}()
}

// stopWatch waits for the watcher, but not forever: fstat may not return on a network file system.
func (d *Disk) stopWatch() {
	if d.watch.stop == nil {
		return
	}
	close(d.watch.stop)
	select {
	case <-d.watch.ended:
	case <-time.After(checkInterval):
	}
}

// CheckNow makes the disk check its size now, not within a second. Any goroutine may call it.
func (d *Disk) CheckNow() {
	select {
	case d.watch.kick <- struct{}{}:
	default: // a check is pending, or there is no watcher
	}
}

// Notify implements backend.Changer.
func (d *Disk) Notify(fn func()) {
	d.watch.mu.Lock()
	d.watch.notify = fn
	d.watch.mu.Unlock()
}

// check compares the disk with its description.
func (d *Disk) check() {
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
		d.wentOffline()
	case now.Offline && d.cfg.Reopen != nil && d.reopen(&now):
		d.cfg.Log.Warn("a disk is back", "path", d.cfg.Path, "size", now.Size)
	case !now.Offline && old.Offline:
		d.cfg.Log.Warn("a disk has content again", "path", d.cfg.Path, "size", now.Size)
	case now.Size != old.Size:
		d.cfg.Log.Warn("the size of a disk changed", "path", d.cfg.Path, "old_size", old.Size,
			"size", now.Size)
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

// sizeNow returns the size in whole blocks, 0 if the disk is offline. Any goroutine.
func (d *Disk) sizeNow() int64 {
	size, err := d.cfg.Size(d.cfg.FD)
	if err != nil {
		return 0
	}
	return size - size%int64(d.cfg.Info.BlockSize)
}

// InPlace implements backend.Replaceable for files, which can be deleted or replaced.
func (d *Disk) InPlace() error {
	var open, at unix.Stat_t
	if err := unix.Fstat(d.cfg.FD, &open); err != nil || open.Mode&unix.S_IFMT != unix.S_IFREG {
		return err
	}
	err := unix.Stat(d.cfg.Path, &at)
	if err == nil && (at.Dev != open.Dev || at.Ino != open.Ino) {
		err = errors.New("another file is there")
	}
	if err != nil {
		return backend.WithHint(fmt.Errorf("%s: the file was moved or deleted, and is still "+
			"served: %w", d.cfg.Path, err), "Move it back, or copy its content on a host and "+
			"restart the target.")
	}
	return nil
}

// wentOffline is called when the disk is offline. The content of its cache is lost.
func (d *Disk) wentOffline() {
	d.cfg.Log.Error("a disk is offline", "path", d.cfg.Path)
	if d.cfg.Block && d.cfg.Info.VolatileCache && d.dirty.Load() {
		d.syncFailed(fmt.Errorf("%s: offline with writes in its cache: %w", d.cfg.Path,
			backend.ErrOffline))
	}
}

// reopen replaces the descriptor of an offline disk by the one now in its place, and describes it.
func (d *Disk) reopen(info *backend.Info) bool {
	w := &d.watch
	c, err := d.cfg.Reopen()
	if err == nil {
		err = unix.Dup3(c.FD, d.cfg.FD, unix.O_CLOEXEC)
		_ = unix.Close(c.FD)
	}
	if err != nil {
		if text := err.Error(); text != w.lastErr {
			w.lastErr = text
			d.cfg.Log.Error("a disk that is offline cannot be opened again", "path", d.cfg.Path,
				"err", err)
		}
		return false
	}
	w.lastErr = ""
	d.opened.Add(1)
	*info = c.Info
	return true
}

// stepError returns the error of a step of o that failed with e, or that transferred nothing if e
// is 0. It is not an error of the medium if the disk is offline or has shrunk.
func (c *channel) stepError(o *op, e syscall.Errno) error {
	d, io := c.d, o.io
	at := io.Off + o.done
	if d.cfg.Size != nil && (d.cfg.Block || e == 0) {
		size := d.sizeNow()
		switch {
		case size == 0 || o.opened != d.opened.Load():
			d.CheckNow()
			return fmt.Errorf("%s: %v at %d: %w", d.cfg.Path, io.Op, at, backend.ErrOffline)
		case io.Op != backend.OpFlush && io.Off+io.Len > size:
			d.CheckNow()
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

// removed reports whether an error is of an offline disk. wentOffline finds lost writes then.
func (d *Disk) removed(err error) bool {
	return d.cfg.Reopen != nil && errors.Is(err, backend.ErrOffline)
}
