package tcp

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// readiness tells a group which of its connections that it does not poll directly have something to
// do. It is an epoll set of the group's own, so that a group with a thousand connections asks for
// all of them in one call, as often as that pays; the reactor watches the set as one descriptor and
// so is woken by all of them.
type readiness struct {
	epfd   int
	byFD   []*queue
	events [maxReady]unix.EpollEvent
	// pause is how many polls to let pass between two looks, and left how many of them are still to
	// come. A look that found a connection makes the next one come at once, one in vain doubles the
	// pause.
	pause, left int
	moved       int   // bytes sent and received since the last look
	found       int64 // when a look last found one
	watched     bool
}

const (
	maxReady = 128 // events taken at once
	maxPause = 64
	// lookBytes is how much may be moved between two looks, however few polls that takes: others
	// wait meanwhile.
	lookBytes = 64 << 10
	// crowdTime is how long a connection that was found counts among those that are served in turn:
	// the reactor's clock is as coarse.
	crowdTime = int64(2 * time.Millisecond)
	// socketEvents are watched edge-triggered, once for the life of a connection.
	socketEvents = unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET
)

func (s *readiness) init() (err error) {
	if s.epfd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("tcp: epoll_create1: %w", err)
	}
	return nil
}

// join makes the events of the queue's socket known from now on.
func (g *Group) join(q *queue) error {
	s := &g.sockets
	if !s.watched {
		if err := g.loop.Watch(s.epfd, unix.EPOLLIN, g.onReady); err != nil {
			return err
		}
		s.watched = true
	}
	ev := unix.EpollEvent{Events: socketEvents, Fd: int32(q.fd)}
	if err := unix.EpollCtl(s.epfd, unix.EPOLL_CTL_ADD, q.fd, &ev); err != nil {
		return fmt.Errorf("tcp: epoll_ctl: %w", err)
	}
	for len(s.byFD) <= q.fd {
		s.byFD = append(s.byFD, nil)
	}
	s.byFD[q.fd] = q
	return nil
}

// part undoes join, before the socket is closed.
func (g *Group) part(q *queue) {
	s := &g.sockets
	s.byFD[q.fd] = nil
	_ = unix.EpollCtl(s.epfd, unix.EPOLL_CTL_DEL, q.fd, nil)
}

// mayLook looks if some connections are not polled directly and it is time to.
func (g *Group) mayLook() {
	s := &g.sockets
	if len(g.queues) == len(g.hot) {
		return
	}
	if s.left--; s.left > 0 && s.moved < lookBytes {
		return
	}
	s.moved = 0
	hot := len(g.hot)
	if g.look(); len(g.hot) > hot {
		s.pause, s.found = 0, g.loop.Now()
	} else {
		s.pause = min(2*s.pause+1, maxPause)
	}
	s.left = s.pause
}

// look hands out the events there are, at most maxReady of them: the rest is found by the next
// look, and keeps the reactor awake.
func (g *Group) look() {
	s := &g.sockets
	n, _ := unix.EpollWait(s.epfd, s.events[:], 0)
	for i := 0; i < n; i++ {
		if q := s.byFD[s.events[i].Fd]; q != nil {
			q.event(s.events[i].Events)
		}
	}
}

// crowded says that others want their turn, or did a moment ago.
func (g *Group) crowded() bool {
	return len(g.hot) > 1 || g.loop.Now()-g.sockets.found < crowdTime
}

// closeReadiness frees the set; no connection is left in it.
func (g *Group) closeReadiness() error {
	s := &g.sockets
	if s.epfd < 0 {
		return nil
	}
	if s.watched {
		_ = g.loop.Unwatch(s.epfd)
	}
	err := unix.Close(s.epfd)
	s.epfd = -1
	return err
}
