package app

import (
	"time"
)

// healthEvery is the interval at which drives are asked, and the space of files is measured.
const healthEvery = time.Minute

// watch calls fn at intervals on its own goroutine until stop is called, which waits for fn.
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
