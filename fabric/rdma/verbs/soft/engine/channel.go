package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

// Channel is a completion channel: a verbs.CompChannel. Its descriptor is an epoll of an eventfd,
// which counts events, and of the sockets of engines with an armed CQ, unless the device has
// background goroutines. Nothing is read from the epoll, so readers may watch it level-triggered or
// edge-triggered: everything new for an engine makes a new edge.
type Channel struct {
	uses
	dev     *Device
	fd      int
	eventfd int
	count   [8]byte // for Drain

	mu        sync.Mutex  // taken when a CQ begins or ends to listen
	listeners map[int]int // armed CQs by engine; an engine that was listened to stays, with 0
}

// CreateCompChannel makes a completion channel.
func (d *Device) CreateCompChannel() (verbs.CompChannel, error) {
	fail := func(err error) (verbs.CompChannel, error) {
		return nil, fmt.Errorf("create completion channel: %w", err)
	}
	c := &Channel{dev: d, listeners: make(map[int]int)}
	var err error
	if c.eventfd, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
		return fail(err)
	}
	if c.fd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err == nil {
		if err = c.control(unix.EPOLL_CTL_ADD, c.eventfd, unix.EPOLLIN); err == nil {
			return c, nil
		}
		_ = unix.Close(c.fd)
	}
	_ = unix.Close(c.eventfd)
	return fail(err)
}

func (c *Channel) control(op, fd int, events uint32) error {
	return unix.EpollCtl(c.fd, op, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
}

// FD returns the descriptor.
func (c *Channel) FD() int { return c.fd }

// Drain takes the events and returns their number.
func (c *Channel) Drain() (int, error) {
	switch _, err := unix.Read(c.eventfd, c.count[:]); err {
	case nil:
		return int(binary.NativeEndian.Uint64(c.count[:])), nil
	case unix.EAGAIN:
		return 0, nil
	default:
		return 0, fmt.Errorf("drain completion channel: %w", err)
	}
}

var one = binary.NativeEndian.AppendUint64(nil, 1)

// signal adds an event.
func (c *Channel) signal() {
	if _, err := unix.Write(c.eventfd, one); err != nil {
		c.dev.fail(fmt.Errorf("signal completion channel: %w", err))
	}
}

// listen makes the descriptor readable when the engine has work, until unlisten was called as
// often.
func (c *Channel) listen(e *Engine) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, added := c.listeners[e.index]
	if n == 0 {
		op := unix.EPOLL_CTL_MOD
		if !added {
			op = unix.EPOLL_CTL_ADD
		}
		if err := c.control(op, e.conn.FD(), unix.EPOLLIN); err != nil {
			return fmt.Errorf("arm completion queue: %w", err)
		}
		e.sleepers.Add(1)
	}
	c.listeners[e.index] = n + 1
	return nil
}

func (c *Channel) unlisten(e *Engine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listeners[e.index]--
	if c.listeners[e.index] == 0 {
		e.sleepers.Add(-1)
		if err := c.control(unix.EPOLL_CTL_MOD, e.conn.FD(), 0); err != nil {
			c.dev.fail(fmt.Errorf("disarm completion queue: %w", err))
		}
	}
}

// Close frees the channel. EBUSY while a CQ uses it.
func (c *Channel) Close() error {
	if err := c.free(); err != nil {
		return fmt.Errorf("close completion channel: %w", err)
	}
	return errors.Join(unix.Close(c.fd), unix.Close(c.eventfd))
}

var (
	_ verbs.Device      = (*Device)(nil)
	_ verbs.PD          = (*PD)(nil)
	_ verbs.MR          = (*mr)(nil)
	_ verbs.CQ          = (*CQ)(nil)
	_ verbs.CompChannel = (*Channel)(nil)
	_ verbs.SRQ         = (*SRQ)(nil)
)
