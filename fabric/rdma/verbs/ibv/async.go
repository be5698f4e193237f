//go:build cgo

package ibv

// #include "bind.h"
import "C"

import (
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

// watchers are those who want the asynchronous events of a device. One goroutine reads them while
// there are any: an event can be read only once, and freeing a queue waits until its events are
// acknowledged.
type watchers struct {
	mu   sync.Mutex
	fns  []*func(verbs.AsyncEvent)
	cqs  map[*C.struct_ibv_cq]*cq
	srqs map[*C.struct_ibv_srq]*srq
	file *os.File // duplicate of the descriptor, for the runtime to watch
	done chan struct{}
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
		// Read returns when the file is closed, or when events cannot be read because the device is
		// gone.
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

// readAsync takes all events there are. False: no more will come.
func (d *device) readAsync() bool {
	w := &d.watchers
	for {
		var e C.struct_vb_async
		// Until the acknowledgement what the event names is not freed.
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
		if c := w.cqs[e.cq]; c != nil {
			ev.CQ = c
		}
		if s := w.srqs[e.srq]; s != nil {
			ev.SRQ = s
		}
		fns := slices.Clone(w.fns)
		w.mu.Unlock()
		C.ibv_ack_async_event(&e.event)
		for _, fn := range fns {
			(*fn)(ev)
		}
	}
}

// known notes a completion queue for events; forget undoes that.
func (w *watchers) known(c *cq) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cqs == nil {
		w.cqs = make(map[*C.struct_ibv_cq]*cq)
	}
	w.cqs[c.c] = c
}

func (w *watchers) forget(c *cq) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.cqs, c.c)
}

// knownSRQ notes a shared receive queue for events; forgetSRQ undoes that.
func (w *watchers) knownSRQ(s *srq) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.srqs == nil {
		w.srqs = make(map[*C.struct_ibv_srq]*srq)
	}
	w.srqs[s.c] = s
}

func (w *watchers) forgetSRQ(s *srq) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.srqs, s.c)
}
