package wrap

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// timer wakes a reactor at a time. It is a timerfd, since Go's timers may be a millisecond late.
type timer struct {
	fd    int
	file  *os.File // owns fd
	spec  unix.ItimerSpec
	ended chan struct{}
}

func newTimer(wake func()) (*timer, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("timer: %w", err)
	}
	t := &timer{fd: fd, file: os.NewFile(uintptr(fd), "timer"), ended: make(chan struct{})}
	go t.run(wake)
	return t, nil
}

func (t *timer) run(wake func()) {
	defer close(t.ended)
	var expirations [8]byte
	for {
		if _, err := t.file.Read(expirations[:]); err != nil {
			return // closed
		}
		wake()
	}
}

// set makes the timer expire once, after d, which is positive. It replaces an earlier setting.
func (t *timer) set(d time.Duration) error {
	t.spec.Value = unix.NsecToTimespec(int64(d))
	return unix.TimerfdSettime(t.fd, 0, &t.spec, nil)
}

// close stops the timer and waits until wake is not running.
func (t *timer) close() error {
	err := t.file.Close()
	<-t.ended
	return err
}
