package wire

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// A descriptor is FD of a Conn: an epoll set of an eventfd for Wake, a timerfd, and sockets.
type descriptor struct {
	epoll, event, timer int
	events              [8]unix.EpollEvent
	woken               atomic.Bool
	more                bool // see Conn.More
	// want is the time the timer has to fire, armed the time it will; 0 is never. armed may be
	// earlier than want: deadlines mostly move away, and a system call for each costs more than a
	// needless wake-up.
	want, armed time.Duration
	now         func() time.Duration
}

func openDescriptor(now func() time.Duration) (*descriptor, error) {
	d := &descriptor{timer: -1, now: now}
	var err error
	if d.epoll, d.event, err = sys.EpollEvent(); err != nil {
		return nil, err
	}
	d.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		d.close()
		return nil, fmt.Errorf("timerfd_create: %w", err)
	}
	if err := d.watch(unix.EPOLL_CTL_ADD, d.timer, unix.EPOLLIN|unix.EPOLLET); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

// watch adds, changes or removes a descriptor of the epoll set.
func (d *descriptor) watch(op, fd int, events uint32) error {
	event := unix.EpollEvent{Events: events, Fd: int32(fd)}
	if err := unix.EpollCtl(d.epoll, op, fd, &event); err != nil {
		return fmt.Errorf("epoll_ctl: %w", err)
	}
	return nil
}

func (d *descriptor) close() {
	for _, fd := range []int{d.epoll, d.event, d.timer} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

func (d *descriptor) FD() int { return d.epoll }

// More is Conn.More.
func (d *descriptor) More() bool { return d.more }

var one = binary.NativeEndian.AppendUint64(nil, 1)

// Wake is Conn.Wake. Only the first call since the last Recv writes.
func (d *descriptor) Wake() {
	if !d.woken.Swap(true) {
		_, _ = unix.Write(d.event, one) // the counter has room for 2^64
	}
}

// ready returns the descriptors that are ready, after it has dealt with event and timer. A Wake at
// the same time may write nothing because woken is still set: its caller has left its work before,
// and the caller of Recv looks for work afterwards.
func (d *descriptor) ready() []unix.EpollEvent {
	n, e := sys.EpollWait(d.epoll, d.events[:], 0)
	if e != 0 { // EINTR
		return nil
	}
	for i := range d.events[:n] {
		switch int(d.events[i].Fd) {
		case d.event:
			d.woken.Store(false)
		case d.timer:
			d.armed = 0
			if d.want > d.now() {
				d.arm(d.want)
			}
		}
	}
	return d.events[:n]
}

// setTimer makes the descriptor readable at the given time, or never.
func (d *descriptor) setTimer(at time.Duration) {
	d.want = at
	if d.armed == 0 && at != 0 || at < d.armed {
		d.arm(at)
	}
}

func (d *descriptor) arm(at time.Duration) {
	d.armed = at
	var wait unix.Timespec // 0 stops it
	if at != 0 {
		wait = unix.NsecToTimespec(int64(max(at-d.now(), 1)))
	}
	for {
		err := unix.TimerfdSettime(d.timer, 0, &unix.ItimerSpec{Value: wait}, nil)
		if err != syscall.EINTR {
			return
		}
	}
}
