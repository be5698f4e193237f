package wrap

import (
	"sync"
	"time"
)

// alarm wakes a reactor at a time. After stop it does not.
type alarm struct {
	mu      sync.Mutex
	stopped bool
	wake    func()
	timer   *time.Timer
}

func newAlarm(wake func()) *alarm {
	a := &alarm{wake: wake}
	a.timer = time.AfterFunc(time.Hour, a.ring)
	a.timer.Stop()
	return a
}

func (a *alarm) set(d time.Duration) { a.timer.Reset(d) }

func (a *alarm) ring() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.stopped {
		a.wake()
	}
}

func (a *alarm) stop() {
	a.timer.Stop()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stopped = true
}
