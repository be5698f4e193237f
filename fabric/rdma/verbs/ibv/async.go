//go:build cgo

package ibv

// #include "bind.h"
import "C"

import (
	"os"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

// watchers are the functions that get the asynchronous events of a device. One goroutine reads the
// events while there are any: an event can be read only once, and freeing a queue waits until its
// events are acknowledged.
type watchers struct {
	mu      sync.Mutex
	fns     []*func(verbs.AsyncEvent)
	objects map[unsafe.Pointer]any // *cq and *srq by C address
	file    *os.File               // duplicate of the descriptor, for the runtime to watch
	done    chan struct{}
}

func (d *device) Watch(fn func(verbs.AsyncEvent)) (stop func(), err error) {
	w := &d.watchers
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.fns) == 0 {
		if err := d.startWatch(); err != nil {
			return nil, failErr("fcntl", err, "asynchronous events of %s", d.attr.Name)
		}
	}
	entry := &fn
	w.fns = append(w.fns, entry)
	return func() { d.unwatch(entry) }, nil
}

// startWatch starts the goroutine, with watchers.mu held.
func (d *device) startWatch() error {
	file, raw, err := watchable(int(d.ctx.async_fd), "asynchronous events")
	if err != nil {
		return err
	}
	w := &d.watchers
	done := make(chan struct{})
	w.file, w.done = file, done
	go func() {
		defer close(done)
		// Read returns when the file is closed, or when the device was removed and has no more
		// events.
		_ = raw.Read(func(uintptr) bool { return !d.readAsync() })
	}()
	return nil
}

// unwatch ends one watcher, and the goroutine with the last one.
func (d *device) unwatch(entry *func(verbs.AsyncEvent)) {
	w := &d.watchers
	w.mu.Lock()
	before := len(w.fns)
	w.fns = slices.DeleteFunc(w.fns, func(x *func(verbs.AsyncEvent)) bool { return x == entry })
	last := before == 1 && len(w.fns) == 0
	file, done := w.file, w.done
	w.mu.Unlock()
	if last {
		_ = file.Close() // of a duplicate
		<-done
	}
}

// readAsync reads all pending events. It returns false if no more will come.
func (d *device) readAsync() bool {
	w := &d.watchers
	for {
		var e C.struct_vb_async
		// The object of the event is not freed before the acknowledgement.
		switch errno := unix.Errno(C.vb_get_async(d.ctx, &e)); errno {
		case 0:
		case unix.EAGAIN:
			return true
		case unix.EINTR:
			continue
		default:
			return false
		}
		ev := verbs.AsyncEvent{Type: verbs.AsyncType(e.event.event_type), QPNum: uint32(e.qp_num)}
		w.mu.Lock()
		ev.CQ, _ = w.objects[unsafe.Pointer(e.cq)].(verbs.CQ)
		ev.SRQ, _ = w.objects[unsafe.Pointer(e.srq)].(verbs.SRQ)
		w.mu.Unlock()
		w.pass(ev, func() { C.ibv_ack_async_event(&e.event) })
	}
}

// pass gives an event to the watchers and acknowledges it. Not in the other order: a queue pair
// that is freed in between may pass its number on to another one.
func (w *watchers) pass(ev verbs.AsyncEvent, acknowledge func()) {
	w.mu.Lock()
	fns := slices.Clone(w.fns)
	w.mu.Unlock()
	for _, fn := range fns {
		(*fn)(ev)
	}
	acknowledge()
}

// add registers a queue for events by its C address; remove undoes that.
func (w *watchers) add(c unsafe.Pointer, v any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.objects == nil {
		w.objects = make(map[unsafe.Pointer]any)
	}
	w.objects[c] = v
}

func (w *watchers) remove(c unsafe.Pointer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.objects, c)
}
