package app

import (
	"time"
)

// healthEvery is the interval at which drives are asked for warnings, and the space of sparse files
// is measured.
const healthEvery = time.Minute

// watch calls fn at intervals, on a goroutine of its own, until stop is called. stop waits for the
// call in progress.
func watch(every time.Duration, fn func()) (stop func()) {
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		t := time.NewTicker(every)
		defer t.Stop()
		for {
			fn()
			select {
			case <-t.C:
			case <-quit:
				return
			}
		}
	}()
	return func() {
		close(quit)
		<-ended
	}
}
