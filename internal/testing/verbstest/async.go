package verbstest

import (
	"slices"
	"sync"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

// watcher is one call of Watch: events that wait for its goroutine.
type watcher struct {
	mu     sync.Mutex
	cond   *sync.Cond
	queue  []verbs.AsyncEvent
	closed bool
}

func (d *device) Watch(fn func(verbs.AsyncEvent)) (stop func(), err error) {
	d.f.lock()
	defer d.f.unlock()
	if err := d.call(CallWatch); err != nil {
		return nil, err
	}
	w := &watcher{}
	w.cond = sync.NewCond(&w.mu)
	d.watchers = append(d.watchers, w)
	d.host.live.Watchers++
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ev, ok := w.next(); ok; ev, ok = w.next() {
			fn(ev)
		}
	}()
	return func() {
		d.f.lock()
		d.watchers = slices.DeleteFunc(d.watchers, func(x *watcher) bool { return x == w })
		d.host.live.Watchers--
		d.f.unlock()
		w.mu.Lock()
		w.closed = true
		w.cond.Signal()
		w.mu.Unlock()
		<-done
	}, nil
}

func (w *watcher) next() (ev verbs.AsyncEvent, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.queue) == 0 && !w.closed {
		w.cond.Wait()
	}
	if w.closed {
		return ev, false
	}
	ev, w.queue = w.queue[0], w.queue[1:]
	return ev, true
}

// raise reports an event to the watchers.
func (d *device) raise(ev verbs.AsyncEvent) {
	for _, w := range d.watchers {
		w.mu.Lock()
		w.queue = append(w.queue, ev)
		w.cond.Signal()
		w.mu.Unlock()
	}
}

// Raise makes every device of a machine report an event, without any other effect.
func (f *Fabric) Raise(machine string, ev verbs.AsyncEvent) {
	f.lock()
	defer f.unlock()
	for _, d := range f.host(machine).devices {
		d.raise(ev)
	}
}
