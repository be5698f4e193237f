package reactor

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// watch is a watched descriptor. An event carries the generation of its watch. It is dropped if the
// descriptor was unwatched and closed and its number reused within the same batch.
type watch struct {
	fn  func(events uint32)
	gen int32
}

type watches struct {
	byFD []watch
	n    int
	gen  int32
}

// Watch calls fn on the reactor whenever fd has one of the epoll events (EPOLLIN, ...; EPOLLERR and
// EPOLLHUP always), with the events present. It is level-triggered unless events has EPOLLET. The
// caller unwatches fd before closing it. A busy reactor takes events once in a few milliseconds.
func (r *Reactor) Watch(fd int, events uint32, fn func(events uint32)) error {
	w := &r.watches
	if fd < 0 {
		return fmt.Errorf("reactor %d: watch descriptor %d: %w", r.cfg.Index, fd, unix.EBADF)
	}
	gen := w.gen + 1
	if err := r.control(unix.EPOLL_CTL_ADD, "watch", fd, events, gen); err != nil {
		return err
	}
	w.gen = gen
	for len(w.byFD) <= fd {
		w.byFD = append(w.byFD, watch{})
	}
	w.byFD[fd] = watch{fn: fn, gen: gen}
	w.n++
	return nil
}

// Unwatch ends a Watch: its function is not called again, even for known events. An error means
// that the descriptor was not watched or is closed; the watch is removed in any case.
func (r *Reactor) Unwatch(fd int) error {
	if !r.watches.has(fd) {
		return fmt.Errorf("reactor %d: unwatch descriptor %d: %w", r.cfg.Index, fd, unix.ENOENT)
	}
	r.watches.byFD[fd] = watch{}
	r.watches.n--
	return r.control(unix.EPOLL_CTL_DEL, "unwatch", fd, 0, 0)
}

func (w *watches) has(fd int) bool { return fd >= 0 && fd < len(w.byFD) && w.byFD[fd].fn != nil }

func (r *Reactor) control(op int, what string, fd int, events uint32, gen int32) error {
	ev := unix.EpollEvent{Events: events, Fd: int32(fd), Pad: gen}
	if err := unix.EpollCtl(r.epfd, op, fd, &ev); err != nil {
		return fmt.Errorf("reactor %d: %s descriptor %d: epoll_ctl: %w", r.cfg.Index, what, fd, err)
	}
	return nil
}

// pollEvents runs the callbacks of descriptors that are ready now.
func (r *Reactor) pollEvents() int {
	n, err := unix.EpollWait(r.epfd, r.events[:], 0)
	if err != nil {
		return 0 // EINTR, or an error that the next sleep reports
	}
	return r.dispatch(n)
}

// dispatch runs the callbacks of n events and returns their number. The eventfd has none but
// counts, so that pollers that arm in several steps look again before they go on.
func (r *Reactor) dispatch(n int) int {
	ran := 0
	for i := 0; i < n; i++ {
		ev := r.events[i]
		if int(ev.Fd) == r.evfd {
			ran++
			continue
		}
		if fd := int(ev.Fd); r.watches.has(fd) && r.watches.byFD[fd].gen == ev.Pad {
			fn := r.watches.byFD[fd].fn
			r.steps.begin()
			fn(ev.Events)
			r.steps.end(fn)
			ran++
		}
	}
	return ran
}
