package wrap

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// alarm wakes a reactor at a time. It is a timer of the kernel because those of Go are late by up
// to a millisecond.
type alarm struct {
	fd    int
	file  *os.File // owns fd
	spec  unix.ItimerSpec
	ended chan struct{}
}

func newAlarm(wake func()) (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("timer: %w", err)
	}
	a := &alarm{fd: fd, file: os.NewFile(uintptr(fd), "timer"), ended: make(chan struct{})}
	go a.run(wake)
	return a, nil
}

func (a *alarm) run(wake func()) {
	defer close(a.ended)
	var expirations [8]byte
	for {
		if _, err := a.file.Read(expirations[:]); err != nil {
			return // closed
		}
		wake()
	}
}

// set makes the alarm ring once after d, which is positive, and not when it was to ring before.
func (a *alarm) set(d time.Duration) error {
	a.spec.Value = unix.NsecToTimespec(int64(d))
	return unix.TimerfdSettime(a.fd, 0, &a.spec, nil)
}

// close returns when the alarm will not ring any more.
func (a *alarm) close() error {
	err := a.file.Close()
	<-a.ended
	return err
}
